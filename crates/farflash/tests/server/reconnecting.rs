//! `farflash bench` on a server that goes away: it comes back, or it has no such volume any more.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Stdio};

use crate::support::{Files, Server, farflash, own_host, succeed};
use serde_json::Value;

/// A load that is under way.
struct Load {
    child: Child,
    stderr: BufReader<ChildStderr>,
}

impl Load {
    /// Puts load on a volume, and waits until some of it is done.
    fn start(volume: &Value, more: &[&str]) -> Self {
        let text = |field: &str| volume[field].as_str().unwrap_or_default();
        let target = format!("tcp://{}/{}", text("address"), text("nqn"));
        let arguments = ["bench", "--target", &target, "--rw", "randrw", "--rate", "2000"];
        let mut command = farflash(&[&arguments[..], &["--json"], more].concat());
        command.env("FARFLASH_TOKEN", text("token"));
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut load = Self { child, stderr };
        load.wait_for(" IOPS ");
        load
    }

    /// Waits for a line on stderr that has `text`.
    fn wait_for(&mut self, text: &str) {
        let mut seen = String::new();
        while !seen.lines().last().is_some_and(|line| line.contains(text)) {
            let len = self.stderr.read_line(&mut seen).unwrap();
            assert_ne!(len, 0, "it ends: {seen}");
        }
    }

    /// Waits for its end: exit code, result, and what else it said.
    fn end(mut self) -> (Option<i32>, Value, String) {
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).unwrap();
        let output = self.child.wait_with_output().unwrap();
        let result = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (output.status.code(), result, said)
    }
}

/// Method: requests arrive all the time, so that while the server is away they fill each queue, whose
/// connection then has to be authenticated.
#[test]
fn a_full_load_with_tokens_goes_on_behind_kill_9() {
    let files = Files::new();
    let device = files.device("a");
    succeed(&["format", "--device", &format!("{device},size=1GiB")]);
    let listen = format!("{}:4420", own_host());
    let server = Server::start_on(&device, &listen, "127.0.0.1:0", &["--auth", "on"]);
    let volume = server.volume_json(&["create", "a", "--size", "64MiB"]);
    // Long enough that the server is killed under it, however late.
    let more = ["--verify", "--qd", "8", "--connections", "2", "--bytes", "64MiB"];
    let mut load = Load::start(&volume, &more);
    server.signal("KILL");
    assert_eq!(server.wait(), None);
    load.wait_for("connecting again");
    let server = Server::start_on(&device, &listen, "127.0.0.1:0", &["--auth", "on"]);
    let (code, result, said) = load.end();
    assert_eq!(code, Some(0), "{said}");
    assert_eq!((&result["errors"], &result["wrong_at_end"]), (&0.into(), &0.into()), "{result}");
    assert_eq!(result["reconnects"], 1, "{said}");
    drop(server);
}

#[test]
fn a_volume_that_is_deleted_ends_the_load_with_the_reason() {
    for (auth, why) in [("off", "no such subsystem"), ("on", "not authenticated")] {
        let server = Server::start_with("mem:256MiB", &["--auth", auth]);
        let volume = server.volume_json(&["create", "a", "--size", "64MiB"]);
        let mut load = Load::start(&volume, &["--seconds", "100000"]);
        server.volume_json(&["delete", "--lose-data", "a"]);
        load.wait_for("connecting again");
        let (code, result, said) = load.end();
        assert_eq!(code, Some(1), "{said}");
        assert!(result["errors"].as_u64().unwrap() > 0, "{result}");
        assert!(said.contains("the last attempt to connect: ") && said.contains(why), "{said}");
    }
}
