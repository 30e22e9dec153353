//! etcd's answers, and what it tells of changes.

use base64ct::{Base64, Encoding};
use directory::{View, take_answer};

use crate::input::Input;

/// Decodes an answer: one that is accepted can be read, any other is an error.
pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let status = input.u16();
    look_at(&take_answer(status, input.0));
}

fn look_at(view: &View) {
    for volume in view.volumes.values() {
        let _ = view.reach(volume);
        let _ = view.whereabouts(volume.host);
    }
    for (name, id) in &view.names {
        assert_eq!(view.named(name).is_some(), view.volumes.contains_key(id));
    }
}

/// A key with its value, as etcd has them.
fn put(key: &str, value: &str) -> String {
    let encode = |text: &str| Base64::encode_string(text.as_bytes());
    let (key, value) = (encode(&format!("/farflash/test/{key}")), encode(value));
    format!(r#"{{"key":"{key}","value":"{value}","mod_revision":"7"}}"#)
}

/// Each kind of answer, with records of each kind.
pub fn seeds() -> Vec<Vec<u8>> {
    const ID: &str = "6c7a9f2e-0b1d-4f60-8f3e-2b8a51c0d9aa";
    let name = put("names/a", &format!(r#""{ID}""#));
    let host = format!(
        r#"{{"id":"{ID}","name":"a","session":"{ID}","boot":"b","version":"1","api":"192.0.2.1:80",
        "discovery":null,"labels":{{"rack":"r1"}}}}"#
    );
    let host = put(&format!("hosts/{ID}"), &host);
    let volume = format!(
        r#"{{"id":"{ID}","name":"a","size_bytes":4096,"host":"{ID}","device":"{ID}","core":1,
        "portal":"192.0.2.1:4420","state":"ready","restrictions":null}}"#
    );
    let volume = put(&format!("volumes/{ID}"), &volume);
    let grants = put("grants/acme", "{}");
    let of_volume = put(&format!("volumes/{ID}"), "");
    let seeds = [
        (200, format!(r#"{{"header":{{"revision":"9"}},"kvs":[{name},{host}],"more":true}}"#)),
        (
            200,
            format!(
                r#"{{"succeeded":true,"responses":[{{"response_put":{{}}}},
                {{"response_range":{{"kvs":[{volume},{grants}]}}}}]}}"#
            ),
        ),
        (
            200,
            format!(
                r#"{{"result":{{"events":[{{"type":"PUT","kv":{name}}},{{"kv":{volume}}},
                {{"type":"DELETE","kv":{of_volume}}}]}}}}"#
            ),
        ),
        (200, r#"{"result":{"canceled":true,"cancel_reason":"compacted"}}"#.to_owned()),
        (200, r#"{"result":{"ID":"7587","TTL":"10"}}"#.to_owned()),
        (200, r#"{"ID":"7587","TTL":"10","token":"x.1"}"#.to_owned()),
        (401, r#"{"error":"invalid token","message":"invalid token","code":16}"#.to_owned()),
        (503, "no healthy upstream".to_owned()),
    ];
    let framed =
        |(status, body): &(u16, String)| [&status.to_le_bytes()[..], body.as_bytes()].concat();
    seeds.iter().map(framed).collect()
}
