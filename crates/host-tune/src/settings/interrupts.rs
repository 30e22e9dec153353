//! Affinity of interrupts and of the kernel's own workers.

use super::{Context, Setting, drives, nics};
use crate::cpu_set::CpuSet;
use crate::machine::Interrupt;
use crate::placement::{Purpose, place};
use crate::proposal::{Form, Proposal, Risk};

const GAIN: &str = "21, 6 and 11 % more requests with 1, 3 and 6 tenants (EuroSys'16, 3.3); standard deviation \
                    of the worst latency from 1 644 to 4 µs with all steps (all-flash arrays, IV-F)";

pub(super) const DRIVES: Setting = Setting {
    name: "irq-drives",
    about: "CPUs that the queues of drives interrupt",
    why: "a completion on another CPU wakes the waiting one across caches",
    gain: GAIN,
    risk: Risk::Low,
    propose: of_drives,
};

pub(super) const NETWORK: Setting = Setting {
    name: "irq-network",
    about: "CPUs that the queues of network cards interrupt",
    why: "packets of a tenant are best handled on the core that serves it",
    gain: GAIN,
    risk: Risk::Low,
    propose: of_nics,
};

pub(super) const DEFAULT: Setting = Setting {
    name: "irq-default",
    about: "CPUs of interrupts that come up later",
    why: "devices that are added must not interrupt the data plane",
    gain: "keeps the other settings true over hot-plug; no figure of its own",
    risk: Risk::Low,
    propose: of_later,
};

pub(super) const WORKQUEUES: Setting = Setting {
    name: "workqueue-cpus",
    about: "CPUs of the kernel's unbound workers",
    why: "write-back and housekeeping of the kernel otherwise run on the data plane's CPUs",
    gain: "part of CPU isolation (all-flash arrays, IV-C)",
    risk: Risk::Low,
    propose: of_workers,
};

/// Queue `n` of each device interrupts the CPU that the plan has for it.
fn of_queues(
    setting: &Setting,
    context: &Context<'_>,
    purpose: Purpose,
    interrupts: &[Interrupt],
) -> Vec<Proposal> {
    let online = context.machine.online();
    let Some(plan) = place(&context.intent.cores.and(&online), context.intent.tenants) else {
        return Vec::new();
    };
    let one = |(queue, interrupt): (usize, &Interrupt)| {
        let cpu = plan.cpu(purpose, queue).to_string();
        let name = if interrupt.name.is_empty() { "unnamed" } else { &interrupt.name };
        let subject = format!("irq {} ({name})", interrupt.number);
        setting.file(context, subject, interrupt.affinity_path(), (Form::Plain, cpu))
    };
    interrupts.iter().enumerate().filter_map(one).collect()
}

fn of_drives(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    let all = drives(context);
    all.flat_map(|drive| of_queues(setting, context, Purpose::Drive, &drive.interrupts)).collect()
}

fn of_nics(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    let all = nics(context);
    all.flat_map(|nic| of_queues(setting, context, Purpose::Network, &nic.interrupts)).collect()
}

/// The CPUs that are not the data plane's, if any are left.
fn rest(context: &Context<'_>) -> Option<CpuSet> {
    let rest = context.machine.online().without(&context.intent.cores);
    (!rest.is_empty()).then_some(rest)
}

fn of_later(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    masked(setting, context, "/proc/irq/default_smp_affinity")
}

fn of_workers(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    masked(setting, context, "/sys/devices/virtual/workqueue/cpumask")
}

/// The rest of the CPUs as a mask, as wide as the kernel shows it.
fn masked(setting: &Setting, context: &Context<'_>, path: &str) -> Vec<Proposal> {
    let (Some(rest), Some(now)) = (rest(context), context.root.text(path)) else {
        return Vec::new();
    };
    let then = rest.to_mask_like(&now);
    setting.of_host(context, path, (Form::Plain, then))
}
