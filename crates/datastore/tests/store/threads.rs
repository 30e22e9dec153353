//! A server that may make no more threads, as in a container or unit with a limit on them.

use std::path::Path;
use std::process::{Command, Output};

use test_support::cgroup::ControlGroup;
use test_support::waiting::until;

use super::support::{Server, command, skipped};

/// The command of a server in a control group, ended after some seconds if `seconds` says so.
fn within(group: &ControlGroup, data: &Path, words: &[&str], seconds: Option<&str>) -> Command {
    let server = command(data, words);
    let mut all = match seconds {
        Some(seconds) => {
            let mut command = Command::new("timeout");
            command.args(["--signal=TERM", seconds, "sh"]);
            command
        }
        None => Command::new("sh"),
    };
    all.args(group.join()).arg(server.get_program()).args(server.get_args());
    all
}

/// Whatever the number of threads that can be had, a server starts with all or says what to raise; it never panics, and RocksDB
/// ends no process.
#[test]
fn a_server_that_gets_too_few_threads_says_what_to_raise() {
    let Some(group) = ControlGroup::new("pids") else {
        return skipped("control groups with a limit on processes take root");
    };
    let directory = tempfile::tempdir().expect("a directory");
    let few = ["--readers", "2", "--writers", "2", "--background-jobs", "2"];
    for limit in 1..32 {
        assert!(group.set("pids.max", &limit.to_string()));
        let Output { status, stderr, .. } =
            within(&group, directory.path(), &few, Some("3")).output().expect("it runs");
        let said = String::from_utf8_lossy(&stderr);
        assert!(!said.contains("panicked") && !said.contains("terminate"), "{limit}: {said}");
        if said.contains("serving ") {
            assert!(limit > 8, "{limit}: it has threads");
            return;
        }
        assert_eq!(status.code(), Some(1), "{limit}: {status} {said}");
        for part in ["10 more threads are needed", "hint: raise", "TasksMax=", "--readers"] {
            assert!(said.contains(part), "{limit}: {said}");
        }
    }
    panic!("32 threads are enough");
}

/// Method: the limit is set below what the server has, before it has done anything; then it flushes, compacts, and serves new
/// clients.
#[test]
fn a_server_that_can_make_no_more_threads_does_all_that_it_did() {
    let Some(group) = ControlGroup::new("pids") else {
        return skipped("control groups with a limit on processes take root");
    };
    let directory = tempfile::tempdir().expect("a directory");
    let words = ["--level0-compaction", "1"];
    let server = Server::spawn(&mut within(&group, directory.path(), &words, None));
    assert!(group.set("pids.max", "1"));
    let value = "v".repeat(10_000);
    for round in 0..4 {
        let mut client = server.client();
        for key in 0..400 {
            assert_eq!(client.text(&format!("SET {round}-{key} {value}")), "OK");
        }
        assert_eq!(client.text(&format!("STRLEN {round}-7")), "10000");
    }
    let mut client = server.client();
    until("memtables were flushed", || client.info("flush_written_bytes_total") > 0.0);
    until("files were compacted", || client.info("compaction_written_bytes_total") > 0.0);
    assert!(server.stop().success());
    assert!(group.set("pids.max", "max"));
    let server = Server::start(directory.path(), &[]);
    assert_eq!(server.client().text("STRLEN 3-399"), "10000");
}
