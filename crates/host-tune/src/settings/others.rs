//! Other programs: those that own settings, and those that disturb drives.

use super::{Context, Setting};
use crate::proposal::{Proposal, Risk, Target};
use crate::root::Root;

/// A program that sets what is proposed here, too.
pub(crate) struct Owner {
    pub(crate) name: &'static str,
    pub(crate) settings: &'static [&'static str],
}

const BALANCERS: Owner = Owner { name: "irqbalance", settings: &["irq-drives", "irq-network"] };
const TUNED: Owner = Owner {
    name: "tuned",
    settings: &["cpu-governor", "transparent-huge-pages", "tcp-buffers", "block-scheduler"],
};
const GOVERNORS: Owner = Owner { name: "power-profiles-daemon", settings: &["cpu-governor"] };

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

/// True if a process of this name runs.
fn runs(root: &Root, name: &str) -> bool {
    let processes = root.names("/proc").into_iter();
    let mut processes = processes.filter(|entry| entry.bytes().all(|byte| byte.is_ascii_digit()));
    processes.any(|pid| root.text(&format!("/proc/{pid}/comm")).as_deref() == Some(name))
}

/// The owners that run.
pub(crate) fn owners(root: &Root) -> Vec<Owner> {
    let all = [BALANCERS, TUNED, GOVERNORS].into_iter();
    // The kernel cuts a process's name at 15 characters.
    all.filter(|owner| runs(root, &owner.name[..owner.name.len().min(15)])).collect()
}

fn balancer(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    advice(setting, context, "irqbalance", "systemctl disable --now irqbalance")
}

fn smart(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    advice(
        setting,
        context,
        "smartd",
        "poll in idle hours: `smartd -i 86400`, or systemctl disable --now smartmontools",
    )
}

fn advice(setting: &Setting, context: &Context<'_>, name: &str, then: &str) -> Vec<Proposal> {
    let running = runs(context.root, name);
    let now = if running { "runs" } else { then };
    vec![setting.proposal(name, Target::Advice, Some(now.to_owned()), then.to_owned())]
}
