//! A server that may make no more threads, as in a container or unit with a limit on them.

use control::{ApiClient, ApiTls, CERTIFICATE_FILE, KEY_FILE};
use serde_json::Value;
use units::Lba;

use crate::support::cgroup::ControlGroup;
use crate::support::host::{connect, filled, on_core};
use crate::support::skipped::skipped;
use crate::support::users::{self, User};
use crate::support::{Files, Outcome, Server, farflash, tokens, until};

/// Longer than idle threads of the runtime and of the kernel live by default.
const IDLE: std::time::Duration = std::time::Duration::from_secs(12);

fn start(group: &ControlGroup, files: &Files, users: &str) -> Server {
    let path = |name: &str| files.path(name).to_str().unwrap().to_owned();
    let device = format!("{},size=256MiB", files.device("flash"));
    let (tls, audit) = (path("tls"), path("audit.jsonl"));
    let flags = ["--format-if-blank", "--create", "--api-users", users, "--api-tls", &tls];
    let words = group.join();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Server::start_by("sh", &words, &device, &[&flags[..], &["--audit-log", &audit]].concat())
}

/// Reloads; returns how many things stayed as they were.
fn reload(server: &Server) -> u64 {
    server.signal("HUP");
    let lines = server.log_until(|line| line["message"] == "SIGHUP: read again");
    lines.last().unwrap()["kept"].as_u64().unwrap()
}

fn client(files: &Files, server: &Server, user: &User) -> ApiClient {
    let certificate = files.path("tls").join(CERTIFICATE_FILE);
    ApiClient::trusting(&server.api, Some(&certificate)).unwrap().with_token(&user.token)
}

/// Makes a volume, and writes and reads it as a host that shows by a Diffie-Hellman exchange that it knows its token.
fn use_a_new_volume(client: &ApiClient, name: &str) {
    let size = control::VolumeSize::try_from(16 << 20).unwrap();
    let request = control::CreateVolume::new(name.parse().unwrap(), size);
    let volume = tokens::kept_of(client.create(&request).unwrap());
    on_core(|handle| async move {
        let nqn = volume.nqn.parse().unwrap();
        let host = connect(&handle, volume.address, &nqn).await;
        host.write(Lba(7), filled(7)).await.unwrap();
        host.flush().await.unwrap();
        let read = host.read(Lba(7), 1).await.unwrap();
        assert_eq!(read.as_bytes(), filled(7).as_bytes());
    });
}

/// Method: the limit of a control group is set below what the server has, which keeps it from making any.
#[test]
fn a_server_that_can_make_no_more_threads_does_all_that_it_did() {
    let Some(group) = ControlGroup::new("pids") else {
        return skipped("control groups with a limit on processes take root");
    };
    let files = Files::new();
    let [old, new, last] = ["a", "b", "c"].map(User::operator);
    let server = start(&group, &files, &users::list(&files, &[old.entry()]));
    assert!(group.set("pids.max", "1"));

    use_a_new_volume(&client(&files, &server, &old), "one");
    users::list(&files, &[new.entry()]);
    assert_eq!(reload(&server), 0);
    client(&files, &server, &old).list().unwrap_err();
    use_a_new_volume(&client(&files, &server, &new), "two");

    std::thread::sleep(IDLE);
    use_a_new_volume(&client(&files, &server, &new), "three");
    users::list(&files, &[last.entry()]);
    let other = files.path("other");
    ApiTls::open_or_make(&other, &["127.0.0.1".to_owned()]).unwrap();
    for name in [KEY_FILE, CERTIFICATE_FILE] {
        std::fs::copy(other.join(name), files.path("tls").join(name)).unwrap();
    }
    assert_eq!(reload(&server), 0);
    client(&files, &server, &new).list().unwrap_err();
    let operator = client(&files, &server, &last);
    use_a_new_volume(&operator, "four");

    // What is looked at every second is looked at still.
    std::fs::rename(files.path("flash"), files.path("moved")).unwrap();
    until("the file is missed", || !operator.server().unwrap().devices[0].notices.is_empty());
    std::fs::rename(files.path("moved"), files.path("flash")).unwrap();
    until("the file is back", || operator.server().unwrap().devices[0].notices.is_empty());
    assert_eq!(operator.server().unwrap().notices, []);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
}

/// Whatever the number of threads that can be had, a server starts with all or says what to raise, and never panics.
#[test]
fn a_server_that_gets_too_few_threads_says_what_to_raise() {
    let Some(group) = ControlGroup::new("pids") else {
        return skipped("control groups with a limit on processes take root");
    };
    let words = group.join();
    let run = || -> Outcome {
        let server = farflash(&["serve", "--device", "mem:64MiB", "--listen", "127.0.0.1:0"]);
        let mut command = std::process::Command::new("timeout");
        command.args(["--signal=TERM", "5", "sh"]).args(&words).arg(server.get_program());
        command.args(server.get_args()).args(["--api", "127.0.0.1:0", "--log-json"]);
        command.output().unwrap().into()
    };
    for limit in 1..64 {
        assert!(group.set("pids.max", &limit.to_string()));
        let outcome = run();
        assert!(!outcome.stderr.contains("panicked"), "{limit}: {outcome:?}");
        let is_ready = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap_or_default();
            line["fields"]["message"] == "ready"
        };
        if outcome.stderr.lines().any(is_ready) {
            assert!(limit > 1, "it has threads");
            return;
        }
        assert_eq!(outcome.code, Some(1), "{limit}: {outcome:?}");
        for part in ["more threads are needed", "hint: raise", "pids.max allows", "--pids-limit"] {
            assert!(outcome.stderr.contains(part), "{limit}: {outcome:?}");
        }
    }
    panic!("64 threads are enough");
}
