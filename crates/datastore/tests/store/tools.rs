//! Clients that others wrote: redis-cli and redis-benchmark.

use std::process::Command;

use super::support::{Server, skipped};

/// Runs a tool; `None`: it is not installed.
fn run(tool: &str, server: &Server, arguments: &[&str]) -> Option<String> {
    let port = server.address.port().to_string();
    let output = Command::new(tool).args(["-p", &port]).args(arguments).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{tool} {arguments:?}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(text)
}

#[test]
fn redis_cli_works() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = Server::start(directory.path(), &[]);
    let cases: [(&[&str], &str); 9] = [
        (&["SET", "a", "1"], "OK\n"),
        (&["APPEND", "a", "23"], "3\n"),
        (&["GET", "a"], "123\n"),
        (&["-3", "MGET", "a", "none"], "123\n\n"),
        (
            &["-3", "HELLO", "3"],
            "server redis\nversion 7.0.0\nmode standalone\nrole master\nproto 3\nid 9\nmodules \n",
        ),
        (&["--scan"], "a\n"),
        (&["EXISTS", "a", "a", "b"], "2\n"),
        (&["UNLINK", "a"], "1\n"),
        (&["DBSIZE"], "0\n"),
    ];
    for (arguments, expected) in cases {
        let Some(text) = run("redis-cli", &server, arguments) else {
            return skipped("redis-cli, of the package redis-tools");
        };
        // A connection's number depends on those before it.
        let text = text.lines().map(|line| if line.starts_with("id ") { "id 9" } else { line });
        let text: String = text.flat_map(|line| [line, "\n"]).collect();
        assert_eq!(text, expected, "{arguments:?}");
    }
}

/// Each test of redis-benchmark that uses commands which there are, with and without pipelines.
#[test]
fn redis_benchmark_works() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = Server::start(directory.path(), &[]);
    for pipeline in ["1", "16"] {
        let arguments = [
            "--csv",
            "-n",
            "2000",
            "-c",
            "20",
            "-P",
            pipeline,
            "-r",
            "1000",
            "-t",
            "ping,set,get,mset",
        ];
        let Some(text) = run("redis-benchmark", &server, &arguments) else {
            return skipped("redis-benchmark, of the package redis-tools");
        };
        for test in ["PING_INLINE", "PING_MBULK", "SET", "GET", "MSET (10 keys)"] {
            assert!(text.contains(&format!("\"{test}\",")), "{text}");
        }
    }
    let mut client = server.client();
    assert_eq!(client.info("errors_total"), 0.0);
    assert!(client.info("requests_total_write") >= 8000.0);
}
