//! The audit log: what its lines hold, how many there may be, and where they go.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::{Answer, Api, HOST, code, user};
use control::{
    ApiClient, ApiToken, Audit, Guard, Limits, OtherHost, ProblemCode, ServerNoticeKind, Users,
};
use serde_json::Value;

/// An API that records, and its log.
struct Recorded {
    api: Api,
    audit: Audit,
    files: tempfile::TempDir,
    tokens: [ApiToken; 2],
}

impl Recorded {
    fn start() -> Self {
        let files = tempfile::tempdir().unwrap();
        let tokens = [ApiToken::new(&[1; 32]), ApiToken::new(&[2; 32])];
        let list = user("operator", "ops", &tokens[0]) + &user("tenant", "acme", &tokens[1]);
        let audit = Audit::open(&files.path().join("audit.jsonl")).unwrap();
        let guard = Guard {
            users: Users::from_toml(&list).unwrap(),
            audit: Some(audit.clone()),
            ..Guard::default()
        };
        let api = Api::guarded(guard, Limits::default(), Duration::ZERO);
        Self { api, audit, files, tokens }
    }

    fn path(&self) -> PathBuf {
        self.files.path().join("audit.jsonl")
    }

    fn client(&self, user: usize) -> ApiClient {
        ApiClient::new(&self.api.url()).unwrap().with_token(&self.tokens[user].token)
    }

    /// An operator's request, as it is.
    fn ask(&self, method: &str, path: &str, body: impl AsRef<[u8]>) -> Answer {
        self.ask_at(&self.api, method, path, body)
    }

    /// The same at another API.
    fn ask_at(&self, api: &Api, method: &str, path: &str, body: impl AsRef<[u8]>) -> Answer {
        let body = body.as_ref();
        let (token, len) = (&self.tokens[0].token, body.len());
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: api\r\nconnection: close\r\n\
             authorization: Bearer {token}\r\ncontent-type: application/json\r\n\
             content-length: {len}\r\n\r\n"
        );
        api.raw(&[head.as_bytes(), body].concat())
    }
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// AUDIT-3. Method: a body and a path far longer than anything that makes sense, of characters that take most as JSON.
#[test]
fn a_line_is_short_whatever_was_sent() {
    let recorded = Recorded::start();
    let body = format!(r#"{{"name": "{}"}}"#, "\\u0000".repeat(9000));
    assert_eq!(recorded.ask("POST", "/v1/volumes", &body).status, 422);
    let path = format!("/v1/volumes/{}", "%00".repeat(4000));
    assert_eq!(recorded.ask("DELETE", &path, "").status, 404);
    let text = std::fs::read_to_string(recorded.path()).unwrap();
    assert!(text.lines().all(|line| line.len() < 4096), "{}", text.len());
    let lines = lines(&recorded.path());
    assert_eq!(lines.len(), 4);
    assert_eq!(lines[0]["request"]["bytes"], body.len());
    let hash = lines[0]["request"]["sha256"].as_str().unwrap();
    assert_eq!(hash.len(), 64, "{hash}");
    assert_eq!(lines[1].get("request"), None);
    let shown = lines[2]["path"].as_str().unwrap();
    assert!(shown.starts_with("/v1/volumes/%00%00"), "{shown}");
    assert!(shown.ends_with(&format!("({} bytes)", path.len())), "{shown}");
}

/// AUDIT-3. Method: what takes more in a line than it took on the wire (numbers, letters of all planes, a character that is
/// deleted), and a method as long as a head may be.
#[test]
fn a_line_is_short_whatever_becomes_of_what_was_sent() {
    let recorded = Recorded::start();
    let numbers = format!("[{}0]", "9e15,".repeat(400));
    let letters = |letter: &str| format!(r#"{{"name": "{}"}}"#, letter.repeat(500));
    for body in [numbers, letters("\u{7f}"), letters("\u{e9}"), letters("\u{1f600}")] {
        assert_eq!(recorded.ask("POST", "/v1/volumes", &body).status, 422);
    }
    for character in ["\u{7f}", "\u{1f600}"] {
        let path = format!("/v1/volumes/{}", character.repeat(2000));
        assert_ne!(recorded.ask("DELETE", &path, "").status, 200);
    }
    assert_eq!(recorded.ask(&"X".repeat(15_000), "/v1/volumes", "").status, 405);
    let text = std::fs::read_to_string(recorded.path()).unwrap();
    let longest = text.lines().map(str::len).max();
    assert!(longest < Some(4096), "{longest:?}");
    let last = lines(&recorded.path()).pop().unwrap();
    assert!(last["method"].as_str().unwrap().ends_with("X… (15000 bytes)"), "{last}");
}

/// AUDIT-3. Method: names that end a line where a script or a terminal believes so, and that turn a terminal's text around.
#[test]
fn what_was_sent_ends_no_line_and_moves_no_cursor() {
    let recorded = Recorded::start();
    let names = ["\u{2028}", "\u{2029}", "\u{85}", "\u{9b}2J", "\u{202e}", "\u{7f}", "\u{1f600}"];
    for name in names {
        let body = format!(r#"{{"name": "a{name}", "size_bytes": 4096}}"#);
        assert_eq!(recorded.ask("POST", "/v1/volumes", body).status, 422);
    }
    let text = std::fs::read_to_string(recorded.path()).unwrap();
    assert!(text.bytes().all(|byte| byte == b'\n' || (b' '..=b'~').contains(&byte)), "{text:?}");
    let lines = lines(&recorded.path());
    assert_eq!(lines.len(), 2 * names.len());
    for (line, name) in lines.iter().step_by(2).zip(names) {
        assert_eq!(line["request"]["name"], format!("a{name}"), "nothing is lost");
    }
}

/// AUDIT-5. Method: the file is removed; then so is its directory, and nothing can be changed.
#[test]
fn a_log_that_was_removed_is_made_again() {
    let recorded = Recorded::start();
    let ops = recorded.client(0);
    ops.delete("one").unwrap_err();
    std::fs::remove_file(recorded.path()).unwrap();
    ops.delete("two").unwrap_err();
    let lines = lines(&recorded.path());
    assert!(lines.iter().all(|line| line["path"] == "/v1/volumes/two"), "{lines:?}");
    assert_eq!(lines.len(), 2);
    std::fs::remove_dir_all(recorded.files.path()).unwrap();
    assert_eq!(code(&ops.delete("three").unwrap_err()), ProblemCode::Unavailable);
}

/// AUDIT-6: a log that takes no lines is told before a change is refused for it, and no more when there is room again.
#[test]
fn a_log_that_takes_no_lines_is_told_by_the_state() {
    let recorded = Recorded::start();
    let told = || {
        let notices = recorded.client(0).server().unwrap().notices;
        let metrics = recorded.ask("GET", "/metrics", "").body;
        let holds = metrics.contains("farflash_notice{kind=\"audit_log\"} 1\n");
        assert!(holds != metrics.contains("farflash_notice{kind=\"audit_log\"} 0\n"));
        assert_eq!(!notices.is_empty(), holds, "{notices:?}");
        notices.first().map(|notice| (notice.kind, notice.text.clone()))
    };
    assert_eq!(told(), None);
    std::fs::remove_dir_all(recorded.files.path()).unwrap();
    let (kind, text) = told().expect("there is no place for it");
    assert!(kind == ServerNoticeKind::AuditLog && kind.refuses_changes());
    assert!(text.contains("audit.jsonl takes no lines") && text.contains("--audit-log"), "{text}");
    recorded.client(0).delete("one").unwrap_err();
    assert!(told().is_some());
    std::fs::create_dir(recorded.files.path()).unwrap();
    recorded.client(0).delete("one").unwrap_err();
    assert_eq!(told(), None);
    assert_eq!(lines(&recorded.path()).len(), 2);
}

/// AUDIT-1: what was changed is answered, also when that cannot be recorded any more, since a new token is shown once; and the
/// next change is not made. Method: the log's directory goes while tokens are changed; by the host itself, and by one that
/// passes on.
#[test]
fn a_change_that_was_made_is_answered_though_it_cannot_be_recorded() {
    for is_passed_on in [false, true] {
        let recorded = Recorded::start();
        let made = recorded.ask("POST", "/v1/volumes", r#"{"name":"a","size_bytes":4096}"#);
        assert_eq!(made.status, 201);
        let other = Api::start();
        let (name, api) = ("other".to_owned(), recorded.api.address);
        other.service.have_elsewhere(OtherHost { id: HOST, name, api, api_certificate: None });
        let asked = if is_passed_on { &other } else { &recorded.api };
        let change = || recorded.ask_at(asked, "POST", "/v1/volumes/a/tokens", "{}");
        let changed = change();
        assert_eq!(changed.status, 201);
        assert!(!changed.head.contains("farflash-audit"), "{changed:?}");
        let (file, directory) = (recorded.path(), recorded.files.path().to_owned());
        recorded.api.service.meanwhile(move || {
            std::fs::remove_file(file).unwrap();
            std::fs::remove_dir(directory).unwrap();
        });
        let changed = change();
        assert_eq!(changed.status, 201, "{changed:?}");
        assert_eq!(changed.json()["token"], "token 1");
        assert!(changed.head.contains("farflash-audit: incomplete"), "{changed:?}");
        let refused = change();
        assert_eq!((refused.status, refused.json()["code"].as_str()), (503, Some("unavailable")));
    }
}

/// Method: the log's directory goes while tokens are changed by the client.
#[test]
fn a_client_knows_which_answers_could_not_be_recorded() {
    let recorded = Recorded::start();
    let ops = recorded.client(0);
    let name = || "a".parse().unwrap();
    let size = control::VolumeSize::try_from(4096).unwrap();
    ops.create(&control::CreateVolume::new(name(), size)).unwrap();
    assert_eq!(ops.incomplete_records(), 0);
    let (file, directory) = (recorded.path(), recorded.files.path().to_owned());
    recorded.api.service.meanwhile(move || {
        std::fs::remove_file(file).unwrap();
        std::fs::remove_dir(directory).unwrap();
    });
    ops.change_auth("a", &control::ChangeAuth::default()).unwrap();
    assert_eq!(ops.incomplete_records(), 1);
    // Nothing of this one is recorded, and nothing is done.
    assert_eq!(code(&ops.delete("a").unwrap_err()), ProblemCode::Unavailable);
    assert_eq!(ops.incomplete_records(), 1);
}

/// AUDIT-5. Method: half a line is at the end, as a crash leaves it.
#[test]
fn a_torn_line_spoils_no_other() {
    let recorded = Recorded::start();
    let half = br#"{"id":1,"time_un"#;
    std::fs::write(recorded.path(), half).unwrap();
    recorded.client(0).delete("one").unwrap_err();
    let text = std::fs::read_to_string(recorded.path()).unwrap();
    let (torn, whole) = text.split_once('\n').unwrap();
    assert_eq!(torn.as_bytes(), half);
    let whole: Vec<Value> = whole.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(whole.len(), 2, "{text}");
}

/// API-REFUSAL-1 and API-REFUSAL-2. Method: a tenant deletes what is not there until it is put off, and on until it no longer
/// is.
#[test]
fn what_is_refused_too_often_is_counted_instead_of_recorded() {
    let recorded = Recorded::start();
    let acme = recorded.client(1);
    let ask = || code(&acme.delete("nothing").unwrap_err());
    let began = Instant::now();
    let (mut refused, mut left_out) = (0, 0);
    loop {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{refused} refused, {left_out} left out"
        );
        match ask() {
            ProblemCode::TooManyRequests => left_out += 1,
            // The second of these counts those before it.
            _ if left_out > 0 => break,
            _ => refused += 1,
        }
    }
    assert!(refused >= 32, "{refused}");
    let lines = lines(&recorded.path());
    assert_eq!(lines.len(), 2 * (refused + 1));
    let (before, last) = lines.split_at(2 * refused);
    assert!(before.iter().all(|line| line.get("left_out").is_none()));
    assert_eq!(last[0]["left_out"], left_out);
    assert!(last[1].get("left_out").is_none());
    let metrics = recorded.ask("GET", "/metrics", "").body;
    let sample = format!("farflash_api_put_off_total {left_out}\n");
    assert!(metrics.contains(&sample), "{sample}{metrics}");
    // No other caller is put off.
    assert_eq!(code(&recorded.client(0).delete("x").unwrap_err()), ProblemCode::VolumeNotFound);
}

#[test]
fn a_log_that_was_moved_away_is_begun_again() {
    let recorded = Recorded::start();
    let ops = recorded.client(0);
    ops.delete("one").unwrap_err();
    let old = recorded.files.path().join("audit.jsonl.1");
    std::fs::rename(recorded.path(), &old).unwrap();
    recorded.audit.reopen().unwrap();
    ops.delete("two").unwrap_err();
    let paths = |path: &Path| -> Vec<Value> {
        lines(path).iter().map(|line| line["path"].clone()).collect()
    };
    assert_eq!(paths(&old), ["/v1/volumes/one", "/v1/volumes/one"]);
    assert_eq!(paths(&recorded.path()), ["/v1/volumes/two", "/v1/volumes/two"]);
}
