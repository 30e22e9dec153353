//! Programs of the machine: `ethtool` for cards, `ping` for paths, `systemctl` and `update-grub` for
//! what lasts over a reboot.

use std::fmt;
use std::io;
use std::process::{Command, Stdio};

/// Runs programs.
pub trait Programs: fmt::Debug + Send + Sync {
    /// Runs `program` to its end and returns its output.
    ///
    /// # Errors
    /// It is not there (`NotFound`), or failed; then the error has what it said.
    fn run(&self, program: &str, arguments: &[&str]) -> io::Result<String>;
}

/// The programs of the running machine.
#[derive(Debug)]
pub(crate) struct Live;

/// A copied tree: its programs are another machine's.
#[derive(Debug)]
pub(crate) struct Absent;

impl Programs for Live {
    fn run(&self, program: &str, arguments: &[&str]) -> io::Result<String> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).env("LC_ALL", "C");
        // Administrators' programs are often not on the path of a user.
        let path = std::env::var("PATH").unwrap_or_default();
        let output = command.env("PATH", format!("{path}:/usr/sbin:/sbin")).output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            return Ok(text(&output.stdout));
        }
        let said = text(&output.stderr);
        let said = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("it failed");
        Err(io::Error::other(format!("{program} {}: {said}", arguments.join(" "))))
    }
}

impl Programs for Absent {
    fn run(&self, _program: &str, _arguments: &[&str]) -> io::Result<String> {
        Err(io::ErrorKind::NotFound.into())
    }
}
