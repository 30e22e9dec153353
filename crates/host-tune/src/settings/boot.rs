//! Arguments of the kernel's command line.

use super::{Context, Setting};
use crate::proposal::{Proposal, Risk, Target};

const GAIN: &str =
    "worst read latency without the interventions of other tasks (all-flash arrays, figure 8)";

pub(super) const ISOLATION: Setting = Setting {
    name: "boot-isolcpus",
    about: "CPUs that the scheduler gives to no task by itself",
    why: "other tasks are kept off the data plane's CPUs from the start",
    gain: GAIN,
    risk: Risk::Medium,
    propose: |setting, context| argument(setting, context, "isolcpus"),
};

pub(super) const TICKS: Setting = Setting {
    name: "boot-nohz-full",
    about: "CPUs without the scheduler's tick while one task runs",
    why: "the tick interrupts the data plane hundreds of times a second",
    gain: GAIN,
    risk: Risk::Medium,
    propose: |setting, context| argument(setting, context, "nohz_full"),
};

pub(super) const CALLBACKS: Setting = Setting {
    name: "boot-rcu-nocbs",
    about: "CPUs whose RCU callbacks run elsewhere",
    why: "callbacks of the kernel otherwise run on the data plane's CPUs",
    gain: GAIN,
    risk: Risk::Medium,
    propose: |setting, context| argument(setting, context, "rcu_nocbs"),
};

/// The data plane's cores as the argument's value. CPU 0 does the kernel's own work and is never isolated.
fn argument(setting: &Setting, context: &Context<'_>, name: &str) -> Vec<Proposal> {
    let first = std::iter::once(0).collect();
    let cores = context.intent.cores.and(&context.machine.online()).without(&first);
    let Some(line) = context.root.text("/proc/cmdline") else { return Vec::new() };
    if cores.is_empty() {
        return Vec::new();
    }
    let prefix = format!("{name}=");
    let now = line.split_whitespace().rev().find_map(|word| word.strip_prefix(&prefix));
    let target = Target::KernelArgument { name: name.to_owned() };
    let now = Some(now.unwrap_or_default().to_owned());
    vec![setting.proposal("host", target, now, cores.to_string())]
}
