//! Huge pages, and the kernel's own accounts of memory.

use super::{Context, Setting};
use crate::proposal::{Form, Proposal, Risk};

pub(super) const HUGE_PAGES: Setting = Setting {
    name: "transparent-huge-pages",
    about: "transparent huge pages where a program asks for them",
    why: "a buffer in small pages is many pieces for the drive, and its addresses miss the TLB",
    gain: "twice the rate of sequential reads from a virtual drive (docs/benchmarks.md)",
    risk: Risk::Low,
    propose: huge_pages,
};

fn huge_pages(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let now = context.root.text(path).map(|text| Form::Choice.value(&text)).unwrap_or_default();
    let then = if now == "always" { now } else { "madvise".to_owned() };
    setting.of_host(context, path, (Form::Choice, then))
}

pub(super) const STATISTICS: Setting = Setting {
    name: "memory-statistics",
    about: "seconds between updates of the kernel's memory statistics",
    why: "each update is a timer and a worker on every CPU, those of the data plane included",
    gain: "one interruption less a second and CPU; part of isolation (all-flash arrays, IV-C)",
    risk: Risk::Low,
    propose: statistics,
};

fn statistics(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    let path = "/proc/sys/vm/stat_interval";
    setting.of_host(context, path, (Form::Plain, "10".into()))
}
