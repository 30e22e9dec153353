//! Callers that may ask the API of a server without a list of users: root and the server's own user, on its
//! own host.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::support::{Files, Server, users};

/// The unprivileged user that owns nothing on Linux.
const UNPRIVILEGED: u32 = 65_534;
const CREATE: &str = r#"{"name":"taken","size_bytes":67108864}"#;

/// A shell that sends `request` to `address`, and does `then` with the connection, which is its descriptor 3.
fn shell(address: &str, request: &str, then: &str) -> Command {
    let (ip, port) = address.trim_start_matches("http://").rsplit_once(':').unwrap();
    let mut shell = Command::new("bash");
    let connect = format!("exec 3<>/dev/tcp/{ip}/{port} || exit 9");
    shell.arg("-c").arg(format!("{connect}; printf '%s' \"$0\" >&3 || exit 8; {then}"));
    shell.arg(request);
    shell
}

fn request(line: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "{line} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

/// Returns the output of `command`.
fn answer(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn volumes(server: &Server) -> String {
    let listed = server.volume(&["list", "--json"]);
    assert_eq!(listed.code, Some(0), "{listed:?}");
    listed.stdout
}

#[test]
fn other_users_of_the_host_are_refused() {
    assert!(rustix::process::geteuid().is_root(), "to be another user needs root");
    let server = Server::start("mem:256MiB");
    let create = request("POST /v1/volumes", CREATE);
    let refused = answer(shell(&server.api, &create, "cat <&3").uid(UNPRIVILEGED));
    assert!(refused.starts_with("HTTP/1.1 401 "), "{refused}");
    assert!(refused.contains("answers root and the user 0") && refused.contains("--api-users"));
    for path in ["/v1/volumes", "/metrics", "/v1/volumes/taken"] {
        let refused = answer(
            shell(&server.api, &request(&format!("GET {path}"), ""), "cat <&3").uid(UNPRIVILEGED),
        );
        assert!(refused.starts_with("HTTP/1.1 401 "), "{path}: {refused}");
    }
    let ready = request("GET /readyz", "");
    let answered = answer(shell(&server.api, &ready, "cat <&3").uid(UNPRIVILEGED));
    assert!(answered.starts_with("HTTP/1.1 200 "), "{answered}");
    assert!(!volumes(&server).contains("taken"));
    let made = answer(&mut shell(&server.api, &create, "cat <&3"));
    assert!(made.starts_with("HTTP/1.1 201 "), "{made}");
}

/// The kernel shows a socket that its process has left as one of the user 0: a user that sends a request and
/// ends at once is not root for that.
#[test]
fn no_user_is_root_by_going_away() {
    assert!(rustix::process::geteuid().is_root(), "to be another user needs root");
    let server = Server::start("mem:256MiB");
    let create = request("POST /v1/volumes", CREATE);
    for _ in 0..30 {
        answer(shell(&server.api, &create, "exit 0").uid(UNPRIVILEGED));
        // While the server does not look.
        server.pause();
        answer(shell(&server.api, &create, "exit 0").uid(UNPRIVILEGED));
        server.resume();
    }
    assert!(!volumes(&server).contains("taken"));
}

/// The user that a server runs as, without root.
#[test]
fn a_server_answers_its_own_user() {
    assert!(rustix::process::geteuid().is_root(), "to be another user needs root");
    let words = ["--reuid", "65534", "--clear-groups"];
    let server = Server::start_by("setpriv", &words, "mem:256MiB", &[]);
    let list = request("GET /v1/volumes", "");
    for uid in [UNPRIVILEGED, 0] {
        let answered = answer(shell(&server.api, &list, "cat <&3").uid(uid));
        assert!(answered.starts_with("HTTP/1.1 200 "), "{uid}: {answered}");
    }
    let refused = answer(shell(&server.api, &list, "cat <&3").uid(1));
    assert!(refused.starts_with("HTTP/1.1 401 "), "{refused}");
}

/// Another host, which is a network namespace here, is a stranger, whichever user asks there.
#[test]
fn other_hosts_are_refused() {
    let host = format!("ff-owner-{}", std::process::id());
    let wire = format!("ffo{}", std::process::id() % 100_000);
    let _gone = Namespace(host.clone());
    for line in [
        format!("netns add {host}"),
        format!("link add {wire} type veth peer name wire netns {host}"),
        format!("address add 10.79.0.1/24 dev {wire}"),
        format!("-n {host} address add 10.79.0.2/24 dev wire"),
        format!("link set {wire} up"),
        format!("-n {host} link set wire up"),
    ] {
        let status =
            Command::new("ip").args(line.split(' ')).status().expect("iproute2 is installed");
        assert!(status.success(), "ip {line}");
    }
    let list = request("GET /v1/volumes", "");
    let ask = |server: &Server, namespace: Option<&str>| {
        let port = server.api.rsplit_once(':').unwrap().1;
        let shell = shell(&format!("10.79.0.1:{port}"), &list, "cat <&3");
        let Some(namespace) = namespace else { return answer(&mut { shell }) };
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", namespace]).arg(shell.get_program()).args(shell.get_args());
        answer(&mut inside)
    };
    let server = Server::start_on("mem:256MiB", "127.0.0.1:0", "10.79.0.1:0", &[]);
    let (here, there) = (ask(&server, None), ask(&server, Some(&host)));
    assert!(here.starts_with("HTTP/1.1 200 "), "{here}");
    assert!(there.starts_with("HTTP/1.1 401 "), "{there}");
    let server = Server::start_on("mem:256MiB", "127.0.0.1:0", "10.79.0.1:0", &["--api-open"]);
    let there = ask(&server, Some(&host));
    assert!(there.starts_with("HTTP/1.1 200 "), "{there}");
}

#[test]
fn an_open_api_has_no_list() {
    let files = Files::new();
    let list = users::list(&files, &[users::User::operator("ops").entry()]);
    let words = ["serve", "--device", "mem:256MiB", "--api-open", "--api-users", &list];
    crate::support::refused(&words, 2, "has no list of users", "leave out --api-open");
}

/// Gone, with its interfaces, when dropped.
struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}
