//! Recordings of the requests that hosts send to a volume: paths, callers and refusals.

use std::time::Duration;

use crate::support::{Api, RECORDING, code, user};
use control::{
    ApiClient, ApiToken, Audit, Guard, Limits, OtherHost, ProblemCode, RecordedKind, Recording,
    StartRecording, Users,
};
use serde_json::Value;
use uuid::Uuid;

const START: StartRecording = StartRecording { seconds: 9, buffer_requests: Some(100) };

fn with_volume(api: &Api) {
    let made = api.request("POST", "/v1/volumes", r#"{"name":"a","size_bytes":4096}"#);
    assert_eq!(made.status, 201);
}

#[test]
fn a_recording_is_begun_fetched_and_ended() {
    let api = Api::start();
    with_volume(&api);
    let client = ApiClient::new(&api.url()).unwrap();
    let begun = client.start_recording("a", &START).unwrap();
    assert_eq!((begun.id, begun.seconds, begun.is_over), (RECORDING, 9, false));
    let fetched = client.recorded(&begun, 3).unwrap();
    assert_eq!((fetched.first, fetched.requests[0].kind), (3, RecordedKind::Write));
    assert!(client.end_recording(&begun).unwrap().is_over);
    let path = format!("/v1/volumes/a/recordings/{RECORDING}");
    let by_name = api.request("GET", &format!("{path}/requests/3"), "");
    assert_eq!(by_name.json(), serde_json::to_value(&fetched).unwrap());
    assert_eq!(api.request("DELETE", &path, "").status, 200);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let api = Api::start();
    with_volume(&api);
    let client = ApiClient::new(&api.url()).unwrap();
    for (seconds, buffer_requests) in
        [(0, None), (86_401, None), (60, Some(0)), (60, Some(262_145))]
    {
        let refused = client.start_recording("a", &StartRecording { seconds, buffer_requests });
        assert_eq!(code(&refused.unwrap_err()), ProblemCode::InvalidField, "{seconds}");
    }
    let runs = client.start_recording("a", &StartRecording { seconds: 1, ..START }).unwrap_err();
    assert_eq!(code(&runs), ProblemCode::RecordingRuns);
    assert!(runs.hint().contains("ends within 10 s"), "{}", runs.hint());
    let missing = client.start_recording("b", &START).unwrap_err();
    assert_eq!(code(&missing), ProblemCode::VolumeNotFound);
    let begun = client.start_recording("a", &START).unwrap();
    let other = Recording { id: Uuid::from_u128(1), ..begun };
    for refused in [client.recorded(&other, 0), client.end_recording(&other)] {
        assert_eq!(code(&refused.unwrap_err()), ProblemCode::RecordingNotFound);
    }
    let path = format!("/v1/volumes/a/recordings/{RECORDING}/requests");
    for (path, status) in [
        (format!("{path}/-1"), 400),
        (format!("{path}/x"), 400),
        (path, 404),
        ("/v1/volumes/a/recordings/x/requests/0".to_owned(), 400),
        (format!("/v1/volumes/%20/recordings/{RECORDING}/requests/0"), 404),
    ] {
        assert_eq!(api.request("GET", &path, "").problem().0, status, "{path}");
    }
}

/// A recording at a host that does not answer is not shown as the volume that it is of.
#[test]
fn requests_about_a_recording_are_not_answered_with_the_volume() {
    let api = Api::start();
    with_volume(&api);
    let known = ApiClient::new(&api.url()).unwrap().show("a").unwrap();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let id = Uuid::from_u128(5);
    let host = OtherHost { id, name: "there".to_owned(), api: silent, api_certificate: None };
    api.service.have_known_elsewhere(host, known);
    assert_eq!(api.request("GET", "/v1/volumes/a", "").status, 200);
    let path = format!("/v1/volumes/a/recordings/{RECORDING}/requests/0");
    let (status, code, _) = api.request("GET", &path, "").problem();
    assert_eq!((status, code.as_str()), (503, "host_unreachable"));
}

/// Readers and operators may record, tenants may not; each that begins or ends one has lines in the audit log.
#[test]
fn those_who_may_see_figures_may_record_and_it_is_in_the_audit_log() {
    let files = tempfile::tempdir().unwrap();
    let tokens = [1, 2, 3].map(|byte| ApiToken::new(&[byte; 32]));
    let list = user("operator", "ops", &tokens[0])
        + &user("reader", "p", &tokens[1])
        + &user("tenant", "acme", &tokens[2]);
    let path = files.path().join("audit.jsonl");
    let (users, audit) = (Users::from_toml(&list).unwrap(), Some(Audit::open(&path).unwrap()));
    let guard = Guard { users, audit, ..Guard::default() };
    let api = Api::guarded(guard, Limits::default(), Duration::ZERO);
    let [ops, reader, acme] =
        tokens.map(|token| ApiClient::new(&api.url()).unwrap().with_token(&token.token));
    let create = r#"{"name":"a","size_bytes":4096}"#;
    acme.create(&serde_json::from_str(create).unwrap()).unwrap();
    let begun = ops.start_recording("a", &START).unwrap();
    for caller in [&ops, &reader] {
        let begun = caller.start_recording("a", &START).unwrap();
        caller.recorded(&begun, 0).unwrap();
        caller.end_recording(&begun).unwrap();
    }
    for refused in
        [acme.start_recording("a", &START), acme.recorded(&begun, 0), acme.end_recording(&begun)]
    {
        assert_eq!(code(&refused.unwrap_err()), ProblemCode::Forbidden);
    }
    assert_eq!(code(&reader.show("a").unwrap_err()), ProblemCode::Forbidden);
    let lines = std::fs::read_to_string(&path).unwrap();
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let lines: Vec<_> = lines
        .filter(|line| !line["status"].is_null() && line["path"] != "/v1/volumes")
        .map(|line| {
            let text = |name: &str| line[name].as_str().unwrap().to_owned();
            (text("role"), text("method"), line["status"].as_u64().unwrap())
        })
        .collect();
    let expected = [
        ("operator", "POST", 201),
        ("operator", "POST", 201),
        ("operator", "DELETE", 200),
        ("reader", "POST", 201),
        ("reader", "DELETE", 200),
        ("tenant", "POST", 403),
        ("tenant", "DELETE", 403),
    ];
    assert_eq!(
        lines,
        expected.map(|(role, method, status)| (role.to_owned(), method.to_owned(), status))
    );
}
