//! Network settings: the process that undoes what is not confirmed, and probes of a path.

use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use host_tune::{Proposal, Root};
use rustix::time::{ClockId, clock_gettime};
use user_messages::Failure;
use user_messages::output;

/// Milliseconds since the boot, with those in which the machine slept.
pub(super) fn now() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.cast_unsigned() * 1000 + now.tv_nsec.cast_unsigned() / 1_000_000
}

/// Tells the process that started this one that it waits, and waits.
pub(super) fn wait_until(by: u64) {
    let _ = output::print("", |out| writeln!(out, "ready"));
    while now() < by {
        thread::sleep(Duration::from_millis((by - now().min(by)).clamp(1, 1000)));
    }
}

/// Starts the process that undoes, at `by`, what was not confirmed. It outlives this process and its session.
pub(super) fn start(root: &Root, record: &Path, by: u64) -> io::Result<()> {
    let program = std::env::current_exe()?;
    let by = by.to_string();
    let mut words = vec![program.as_os_str(), "tune".as_ref(), "undo".as_ref()];
    words.extend([
        "--unconfirmed-by".as_ref(),
        by.as_ref(),
        "--record".as_ref(),
        record.as_os_str(),
    ]);
    if runs_under_systemd(root) {
        // A service, as the end of a session can take all of its processes with it.
        let options =
            ["--quiet", "--collect", "--service-type=exec", "--description=Undo of farflash tune"];
        let mut command = Command::new("systemd-run");
        if command
            .args(options)
            .args(&words)
            .stdin(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
        {
            return Ok(());
        }
    }
    let mut command = Command::new("setsid");
    command.arg("--fork").args(&words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    child.wait()?;
    match line.trim() {
        "ready" => Ok(()),
        _ => Err(io::Error::other("the process that undoes did not start")),
    }
}

/// True if systemd runs, and sees the network that this process sees.
fn runs_under_systemd(root: &Root) -> bool {
    let network = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    root.has("/run/systemd/system") && network("self").is_some() && network("self") == network("1")
}

/// Says that cards can be looked at in part only, if that is so.
pub(super) fn note_missing_ethtool(root: &Root) {
    let is_missing = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
    if root.is_live() && root.run("ethtool", &["--version"]).is_err_and(is_missing) {
        output::note(
            "offloads and steering of network cards are left out: there is no program `ethtool` (apt install ethtool)",
        );
    }
}

/// The plan with larger packets only for the card that leads to `host`: a probe says nothing about others.
pub(super) fn only_towards(
    root: &Root,
    host: &str,
    plan: Vec<Proposal>,
) -> Result<Vec<Proposal>, Failure> {
    let found = root.run("ip", &["-o", "route", "get", host]).map_err(|error| {
        let what = format!("--probe: the way to {host} cannot be found: {}", said(&error, "ip"));
        Failure::usage(what, "give an IP address of a peer that is reached from here")
    })?;
    let words: Vec<&str> = found.split_whitespace().collect();
    let card = words.windows(2).find(|pair| pair[0] == "dev").map(|pair| pair[1].to_owned());
    let leads = |one: &Proposal| card.as_ref() == Some(&one.subject);
    Ok(plan.into_iter().filter(|one| one.setting != "jumbo-frames" || leads(one)).collect())
}

/// An error of a program in words; its absence names the package.
fn said(error: &io::Error, program: &str) -> String {
    match (error.kind(), program) {
        (io::ErrorKind::NotFound, "ping") => {
            "there is no program `ping` (apt install iputils-ping)".into()
        }
        (io::ErrorKind::NotFound, _) => {
            format!("there is no program `{program}` on this machine (apt install iproute2)")
        }
        _ => error.to_string(),
    }
}

/// Sends `host` packets of `mtu` bytes that must not be cut on the way; true if one is answered.
fn ping(root: &Root, host: &str, mtu: u32) -> io::Result<()> {
    // The headers of IP and ICMP.
    let headers = if host.contains(':') { 48 } else { 28 };
    let size = mtu.saturating_sub(headers).to_string();
    root.run(
        "ping",
        &["-n", "-q", "-M", "do", "-c", "3", "-i", "0.3", "-W", "1", "-s", &size, host],
    )
    .map(drop)
}

/// True if packets of `mtu` bytes get to `host` and back.
pub(super) fn carries(root: &Root, host: &str, mtu: u32) -> bool {
    ping(root, host, mtu).is_ok()
}

/// An error if `host` does not answer at all, so that a probe would say nothing.
pub(super) fn must_answer(root: &Root, host: &str) -> Result<(), Failure> {
    ping(root, host, 576).map_err(|error| {
        let what = format!("--probe: {host} cannot be asked: {}", said(&error, "ping"));
        Failure::usage(
            what,
            "give a peer that answers pings, or the size of the path with --path-mtu",
        )
    })
}

/// Says which packets get to `host` today. Larger ones can be tried only while the card sends them.
pub(super) fn note_present_path(root: &Root, host: &str) -> Result<(), Failure> {
    must_answer(root, host)?;
    let sizes = [super::JUMBO, 4096, 1500, 1492, 1400, 1280, 576];
    let largest = sizes.into_iter().find(|size| carries(root, host, *size)).unwrap_or(576);
    output::note(&format!(
        "packets of {largest} bytes get to {host} with the present settings; `apply --network --probe` tries {}, and \
         takes it back if they do not get there",
        super::JUMBO
    ));
    Ok(())
}
