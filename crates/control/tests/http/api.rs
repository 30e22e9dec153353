//! The API over HTTP: what it answers, what it refuses, and what it bounds.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::support::{Api, DEVICE, HOST, code, user};
use control::{
    ApiClient, ApiError, ApiTls, ApiToken, Audit, ChangeAuth, ChangeDevice, ChangeRestrictions,
    ChangeVolume, CreateVolume, CreatedVolume, Guard, Limits, OtherHost, Presence, ProblemCode,
    Restrictions, Serving, Slo, Users, VolumeSize, ask_serving,
};
use uuid::Uuid;

const GIB: u64 = 1 << 30;

fn create(name: &str, size_bytes: u64) -> CreateVolume {
    let size_bytes = VolumeSize::try_from(size_bytes).unwrap();
    CreateVolume::new(name.parse().unwrap(), size_bytes)
}

#[test]
fn a_volume_lives_from_create_to_delete() {
    let api = Api::start();
    let client = ApiClient::new(&api.url()).unwrap();
    let CreatedVolume { volume: made, tokens } = client.create(&create("db.1", GIB)).unwrap();
    assert_eq!(tokens.token, "token 0");
    assert_eq!(made.nqn, format!("nqn.2014-08.org.nvmexpress:uuid:{}", made.id));
    assert_eq!(made.connect, format!("nvme connect -t tcp -a 127.0.0.1 -s 4420 -n {}", made.nqn));
    assert_eq!(client.list().unwrap().volumes, std::slice::from_ref(&made));
    assert_eq!(client.show("db.1").unwrap(), made);
    assert_eq!(client.show(&made.id.to_string()).unwrap(), made);
    let size_bytes = Some(VolumeSize::try_from(2 * GIB).unwrap());
    let change = ChangeVolume { size_bytes, ..ChangeVolume::default() };
    assert_eq!(client.change("db.1", &change).unwrap().size_bytes, 2 * GIB);
    client.delete("db.1").unwrap();
    assert_eq!(code(&client.show("db.1").unwrap_err()), ProblemCode::VolumeNotFound);
    assert_eq!(client.server().unwrap().version, "1.2.3");
}

#[test]
fn promises_are_given_changed_and_refused() {
    let api = Api::start();
    let client = ApiClient::new(&api.url()).unwrap();
    let rate = Slo::Rate { reads_per_second: 10, writes_per_second: 0 };
    let made = client.create(&CreateVolume { slo: Some(rate), ..create("a", GIB) }).unwrap();
    assert_eq!(made.volume.slo, rate);
    let share = ChangeVolume { slo: Some(Slo::Share(7)), ..ChangeVolume::default() };
    assert_eq!(client.change("a", &share).unwrap().slo, Slo::Share(7));
    let refused = ChangeVolume { slo: Some(Slo::Share(0)), ..ChangeVolume::default() };
    let refused = client.change("a", &refused).unwrap_err();
    assert_eq!(code(&refused), ProblemCode::PromiseTooLarge);
    assert!(refused.to_string().contains("7 are left"), "{refused}");
    for (body, detail) in [
        (r#"{"slo":{"share":-1}}"#, "slo"),
        (r#"{"slo":{"part":1}}"#, "part"),
        (r#"{"slo":{"rate":{"reads":1}}}"#, "reads"),
        (r#"{"slo":{"share":1},"size_bytes":4096}"#, "both"),
        (r#"{"slo":{"share":1},"lose_data":true}"#, "belong to `size_bytes`"),
        (r#"{"slo":{"share":1},"if_size_bytes":4096}"#, "belong to `size_bytes`"),
        ("{}", "missing field"),
    ] {
        let (status, code, got) = api.request("PATCH", "/v1/volumes/a", body).problem();
        assert_eq!((status, code.as_str()), (422, "invalid_field"), "{body}: {got}");
        assert!(got.contains(detail), "{body}: {got}");
    }
    let body = r#"{"name":"b","size_bytes":4096,"slo":{"rate":{"writes_per_second":9}}}"#;
    let made = api.request("POST", "/v1/volumes", body).json();
    assert_eq!(made["slo"]["rate"]["writes_per_second"], 9);
}

#[test]
fn tokens_and_restrictions_are_changed() {
    let api = Api::start();
    let client = ApiClient::new(&api.url()).unwrap();
    let hosts = vec!["nqn.2024-01.io.example:a".to_owned()];
    let restrictions = Some(Restrictions { hosts: hosts.clone(), ..Restrictions::default() });
    let made = client.create(&CreateVolume { restrictions, ..create("a", GIB) }).unwrap();
    assert_eq!(made.volume.restrictions.hosts, hosts);
    let change = ChangeAuth { cut: true, grace_seconds: Some(60) };
    assert_eq!(client.change_auth("a", &change).unwrap().token, "token 60");
    let change = ChangeRestrictions { hosts: Some(Vec::new()), ..ChangeRestrictions::default() };
    assert!(client.restrict("a", &change).unwrap().restrictions.hosts.is_empty());
    let missing = client.change_auth("b", &ChangeAuth::default()).unwrap_err();
    assert_eq!(code(&missing), ProblemCode::VolumeNotFound);
    let missing = client.restrict("b", &change).unwrap_err();
    assert_eq!(code(&missing), ProblemCode::VolumeNotFound);
    let body = r#"{"grace": 1}"#;
    let answer = api.request("POST", "/v1/volumes/a/tokens", body);
    assert_eq!(answer.status, 422, "an unknown field");
    assert!(!format!("{made:?}").contains("token 0"), "no token gets into a log");
}

fn guarded() -> (Api, tempfile::TempDir, [ApiToken; 2]) {
    let files = tempfile::tempdir().unwrap();
    let tokens = [ApiToken::new(&[1; 32]), ApiToken::new(&[2; 32])];
    let list = user("operator", "ops", &tokens[0]) + &user("tenant", "acme", &tokens[1]);
    let users = Users::from_toml(&list).unwrap();
    let audit = Some(Audit::open(&files.path().join("audit.jsonl")).unwrap());
    let api =
        Api::guarded(Guard { users, audit, ..Guard::default() }, Limits::default(), Duration::ZERO);
    (api, files, tokens)
}

#[test]
fn only_those_who_are_known_are_answered_and_tenants_not_about_devices() {
    let (api, _files, [ops, acme]) = guarded();
    let client = || ApiClient::new(&api.url()).unwrap();
    for stranger in [client(), client().with_token("ffk_00"), client().with_token("")] {
        assert_eq!(code(&stranger.list().unwrap_err()), ProblemCode::Unauthenticated);
        let refused = stranger.create(&create("a", GIB)).unwrap_err();
        assert_eq!(code(&refused), ProblemCode::Unauthenticated);
    }
    let answer = api.request("GET", "/v1/volumes", "");
    assert_eq!(answer.status, 401);
    assert!(answer.head.to_ascii_lowercase().contains("www-authenticate: bearer"));
    for open in ["/healthz", "/readyz", "/v1/openapi.json"] {
        assert_eq!(api.request("GET", open, "").status, 200, "{open}");
    }
    let ops_token = ops.token.clone();
    let (ops, acme) = (client().with_token(&ops.token), client().with_token(&acme.token));
    acme.create(&create("a", GIB)).unwrap();
    assert_eq!(code(&acme.server().unwrap_err()), ProblemCode::Forbidden);
    assert_eq!(code(&acme.stats().unwrap_err()), ProblemCode::Forbidden);
    assert_eq!(code(&acme.devices().unwrap_err()), ProblemCode::Forbidden);
    assert_eq!(code(&acme.forget_device(DEVICE, Some("a b")).unwrap_err()), ProblemCode::Forbidden);
    ops.server().unwrap();
    assert_eq!(code(&ops.forget_device(Uuid::nil(), None).unwrap_err()), ProblemCode::DeviceInUse);
    for down in [None, Some("a")] {
        match ops.forget_device(DEVICE, down).unwrap_err() {
            ApiError::Refused(problem) => {
                assert_eq!(problem.code, ProblemCode::DeviceInUse);
                assert!(problem.hint.contains("down/a b"), "{problem:?}");
            }
            other => panic!("{other}"),
        }
    }
    ops.forget_device(DEVICE, Some("a b")).unwrap();
    let odd = format!(
        "DELETE /v1/lost-devices/x/down/a HTTP/1.0\r\nauthorization: Bearer {ops_token}\r\n\r\n"
    );
    assert_eq!(api.raw(odd.as_bytes()).status, 400);
}

/// Another host asks without a token whether a device is served, and learns nothing else.
#[test]
fn who_serves_a_device_is_told_to_everybody_who_has_its_id() {
    let (api, _files, _tokens) = guarded();
    let asked = |device: &str| api.request("GET", &format!("/v1/serving/{device}"), "");
    let serving = |device: Uuid| {
        let answer: Serving = serde_json::from_value(asked(&device.to_string()).json()).unwrap();
        (answer.host, answer.serves)
    };
    assert_eq!(serving(DEVICE), (HOST, true));
    assert_eq!(serving(Uuid::nil()), (HOST, false));
    assert_eq!(asked("vda").problem().1, "invalid_path");
    let id = DEVICE.to_string();
    assert_eq!(asked(&format!("{id}/more")).problem().1, "unknown_path");
    let deleted = api.request("DELETE", &format!("/v1/serving/{id}"), "");
    assert_eq!(deleted.problem().1, "method_not_allowed");
}

/// PRESENCE-1 and PRESENCE-2, plain and over TLS. Method: the host itself, another one at its address,
/// listeners that send another answer or none, and a port without a listener. Only the silent listener takes
/// the whole time limit.
#[test]
fn a_host_is_told_from_whatever_else_has_its_address() {
    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(200);
    let files = tempfile::tempdir().unwrap();
    let tls = |name: &str| {
        let names = ["127.0.0.1".to_owned()];
        ApiTls::open_or_make(&files.path().join(name), &names).unwrap()
    };
    for name in ["one", "other"] {
        std::fs::create_dir(files.path().join(name)).unwrap();
    }
    let (one, other) = (tls("one"), tls("other"));
    let secret = Guard { tls: Some(one.clone()), ..Guard::default() };
    let (open, secret) = (Api::start(), Api::guarded(secret, Limits::default(), Duration::ZERO));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ask = |api: SocketAddr, id, certificate: Option<&ApiTls>, device, patience| {
        let api_certificate = certificate.map(ApiTls::certificate);
        let host = OtherHost { id, name: "a".to_owned(), api, api_certificate };
        runtime.block_on(ask_serving(&host, device, patience))
    };
    for (api, certificate) in [(&open, None), (&secret, Some(&one))] {
        let at = |id, device| ask(api.address, id, certificate, device, LONG);
        assert_eq!(at(HOST, DEVICE), Presence::Serving);
        assert_eq!(at(HOST, Uuid::nil()), Presence::Idle);
        assert_eq!(at(Uuid::nil(), DEVICE), Presence::Another);
    }
    assert_eq!(ask(secret.address, HOST, Some(&other), DEVICE, LONG), Presence::Another);
    assert_eq!(ask(secret.address, HOST, None, DEVICE, LONG), Presence::Another);
    assert_eq!(ask(open.address, HOST, Some(&one), DEVICE, LONG), Presence::Another);

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    for certificate in [None, Some(&one)] {
        assert_eq!(ask(address, HOST, certificate, DEVICE, SHORT), Presence::Silent);
    }
    let says = |what: &'static [u8]| {
        let listener = listener.try_clone().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut stream = &stream;
                let _ = stream.write_all(what);
                // Closing with bytes unread would reset the connection.
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let _ = stream.read_to_end(&mut Vec::new());
            }
        });
    };
    says(b"220 ready\r\n");
    for certificate in [None, Some(&one)] {
        assert_eq!(ask(address, HOST, certificate, DEVICE, LONG), Presence::Another);
    }
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert_eq!(ask(free, HOST, None, DEVICE, LONG), Presence::Absent);
}

/// A tenant sees its own quota and use, an operator everybody's, a reader neither; the metrics have them, too.
#[test]
fn quotas_are_shown_with_what_is_used_of_them() {
    let tokens = [1, 2, 3].map(|byte| ApiToken::new(&[byte; 32]));
    let [ops, acme, other] = &tokens;
    let list = [
        user("operator", "ops", ops),
        user("tenant", "other", other),
        user("tenant", "acme", acme) + "volumes = 3\nshare = 500\n",
    ]
    .concat();
    let guard = Guard { users: Users::from_toml(&list).unwrap(), ..Guard::default() };
    let api = Api::guarded(guard, Limits::default(), Duration::ZERO);
    let client = |token: &ApiToken| ApiClient::new(&api.url()).unwrap().with_token(&token.token);
    for (name, owner, slo) in [
        ("a", Some("acme"), Slo::Share(100)),
        ("b", Some("acme"), Slo::Rate { reads_per_second: 7, writes_per_second: 9 }),
        ("c", None, Slo::Share(100)),
    ] {
        let owner = owner.map(str::to_owned);
        let request = CreateVolume { owner, slo: Some(slo), ..create(name, GIB) };
        client(ops).create(&request).unwrap();
    }
    let own = client(acme).quotas().unwrap().quotas;
    assert_eq!(own.len(), 1);
    let part = |used, limit| control::Use { used, limit };
    assert_eq!((own[0].tenant.as_str(), own[0].volumes), ("acme", part(2, Some(3))));
    assert_eq!(own[0].provisioned_bytes, part(2 * GIB, None));
    assert_eq!(own[0].share, part(100, Some(500)));
    assert_eq!(own[0].reads_per_second, part(7, Some(0)));
    assert_eq!(own[0].writes_per_second, part(9, Some(0)));
    let all = client(ops).quotas().unwrap().quotas;
    assert_eq!(
        all.iter().map(|quota| quota.tenant.as_str()).collect::<Vec<_>>(),
        ["acme", "other"]
    );
    assert_eq!(all[0], own[0]);
    assert_eq!(all[1].volumes, part(0, None));
    // A stranger is refused, and counted.
    assert_eq!(
        code(&client(&ApiToken::new(&[9; 32])).quotas().unwrap_err()),
        ProblemCode::Unauthenticated
    );
    let head = format!(
        "GET /metrics HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {}\r\nconnection: close\r\n\r\n",
        ops.token
    );
    let metrics = api.raw(head.as_bytes()).body;
    for sample in [
        "farflash_tenant_volumes{tenant=\"acme\"} 2\n",
        "farflash_tenant_volumes_limit{tenant=\"acme\"} 3\n",
        "farflash_api_authentication_failures_total 1\n",
    ] {
        assert!(metrics.contains(sample), "{sample}{metrics}");
    }
    assert!(!metrics.contains("farflash_tenant_volumes_limit{tenant=\"other\""), "{metrics}");
}

/// A reader gets figures, and nothing else: every other path and method is refused.
#[test]
fn readers_get_figures_and_nothing_else() {
    let token = ApiToken::new(&[3; 32]);
    let list = user("reader", "p", &token);
    let guard = Guard { users: Users::from_toml(&list).unwrap(), ..Guard::default() };
    let api = Api::guarded(guard, Limits::default(), Duration::ZERO);
    let reader = ApiClient::new(&api.url()).unwrap().with_token(&token.token);
    reader.stats().unwrap();
    let with = format!("authorization: Bearer {}\r\nconnection: close", token.token);
    let status = |method: &str, path: &str| {
        let head = format!("{method} {path} HTTP/1.1\r\nhost: api\r\n{with}\r\n\r\n");
        api.raw(head.as_bytes()).status
    };
    assert_eq!(status("GET", "/metrics"), 200);
    let id = uuid::Uuid::new_v4();
    let volume = format!("/v1/volumes/{id}");
    let tokens = format!("{volume}/tokens");
    for path in ["/v1/volumes", &volume, &tokens, "/v1/hosts", "/v1/devices", "/v1/devices/x/scrub"]
        .into_iter()
        .chain([
            "/v1/devices/x/grow",
            "/v1/quota",
            "/v1/server",
            "/metrics/",
            "//metrics",
            "/v1/stats/..",
            "/v1/%73tats",
            "/",
        ])
    {
        for method in ["GET", "POST", "PATCH", "DELETE", "PUT"] {
            assert_eq!(status(method, path), 403, "{method} {path}");
        }
    }
    for method in ["POST", "PATCH", "DELETE", "PUT"] {
        assert_eq!(status(method, "/metrics"), 403, "{method}");
    }
    assert_eq!(code(&reader.list().unwrap_err()), ProblemCode::Forbidden);
    assert_eq!(code(&reader.create(&create("a", GIB)).unwrap_err()), ProblemCode::Forbidden);
}

#[test]
fn changes_are_recorded_with_who_what_and_what_came_of_it() {
    let (api, files, [ops, acme]) = guarded();
    let client = |token: &ApiToken| ApiClient::new(&api.url()).unwrap().with_token(&token.token);
    client(&acme).create(&create("a", GIB)).unwrap();
    client(&acme).list().unwrap();
    client(&ops).delete("b").unwrap_err();
    client(&ops).delete("a").unwrap();
    let lines = std::fs::read_to_string(files.path().join("audit.jsonl")).unwrap();
    assert!(!lines.contains("ffk_") && !lines.contains("token 0"), "no secrets: {lines}");
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // Each change has a line before it is made, and one with what came of it.
    for pair in lines.chunks(2) {
        assert_eq!((&pair[0]["id"], pair[0]["status"].is_null()), (&pair[1]["id"], true));
        assert!(pair[1].get("request").is_none(), "once is enough: {}", pair[1]);
    }
    assert_eq!(lines[0]["request"]["name"], "a");
    let lines: Vec<serde_json::Value> =
        lines.into_iter().filter(|line| !line["status"].is_null()).collect();
    let fields = |line: &serde_json::Value| {
        let text = |name: &str| line[name].as_str().unwrap().to_owned();
        (text("caller"), text("role"), text("method"), text("path"), line["status"].clone())
    };
    let expected = |caller: &str, role: &str, method: &str, path: &str, status: u16| {
        let [caller, role, method, path] = [caller, role, method, path].map(str::to_owned);
        (caller, role, method, path, serde_json::Value::from(status))
    };
    assert_eq!(
        lines.iter().map(fields).collect::<Vec<_>>(),
        [
            expected("acme", "tenant", "POST", "/v1/volumes", 201),
            expected("ops", "operator", "DELETE", "/v1/volumes/b", 404),
            expected("ops", "operator", "DELETE", "/v1/volumes/a", 204),
        ]
    );
    assert!(lines[0]["peer"].as_str().unwrap().starts_with("127.0.0.1:"));
    assert!(lines[0]["time_unix_ms"].as_u64().unwrap() > 1_700_000_000_000);
}

#[test]
fn a_body_that_is_too_long_is_refused_and_makes_no_line() {
    let (api, files, [ops, _]) = guarded();
    let body = "x".repeat(100_000);
    let head = format!("Authorization: Bearer {}\r\nContent-Type: application/json", ops.token);
    let length = body.len();
    let request = format!(
        "POST /v1/volumes HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{head}\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    let answer = api.raw(request.as_bytes());
    assert_eq!(answer.status, 413, "{}", answer.body);
    assert!(answer.body.contains("body_too_large"), "{}", answer.body);
    assert_eq!(std::fs::read_to_string(files.path().join("audit.jsonl")).unwrap(), "");
}

/// A caller that asks for a change which it may not make leaves its lines, be it a tenant or a reader, but
/// none for reading; and no more than others can.
#[test]
fn changes_that_are_forbidden_are_recorded() {
    let files = tempfile::tempdir().unwrap();
    let tokens = [ApiToken::new(&[1; 32]), ApiToken::new(&[2; 32])];
    let list = user("reader", "p", &tokens[0]) + &user("tenant", "acme", &tokens[1]);
    let path = files.path().join("audit.jsonl");
    let (users, audit) = (Users::from_toml(&list).unwrap(), Some(Audit::open(&path).unwrap()));
    let guard = Guard { users, audit, ..Guard::default() };
    let api = Api::guarded(guard, Limits::default(), Duration::ZERO);
    let [reader, acme] =
        tokens.map(|token| ApiClient::new(&api.url()).unwrap().with_token(&token.token));
    assert_eq!(code(&reader.list().unwrap_err()), ProblemCode::Forbidden);
    assert_eq!(code(&acme.devices().unwrap_err()), ProblemCode::Forbidden);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
    assert_eq!(code(&reader.create(&create("a", GIB)).unwrap_err()), ProblemCode::Forbidden);
    assert_eq!(code(&reader.delete("b").unwrap_err()), ProblemCode::Forbidden);
    let change = ChangeDevice::default();
    let refused = acme.change_device("mem:1GiB", &change).unwrap_err();
    assert_eq!(code(&refused), ProblemCode::Forbidden);
    let lines = std::fs::read_to_string(&path).unwrap();
    let lines = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let lines: Vec<_> = lines
        .map(|line| {
            let text = |name: &str| line[name].as_str().unwrap().to_owned();
            (text("caller"), text("role"), text("method"), line["status"].as_u64())
        })
        .collect();
    let tried = |caller: &str, role: &str, method: &str| {
        let [caller, role, method] = [caller, role, method].map(str::to_owned);
        [None, Some(403)].map(|status| (caller.clone(), role.clone(), method.clone(), status))
    };
    let expected = [
        tried("p", "reader", "POST"),
        tried("p", "reader", "DELETE"),
        tried("acme", "tenant", "PATCH"),
    ];
    assert_eq!(lines, expected.concat());
}

/// A device that is always full.
#[test]
fn without_a_record_there_is_no_change() {
    let audit = Some(Audit::open(std::path::Path::new("/dev/full")).unwrap());
    let guard = Guard { audit, ..Guard::default() };
    let api = Api::guarded(guard, Limits::default(), Duration::ZERO);
    let client = ApiClient::new(&api.url()).unwrap();
    for name in ["a", "b"] {
        assert_eq!(code(&client.create(&create(name, GIB)).unwrap_err()), ProblemCode::Unavailable);
    }
    assert!(client.list().unwrap().volumes.is_empty());
}

#[test]
fn devices_are_named_as_they_are_listed() {
    let api = Api::start();
    let client = ApiClient::new(&api.url()).unwrap();
    let change = ChangeDevice { policy: Some("sts".to_owned()), ..ChangeDevice::default() };
    let changed = client.change_device("file:/a b/c.img", &change).unwrap();
    assert_eq!(
        (changed.name.as_str(), changed.sharing.policy.as_str()),
        ("file:/a b/c.img", "sts")
    );
    let unknown = client.change_device("mem:1GiB", &change).unwrap_err();
    assert_eq!(code(&unknown), ProblemCode::DeviceNotFound);
    assert!(unknown.hint().contains("c.img"), "{}", unknown.hint());
    assert!(client.devices().unwrap().devices.is_empty());
    assert_eq!(client.stats().unwrap().time_ns, 5);
}

#[test]
fn create_answers_201_with_the_place_of_the_volume() {
    let api = Api::start();
    let answer = api.request("POST", "/v1/volumes", r#"{"name":"a","size_bytes":4096}"#);
    assert_eq!(answer.status, 201, "{answer:?}");
    let id = answer.json()["id"].as_str().unwrap().to_owned();
    assert!(answer.head.contains(&format!("location: /v1/volumes/{id}")), "{answer:?}");
    assert_eq!(api.request("DELETE", "/v1/volumes/a", "").status, 204);
}

#[test]
fn the_service_s_refusals_have_their_codes() {
    let api = Api::start();
    let client = ApiClient::new(&api.url()).unwrap();
    client.create(&create("a", GIB)).unwrap();
    let nowhere = CreateVolume { on: Some("rack=r9".to_owned()), ..create("b", GIB) };
    let nowhere = client.create(&nowhere).unwrap_err();
    assert_eq!(code(&nowhere), ProblemCode::UnknownHost);
    assert_eq!(nowhere.hint(), "name one of here, or one of their labels rack=r1, row=7");
    let taken = client.create(&create("a", GIB)).unwrap_err();
    assert_eq!(code(&taken), ProblemCode::NameTaken);
    assert_eq!(taken.to_string(), "a volume `a` exists already");
    let unknown = client.create(&CreateVolume { core: Some(7), ..create("b", GIB) }).unwrap_err();
    assert_eq!(code(&unknown), ProblemCode::UnknownCore);
    assert!(unknown.hint().contains("0, 3"), "{}", unknown.hint());
    for name in ["b", "not/a name", "..", "550e8400-e29b-41d4-a716-446655440000"] {
        assert_eq!(code(&client.delete(name).unwrap_err()), ProblemCode::VolumeNotFound, "{name}");
    }
}

#[test]
fn bad_bodies_are_refused_with_the_reason() {
    let api = Api::start();
    for (body, status, code, detail) in [
        ("{\"name\":\n oops}", 400, "invalid_json", "line 2 column 2"),
        ("", 400, "invalid_json", "EOF"),
        (r#"{"name":"a","size_bytes":4096} x"#, 400, "invalid_json", "trailing"),
        (r#"{"name":"a","size_bytes":"1GiB"}"#, 422, "invalid_field", "size_bytes"),
        (r#"{"name":"a","size_bytes":-4096}"#, 422, "invalid_field", "size_bytes"),
        (r#"{"name":"a","size_bytes":4096.5}"#, 422, "invalid_field", "size_bytes"),
        (r#"{"name":"a","size_bytes":4097}"#, 422, "invalid_field", "multiple of 4096"),
        (r#"{"name":"a","size_bytes":0}"#, 422, "invalid_field", "at least one block"),
        (r#"{"name":"a","size_bytes":9223372036854779904}"#, 422, "invalid_field", "2^63"),
        (r#"{"name":"a","size_bytes":99999999999999999999}"#, 422, "invalid_field", "size_bytes"),
        (r#"{"name":"A","size_bytes":4096}"#, 422, "invalid_field", "`name`: "),
        (r#"{"name":"","size_bytes":4096}"#, 422, "invalid_field", "empty"),
        (r#"{"name":7,"size_bytes":4096}"#, 422, "invalid_field", "name"),
        (r#"{"name":"a"}"#, 422, "invalid_field", "missing field `size_bytes`"),
        (r#"{"name":"a","size_bytes":4096,"x":1}"#, 422, "invalid_field", "unknown field `x`"),
        (r#"{"name":"a","name":"b","size_bytes":4096}"#, 422, "invalid_field", "duplicate"),
        (r#"{"name":"a","size_bytes":4096,"core":-1}"#, 422, "invalid_field", "core"),
        (r#"["a",4096]"#, 422, "invalid_field", "no JSON object"),
        ("null", 422, "invalid_field", "no JSON object"),
    ] {
        let (got_status, got_code, got_detail) = api.request("POST", "/v1/volumes", body).problem();
        assert_eq!((got_status, got_code.as_str()), (status, code), "{body}: {got_detail}");
        assert!(got_detail.contains(detail), "{body}: {got_detail}");
    }
    let deep = "[".repeat(60_000);
    assert_eq!(api.request("POST", "/v1/volumes", &deep).problem().0, 400);
    assert!(api.request("GET", "/v1/volumes", "").json()["volumes"].as_array().unwrap().is_empty());
}

#[test]
fn requests_that_are_not_for_this_api_are_refused() {
    let api = Api::start();
    let body = r#"{"name":"a","size_bytes":4096}"#;
    let form = api.request_as("text/plain", "POST", "/v1/volumes", body).problem();
    assert_eq!((form.0, form.1.as_str()), (415, "unsupported_media_type"));
    let put = api.request("PUT", "/v1/volumes", body);
    assert_eq!(put.problem().1, "method_not_allowed");
    assert!(put.head.contains("allow: ") && put.head.contains("post"), "{put:?}");
    assert_eq!(api.request("GET", "/v2", "").problem().1, "unknown_path");
    let query = api.request("GET", "/v1/volumes?limit=3", "").problem();
    assert_eq!((query.0, query.1.as_str()), (400, "unknown_parameter"));
    assert_eq!(api.request("GET", "/v1/volumes/%ff", "").problem().1, "invalid_path");
    assert_eq!(api.request("GET", "/v1/volumes/%00", "").problem().1, "volume_not_found");
    let long = format!(r#"{{"name":"{}","size_bytes":4096}}"#, "a".repeat(70_000));
    let long = api.request("POST", "/v1/volumes", &long).problem();
    assert_eq!((long.0, long.1.as_str()), (413, "body_too_large"));
    let head = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(40_000));
    assert_eq!(api.raw(head.as_bytes()).status, 431);
}

#[test]
fn prometheus_gets_its_text() {
    let api = Api::start();
    let answer = api.request("GET", "/metrics", "");
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("text/plain; version=0.0.4"), "{}", answer.head);
    assert!(answer.body.contains("farflash_build_info{version=\"1.2.3\"} 1\n"), "{}", answer.body);
}

/// Long metrics are compressed for a scraper that takes them so, and for no other.
#[test]
fn metrics_are_compressed_where_that_is_accepted() {
    let api = Api::start();
    let plain = api.request("GET", "/metrics", "");
    assert!(plain.body.len() > 1024 && plain.head.contains("vary: accept-encoding"), "{plain:?}");
    assert!(!plain.head.contains("content-encoding"), "{}", plain.head);
    let mut stream = TcpStream::connect(api.address).unwrap();
    let request = "GET /metrics HTTP/1.1\r\nhost: api\r\naccept-encoding: gzip;q=1.0\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    let at = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let (head, packed) = (String::from_utf8_lossy(&all[..at]).to_lowercase(), &all[at + 4..]);
    assert!(head.contains("content-encoding: gzip") && head.contains("version=0.0.4"), "{head}");
    assert!(packed.len() < plain.body.len() / 2, "{} bytes", packed.len());
    let mut text = String::new();
    flate2::read::GzDecoder::new(packed).read_to_string(&mut text).unwrap();
    assert_eq!(text, plain.body);
}

#[test]
fn health_and_description_are_served() {
    let api = Api::start();
    assert_eq!(api.request("GET", "/healthz", "").body, "ok\n");
    assert_eq!(api.request("GET", "/readyz", "").body, "ready\n");
    api.service.set_ready(false);
    assert_eq!(api.request("GET", "/readyz", "").problem().1, "unavailable");
    assert_eq!(api.request("GET", "/healthz", "").status, 200);
    let document = api.request("GET", "/v1/openapi.json", "").json();
    for path in [
        "/v1/volumes",
        "/v1/volumes/{volume}",
        "/v1/server",
        "/v1/openapi.json",
        "/healthz",
        "/readyz",
    ] {
        assert!(document["paths"][path].is_object(), "{path}");
    }
    // How clients name themselves, and that any path but those for everybody may refuse them.
    assert_eq!(document["components"]["securitySchemes"]["token"]["scheme"], "bearer");
    assert_eq!(document["security"], serde_json::json!([{ "token": [] }, {}]));
    for (path, operations) in document["paths"].as_object().unwrap() {
        let open = ["/healthz", "/readyz", "/v1/openapi.json", "/v1/serving/{device}"];
        for (method, operation) in operations.as_object().unwrap() {
            let is_open = operation["security"] == serde_json::json!([]);
            assert_eq!(is_open, open.contains(&path.as_str()), "{method} {path}");
            assert!(is_open || operation["responses"]["4XX"].is_object(), "{method} {path}");
            // What is asked for is recorded, and what is answered may not be.
            for (status, response) in operation["responses"].as_object().unwrap() {
                let header = &response["headers"]["Farflash-Audit"]["schema"]["enum"];
                let is_named = *header == serde_json::json!(["incomplete"]);
                assert_eq!(is_named, method != "get", "{method} {path}: {status}");
            }
        }
    }
    let schemas = &document["components"]["schemas"];
    for name in ["CreateVolume", "ChangeVolume", "Volume", "VolumeList", "Server", "Problem"] {
        assert!(schemas[name].is_object(), "{name}");
    }
    assert_eq!(schemas["CreateVolume"]["additionalProperties"], false);
    for name in ["CreateVolume", "Portal", "Core"] {
        // A CPU's number is 32 bits without a sign, which no `int32` holds.
        assert_eq!(schemas[name]["properties"]["core"]["format"], "uint32", "{name}");
    }
}

/// Sends requests one behind the other, and reads none of the answers, until the server takes no more.
fn pipeline_without_reading(api: &Api) -> TcpStream {
    let mut stream = TcpStream::connect(api.address).unwrap();
    stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    let requests = "GET /v1/openapi.json HTTP/1.1\r\nhost: api\r\n\r\n".repeat(200);
    // Ends in a timeout when neither side's buffers have room, or in a reset when it was cut.
    while stream.write_all(requests.as_bytes()).is_ok() {}
    stream
}

/// Method: as many clients as there are places send requests and never read. The server must get rid of
/// them, and answer others soon.
#[test]
fn clients_that_do_not_read_keep_no_other_client_out() {
    let limits = Limits { connections_max: 4, ..Limits::default() };
    let api = Api::with(limits, Duration::ZERO);
    let stuck: Vec<TcpStream> = std::thread::scope(|scope| {
        let clients: Vec<_> =
            (0..8).map(|_| scope.spawn(|| pipeline_without_reading(&api))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    for _ in 0..3 {
        let asked = Instant::now();
        assert_eq!(api.request("GET", "/healthz", "").status, 200);
        assert!(asked.elapsed() < Duration::from_secs(20), "{:?}", asked.elapsed());
    }
    drop(stuck);
}

/// Method: one client that does not read, on a server with room for others, is cut after its time.
#[test]
fn a_client_that_does_not_read_is_cut() {
    let limits = Limits { write_timeout: Duration::from_millis(300), ..Limits::default() };
    let api = Api::with(limits, Duration::ZERO);
    let mut stuck = pipeline_without_reading(&api);
    let began = Instant::now();
    loop {
        use std::io::ErrorKind::{TimedOut, WouldBlock};
        // Each try waits a while for room; a connection that was cut says so instead.
        match stuck.write(b"GET") {
            Err(error) if !matches!(error.kind(), TimedOut | WouldBlock) => break,
            _ => assert!(began.elapsed() < Duration::from_secs(20), "it is not cut"),
        }
    }
}

#[test]
fn a_connection_is_not_kept_for_ever() {
    let limits = Limits { connection_time: Duration::from_secs(2), ..Limits::default() };
    let api = Api::with(limits, Duration::ZERO);
    let mut stream = TcpStream::connect(api.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: api\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
}

/// Method: with one connection allowed and held open by a client that says nothing, a second client
/// is answered once the first has outstayed its time.
#[test]
fn a_silent_connection_is_cut_and_its_place_given_on() {
    let head_timeout = Duration::from_millis(200);
    let limits = Limits { connections_max: 1, head_timeout, ..Limits::default() };
    let api = Api::with(limits, Duration::ZERO);
    let mut silent = TcpStream::connect(api.address).unwrap();
    silent.write_all(b"GET /healthz HT").unwrap();
    assert_eq!(api.request("GET", "/healthz", "").status, 200);
    silent.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let _ = silent.read_to_end(&mut Vec::new());
}

#[test]
fn a_request_that_takes_too_long_is_answered_so() {
    let request_timeout = Duration::from_millis(100);
    let limits = Limits { request_timeout, ..Limits::default() };
    let api = Api::with(limits, Duration::from_secs(3600));
    let late = api.request("GET", "/v1/volumes", "").problem();
    assert_eq!((late.0, late.1.as_str()), (504, "timeout"));
    // A body that does not come is no different.
    let slow = b"POST /v1/volumes HTTP/1.1\r\nhost: api\r\ncontent-type: application/json\r\n\
                 connection: close\r\ncontent-length: 10\r\n\r\n{";
    assert_eq!(api.raw(slow).problem().1, "timeout");
}

/// Method: stop the server while a slow request is in flight; it must still be answered, and idle
/// connections must not hold up the end.
#[test]
fn stopping_finishes_requests_in_flight() {
    let mut api = Api::with(Limits::default(), Duration::from_millis(300));
    let mut idle = TcpStream::connect(api.address).unwrap();
    let mut busy = TcpStream::connect(api.address).unwrap();
    busy.write_all(b"GET /v1/volumes HTTP/1.1\r\nhost: api\r\n\r\n").unwrap();
    // A round trip on another connection: by then the request above has been taken in.
    assert_eq!(api.request("GET", "/healthz", "").status, 200);
    api.stop();
    let mut text = String::new();
    busy.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    idle.read_to_end(&mut Vec::new()).unwrap();
}

/// A body of JSON is never said to be missing, whatever else is wrong with it.
#[test]
fn two_forms_at_once_are_refused_as_such() {
    let api = Api::start();
    let body = r#"{"name": "a", "size_bytes": 4096, "slo": {"share": 1, "rate": {}}}"#;
    let answer = api.request("POST", "/v1/volumes", body);
    assert_eq!(answer.status, 422, "{answer:?}");
    assert!(answer.body.contains("invalid_field") && answer.body.contains("slo"), "{answer:?}");
    let slow = api.request("POST", "/v1/devices/mem/scrub", r#"{"bytes_per_second": 4095}"#);
    assert_eq!(slow.status, 422, "{slow:?}");
}

#[test]
fn the_client_says_what_is_wrong_with_an_address() {
    for url in ["", "127.0.0.1:7420", "ftp://127.0.0.1:7420", "http://a/b", "http://"] {
        let error = ApiClient::new(url).err().unwrap_or_else(|| panic!("{url}"));
        assert!(matches!(error, ApiError::BadUrl(_)), "{url}: {error}");
        assert!(error.hint().contains("--api"));
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let client = ApiClient::new(&format!("http://127.0.0.1:{port}/")).unwrap();
    let error = client.list().unwrap_err();
    assert!(matches!(error, ApiError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
}

#[test]
fn the_client_tells_another_server_from_a_farflash() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = [0; 4096];
        let _ = stream.read(&mut head);
        stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nno").unwrap();
    });
    let error = ApiClient::new(&format!("http://{address}")).unwrap().list().unwrap_err();
    assert!(matches!(error, ApiError::NotAnApi { status: 404, .. }), "{error}");
    other.join().unwrap();
}
