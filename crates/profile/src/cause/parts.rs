//! The parts of a request's time.

use std::sync::Arc;

use super::event::{Event, Kind, Task};

/// A request of the profiler.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Request {
    /// Index of the drive.
    pub drive: usize,
    /// The thread that made it.
    pub tid: u32,
    /// The CPU on which that thread is pinned.
    pub cpu: u32,
    /// Begin, by the monotonic clock.
    pub begin_ns: u64,
    /// End.
    pub end_ns: u64,
    /// The drive is no block device of this host, so that no event tells of it: a thread that sleeps waits for it.
    pub is_elsewhere: bool,
}

impl Request {
    /// Its latency.
    #[must_use]
    pub fn latency_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.begin_ns)
    }
}

/// A request's time, divided. See CAUSE-1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parts {
    /// The thread ran.
    pub running_ns: u64,
    /// The thread slept before a request was issued, or without one.
    pub unissued_ns: u64,
    /// The thread slept while the drive had the request.
    pub device_ns: u64,
    /// The thread slept though the request was complete.
    pub woken_late_ns: u64,
    /// The thread was ready to run, and the CPU idle.
    pub idle_ns: u64,
    /// The thread was ready to run, and other tasks ran.
    pub tasks: Vec<(Task, u64)>,
    /// The thread ran or was ready to run, and interrupts were handled.
    pub interrupts: Vec<(Arc<str>, u64)>,
    /// The idle state from which the CPU had to come when the thread was woken.
    pub idle_state: Option<u32>,
    /// A block request was seen.
    pub issued: bool,
    /// The completion of the last block request: its CPU and time.
    pub completion: Option<(u32, u64)>,
}

impl Parts {
    /// Time of other tasks.
    #[must_use]
    pub fn tasks_ns(&self) -> u64 {
        self.tasks.iter().map(|(_, ns)| ns).sum()
    }

    /// Time of interrupts.
    #[must_use]
    pub fn interrupts_ns(&self) -> u64 {
        self.interrupts.iter().map(|(_, ns)| ns).sum()
    }

    /// All parts together.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.running_ns
            + self.unissued_ns
            + self.device_ns
            + self.woken_late_ns
            + self.idle_ns
            + self.tasks_ns()
            + self.interrupts_ns()
    }

    /// Divides the time of `request`. `events` are in order of time, and begin some time before the request.
    #[must_use]
    pub fn of(request: &Request, events: &[Event]) -> Self {
        let mut sweep = Sweep::new(request);
        for event in events {
            if event.at_ns >= request.end_ns {
                break;
            }
            sweep.advance(event.at_ns);
            sweep.on_event(event);
        }
        sweep.advance(request.end_ns);
        sweep.parts
    }
}

/// The usual parts of a drive's requests: the medians of a sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usual {
    /// Latency.
    pub latency_ns: u64,
    pub(super) running_ns: u64,
    pub(super) unissued_ns: u64,
    pub(super) device_ns: u64,
    pub(super) woken_late_ns: u64,
    pub(super) idle_ns: u64,
    pub(super) tasks_ns: u64,
    pub(super) interrupts_ns: u64,
}

impl Usual {
    /// The medians of `sample`.
    #[must_use]
    pub fn of(sample: &[Parts]) -> Self {
        let median = |figure: fn(&Parts) -> u64| {
            let mut values: Vec<u64> = sample.iter().map(figure).collect();
            values.sort_unstable();
            values.get(values.len() / 2).copied().unwrap_or(0)
        };
        Self {
            latency_ns: median(Parts::total_ns),
            running_ns: median(|parts| parts.running_ns),
            unissued_ns: median(|parts| parts.unissued_ns),
            device_ns: median(|parts| parts.device_ns),
            woken_late_ns: median(|parts| parts.woken_late_ns),
            idle_ns: median(|parts| parts.idle_ns),
            tasks_ns: median(Parts::tasks_ns),
            interrupts_ns: median(Parts::interrupts_ns),
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Thread {
    Running,
    Asleep,
    Ready,
}

/// Goes over the events and gives each span of time to a part.
struct Sweep<'a> {
    request: &'a Request,
    parts: Parts,
    now_ns: u64,
    thread: Thread,
    /// The task on the thread's CPU, if it is another one.
    current: Option<Task>,
    /// Handlers under way on the thread's CPU, the innermost last.
    handlers: Vec<Arc<str>>,
    idle_state: Option<u32>,
    /// Block requests under way.
    issued: Vec<(u32, u64)>,
}

impl<'a> Sweep<'a> {
    fn new(request: &'a Request) -> Self {
        Self {
            request,
            parts: Parts::default(),
            now_ns: request.begin_ns,
            thread: Thread::Running,
            current: None,
            handlers: Vec::new(),
            idle_state: None,
            issued: Vec::new(),
        }
    }

    /// Gives the time up to `at_ns` to the part that it belongs to.
    fn advance(&mut self, at_ns: u64) {
        let span = at_ns.saturating_sub(self.now_ns);
        if span == 0 {
            return;
        }
        self.now_ns = at_ns;
        let parts = &mut self.parts;
        match (self.thread, self.handlers.last(), &self.current) {
            (Thread::Asleep, ..) if !self.issued.is_empty() => parts.device_ns += span,
            (Thread::Asleep, ..) if parts.issued => parts.woken_late_ns += span,
            (Thread::Asleep, ..) => parts.unissued_ns += span,
            (_, Some(name), _) => add(&mut parts.interrupts, name, span),
            (Thread::Running, None, _) => parts.running_ns += span,
            (Thread::Ready, None, Some(task)) if !task.is_idle() => {
                match parts.tasks.iter_mut().find(|(known, _)| known.tid == task.tid) {
                    Some((_, ns)) => *ns += span,
                    None => parts.tasks.push((task.clone(), span)),
                }
            }
            (Thread::Ready, None, _) => parts.idle_ns += span,
        }
    }

    fn on_event(&mut self, event: &Event) {
        let Request { tid, cpu, begin_ns, .. } = *self.request;
        let is_here = event.cpu == cpu;
        match &event.kind {
            Kind::Switch { next, .. } if is_here && next.tid == tid => {
                (self.thread, self.current) = (Thread::Running, None);
            }
            Kind::Switch { previous, still_ready, next } if is_here => {
                if *previous == tid {
                    self.thread = if *still_ready { Thread::Ready } else { Thread::Asleep };
                }
                self.current = Some(next.clone());
            }
            Kind::Waking { tid: woken } if *woken == tid && self.thread == Thread::Asleep => {
                self.thread = Thread::Ready;
                self.parts.idle_state = self.idle_state;
            }
            Kind::InterruptBegin { name } if is_here => self.handlers.push(name.clone()),
            Kind::InterruptEnd if is_here => drop(self.handlers.pop()),
            Kind::IdleBegin { state } if is_here => self.idle_state = Some(*state),
            Kind::IdleEnd if is_here => self.idle_state = None,
            Kind::Issue { tid: issuer, device, sector }
                if *issuer == tid && event.at_ns >= begin_ns =>
            {
                self.issued.push((*device, *sector));
                self.parts.issued = true;
            }
            Kind::Complete { device, sector } => {
                let before = self.issued.len();
                self.issued.retain(|issued| *issued != (*device, *sector));
                if self.issued.len() < before && self.issued.is_empty() {
                    self.parts.completion = Some((event.cpu, event.at_ns));
                }
            }
            _ => {}
        }
    }
}

fn add(spans: &mut Vec<(Arc<str>, u64)>, name: &Arc<str>, span: u64) {
    match spans.iter_mut().find(|(known, _)| known == name) {
        Some((_, ns)) => *ns += span,
        None => spans.push((name.clone(), span)),
    }
}
