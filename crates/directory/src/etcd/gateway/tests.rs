use super::watch::WatchAnswer;
use super::*;

#[test]
fn a_range_ends_behind_the_last_key_of_its_prefix() {
    assert_eq!(after_prefix("/a/"), b"/a0");
}

#[test]
fn answers_are_read_with_their_fields_left_out_or_in_either_form() {
    let text = r#"{"header":{"revision":"7"},"kvs":[{"key":"L2E=","mod_revision":"5"}]}"#;
    let range: RangeAnswer = serde_json::from_str(text).expect("a range");
    assert_eq!((range.header.revision, range.kvs[0].mod_revision), (7, 5));
    assert_eq!((range.kvs[0].key.as_str(), range.kvs[0].value.len()), ("/a", 0));
    let text = r#"{"events":[{"kv":{"key":"L2E="}},{"type":"DELETE","kv":{"key":"L2E="}}]}"#;
    let watch: WatchAnswer = serde_json::from_str(text).expect("events");
    assert_eq!(watch.events[0].put(), Some(&[][..]));
    assert_eq!(watch.events[1].put(), None);
}
