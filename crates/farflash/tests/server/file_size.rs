//! A limit on the size of files.

use std::process::Command;

use units::Lba;

use crate::support::host::{connect, filled, on_core};
use crate::support::{Files, Outcome, Server, farflash, run, until};

/// Runs the binary with a limit, as `prlimit --fsize=` takes it.
fn limited(limit: &str, words: &[&str]) -> Outcome {
    let command = farflash(words);
    let mut limited = Command::new("prlimit");
    limited.arg(format!("--fsize={limit}")).arg(command.get_program()).args(words);
    limited.output().unwrap().into()
}

/// A limit that may be raised is raised; one that may not is named, and ends nothing by a signal.
#[test]
fn a_limit_below_the_size_of_a_device_is_named() {
    let files = Files::new();
    let device = files.device("flash");
    let format = ["format", "--device", &format!("{device},size=256MiB")];
    let refused = limited("1048576", &format);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    for part in ["this process may write files of 1 MiB", "ulimit -f", "LimitFSIZE="] {
        assert!(refused.stderr.contains(part), "{refused:?}");
    }
    assert!(!files.path("flash").exists());
    let raised = limited("1048576:unlimited", &format);
    assert_eq!(raised.code, Some(0), "{raised:?}");
    let serve = ["serve", "--device", &device, "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"];
    let refused = limited("1048576", &serve);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("this process may write files of 1 MiB"), "{refused:?}");
}

#[test]
fn a_limit_that_comes_later_fails_writes_and_ends_nothing() {
    let files = Files::new();
    let device = format!("{},size=256MiB", files.device("flash"));
    let server = Server::start_with(&device, &["--format-if-blank", "--create", "--auth", "off"]);
    let volume = server.volume_json(&["create", "v", "--size", "64MiB"]);
    let text = |field: &str| volume[field].as_str().unwrap().to_owned();
    let limit = |limit: &str| {
        let process = server.process().to_string();
        let set = Command::new("prlimit").args(["--pid", &process, limit]).status();
        assert!(set.unwrap().success());
    };
    limit("--fsize=4096:unlimited");
    let (address, nqn) = (text("address").parse().unwrap(), text("nqn").parse().unwrap());
    on_core(|handle| async move {
        let host = connect(&handle, address, &nqn).await;
        host.write(Lba(7), filled(7)).await.unwrap_err();
    });
    let told = |text: &str| {
        let said = run(&["status", "--api", &server.api]);
        let is_right = said.code == Some(1) && said.stderr.contains(text);
        assert!(!is_right || !said.stderr.contains("make room"), "{said:?}");
        is_right
    };
    until("the limit is told", || told("LimitFSIZE=") && told("do what is said there"));
    server.volume_json(&["list"]);
    limit("--fsize=unlimited:unlimited");
    server.signal("KILL");
    assert_eq!(server.wait(), None, "it lived until now");
}
