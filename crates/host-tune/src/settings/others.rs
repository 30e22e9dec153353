//! Programs that disturb interrupts and drives: named, and left to the operator.

use super::{Context, Setting};
use crate::proposal::{Proposal, Risk, Target};
use crate::root::Root;

pub(super) const BALANCER: Setting = Setting {
    name: "irqbalance",
    about: "the service that moves interrupts",
    why: "it moves interrupts away from where they were put, without regard for who waits",
    gain: "EuroSys'16 (3.3) disables it; the all-flash-array study saw interrupts on foreign CPUs (IV-D)",
    risk: Risk::Low,
    propose: balancer,
};

pub(super) const SMART: Setting = Setting {
    name: "smart-polls",
    about: "the service that polls drives for their health",
    why: "a drive that collects its SMART data answers nothing for half a millisecond",
    gain: "worst read latency from 600 to 90 µs without it (all-flash arrays, figures 10 and 11)",
    risk: Risk::Low,
    propose: smart,
};

pub(super) const SAVES: Setting = Setting {
    name: "smart-saves",
    about: "drives that save their SMART data and test themselves by their own clock",
    why: "smartd's directives -o on and -S on have a drive scan itself every four hours and save its \
          attributes, each at a time that nothing on the host knows (smartd.conf(5))",
    gain: "part of the figures of smart-polls",
    risk: Risk::Low,
    propose: saves,
};

pub(super) const TIMERS: Setting = Setting {
    name: "drive-timers",
    about: "timers that trim, scrub or check drives and file systems",
    why: "a discard of all free space, or a scrub, takes the drive's time for minutes (fstrim(8), md(4))",
    gain: "no such minutes while tenants are served; no figure in the papers",
    risk: Risk::Low,
    propose: timers,
};

/// True if a process of this name runs.
pub(super) fn runs(root: &Root, name: &str) -> bool {
    // The kernel cuts a process's name at 15 characters.
    let name = &name[..name.len().min(15)];
    let processes = root.names("/proc").into_iter();
    let mut processes = processes.filter(|entry| entry.bytes().all(|byte| byte.is_ascii_digit()));
    processes.any(|pid| root.text(&format!("/proc/{pid}/comm")).as_deref() == Some(name))
}

fn balancer(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    let running = runs(context.root, "irqbalance").then(|| "runs".to_owned());
    advice(setting, "irqbalance", running, "systemctl disable --now irqbalance")
}

fn smart(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    let running = runs(context.root, "smartd").then(|| "runs, by default every 30 min".to_owned());
    let then = "poll once a day: smartd_opts=\"--interval=86400\" in /etc/default/smartmontools";
    advice(setting, "smartd", running, then)
}

fn saves(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    let text = context.root.text("/etc/smartd.conf").unwrap_or_default();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    // `-a` alone turns neither on.
    let is_on = |flag: &str| words.windows(2).any(|pair| pair == [flag, "on"]);
    let on: Vec<&str> = ["-o", "-S"].into_iter().filter(|flag| is_on(flag)).collect();
    let now = (!on.is_empty()).then(|| format!("{} on in /etc/smartd.conf", on.join(" on, ")));
    advice(setting, "drives", now, "take them out; smartctl -o off -S off DRIVE for each drive")
}

fn timers(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    const TIMERS: [&str; 5] =
        ["fstrim", "e2scrub_all", "mdcheck_start", "mdcheck_continue", "xfs_scrub_all"];
    let wanted = |timer: &&str| {
        let link = format!("/etc/systemd/system/timers.target.wants/{timer}.timer");
        context.root.link_target(&link).is_some()
    };
    let enabled: Vec<String> =
        TIMERS.iter().filter(|timer| wanted(timer)).map(|timer| format!("{timer}.timer")).collect();
    let then = match enabled.as_slice() {
        [] => String::new(),
        _ => format!("systemctl disable --now {}, or run in idle hours", enabled.join(" ")),
    };
    let now = (!enabled.is_empty()).then(|| "enabled".to_owned());
    advice(setting, "timers", now, &then)
}

/// Advice on `subject`, which is met if there is nothing to see `now`.
fn advice(setting: &Setting, subject: &str, now: Option<String>, then: &str) -> Vec<Proposal> {
    let now = now.unwrap_or_else(|| then.to_owned());
    vec![setting.proposal(subject, Target::Advice, Some(now), then.to_owned())]
}
