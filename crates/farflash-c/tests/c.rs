//! Programs in C, built with the header and the shared library, against a real server.

#![allow(missing_docs)]

mod building;

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use building::{SONAME, build_directory, compile};
use serde_json::Value;

/// A server. Killed when dropped.
struct Server {
    child: Child,
    api: String,
}

impl Server {
    /// One with authentication.
    fn start(device: &str, api: &str) -> Self {
        Self::start_with(device, api, "on")
    }

    fn start_with(device: &str, api: &str, auth: &str) -> Self {
        Self::with_words(device, api, &["--auth", auth])
    }

    fn with_words(device: &str, api: &str, more: &[&str]) -> Self {
        let program = build_directory().join("farflash");
        Self::by(Command::new(&program), device, api, more)
    }

    /// One that `command` becomes.
    fn by(mut command: Command, device: &str, api: &str, more: &[&str]) -> Self {
        command.args(["serve", "--device", device, "--listen", "127.0.0.1:0", "--api", api]);
        command.args(more);
        let spawned = command.arg("--log-json").stderr(Stdio::piped()).spawn();
        let mut child = spawned.unwrap_or_else(|error| {
            panic!("{command:?}: {error}; build it with `cargo build -p farflash`")
        });
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let api = loop {
            let line = lines.next().expect("the server gets ready").unwrap();
            let fields = serde_json::from_str::<Value>(&line).unwrap_or_default();
            if let Some(api) = fields["fields"]["api"].as_str() {
                break api.trim_start_matches("http://").to_owned();
            }
        };
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, api }
    }

    fn url(&self) -> String {
        format!("http://{}", self.api)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Demands that the program of `source` succeeds with a server of its own, with or without authentication. It is told
/// these `files` of the directory that it is built in.
#[track_caller]
fn ends_well(source: &str, auth: &str, files: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(source, directory.path());
    let server = Server::start_with("mem:256MiB", "127.0.0.1:0", auth);
    let files = files.iter().map(|file| directory.path().join(file));
    let output = program_with(&program, &server.url()).args(files).output().unwrap();
    let (said, error) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success() && said == "done\n", "{}: {said}{error}", output.status);
}

fn program_with(program: &Path, urls: &str) -> Command {
    let mut command = Command::new(program);
    for variable in ["API_CA", "API_TOKEN", "TOKEN", "CONTROLLER_TOKEN"] {
        command.env_remove(format!("FARFLASH_{variable}"));
    }
    command.env("FARFLASH_API", urls);
    // Cargo's comes before the program's own path, and where it leads may lie an older library.
    command.env_remove("LD_LIBRARY_PATH");
    command
}

/// Starts a program that is told when to go on, and waits until it says `word`; it, and what it says from then on.
fn begun(mut program: Command, word: &str) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(said.next().expect("it begins").unwrap(), word);
    (child, said)
}

#[test]
fn the_example_does_what_it_says() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile("examples/volume.c", directory.path());
    let server = Server::start("mem:128MiB", "127.0.0.1:0");
    let output = program_with(&program, &server.url()).output().unwrap();
    let (said, error) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{said}{error}");
    assert!(said.contains(": 16777216 bytes at 127.0.0.1:") && said.ends_with("done\n"), "{said}");
}

/// `tests/blocks.c` says what it demands.
#[test]
fn blocks_and_their_metadata_are_one() {
    ends_well("tests/blocks.c", "off", &[]);
}

/// `tests/starting.c` says what it demands.
#[test]
fn volumes_are_provisioned_without_waiting() {
    ends_well("tests/starting.c", "on", &[]);
}

/// `tests/placing.c` says what it demands; what the API says of the volume afterwards is the same.
#[test]
fn a_volume_is_placed_promised_and_owned_as_it_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile("tests/placing.c", directory.path());
    let users = directory.path().join("users.toml");
    let farflash = |arguments: &[&str], token: &str| {
        let mut command = Command::new(build_directory().join("farflash"));
        let output = command.args(arguments).env("FARFLASH_API_TOKEN", token).output();
        let output = output.expect("the program `farflash`");
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let (ops, acme) = (
        farflash(&["api-token", "ops", "--json"], ""),
        farflash(&["api-token", "acme", "--tenant", "--json"], ""),
    );
    let entry = |role: &str, name: &str, made: &Value| {
        format!("[[{role}]]\nname = \"{name}\"\ntoken_sha256 = {}\n", made["token_sha256"])
    };
    let entries = entry("operator", "ops", &ops) + &entry("tenant", "acme", &acme);
    std::fs::write(&users, entries).unwrap();
    let smaller = "mem:128MiB,reads-per-second=10000,writes-per-second=5000";
    let labels = ["--host-name", "flash-1", "--label", "rack=r1", "--label", "row=7"];
    let more = ["--device", smaller, "--api-users", users.to_str().unwrap()];
    let server = Server::with_words("mem:256MiB", "127.0.0.1:0", &[&labels[..], &more].concat());
    let token = ops["token"].as_str().unwrap();
    let mut command = program_with(&program, &server.url());
    let output = command.env("FARFLASH_API_TOKEN", token).output().unwrap();
    let (said, error) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success() && said == "done\n", "{said}{error}");
    let show = ["volume", "show", "placed", "--json", "--api", &server.url()];
    let shown = farflash(&show, token);
    assert_eq!((&shown["owner"], &shown["device"]), (&"acme".into(), &"mem:128MiB".into()));
    assert_eq!((&shown["slo"]["share"], &shown["metadata_bytes"]), (&30.into(), &8.into()));
    let networks = serde_json::json!(["192.0.2.0/24", "127.0.0.0/8"]);
    assert_eq!(shown["restrictions"]["networks"], networks);
}

/// `tests/encrypted.c` says what it demands. Both servers have made their certificates.
#[test]
fn a_server_is_believed_by_its_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile("tests/encrypted.c", directory.path());
    let start = |name: &str| {
        let tls = directory.path().join(name);
        let words = ["--auth", "off", "--api-tls", tls.to_str().unwrap()];
        let server = Server::with_words("mem:128MiB", "127.0.0.1:0", &words);
        (server, tls.join("certificate.pem"))
    };
    let ((server, certificate), (_other, foreign)) = (start("own"), start("other"));
    assert!(server.api.starts_with("https://"), "{}", server.api);
    let mut command = program_with(&program, &server.api);
    let output = command.arg(certificate).arg(foreign).output().unwrap();
    let (said, error) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success() && said == "done\n", "{said}{error}");
}

/// `tests/misuse.c` says what it demands; here the server is killed under its load and comes back at
/// another address.
#[test]
fn misuse_is_refused_and_a_killed_server_is_found_again() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile("tests/misuse.c", directory.path());
    let image = directory.path().join("image");
    let device = format!("file:{}", image.display());
    let formatted = Command::new(build_directory().join("farflash"))
        .args(["format", "--device", &format!("{device},size=256MiB")])
        .output()
        .expect("the program `farflash`; build it with `cargo build -p farflash`");
    assert!(formatted.status.success(), "{formatted:?}");
    let server = Server::start(&device, "127.0.0.1:0");
    let (mut child, said) =
        begun(program_with(&program, &format!("http://127.0.0.1:1, {}", server.url())), "loaded");
    let api = server.api.clone();
    drop(server);
    let _server = Server::start(&device, &api);
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(said.map(Result::unwrap).last().as_deref(), Some("done"));
}

/// `tests/hostile.c` says what it demands.
#[test]
fn what_makes_no_sense_is_refused_and_breaks_nothing() {
    ends_well("tests/hostile.c", "off", &[]);
}

/// `tests/unloaded.c` says what it demands.
#[test]
fn a_library_that_is_unloaded_stays_while_its_thread_runs() {
    ends_well("tests/unloaded.c", "off", &[SONAME]);
}

/// `tests/unrecorded.c` says what it demands.
///
/// Method: the server may write no file of more than 64 KiB, and what is beyond is an error, no signal. The log is filled
/// until it has room for the first line of a change, and not for the second.
#[test]
fn an_incomplete_record_is_told() {
    const LOG_BYTES: usize = 64 << 10;
    let directory = tempfile::tempdir().unwrap();
    let program = compile("tests/unrecorded.c", directory.path());
    let log = directory.path().join("audit.jsonl");
    let mut sh = Command::new("sh");
    sh.args(["-c", r#"trap "" XFSZ; ulimit -f 128; exec "$0" "$@""#]);
    sh.arg(build_directory().join("farflash"));
    let words = ["--auth", "off", "--audit-log", log.to_str().unwrap()];
    let server = Server::by(sh, "mem:128MiB", "127.0.0.1:0", &words);
    let (mut child, said) = begun(program_with(&program, &server.url()), "created");
    let lines = std::fs::read_to_string(&log).unwrap();
    let [asked, answered] = lines.lines().collect::<Vec<_>>()[..] else { panic!("{lines}") };
    let room = LOG_BYTES - lines.len() - asked.len() - answered.len() / 2;
    let mut file = std::fs::OpenOptions::new().append(true).open(&log).unwrap();
    writeln!(file, "{}", " ".repeat(room)).unwrap();
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(said.map(Result::unwrap).last().as_deref(), Some("done"));
}
