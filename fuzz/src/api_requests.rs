//! Requests to the API: the part of a path that names a volume, and bodies.

use control::fuzzing::{body, volume_key};
use control::{
    ChangeAuth, ChangeDevice, ChangeRestrictions, ChangeVolume, CreateVolume, StartRecording,
    StartScrub,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::input::Input;

/// The first byte says what the rest is.
const KINDS: &[fn(&[u8])] = &[
    path,
    is_kept::<CreateVolume>,
    is_kept::<ChangeVolume>,
    is_kept::<ChangeAuth>,
    is_kept::<ChangeRestrictions>,
    is_kept::<ChangeDevice>,
    is_kept::<StartScrub>,
    is_kept::<StartRecording>,
];

/// Runs a parser of requests: accepted text must keep its meaning, and other text must be the client's mistake.
pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let kind = KINDS[usize::from(input.u8()) % KINDS.len()];
    kind(input.0);
}

/// Checks that a volume's key is the same in the encoding of our own client.
fn path(bytes: &[u8]) {
    let Ok(part) = str::from_utf8(bytes) else { return };
    let Some(key) = volume_key(part) else { return };
    let written: String = key.to_string().bytes().map(|byte| format!("%{byte:02X}")).collect();
    assert_eq!(volume_key(&written), Some(key));
}

fn is_kept<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
    let write = |request: &T| serde_json::to_vec(request).expect("numbers and strings");
    match body::<T>(bytes) {
        Ok(request) => {
            let written = write(&request);
            let again = body::<T>(&written).unwrap_or_else(|problem| panic!("{problem:?}"));
            assert_eq!(write(&again), written);
        }
        Err(problem) => assert!((400..500).contains(&problem.status), "{problem:?}"),
    }
}

/// Each kind of request with all of its fields.
pub fn seeds() -> Vec<Vec<u8>> {
    let seeds: [(u8, &str); 10] = [
        (0, "db-1"),
        (0, "6c7a9f2e-0b1d-4f60-8f3e-2b8a51c0d9aa"),
        (0, "a%2Eb%5f"),
        (
            1,
            r#"{"name":"db-1","size_bytes":4096,"core":1,"device":"d","on":"rack=r1","slo":{"share":7},
            "restrictions":{"hosts":["nqn.2024-01.io.example:h"],"networks":["10.0.0.0/8"],
            "interfaces":["eth0"]},"metadata_bytes":8,"owner":"acme"}"#,
        ),
        (2, r#"{"size_bytes":8192}"#),
        (3, r#"{"cut":true,"grace_seconds":60}"#),
        (4, r#"{"hosts":[],"networks":["2001:db8::/32"]}"#),
        (5, r#"{"reads_per_second":1,"latency_target_us":500,"policy":"drr"}"#),
        (6, r#"{"bytes_per_second":1048576}"#),
        (7, r#"{"seconds":60,"buffer_requests":1000}"#),
    ];
    seeds.iter().map(|(kind, text)| [&[*kind], text.as_bytes()].concat()).collect()
}
