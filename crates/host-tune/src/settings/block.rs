//! Queues of drives.

use super::{Context, Role, Setting, drives};
use crate::proposal::{Form, Proposal, Risk};

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
