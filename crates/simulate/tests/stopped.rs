//! `farflash-sim` that is stopped while it runs.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// It tells of the seeds until then, and of the situations that were never reached.
#[test]
fn the_result_is_printed_when_it_is_stopped() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_farflash-sim"))
        .args(["--workload", "crash", "--threads", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut words = BufReader::new(child.stderr.take().expect("piped")).lines();
    words.next().expect("its first line comes when it can be stopped").expect("text");
    let pid = child.id().to_string();
    let status = Command::new("kill").args(["-INT", &pid]).status().expect("started");
    assert!(status.success());
    let output = child.wait_with_output().expect("ended");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{:?}: {text}", output.status);
    assert!(text.contains(" 0 failed\n") && text.contains("\nnever reached: "), "{text}");
}
