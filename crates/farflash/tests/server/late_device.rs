//! A device that is not there when the server starts, and no other.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Files, farflash, run, succeed};

/// Method: the file is moved away, and comes back when the server was seen to wait for it.
#[test]
fn a_start_waits_for_a_device_as_long_as_it_was_told() {
    let files = Files::new();
    let device = &files.device("flash");
    succeed(&["format", "--device", &format!("{device},size=256MiB")]);
    std::fs::rename(files.path("flash"), files.path("away")).unwrap();
    let serve = ["serve", "--device", device, "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"];

    let refused = run(&[&serve[..], &["--device-wait", "1"]].concat());
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("error: "), "{refused:?}");
    assert_eq!(refused.stderr.matches("waiting for a device").count(), 1, "{refused:?}");
    let refused = run(&serve);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(!refused.stderr.contains("waiting for a device"), "{refused:?}");

    let mut command = farflash(&[&serve[..], &["--device-wait", "3600", "--log-json"]].concat());
    let mut server = command.stderr(Stdio::piped()).spawn().unwrap();
    let log = BufReader::new(server.stderr.take().unwrap()).lines();
    let mut log = log.map_while(Result::ok);
    log.find(|line| line.contains("waiting for a device")).expect("it waits");
    std::fs::rename(files.path("away"), files.path("flash")).unwrap();
    log.find(|line| line.contains("\"ready\"")).expect("it is served");
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    log.for_each(drop);
    assert_eq!(server.wait().unwrap().code(), Some(0));
}

/// The unit that is shipped goes on trying, as long as a device may take to come.
#[test]
fn the_unit_never_gives_up_on_a_device() {
    let unit = include_str!("../../../../packaging/farflash.service");
    for line in ["StartLimitIntervalSec=0", "Restart=on-failure"] {
        assert!(unit.lines().any(|found| found == line), "{line}");
    }
    let settings = include_str!("../../../../packaging/farflash.toml");
    assert!(settings.lines().any(|line| line.starts_with("device_wait = ")), "{settings}");
}
