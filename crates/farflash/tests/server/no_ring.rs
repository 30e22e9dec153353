//! A server that is not allowed what it needs of io_uring, and one under the seccomp profile that is shipped.

use std::process::Command;

use crate::support::{Files, Outcome, Server, farflash, skipped::skipped};

/// Runs a command under a filter.
const WITH_SECCOMP: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/container/with-seccomp");
/// The profile that is shipped.
const PROFILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/seccomp.json");

fn can_filter() -> bool {
    let tried = Command::new(WITH_SECCOMP).args(["--profile", PROFILE, "true"]).output();
    let can = tried.is_ok_and(|tried| tried.status.success());
    if !can {
        skipped("seccomp filters take python3 and the kernel's headers");
    }
    can
}

/// The server names what forbids io_uring, and how to allow it, whatever it answers and whichever call it is.
#[test]
fn a_filter_that_forbids_io_uring_is_named() {
    if !can_filter() {
        return;
    }
    let files = Files::new();
    let device = &format!("{},size=256MiB", files.device("flash"));
    let serve =
        ["serve", "--device", "mem:64MiB", "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"];
    let format = ["format", "--device", device];
    for call in ["io_uring_setup", "io_uring_enter", "io_uring_register"] {
        for errno in ["EPERM", "ENOSYS"] {
            for words in [&serve[..], &format[..]] {
                let command = farflash(words);
                let denied = format!("{call}={errno}");
                let mut filtered = Command::new(WITH_SECCOMP);
                filtered.args(["--deny", &denied]).arg(command.get_program()).args(words);
                let outcome = Outcome::from(filtered.output().unwrap());
                assert_eq!(outcome.code, Some(1), "{denied}: {outcome:?}");
                let what = format!("error: a seccomp filter forbids {call}");
                for part in [&what, " hint: allow io_uring_setup", "seccomp.json"] {
                    assert!(outcome.stderr.contains(part), "{denied}: {outcome:?}");
                }
                assert!(!outcome.stderr.contains("panicked"), "{denied}: {outcome:?}");
            }
        }
    }
}

#[test]
fn the_profile_that_is_shipped_allows_all_that_a_server_does() {
    if !can_filter() {
        return;
    }
    let files = Files::new();
    let device = format!("{},size=256MiB", files.device("flash"));
    let audit = files.path("audit.jsonl");
    let flags = ["--format-if-blank", "--create", "--audit-log", audit.to_str().unwrap()];
    let server = Server::start_by(WITH_SECCOMP, &["--profile", PROFILE], &device, &flags);
    server.volume_json(&["create", "v", "--size", "64MiB"]);
    let volume = server.volume_json(&["show", "v"]);
    let target = format!(
        "tcp://{}/{}",
        volume["address"].as_str().unwrap(),
        volume["nqn"].as_str().unwrap()
    );
    let mut load = farflash(&[
        "bench",
        "--target",
        &target,
        "--rw",
        "randwrite",
        "--bytes",
        "1MiB",
        "--quiet",
    ]);
    crate::support::tokens::give(&mut load, &target);
    let load = Outcome::from(load.output().unwrap());
    assert_eq!(load.code, Some(0), "{load:?}");
    server.signal("HUP");
    server.wait_for_log("SIGHUP: read again");
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
}
