//! Requests made to be understood in two ways, or to be much for the server: what is recorded and what is done is one
//! thing, and each is refused for what is wrong with it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use crate::support::{Answer, Api, HOST, user};
use control::{ApiToken, Audit, Guard, Limits, OtherHost, Users, Volume};
use serde_json::Value;

const HEAD: &str = "host: api\r\nconnection: close\r\n";

/// Each object of each request, with one of its fields twice.
#[test]
fn a_field_that_is_there_twice_is_refused_wherever_it_is() {
    let api = Api::start();
    let made = api.request("POST", "/v1/volumes", r#"{"name":"a","size_bytes":4096}"#);
    assert_eq!(made.status, 201);
    let create = |more: &str| format!(r#"{{"name":"b","size_bytes":4096,{more}}}"#);
    let volume = "/v1/volumes/a";
    let (tokens, restrictions) = (format!("{volume}/tokens"), format!("{volume}/restrictions"));
    let device = "/v1/devices/file%3A%2Fa%20b%2Fc.img";
    let scrub = format!("{device}/scrub");
    for (method, path, body) in [
        ("POST", "/v1/volumes", create(r#""size_bytes":8192"#)),
        ("POST", "/v1/volumes", create(r#""owner":"x","owner":null"#)),
        ("POST", "/v1/volumes", create(r#""slo":{"share":1},"slo":{"share":2}"#)),
        ("POST", "/v1/volumes", create(r#""slo":{"share":1,"share":2}"#)),
        (
            "POST",
            "/v1/volumes",
            create(r#""slo":{"rate":{"reads_per_second":1,"reads_per_second":2}}"#),
        ),
        ("POST", "/v1/volumes", create(r#""restrictions":{"hosts":[],"hosts":["x"]}"#)),
        // The same name, said in another way.
        ("POST", "/v1/volumes", create(r#""size\u005fbytes":8192"#)),
        ("PATCH", volume, r#"{"size_bytes":4096,"size_bytes":8192}"#.to_owned()),
        ("PATCH", &restrictions, r#"{"hosts":[],"hosts":["x"]}"#.to_owned()),
        ("POST", &tokens, r#"{"cut":false,"cut":true}"#.to_owned()),
        ("POST", &tokens, r#"{"grace_seconds":1,"grace_seconds":null}"#.to_owned()),
        ("PATCH", device, r#"{"policy":"drr","policy":"sts"}"#.to_owned()),
        ("POST", &scrub, r#"{"bytes_per_second":4096,"bytes_per_second":null}"#.to_owned()),
    ] {
        let (status, code, detail) = api.request(method, path, &body).problem();
        assert_eq!((status, code.as_str()), (422, "invalid_field"), "{path} {body}: {detail}");
    }
    assert_eq!(api.request("GET", "/v1/volumes/b", "").status, 404);
    assert_eq!(api.request("GET", volume, "").json()["size_bytes"], 4096);
}

/// A size is a whole number and looks like one.
#[test]
fn a_number_of_another_form_is_no_size() {
    let api = Api::start();
    for size in [
        "4096.0",
        "4.096e3",
        "4096e0",
        "1e4",
        "-0",
        "-4096",
        "18446744073709551616",
        "18446744073709555712",
        "1e400",
        "true",
        "[4096]",
        "{\"bytes\":4096}",
        "null",
    ] {
        let body = format!(r#"{{"name":"a","size_bytes":{size}}}"#);
        let answer = api.request("POST", "/v1/volumes", &body);
        assert!([400, 422].contains(&answer.status), "{size}: {answer:?}");
        answer.problem();
    }
    for no_json in ["0x1000", "04096", "+4096", "4096_", "Infinity", "NaN", ".5", "4096."] {
        let body = format!(r#"{{"name":"a","size_bytes":{no_json}}}"#);
        let (status, code, _) = api.request("POST", "/v1/volumes", &body).problem();
        assert_eq!((status, code.as_str()), (400, "invalid_json"), "{no_json}");
    }
}

/// Names that look like another, hold what is not seen, or lead elsewhere.
#[test]
fn no_name_looks_like_another() {
    let api = Api::start();
    let made = api.request("POST", "/v1/volumes", r#"{"name":"a","size_bytes":4096}"#);
    assert_eq!(made.status, 201);
    for name in [
        "\u{430}",
        "a\u{300}",
        "\u{ff41}",
        "a\u{200b}",
        "\u{feff}a",
        "a\u{202e}",
        "A",
        "a ",
        " a",
        "a\\u0000",
        "a\\n",
        "a\\u007f",
        "a/b",
        "a%2fb",
        "..",
        "../a",
        "a\\\\b",
    ] {
        let body = format!(r#"{{"name":"{name}","size_bytes":4096}}"#);
        let (status, code, detail) = api.request("POST", "/v1/volumes", &body).problem();
        assert_eq!((status, code.as_str()), (422, "invalid_field"), "{name:?}: {detail}");
        assert!(detail.contains("`name`"), "{name:?}: {detail}");
    }
    for (path, status) in [
        ("/v1/volumes/%61", 200),
        ("/v1/volumes/%2e%2e/volumes/a", 404),
        ("/v1/volumes/../volumes/a", 404),
        ("/v1/./volumes/a", 404),
        ("//v1/volumes/a", 404),
        ("/v1//volumes/a", 404),
        ("/v1/volumes/a/", 404),
        ("/v1/volumes%2fa", 404),
        ("/v1/volumes/a%2ftokens", 404),
        ("/v1/volumes/a%00", 404),
        ("/v1/volumes/a%0d%0ax:%20y", 404),
        ("/v1/volumes/%2561", 404),
        ("/v1/volumes/a;x=y", 404),
        ("/V1/volumes/a", 404),
        ("/v1/volumes/a%", 404),
        ("/v1/volumes/a?", 200),
        ("/v1/volumes/a?x=y", 400),
    ] {
        assert_eq!(api.request("GET", path, "").status, status, "{path}");
    }
}

/// A text that is no Unicode is no JSON, wherever it is.
#[test]
fn what_is_no_text_is_called_so() {
    let api = Api::start();
    let head = format!("POST /v1/volumes HTTP/1.1\r\n{HEAD}content-type: application/json\r\n");
    for text in [&b"\xff"[..], b"\xc0\xaf", b"\xed\xa0\x80", b"\\ud800", b"\\udc00x"] {
        let body = [br#"{"name":"a"#, text, br#"","size_bytes":4096}"#].concat();
        let head = format!("{head}content-length: {}\r\n\r\n", body.len());
        let (status, code, detail) = api.raw(&[head.as_bytes(), &body].concat()).problem();
        assert_eq!((status, code.as_str()), (400, "invalid_json"), "{text:?}: {detail}");
    }
}

/// An API with one operator and one reader, and its audit log.
fn guarded(files: &Path) -> (Api, [String; 2]) {
    let tokens = [ApiToken::new(&[1; 32]), ApiToken::new(&[2; 32])];
    let list = user("operator", "ops", &tokens[0]) + &user("reader", "p", &tokens[1]);
    let guard = Guard {
        users: Users::from_toml(&list).unwrap(),
        audit: Some(Audit::open(&files.join("audit.jsonl")).unwrap()),
        ..Guard::default()
    };
    let api = Api::guarded(guard, Limits::default(), Duration::ZERO);
    (api, tokens.map(|token| format!("authorization: Bearer {}\r\n", token.token)))
}

/// Returns the recorded requests, each with its answer's status.
fn recorded(files: &Path) -> Vec<(Value, u64)> {
    let text = std::fs::read_to_string(files.join("audit.jsonl")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let change = |pair: &[Value]| {
        assert_eq!(pair[0]["id"], pair[1]["id"]);
        (pair[0].clone(), pair[1]["status"].as_u64().unwrap())
    };
    lines.chunks(2).map(change).collect()
}

#[test]
fn a_caller_with_two_credentials_is_unauthenticated() {
    let files = tempfile::tempdir().unwrap();
    let (api, [ops, reader]) = guarded(files.path());
    let ask = |credentials: &str| {
        api.raw(format!("GET /v1/volumes HTTP/1.1\r\n{HEAD}{credentials}\r\n").as_bytes())
    };
    assert_eq!(ask(&ops).status, 200);
    for credentials in [&[&ops, &reader][..], &[&reader, &ops], &[&ops, &ops]] {
        let credentials: String = credentials.iter().map(|header| header.as_str()).collect();
        let (status, code, detail) = ask(&credentials).problem();
        assert_eq!((status, code.as_str()), (401, "unauthenticated"), "{detail}");
        assert!(detail.contains("more than once"), "{detail}");
    }
}

/// Method: changes one behind the other in one segment, with two lengths or both framings between them. Each that is
/// made is recorded, and nothing is made of what is behind a request that can be read in two ways.
#[test]
fn requests_behind_each_other_are_those_that_are_recorded() {
    let files = tempfile::tempdir().unwrap();
    let (api, [ops, _]) = guarded(files.path());
    let post = |name: &str, framing: &str| {
        let body = format!(r#"{{"name":"{name}","size_bytes":4096}}"#);
        let framing = framing.replace("LEN", &body.len().to_string());
        format!(
            "POST /v1/volumes HTTP/1.1\r\nhost: api\r\n{ops}content-type: application/json\r\n\
             {framing}\r\n{body}"
        )
    };
    let sound = "content-length: LEN\r\n";
    let end = format!("GET /healthz HTTP/1.1\r\n{HEAD}\r\n");
    let send = |requests: &str| {
        let mut stream = TcpStream::connect(api.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(requests.as_bytes()).unwrap();
        let mut answers = Vec::new();
        let _ = stream.read_to_end(&mut answers);
        String::from_utf8(answers).unwrap().matches("HTTP/1.1 201").count()
    };
    assert_eq!(send(&(post("a1", sound) + &post("a2", sound) + &end)), 2);
    for (n, framing) in [
        "content-length: LEN\r\ncontent-length: 5\r\n",
        "content-length: 5\r\ncontent-length: LEN\r\n",
        "content-length: LEN, LEN\r\n",
        "content-length: +LEN\r\n",
        "content-length: -1\r\n",
        "transfer-encoding: chunked, identity\r\n",
    ]
    .into_iter()
    .enumerate()
    {
        let names = [format!("b{n}"), format!("c{n}")];
        assert_eq!(send(&(post(&names[0], framing) + &post(&names[1], sound) + &end)), 0, "{n}");
    }
    let made = api.raw(format!("GET /v1/volumes HTTP/1.1\r\n{HEAD}{ops}\r\n").as_bytes()).json();
    let made: Vec<&Value> =
        made["volumes"].as_array().unwrap().iter().map(|volume| &volume["name"]).collect();
    assert_eq!(made, ["a1", "a2"]);
    let recorded = recorded(files.path());
    let names: Vec<&Value> = recorded.iter().map(|(asked, _)| &asked["request"]["name"]).collect();
    assert_eq!(names, ["a1", "a2"]);
    assert!(recorded.iter().all(|(_, status)| *status == 201));
}

/// A method that no resource takes is refused, and recorded if it may change something.
#[test]
fn other_methods_do_nothing() {
    let files = tempfile::tempdir().unwrap();
    let (api, [ops, _]) = guarded(files.path());
    let ask = |method: &str, path: &str| {
        api.raw(
            format!("{method} {path} HTTP/1.1\r\n{HEAD}{ops}content-length: 0\r\n\r\n").as_bytes(),
        )
    };
    let head = ask("HEAD", "/v1/volumes");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    for method in ["OPTIONS", "TRACE", "PUT", "PROPFIND", "get", "X-Y"] {
        assert_eq!(ask(method, "/v1/volumes").problem().1, "method_not_allowed", "{method}");
    }
    assert!((400..500).contains(&ask("CONNECT", "api:80").status));
    assert!((400..500).contains(&ask("OPTIONS", "*").status));
    let methods: Vec<Value> =
        recorded(files.path()).into_iter().map(|(mut asked, _)| asked["method"].take()).collect();
    assert_eq!(methods, ["TRACE", "PUT", "PROPFIND", "get", "X-Y", "CONNECT"]);
}

/// A body that does not end is refused when it is too long, whichever way it comes.
#[test]
fn a_body_without_end_is_not_awaited() {
    let files = tempfile::tempdir().unwrap();
    let (api, [ops, _]) = guarded(files.path());
    for (method, framing) in [
        ("POST", "transfer-encoding: chunked\r\n"),
        ("POST", "content-length: 18446744073709551615\r\n"),
        ("DELETE", "transfer-encoding: chunked\r\n"),
        ("GET", "transfer-encoding: chunked\r\n"),
    ] {
        let mut stream = TcpStream::connect(api.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let head = format!(
            "{method} /v1/volumes HTTP/1.1\r\nhost: api\r\n{ops}content-type: application/json\r\n\
             {framing}\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        // Until the server has enough.
        let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
        while stream.write_all(chunk.as_bytes()).is_ok() {}
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 2"), "{method} {framing}");
    }
    assert_eq!(recorded(files.path()), [], "what has not come whole is no change");
}

/// RELAY-1. Method: two hosts; the first passes on what the second refuses when it is asked itself. A page in a
/// browser may send `text/plain` wherever it likes, and nothing else.
#[test]
fn what_is_passed_on_is_declared_as_it_came() {
    let (first, second) = (Api::start(), Api::start());
    let made = second.request("POST", "/v1/volumes", r#"{"name":"a","size_bytes":4096}"#);
    assert_eq!(made.status, 201);
    let (name, api) = ("second".to_owned(), second.address);
    first.service.have_elsewhere(OtherHost { id: HOST, name, api, api_certificate: None });
    let ask =
        |api: &Api, kind: &str| api.request_as(kind, "POST", "/v1/volumes/a/tokens", "{}").status;
    for api in [&second, &first] {
        assert_eq!(ask(api, "application/json; charset=utf-8"), 201);
        assert_eq!(ask(api, "text/plain"), 415);
    }
}

/// RELAY-3. Method: a host whose kernel takes connections and whose process answers nothing. What it is sent is looked at:
/// of a change it has seen nothing, and so the answer says that nothing was done.
#[test]
fn a_host_that_hangs_is_sent_no_change() {
    let hung = TcpListener::bind("127.0.0.1:0").unwrap();
    let first = Api::start();
    let (name, api) = ("other".to_owned(), hung.local_addr().unwrap());
    first.service.have_elsewhere(OtherHost { id: HOST, name, api, api_certificate: None });
    for (method, path) in [
        ("GET", "/v1/volumes/a"),
        ("DELETE", "/v1/volumes/a?lose_data=true"),
        ("POST", "/v1/volumes/a/tokens"),
    ] {
        let answer = first.request(method, path, if method == "POST" { "{}" } else { "" });
        assert_eq!(
            (answer.status, &*answer.json()["code"].to_string()),
            (503, "\"host_unreachable\""),
            "{method}"
        );
    }
    hung.set_nonblocking(true).unwrap();
    let mut sent = String::new();
    for mut asked in hung.incoming().map_while(Result::ok) {
        asked.set_nonblocking(true).unwrap();
        let _ = asked.read_to_string(&mut sent);
    }
    assert!(sent.contains("GET /v1/volumes/a ") && sent.contains("GET /healthz "), "{sent}");
    assert!(!sent.contains("DELETE") && !sent.contains("POST"), "{sent}");
}

/// RELAY-3: to show a volume of a host that hangs takes no longer than to list those of all hosts. Method: one is shown, and
/// meanwhile all are listed again and again: a list takes the bound each time, as does the host that it waits for.
#[test]
fn a_host_that_hangs_is_waited_for_no_longer_by_one_question_than_by_another() {
    const LISTS: usize = 4;
    let hung = TcpListener::bind("127.0.0.1:0").unwrap();
    let first = Api::start();
    let (name, api) = ("other".to_owned(), hung.local_addr().unwrap());
    first.service.have_elsewhere(OtherHost { id: HOST, name, api, api_certificate: None });
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(first.request("GET", "/v1/volumes/a", "").status, 503);
            ended.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        let _shown = hung.accept().unwrap();
        let lists = (0..LISTS).take_while(|_| {
            assert_eq!(first.request("GET", "/v1/volumes", "").status, 200);
            !ended.load(std::sync::atomic::Ordering::SeqCst)
        });
        assert!(lists.count() < LISTS, "showing takes longer than {LISTS} lists");
    });
}

/// The query of a change is passed on and recorded with it. Method: a volume with data, deleted by another host.
#[test]
fn what_may_be_lost_is_said_by_a_parameter() {
    let (first, second) = (Api::start(), Api::start());
    let (name, api) = ("second".to_owned(), second.address);
    first.service.have_elsewhere(OtherHost { id: HOST, name, api, api_certificate: None });
    for (query, status) in [
        ("?lose_data=1", 400),
        ("?lose_data=true&lose_data=true", 400),
        ("?lose_data", 400),
        ("?force=true", 400),
        ("?lose_data=true", 204),
        ("?lose_data=false", 404),
    ] {
        if status == 204 {
            let made = second.request("POST", "/v1/volumes", r#"{"name":"a","size_bytes":4096}"#);
            assert_eq!(made.status, 201);
        }
        let answer = first.request("DELETE", &format!("/v1/volumes/a{query}"), "");
        assert_eq!(answer.status, status, "{query}: {answer:?}");
    }
    assert_eq!(second.service.lost_data(), 1, "it was passed on");
    assert_eq!(first.request("GET", "/v1/volumes/a?lose_data=true", "").status, 400);
    assert_eq!(first.request("DELETE", "/v1/volumes/a/tokens?lose_data=true", "").status, 400);
}

/// A request for the head alone is answered like one for the whole. Method: a host that is gone, and one
/// that takes requests and hangs up; for a volume there that is known here, and for one that is not.
#[test]
fn a_head_is_that_of_the_whole_answer_where_a_host_is_gone() {
    let maker = Api::start();
    let made = maker.request("POST", "/v1/volumes", r#"{"name":"a","size_bytes":4096}"#);
    let known: Volume = serde_json::from_value(made.json()).unwrap();
    let hangs_up = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = hangs_up.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut asked in hangs_up.incoming().map_while(Result::ok) {
            let _ = asked.read(&mut [0; 4096]);
        }
    });
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for api in [gone, address] {
        for is_known in [false, true] {
            let first = Api::start();
            let name = "other".to_owned();
            let host = OtherHost { id: HOST, name, api, api_certificate: None };
            match is_known {
                true => first.service.have_known_elsewhere(host, known.clone()),
                false => first.service.have_elsewhere(host),
            }
            let whole = first.request("GET", "/v1/volumes/a", "");
            assert_eq!(whole.status, if is_known { 200 } else { 503 }, "{whole:?}");
            let head = first.request("HEAD", "/v1/volumes/a", "");
            let undated = |answer: &Answer| -> Vec<String> {
                let lines = answer.head.lines().filter(|line| !line.starts_with("date:"));
                lines.map(str::to_owned).collect()
            };
            assert_eq!((undated(&head), head.body.as_str()), (undated(&whole), ""));
        }
    }
}
