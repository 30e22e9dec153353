//! Frequency and idle states of the CPUs of the data plane.

use super::{Context, Setting};
use crate::proposal::{Form, Proposal, Risk};

/// Idle states that take longer to leave than this many microseconds are closed.
const EXIT_MAX_US: u64 = 10;

pub(super) const GOVERNOR: Setting = Setting {
    name: "cpu-governor",
    about: "frequency governor of the data plane's CPUs",
    why: "a CPU that has slept starts at a low frequency; the first requests wait for it to rise",
    gain: "shorter tail after idle times; the all-flash-array study runs at full speed (IV-C)",
    risk: Risk::Medium,
    propose: governor,
};

fn governor(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    let cpu = |cpu: u32| {
        let directory = format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq");
        let offered = context.root.text(&format!("{directory}/scaling_available_governors"));
        if offered.is_some_and(|all| !all.split_whitespace().any(|one| one == "performance")) {
            return None;
        }
        let path = format!("{directory}/scaling_governor");
        setting.file(context, format!("cpu{cpu}"), path, (Form::Plain, "performance".into()))
    };
    context.intent.cores.iter().filter_map(cpu).collect()
}

pub(super) const DEEP_SLEEP: Setting = Setting {
    name: "cpu-idle-states",
    about: "idle states of the data plane's CPUs that take more than 10 µs to leave",
    why: "an interrupt to a CPU in a deep idle state waits until the CPU has woken",
    gain: "worst read latency from 5 ms to 600 µs with priority and isolation (all-flash arrays, figures 6 to 8)",
    risk: Risk::Medium,
    propose: deep_sleep,
};

fn deep_sleep(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    let states = |cpu: u32| {
        let directory = format!("/sys/devices/system/cpu/cpu{cpu}/cpuidle");
        let names = context.root.names(&directory).into_iter();
        let deep = names.filter(|name| name.starts_with("state")).filter_map(move |name| {
            let exit: u64 = context.root.number(&format!("{directory}/{name}/latency"))?;
            let path = format!("{directory}/{name}/disable");
            let subject = format!("cpu{cpu} {name}");
            (exit > EXIT_MAX_US)
                .then(|| setting.file(context, subject, path, (Form::Plain, "1".into())))?
        });
        deep.collect::<Vec<_>>()
    };
    context.intent.cores.iter().flat_map(states).collect()
}
