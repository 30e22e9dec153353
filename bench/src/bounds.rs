//! Bounds on the resources of a machine that a server may take while no host uses it.

use report::Spread;

use crate::idle;
use crate::machine::Facts;
use crate::verdict::{Bound, Unit, Verdict};

/// Judges each bound.
pub(crate) fn judge(facts: &Facts) -> Vec<Verdict> {
    let of = |what: String, place, figures: &[f64], unit, bound| Verdict {
        what,
        place,
        reached: Spread::of(figures),
        unit,
        bound,
        limit: None,
    };
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let at_most = |bound| Some(Bound::AtMost(bound));
    let after =
        format!("a read after {} ms of silence, beyond one among others", idle::PAUSE.as_millis());
    let idle = &facts.idle;
    vec![
        of(
            format!("of a core, with {} connected I/O queues and nothing to do", idle.queues),
            "mem",
            &[idle.cpu_share],
            Unit::Share,
            at_most(0.01),
        ),
        of(after, "mem", &idle.waking.added_us, Unit::Microseconds, at_most(100.0)),
        of(
            "the same of a thread that blocks on a socket".to_owned(),
            "–",
            &idle.limit.added_us,
            Unit::Microseconds,
            None,
        ),
        of(
            "start until it answers".to_owned(),
            "mem",
            &[facts.startup_ms],
            Unit::Milliseconds,
            at_most(1000.0),
        ),
        of(
            "memory of an idle core".to_owned(),
            "mem",
            &[mib(facts.resident_idle_bytes)],
            Unit::Mebibytes,
            at_most(64.0),
        ),
        of(
            "the same with 1 GiB written".to_owned(),
            "file",
            &[mib(facts.resident_written_bytes)],
            Unit::Mebibytes,
            at_most(68.0),
        ),
    ]
}
