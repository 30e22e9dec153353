//! Arguments of the kernel's command line.

use super::{Context, Setting};
use crate::cpu_set::CpuSet;
use crate::proposal::{Proposal, Risk, Target};

const GAIN: &str =
    "worst read latency without the interventions of other tasks (all-flash arrays, figure 8)";

pub(super) const ISOLATION: Setting = Setting {
    name: "boot-isolcpus",
    about: "CPUs that the scheduler gives to no task by itself",
    why: "other tasks are kept off the data plane's CPUs from the start",
    gain: GAIN,
    risk: Risk::Medium,
    propose: |setting, context| propose(setting, context, "isolcpus"),
};

pub(super) const TICKS: Setting = Setting {
    name: "boot-nohz-full",
    about: "CPUs without the scheduler's tick while one task runs",
    why: "the tick interrupts the data plane hundreds of times a second",
    gain: GAIN,
    risk: Risk::Medium,
    propose: |setting, context| propose(setting, context, "nohz_full"),
};

pub(super) const CALLBACKS: Setting = Setting {
    name: "boot-rcu-nocbs",
    about: "CPUs whose RCU callbacks run elsewhere",
    why: "callbacks of the kernel otherwise run on the data plane's CPUs",
    gain: GAIN,
    risk: Risk::Medium,
    propose: |setting, context| propose(setting, context, "rcu_nocbs"),
};

/// The arguments, each with the name of its setting.
const ARGUMENTS: [(&str, &str); 3] =
    [(ISOLATION.name, "isolcpus"), (TICKS.name, "nohz_full"), (CALLBACKS.name, "rcu_nocbs")];

/// An argument of the kernel's command line: its name, its value now, and the data plane's cores.
pub(super) struct Argument {
    pub(super) name: &'static str,
    now: String,
    then: String,
}

impl Argument {
    pub(super) fn is_met(&self) -> bool {
        self.now == self.then
    }

    pub(super) fn text(&self) -> String {
        format!("{}={}", self.name, self.then)
    }
}

/// The arguments of the chosen settings.
pub(super) fn arguments(context: &Context<'_>) -> Vec<Argument> {
    let chosen = ARGUMENTS.iter().filter(|(setting, _)| (context.chosen)(setting));
    chosen.filter_map(|(_, name)| argument(context, name)).collect()
}

/// CPU 0, or the first one if that is offline, does the kernel's own work and is never isolated.
fn argument(context: &Context<'_>, name: &'static str) -> Option<Argument> {
    let online = context.machine.online();
    let cores = context.intent.cores.and(&online).without(&online.iter().take(1).collect());
    let line = context.root.text("/proc/cmdline")?;
    if cores.is_empty() {
        return None;
    }
    let prefix = format!("{name}=");
    let now = line.split_whitespace().rev().find_map(|word| word.strip_prefix(&prefix));
    let now = now.unwrap_or_default().to_owned();
    // `isolcpus=managed_irq,domain,2-7` has flags before its CPUs.
    let cpus = now.split(',').filter(|part| part.starts_with(|c: char| c.is_ascii_digit()));
    let set = cpus.collect::<Vec<_>>().join(",").parse::<CpuSet>();
    let then = if set.is_ok_and(|set| set == cores) { now.clone() } else { cores.to_string() };
    Some(Argument { name, now, then })
}

fn propose(setting: &Setting, context: &Context<'_>, name: &'static str) -> Vec<Proposal> {
    let one = |argument: Argument| {
        let target = Target::KernelArgument { name: name.to_owned() };
        setting.proposal("host", target, Some(argument.now), argument.then)
    };
    argument(context, name).map(one).into_iter().collect()
}
