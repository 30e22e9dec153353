//! The part of a slow request that made it slow.

use std::sync::Arc;

use super::event::{Event, Kind};
use super::parts::{Parts, Request, Usual};
use super::{Cause, Unknown};

/// Handlers that are no further apart than this follow each other without a pause.
const ADJACENT_NS: u64 = 3_000;

/// A request with its cause.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// The request.
    pub request: Request,
    /// Its cause.
    pub cause: Cause,
    /// The time that the cause took beyond what is usual.
    pub excess_ns: u64,
}

/// Names the cause of `request`. `events` are in order of time and begin some time before it; `usual` is what the
/// requests of its drive usually take; `leave_idle_ns` is the time that a CPU needs to leave an idle state.
#[must_use]
pub fn attribute(
    request: Request,
    events: &[Event],
    usual: &Usual,
    leave_idle_ns: &dyn Fn(u32) -> u64,
) -> Explained {
    let parts = Parts::of(&request, events);
    let excess = Excess::of(&request, &parts, usual);
    let (part, excess_ns) = excess.largest();
    let cause = if excess_ns * 2 < excess.total_ns {
        Cause::Unknown { reason: Unknown::Several }
    } else {
        match part {
            Part::Running => Cause::Unknown { reason: Unknown::OnCpu },
            Part::Unissued if request.is_elsewhere => Cause::Drive,
            Part::Unissued => Cause::Unknown { reason: Unknown::NoRequest },
            Part::WokenLate => Cause::LateWake,
            Part::Tasks => longest_task(&parts),
            Part::Interrupts => longest_interrupt(&parts.interrupts),
            Part::Idle => match parts.idle_state {
                Some(state) if state > 0 => Cause::Idle { state },
                _ => Cause::LateWake,
            },
            Part::Device => completion_delay(&parts, events, excess_ns, leave_idle_ns),
        }
    };
    Explained { request, cause, excess_ns }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Part {
    Running,
    Unissued,
    Device,
    WokenLate,
    Idle,
    Tasks,
    Interrupts,
}

/// Time beyond what is usual.
struct Excess {
    total_ns: u64,
    parts: [(Part, u64); 7],
}

impl Excess {
    fn of(request: &Request, parts: &Parts, usual: &Usual) -> Self {
        let beyond = |ns: u64, usual_ns: u64| ns.saturating_sub(usual_ns);
        Self {
            total_ns: beyond(request.latency_ns(), usual.latency_ns),
            parts: [
                (Part::Running, beyond(parts.running_ns, usual.running_ns)),
                (Part::Unissued, beyond(parts.unissued_ns, usual.unissued_ns)),
                (Part::Device, beyond(parts.device_ns, usual.device_ns)),
                (Part::WokenLate, beyond(parts.woken_late_ns, usual.woken_late_ns)),
                (Part::Idle, beyond(parts.idle_ns, usual.idle_ns)),
                (Part::Tasks, beyond(parts.tasks_ns(), usual.tasks_ns)),
                (Part::Interrupts, beyond(parts.interrupts_ns(), usual.interrupts_ns)),
            ],
        }
    }

    fn largest(&self) -> (Part, u64) {
        *self.parts.iter().max_by_key(|(_, ns)| *ns).expect("seven parts")
    }
}

fn longest_task(parts: &Parts) -> Cause {
    match parts.tasks.iter().max_by_key(|(_, ns)| *ns) {
        Some((task, _)) => {
            Cause::Task { name: task.name.to_string(), realtime: task.is_realtime() }
        }
        None => Cause::Unknown { reason: Unknown::Several },
    }
}

fn longest_interrupt(spans: &[(Arc<str>, u64)]) -> Cause {
    match spans.iter().max_by_key(|(_, ns)| *ns) {
        Some((name, _)) => Cause::Interrupt { name: name.to_string() },
        None => Cause::Unknown { reason: Unknown::Several },
    }
}

/// Between issue and completion lies also the time in which the CPU could not take the drive's interrupt. It counts as
/// the drive's unless handlers right before it, or the CPU's idle state, explain half of the excess.
fn completion_delay(
    parts: &Parts,
    events: &[Event],
    excess_ns: u64,
    leave_idle_ns: &dyn Fn(u32) -> u64,
) -> Cause {
    let Some((cpu, at_ns)) = parts.completion else {
        // The request was complete when the thread came back, so its completion was lost.
        return Cause::Unknown { reason: Unknown::Lost };
    };
    let before = BeforeCompletion::of(cpu, at_ns, events);
    if before.handlers.iter().map(|(_, ns)| ns).sum::<u64>() * 2 >= excess_ns {
        return longest_interrupt(&before.handlers);
    }
    match before.idle_state {
        Some(state) if leave_idle_ns(state) * 2 >= excess_ns => Cause::Idle { state },
        _ => Cause::Drive,
    }
}

/// The state of a CPU when it began to handle a completion.
struct BeforeCompletion {
    /// Handlers that ended right before, without a pause between them.
    handlers: Vec<(Arc<str>, u64)>,
    idle_state: Option<u32>,
}

impl BeforeCompletion {
    fn of(cpu: u32, completion_ns: u64, events: &[Event]) -> Self {
        let mut open: Vec<(Arc<str>, u64)> = Vec::new();
        let mut chain: Vec<(Arc<str>, u64)> = Vec::new();
        let (mut last_end_ns, mut idle_state) = (0, None);
        let here = events.iter().filter(|event| event.cpu == cpu && event.at_ns <= completion_ns);
        for event in here {
            match &event.kind {
                Kind::InterruptBegin { name } => {
                    if open.is_empty() && event.at_ns > last_end_ns + ADJACENT_NS {
                        chain.clear();
                    }
                    open.push((name.clone(), event.at_ns));
                }
                Kind::InterruptEnd => {
                    if let Some((name, begin_ns)) = open.pop()
                        && open.is_empty()
                    {
                        chain.push((name, event.at_ns.saturating_sub(begin_ns)));
                        last_end_ns = event.at_ns;
                    }
                }
                Kind::IdleBegin { state } => idle_state = Some(*state),
                Kind::IdleEnd => idle_state = None,
                _ => {}
            }
        }
        // A completion outside of every handler came from a task: what ended long before did not delay it.
        let begin_ns = open.first().map_or(completion_ns, |(_, begin_ns)| *begin_ns);
        if begin_ns > last_end_ns + ADJACENT_NS {
            chain.clear();
        }
        Self { handlers: chain, idle_state }
    }
}
