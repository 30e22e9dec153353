//! The files that a real server reads again at SIGHUP, while a host goes on.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::support::audit::deeds;
use crate::support::users::{self, User};
use crate::support::{Files, Server, farflash, tokens, until};
use control::{ApiClient, ApiError, ApiTls, CERTIFICATE_FILE, KEY_FILE, ProblemCode};
use serde_json::{Value, json};

/// A host that reads, and goes when this is dropped.
struct Load(Child);

impl Load {
    fn start(volume: &control::Volume) -> Self {
        let target = &format!("tcp://{}/{}", volume.address, volume.nqn);
        let arguments = ["bench", "--target", target, "--rate", "200", "--seconds", "3600"];
        let mut command = farflash(&arguments);
        tokens::give(&mut command, target);
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server with a list of users, a certificate and an audit log.
struct Reloaded {
    files: Files,
    server: Server,
}

impl Reloaded {
    fn start(entries: &[String]) -> Self {
        let files = Files::new();
        let users = users::list(&files, entries);
        let path = |name: &str| files.path(name).to_str().unwrap().to_owned();
        let (tls, audit) = (path("tls"), path("audit.jsonl"));
        let flags = ["--api-users", &users, "--api-tls", &tls, "--audit-log", &audit];
        let server = Server::start_with("mem:256MiB", &flags);
        Self { files, server }
    }

    /// Has it read again; how many things stayed as they were.
    fn reload(&self) -> u64 {
        self.logged_reload().last().unwrap()["kept"].as_u64().unwrap()
    }

    /// Has it read again; what it logs until then.
    fn logged_reload(&self) -> Vec<Value> {
        self.server.signal("HUP");
        self.server.log_until(|line| line["message"] == "SIGHUP: read again")
    }

    fn users(&self, entries: &[String]) -> u64 {
        users::list(&self.files, entries);
        self.reload()
    }

    /// The audit log's entries about actions past the API: the user, the action and its target.
    fn deeds(&self) -> Vec<Value> {
        deeds(&self.files.path("audit.jsonl"))
    }

    fn certificate(&self) -> PathBuf {
        self.files.path("tls").join(CERTIFICATE_FILE)
    }

    /// Puts a file of `directory`, where another certificate and its key are, in the place of the server's.
    fn take(&self, directory: &Path, name: &str) {
        std::fs::copy(directory.join(name), self.files.path("tls").join(name)).unwrap();
    }

    fn client(&self, user: &User) -> ApiClient {
        self.client_trusting(user, &self.certificate())
    }

    fn client_trusting(&self, user: &User, certificate: &Path) -> ApiClient {
        let client = ApiClient::trusting(&self.server.api, Some(certificate)).unwrap();
        client.with_token(&user.token)
    }
}

/// A text that is no list.
fn nonsense() -> [String; 1] {
    ["[[operator]]\nname = 7\n".to_owned()]
}

fn is_known(client: &ApiClient) -> bool {
    match client.list() {
        Ok(_) => true,
        Err(ApiError::Refused(problem)) => {
            assert_eq!(problem.code, ProblemCode::Unauthenticated);
            false
        }
        Err(error) => panic!("{error}"),
    }
}

/// RELOAD-1 and RELOAD-2. Method: a host reads all the time, over one connection, while tokens come and go, files are wrong,
/// the certificate is another and the log is moved away.
#[test]
fn users_certificate_and_log_change_while_a_host_goes_on() {
    let (old, new) = (User::operator("ops"), User::operator("ops"));
    let reloaded = Reloaded::start(&[old.entry()]);
    let size = control::VolumeSize::try_from(64 << 20).unwrap();
    let request = control::CreateVolume::new("v".parse().unwrap(), size);
    let volume = tokens::kept_of(reloaded.client(&old).create(&request).unwrap());
    let mut load = Load::start(&volume);
    let requests = |client: &ApiClient| client.stats().unwrap().volumes[0].flow.requests;
    until("the host reads", || requests(&reloaded.client(&old)) > 0);

    // One token goes and another one comes.
    assert_eq!(reloaded.users(&[new.entry()]), 0);
    assert!(!is_known(&reloaded.client(&old)) && is_known(&reloaded.client(&new)));
    // What is no list, or nothing at all, changes nothing.
    assert_eq!(reloaded.users(&nonsense()), 1);
    assert!(!is_known(&reloaded.client(&old)) && is_known(&reloaded.client(&new)));
    std::fs::remove_file(reloaded.files.path("users.toml")).unwrap();
    assert_eq!(reloaded.reload(), 1);
    assert!(is_known(&reloaded.client(&new)));

    // Half of a new certificate first, and then all of it.
    let other = reloaded.files.path("other");
    ApiTls::open_or_make(&other, &["127.0.0.1".to_owned()]).unwrap();
    let before = reloaded.files.path("before.pem");
    std::fs::copy(reloaded.certificate(), &before).unwrap();
    reloaded.take(&other, KEY_FILE);
    assert_eq!(reloaded.users(&[new.entry()]), 1);
    assert!(is_known(&reloaded.client_trusting(&new, &before)));
    reloaded.take(&other, CERTIFICATE_FILE);
    assert_eq!(reloaded.reload(), 0);
    assert!(is_known(&reloaded.client(&new)));
    let stale = reloaded.client_trusting(&new, &before).list().unwrap_err();
    assert!(matches!(stale, ApiError::Untrusted { .. }), "{stale}");

    // The log is moved away, as logrotate does.
    let log = reloaded.files.path("audit.jsonl");
    let moved = reloaded.files.path("audit.jsonl.1");
    std::fs::rename(&log, &moved).unwrap();
    assert_eq!(reloaded.reload(), 0);
    reloaded.client(&new).delete("nothing").unwrap_err();
    let asked = |path: &Path| {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().filter(|line| line.contains("\"role\":\"operator\"")).count()
    };
    assert_eq!((asked(&log), asked(&moved)), (2, 2));

    let client = reloaded.client(&new);
    let so_far = requests(&client);
    until("the host reads on", || requests(&client) > so_far);
    assert!(load.0.try_wait().unwrap().is_none(), "its connection is the same");
}

/// Method: users come, go and get other tokens and quotas; a list that is none; another certificate; and signals that change
/// nothing, as logrotate's.
#[test]
fn what_a_signal_changes_is_in_the_audit_log() {
    let (old, new, acme) = (User::operator("ops"), User::operator("ops"), User::tenant("acme"));
    let reloaded = Reloaded::start(&[old.entry()]);
    assert_eq!(reloaded.reload(), 0);
    assert!(reloaded.deeds().is_empty(), "nothing was changed");
    let mut known = 0;
    // The two lines of the last deed.
    let mut last = |path: &str| -> [Value; 2] {
        let deeds = reloaded.deeds();
        let new: [Value; 2] = deeds[known..].to_vec().try_into().unwrap();
        known += 2;
        for line in &new {
            assert_eq!((&line["caller"], &line["method"]), (&"SIGHUP".into(), &"RELOAD".into()));
            assert!(line["path"] == path && line["time_unix_ms"].is_u64(), "{line}");
            assert!(line["status"].is_null() && line["id"] == new[0]["id"], "{line}");
        }
        assert!(new[0].get("outcome").is_none() && new[1].get("request").is_none());
        new
    };
    assert_eq!(reloaded.users(&[new.entry(), acme.bounded("volumes = 1")]), 0);
    let [change, end] = last("api_users");
    assert_eq!((&change["request"]["added"], &end["outcome"]), (&json!(["acme"]), &json!("done")));
    assert_eq!(change["request"]["new_token"], json!(["ops"]));
    assert!(!change.to_string().contains(&new.token_sha256), "no tokens");
    assert_eq!(reloaded.users(&[new.entry(), acme.bounded("volumes = 2")]), 0);
    assert_eq!(last("api_users")[0]["request"]["new_quota"], json!(["acme"]));
    assert_eq!(reloaded.users(&[new.entry()]), 0);
    assert_eq!(last("api_users")[0]["request"]["removed"], json!(["acme"]));
    assert_eq!(reloaded.users(&nonsense()), 1);
    let [_, end] = last("api_users");
    assert!(end["outcome"].as_str().unwrap().contains("the list of API users"), "{end}");
    users::list(&reloaded.files, &[new.entry()]);
    let other = reloaded.files.path("other");
    ApiTls::open_or_make(&other, &["127.0.0.1".to_owned()]).unwrap();
    for name in [CERTIFICATE_FILE, KEY_FILE] {
        reloaded.take(&other, name);
    }
    assert_eq!(reloaded.reload(), 0);
    let [change, end] = last("api_tls");
    assert_eq!(change["request"]["certificate_sha256"].as_str().unwrap().len(), 64);
    assert_eq!(end["outcome"], "done");
    assert_eq!(reloaded.reload(), 0);
    assert_eq!(reloaded.deeds().len(), known, "nothing was changed");
}

/// RELOAD-1. Method: one of the two files is another certificate's; one is cut short; one is missing.
#[test]
fn a_key_of_another_certificate_is_refused_and_the_log_says_what_to_do() {
    let ops = User::operator("ops");
    let reloaded = Reloaded::start(&[ops.entry()]);
    let [before, other] = ["before", "other"].map(|name| reloaded.files.path(name));
    std::fs::create_dir(&before).unwrap();
    for name in [CERTIFICATE_FILE, KEY_FILE] {
        std::fs::copy(reloaded.files.path("tls").join(name), before.join(name)).unwrap();
    }
    ApiTls::open_or_make(&other, &["127.0.0.1".to_owned()]).unwrap();
    let stays = |what: &str| {
        let lines = reloaded.logged_reload();
        let message = |line: &Value| line["message"].as_str().unwrap().to_owned();
        let errors: Vec<String> =
            lines.iter().map(message).filter(|text| text.contains("stays as it was")).collect();
        let [error] = &errors[..] else { panic!("{lines:?}") };
        for part in ["the API's certificate stays", what, "send SIGHUP again"] {
            assert!(error.contains(part), "no `{part}` in: {error}");
        }
        assert!(is_known(&reloaded.client_trusting(&ops, &before.join(CERTIFICATE_FILE))));
    };
    for name in [KEY_FILE, CERTIFICATE_FILE] {
        reloaded.take(&other, name);
        stays("key.pem holds no key of certificate.pem");
        reloaded.take(&before, name);
    }
    for name in [KEY_FILE, CERTIFICATE_FILE] {
        let path = reloaded.files.path("tls").join(name);
        std::fs::write(&path, &std::fs::read(before.join(name)).unwrap()[..64]).unwrap();
        stays(&format!("{name} holds no "));
        std::fs::remove_file(&path).unwrap();
        stays(&format!("{name}: No such file"));
        reloaded.take(&before, name);
    }
    assert_eq!(reloaded.reload(), 0);
}

/// RELOAD-2. Method: clients that trust either certificate ask all the time, each time by a connection of its own, while one
/// takes the other's place again and again.
#[test]
fn no_request_fails_while_the_certificate_is_renewed() {
    const RENEWALS: usize = 8;
    let ops = User::operator("ops");
    let reloaded = Reloaded::start(&[ops.entry()]);
    let sources = ["one", "other"].map(|name| reloaded.files.path(name));
    let shown = sources.each_ref().map(|source| {
        ApiTls::open_or_make(source, &["127.0.0.1".to_owned()]).unwrap();
        reloaded.client_trusting(&ops, &source.join(CERTIFICATE_FILE))
    });
    let both = reloaded.files.path("both.pem");
    let first = reloaded.certificate();
    let all = sources.iter().map(|source| source.join(CERTIFICATE_FILE)).chain([first]);
    std::fs::write(
        &both,
        all.map(|path| std::fs::read_to_string(path).unwrap()).collect::<String>(),
    )
    .unwrap();
    let (is_over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let ask = &|client: ApiClient, name: &str| {
        let size = control::VolumeSize::try_from(64 << 20).unwrap();
        let request = control::CreateVolume::new(name.parse().unwrap(), size);
        while !is_over.load(Ordering::Relaxed) {
            client.create(&request).unwrap();
            client.list().unwrap();
            client.delete_with_data(name).unwrap();
            answered.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        // Also when something below fails: then the tasks stop asking.
        let _ends = Ends(&is_over);
        for name in ["a", "b"] {
            let client = reloaded.client_trusting(&ops, &both);
            scope.spawn(move || ask(client, name));
        }
        for renewal in 0..RENEWALS {
            let so_far = answered.load(Ordering::Relaxed);
            until("requests are answered", || answered.load(Ordering::Relaxed) > so_far);
            let (new, old) = (renewal % 2, (renewal + 1) % 2);
            for name in [CERTIFICATE_FILE, KEY_FILE] {
                reloaded.take(&sources[new], name);
            }
            assert_eq!(reloaded.reload(), 0);
            assert!(is_known(&shown[new]), "who connects is shown the new one");
            let stale = shown[old].list().unwrap_err();
            assert!(matches!(stale, ApiError::Untrusted { .. }), "{stale}");
        }
    });
}

/// Sets a flag when dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// RELOAD-5. Method: the log is moved away, and the signal after which a new one is begun also finds another user.
#[test]
fn what_a_signal_changes_is_in_the_file_that_it_has_begun() {
    let reloaded = Reloaded::start(&[User::operator("ops").entry()]);
    let moved = reloaded.files.path("audit.jsonl.1");
    std::fs::rename(reloaded.files.path("audit.jsonl"), &moved).unwrap();
    assert_eq!(reloaded.users(&[User::operator("ops").entry()]), 0);
    assert_eq!((reloaded.deeds().len(), deeds(&moved).len()), (2, 0));
}

/// A revoked token is refused from then on, also where that cannot be recorded. Method: the log is a device that is always
/// full.
#[test]
fn a_token_is_revoked_also_without_a_record() {
    let (old, new) = (User::operator("ops"), User::operator("ops"));
    let files = Files::new();
    let users = users::list(&files, &[old.entry()]);
    let flags = ["--api-users", &users, "--audit-log", "/dev/full"];
    let server = Server::start_with("mem:256MiB", &flags);
    let client = |user: &User| ApiClient::new(&server.api).unwrap().with_token(&user.token);
    assert!(is_known(&client(&old)));
    users::list(&files, &[new.entry()]);
    server.signal("HUP");
    let lines = server.log_until(|line| line["message"] == "SIGHUP: read again");
    assert!(lines.iter().any(|line| line["message"] == "the audit log cannot be written"));
    assert!(!is_known(&client(&old)) && is_known(&client(&new)));
}

/// An operator that has named its users wants their changes recorded.
#[test]
fn users_without_an_audit_log_are_a_risk_that_is_said() {
    let files = Files::new();
    let users = users::list(&files, &[User::operator("ops").entry()]);
    let audit = files.path("audit.jsonl");
    let warned = |flags: &[&str]| {
        let server = Server::start_with("mem:256MiB", flags);
        let names = |line: &&Value| {
            line["fields"]["message"].as_str().is_some_and(|text| text.contains("--audit-log"))
        };
        server.starting.iter().filter(names).count()
    };
    let named = ["--api-users", &users];
    assert_eq!(warned(&named), 1);
    assert_eq!(warned(&[&named[..], &["--audit-log", audit.to_str().unwrap()]].concat()), 0);
    assert_eq!(warned(&[]), 0);
}

/// The quota of a tenant that is in force is the one that was read last.
#[test]
fn quotas_are_what_the_list_says_last() {
    let acme = User::tenant("acme");
    let bounded = |quota: &str| [acme.bounded(quota)];
    let reloaded = Reloaded::start(&bounded("volumes = 0\nallocated = \"1GiB\""));
    let create = |name: &str| {
        let size = control::VolumeSize::try_from(64 << 20).unwrap();
        let request = control::CreateVolume::new(name.parse().unwrap(), size);
        reloaded.client(&acme).create(&request).is_ok()
    };
    let limit = || {
        let quotas = reloaded.client(&acme).quotas().unwrap().quotas;
        quotas[0].allocated_bytes.limit
    };
    assert!(!create("a"));
    assert_eq!(limit(), Some(1 << 30));
    assert_eq!(reloaded.users(&bounded("volumes = 1\nallocated = \"2GiB\"")), 0);
    assert_eq!(limit(), Some(2 << 30));
    assert!(create("a") && !create("b"));
    assert_eq!(reloaded.users(&bounded("volumes = 2")), 0);
    assert_eq!(limit(), None);
    assert!(create("b"));
}

/// RELOAD-3. Method: a user goes each time, while a quota changes of a tenant that was there, then comes with one that was
/// not.
#[test]
fn a_token_is_revoked_whatever_else_the_list_changes() {
    let (acme, new) = (User::tenant("acme"), User::tenant("new"));
    let (ops, next) = (User::operator("ops"), User::operator("next"));
    let bounded = |tenant: &User, quota: &str| {
        tenant.bounded(&format!("volumes = 3\nallocated = \"{quota}\""))
    };
    let reloaded = Reloaded::start(&[bounded(&acme, "1GiB"), ops.entry()]);
    assert!(is_known(&reloaded.client(&ops)));
    let kept = reloaded.users(&[bounded(&acme, "2GiB"), next.entry()]);
    assert!(!is_known(&reloaded.client(&ops)) && is_known(&reloaded.client(&next)));
    assert_eq!(kept, 0);
    let kept = reloaded.users(&[bounded(&new, "1MiB")]);
    assert!(!is_known(&reloaded.client(&acme)) && !is_known(&reloaded.client(&next)));
    assert!(is_known(&reloaded.client(&new)));
    assert_eq!(kept, 0);
}
