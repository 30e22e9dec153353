//! etcd's answers without etcd, for `fuzz/`.

use cluster::WatchEvent;

use super::watch::WatchAnswer;
use super::*;
use crate::{EtcdCredentials, View};

/// Under which the keys of the view lie.
const PREFIX: &str = "/farflash/test/";

/// Takes a body for each of the answers that etcd gives, and what it tells into a view; then for an answer with `status`, if that
/// is none of success.
///
/// # Panics
/// If an answer is taken wrongly.
#[must_use]
pub fn take_answer(status: u16, body: &[u8]) -> View {
    let address = "etcd://127.0.0.1:2379/test".parse().expect("an address");
    let access = EtcdCredentials::default().open(&address).expect("nothing to read");
    let gateway = Gateway::new("127.0.0.1:2379".to_owned(), Duration::ZERO, access);
    let mut view = View::default();
    let mut put = |kv: &KeyValue, value: Option<&[u8]>| view.apply(PREFIX, &kv.key, value);
    if let Ok(range) = gateway.decode::<RangeAnswer>(body) {
        range.kvs.iter().for_each(|kv| put(kv, Some(&kv.value)));
    }
    if let Ok(txn) = gateway.decode::<TxnAnswer>(body) {
        txn.reply().read.iter().flatten().for_each(|kv| put(kv, Some(&kv.value)));
    }
    let watched = gateway.decode::<Streamed<WatchAnswer>>(body);
    if let Ok(answer) = watched.and_then(|answer| gateway.streamed(answer)) {
        answer
            .events
            .into_iter()
            .map(WatchEvent::from)
            .for_each(|event| put(&event.kv, event.put()));
    }
    let kept = gateway.decode::<Streamed<LeaseAnswer>>(body);
    drop(kept.and_then(|answer| gateway.streamed(answer)));
    drop(gateway.decode::<LeaseAnswer>(body));
    drop(gateway.decode::<Authenticated>(body));
    if let Ok(status) = StatusCode::from_u16(status)
        && !status.is_success()
    {
        let is_stale = matches!(gateway.refusal("/", status, body), GatewayError::Stale { .. });
        assert!(!is_stale || status == StatusCode::UNAUTHORIZED);
    }
    view
}
