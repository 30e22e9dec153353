//! `farflash kv-load` with agents in processes of their own.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use serde_json::Value;

use crate::support::{Files, PATIENCE, farflash, refused, run, succeed};

/// An agent, which is killed when it is dropped.
struct AgentProcess {
    child: Child,
    address: String,
}

impl AgentProcess {
    fn start(files: &Files, name: &str) -> Self {
        let (directory, token) = (files.path(name), files.path("token"));
        let mut child = farflash(&["kv-load", "agent", "--listen", "127.0.0.1:0", "--tls"])
            .arg(directory)
            .arg("--token-file")
            .arg(token)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the agent starts");
        let mut line = String::new();
        let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        stderr.read_line(&mut line).expect("it says where it is");
        let address = line.split("agent on ").nth(1).and_then(|rest| rest.split(',').next());
        let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
        // A pipe that is not read would fill up.
        thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        Self { child, address }
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server that has one value for each key. Keys have no letters that spell a command.
fn key_value_server() -> SocketAddr {
    key_value_server_that_tells(channel().0)
}

/// The same, which tells of each part of the load that it hears.
fn key_value_server_that_tells(heard: Sender<()>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let serve = |mut stream: TcpStream, heard: Sender<()>| {
        let mut buffer = [0; 64 << 10];
        loop {
            let len = stream.read(&mut buffer).unwrap_or(0);
            let count =
                |word: &[u8]| buffer[..len].windows(word.len()).filter(|w| *w == word).count();
            let replies = [
                b"+PONG\r\n".repeat(count(b"$4\r\nPING\r\n")),
                b"$1\r\nv\r\n".repeat(count(b"$3\r\nGET\r\n")),
            ];
            let _ = heard.send(());
            if len == 0 || stream.write_all(&replies.concat()).is_err() {
                return;
            }
        }
    };
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let heard = heard.clone();
            thread::spawn(move || serve(stream, heard));
        }
    });
    address
}

fn token_file(files: &Files, name: &str, token: &str) -> String {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).mode(0o600).open(files.path(name));
    writeln!(file.expect("a file"), "{token}").expect("written");
    files.path(name).display().to_string()
}

/// Two agents make the load of one run, believe only one another's coordinator, and are named where they limit it.
#[test]
fn agents_make_the_load_for_those_who_have_the_token() {
    let files = Files::new();
    let token = token_file(&files, "token", "0123456789abcdef0123");
    let agents = [AgentProcess::start(&files, "one"), AgentProcess::start(&files, "two")];
    let certificate = |name: &str| files.path(name).join("certificate.pem");
    let both = ["one", "two"].map(|name| std::fs::read_to_string(certificate(name)).expect("made"));
    let trusted = files.path("agents.pem").display().to_string();
    std::fs::write(&trusted, both.concat()).expect("a file");
    let target = key_value_server().to_string();
    let load = |trusted: &str, token: &str, more: &[&str]| -> Vec<String> {
        let words =
            ["kv-load", "--json", "--warm-up", "100ms", "--time", "1s", "--target", &target];
        let agents = agents.iter().flat_map(|agent| ["--agent", &agent.address]);
        let shown = ["--agent-ca", trusted, "--agent-token-file", token];
        words
            .into_iter()
            .chain(agents)
            .chain(shown)
            .chain(more.iter().copied())
            .map(str::to_owned)
            .collect()
    };
    fn words(arguments: &[String]) -> Vec<&str> {
        arguments.iter().map(String::as_str).collect()
    }

    let arguments = load(&trusted, &token, &["--qps", "200", "--arrivals", "uniform"]);
    let result: Value = serde_json::from_str(&succeed(&words(&arguments))).expect("a line of JSON");
    assert_eq!(result["reads"]["count"], 200, "{result}");
    for (part, agent) in result["agents"].as_array().expect("agents").iter().zip(&agents) {
        assert_eq!(
            (&part["agent"], &part["requests"]),
            (&agent.address.as_str().into(), &100.into())
        );
    }
    assert!(
        result["probe"]["count"].as_u64() > Some(0),
        "the probe is the coordinator's: {result}"
    );

    let guessed = token_file(&files, "guessed", "0123456789abcdef0124");
    refused(&words(&load(&trusted, &guessed, &[])), 1, "the token is wrong", "one token");
    let one = certificate("one").display().to_string();
    refused(&words(&load(&one, &token, &[])), 1, "certificate is not trusted", "--agent-ca");
    let short = token_file(&files, "short", "secret");
    refused(&words(&load(&trusted, &short, &[])), 2, "too short", "openssl rand");

    let limited = run(&words(&load(&trusted, &token, &["--qps", "1000000000"])));
    assert_eq!(limited.code, Some(1), "{limited:?}");
    let named = agents.iter().any(|agent| {
        limited.stderr.contains(&format!("the own CPU of agent {} limited this run", agent.address))
    });
    assert!(named, "{limited:?}");
}

/// Figures of a run in which the generator did not run are not told as the server's. Method: its process is stopped for a while
/// in the middle of the run.
#[test]
fn a_generator_that_was_stopped_does_not_blame_the_server() {
    let (tell, heard) = channel();
    let target = key_value_server_that_tells(tell).to_string();
    let arguments = ["kv-load", "--target", &target, "--qps", "100", "--warm-up", "200ms"];
    let generator = farflash(&arguments)
        .args(["--time", "2s", "--probe-rate", "0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    for _ in 0..30 {
        heard.recv_timeout(PATIENCE).expect("the load goes on");
    }
    let signal = |signal| kill_process(Pid::from_child(&generator), signal).expect("it runs");
    signal(Signal::STOP);
    thread::sleep(Duration::from_millis(2500));
    signal(Signal::CONT);
    let output = generator.wait_with_output().expect("it ends");
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("did not run for ") && told.contains("run it again"), "{told}");
    assert!(output.stdout.is_empty(), "{:?}", output.stdout);
}

#[test]
fn agents_need_both_proofs() {
    for (arguments, part) in [
        (["kv-load", "--agent", "127.0.0.1:1"], "--agent-ca"),
        (["kv-load", "--tls-ca", "a.pem"], "--tls"),
        (["kv-load", "--agent", "127.0.0.1"], "no address of an agent"),
    ] {
        let outcome = run(&arguments);
        assert_eq!(outcome.code, Some(2), "{arguments:?}: {outcome:?}");
        assert!(outcome.stderr.contains(part), "{arguments:?}: {outcome:?}");
    }
}

/// A sweep is drawn: latency at each rate, both distributions, and each run over time. A file that cannot be made refuses the load
/// before it begins.
#[test]
fn a_sweep_is_drawn() {
    let files = Files::new();
    let plot = files.path("load.svg").display().to_string();
    let target = key_value_server().to_string();
    let words = ["kv-load", "--target", &target, "--warm-up", "100ms", "--time", "1s", "--plot"];
    succeed(&[&words[..], &[&plot, "--qps", "100,200"]].concat());
    let svg = std::fs::read_to_string(&plot).expect("the picture");
    assert!(svg.ends_with("</svg>\n") || svg.ends_with("</svg>"), "whole");
    for text in
        ["Latency at each rate", "reads, 100/s", "reads, 200/s", "99th percentile over time"]
    {
        assert!(svg.contains(text), "no `{text}`");
    }
    let absent = files.path("no such/load.svg").display().to_string();
    refused(&[&words[..], &[&absent]].concat(), 1, "cannot be written", "--plot");
}
