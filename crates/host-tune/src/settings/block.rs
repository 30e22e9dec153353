//! Queues of drives.

use super::{Context, Role, Setting, drives};
use crate::proposal::{Form, Proposal, Risk, Target};

pub(super) const SCHEDULER: Setting = Setting {
    name: "block-scheduler",
    about: "I/O scheduler of drives",
    why: "the data plane schedules requests itself; a second queue adds latency and a lock",
    gain: "some microseconds for each request; the all-flash-array study uses none (III-B)",
    risk: Risk::Low,
    propose: |setting, context| of_each(setting, context, "scheduler", Form::Choice, "none"),
};

pub(super) const MERGES: Setting = Setting {
    name: "block-merges",
    about: "attempts to merge adjacent requests",
    why: "requests of the data plane are merged before they are issued",
    gain: "processor time of a look-up for each request; no figure in the papers",
    risk: Risk::Low,
    propose: |setting, context| match context.intent.role {
        Role::FlashServer => of_each(setting, context, "nomerges", Form::Plain, "2"),
        Role::Datastore => Vec::new(),
    },
};

pub(super) const COMPLETION: Setting = Setting {
    name: "block-completion",
    about: "CPU on which a completion is handled",
    why: "the core that asked gets the answer, and no other one is interrupted for it",
    gain: "part of CPU affinity (all-flash arrays, IV-D)",
    risk: Risk::Low,
    propose: |setting, context| of_each(setting, context, "rq_affinity", Form::Plain, "2"),
};

/// Requests that a queue of a drive takes before a thread has to wait for room.
const REQUESTS_MIN: u64 = 256;

pub(super) const REQUESTS: Setting = Setting {
    name: "block-requests",
    about: "requests that a queue of a drive takes (nr_requests)",
    why: "a core that finds the queue full waits in the kernel, and serves no request meanwhile",
    gain: "no such waits up to 256 requests of a core; no figure in the papers",
    risk: Risk::Low,
    propose: requests,
};

fn requests(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    let one = |drive: &crate::machine::Drive| {
        let path = format!("/sys/block/{}/queue/nr_requests", drive.name);
        let now: u64 = context.root.number(&path)?;
        let then = now.max(REQUESTS_MIN).to_string();
        setting.file(context, drive.name.clone(), path, (Form::Plain, then))
    };
    drives(context).filter_map(one).collect()
}

pub(super) const POLLING: Setting = Setting {
    name: "block-polling",
    about: "polling for completions by the threads that wait for them (io_poll)",
    why: "the data plane waits for drives, connections and timers in one place; a thread that polls one drive \
          keeps the others waiting",
    gain: "processor time for the other connections of the core; no figure in the papers",
    risk: Risk::Low,
    propose: |setting, context| match context.intent.role {
        Role::FlashServer => of_each(setting, context, "io_poll", Form::Plain, "0"),
        Role::Datastore => Vec::new(),
    },
};

pub(super) const WRITE_CACHE: Setting = Setting {
    name: "block-write-cache",
    about: "flushes to drives with a write cache that may forget",
    why: "each flush of such a drive waits for its cache; one whose cache survives a loss of power needs none, but \
          nothing on the host can tell, and data would be lost if it were not so",
    gain: "the time of a flush for each group of writes; no figure in the papers",
    risk: Risk::Medium,
    propose: write_cache,
};

fn write_cache(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    let one = |drive: &crate::machine::Drive| {
        let path = format!("/sys/block/{}/queue/write_cache", drive.name);
        let now = context.root.text(&path)?;
        let then = format!(
            "leave it, unless the drive's cache is protected against a loss of power: echo write through >{path}"
        );
        let then = if now == "write back" { then } else { now.clone() };
        Some(setting.proposal(drive.name.clone(), Target::Advice, Some(now), then))
    };
    match context.intent.role {
        Role::FlashServer => drives(context).filter_map(one).collect(),
        Role::Datastore => Vec::new(),
    }
}

pub(super) const THROTTLE: Setting = Setting {
    name: "block-writeback-throttle",
    about: "throttling of buffered writes by read latency",
    why: "the data plane writes directly; throttling only guesses at a drive's latency",
    gain: "steadier writes; no figure in the papers",
    risk: Risk::Low,
    propose: |setting, context| match context.intent.role {
        Role::FlashServer => of_each(setting, context, "wbt_lat_usec", Form::Plain, "0"),
        Role::Datastore => Vec::new(),
    },
};

fn of_each(
    setting: &Setting,
    context: &Context<'_>,
    file: &str,
    form: Form,
    then: &str,
) -> Vec<Proposal> {
    let one = |drive: &crate::machine::Drive| {
        let path = format!("/sys/block/{}/queue/{file}", drive.name);
        setting.file(context, drive.name.clone(), path, (form, then.to_owned()))
    };
    drives(context).filter_map(one).collect()
}
