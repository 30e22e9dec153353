//! Reads what the tracer writes, and names the causes of slow requests while the drives are read.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use super::decode::Decoder;
use super::kept::Kept;
use super::tracefs::Tracer;
use crate::cause::{Cause, Parts, Request, Unknown, Usual, attribute, period};
use crate::clock;
use crate::result::{CauseCount, DriveCauses};

/// Pause between two readings.
const PAUSE: Duration = Duration::from_millis(50);
/// Time before a request from which on events are looked at.
const BEFORE_NS: u64 = 5_000_000;
/// Time behind a request after which its events are there.
const BEHIND_NS: u64 = 1_000_000;
/// Pages are kept for so long.
const KEEP_NS: u64 = 2_000_000_000;
/// Requests that are examined between two readings, so that the examination takes no CPU from the drives.
const EXAMINED_MAX: usize = 100;
/// Usual requests of a drive that are looked at.
const USUAL_MAX: usize = 256;

/// A message of a reading thread to the collector.
#[derive(Clone, Copy, Debug)]
pub enum Note {
    /// A request of the warm-up, taken at random.
    Usual(Request),
    /// A slow request.
    Slow(Request),
}

/// The findings about a drive.
#[derive(Default)]
struct Drive {
    sample: Vec<Parts>,
    usual: Option<Usual>,
    causes: BTreeMap<Cause, CauseCount>,
    /// Times at which the drive itself was slow.
    slow_ns: Vec<u64>,
    not_examined: u64,
}

/// The collector of a run.
pub struct Collector {
    tracer: Tracer,
    decoder: Decoder,
    kept: Kept,
    /// Time that a CPU needs to leave an idle state; index: the state.
    leave_idle_ns: Vec<u64>,
    drives: Vec<Drive>,
    pending: Vec<Note>,
}

impl Collector {
    /// A collector for so many drives.
    #[must_use]
    pub fn new(tracer: Tracer, decoder: Decoder, leave_idle_ns: Vec<u64>, drives: usize) -> Self {
        Self {
            tracer,
            decoder,
            kept: Kept::default(),
            leave_idle_ns,
            drives: (0..drives).map(|_| Drive::default()).collect(),
            pending: Vec::new(),
        }
    }

    /// Works until all senders are gone. `span_ns`: the length of the measured time.
    #[must_use]
    pub fn run(mut self, notes: &Receiver<Note>, span_ns: u64) -> Vec<DriveCauses> {
        loop {
            let is_over = self.take(notes);
            let now_ns = clock::now_ns();
            self.tracer.drain(&mut self.kept);
            self.examine(if is_over { u64::MAX } else { now_ns });
            if is_over {
                break;
            }
            self.kept.forget(now_ns.saturating_sub(KEEP_NS));
            std::thread::sleep(PAUSE);
        }
        self.drives.into_iter().map(|drive| drive.finish(span_ns)).collect()
    }

    /// Takes all notes that are there. Returns true if no more can come.
    fn take(&mut self, notes: &Receiver<Note>) -> bool {
        loop {
            match notes.try_recv() {
                Ok(note) => self.pending.push(note),
                Err(TryRecvError::Empty) => return false,
                Err(TryRecvError::Disconnected) => return true,
            }
        }
    }

    /// Examines requests whose events are all there.
    fn examine(&mut self, traced_until_ns: u64) {
        let mut examined = 0;
        for note in std::mem::take(&mut self.pending) {
            let (Note::Usual(request) | Note::Slow(request)) = note;
            if request.end_ns.saturating_add(BEHIND_NS) > traced_until_ns {
                self.pending.push(note);
                continue;
            }
            let drive = &mut self.drives[request.drive];
            match note {
                Note::Usual(_) if drive.sample.len() >= USUAL_MAX => {}
                _ if examined >= EXAMINED_MAX => {
                    drive.not_examined += u64::from(matches!(note, Note::Slow(_)));
                }
                _ => {
                    examined += 1;
                    self.examine_one(note, request);
                }
            }
        }
    }

    fn examine_one(&mut self, note: Note, request: Request) {
        let drive = &mut self.drives[request.drive];
        let (begin_ns, end_ns) = (request.begin_ns.saturating_sub(BEFORE_NS), request.end_ns);
        let window = self.kept.window(&mut self.decoder, begin_ns, end_ns);
        if let Note::Usual(_) = note {
            if !window.is_lossy {
                drive.sample.push(Parts::of(&request, &window.events));
            }
            return;
        }
        let usual = drive.usual.get_or_insert_with(|| Usual::of(&drive.sample));
        let leave_idle_ns =
            |state: u32| self.leave_idle_ns.get(state as usize).copied().unwrap_or(0);
        let explained = attribute(request, &window.events, usual, &leave_idle_ns);
        let cause = match window.is_lossy {
            true => Cause::Unknown { reason: Unknown::Lost },
            false => explained.cause,
        };
        if cause == Cause::Drive {
            drive.slow_ns.push(request.begin_ns);
        }
        let count = drive.causes.entry(cause.clone()).or_insert_with(|| CauseCount::new(cause));
        count.record(request.latency_ns(), explained.excess_ns);
    }
}

impl Drive {
    fn finish(self, span_ns: u64) -> DriveCauses {
        DriveCauses {
            usual_ns: self.usual.unwrap_or_else(|| Usual::of(&self.sample)).latency_ns,
            causes: self.causes.into_values().collect(),
            not_examined: self.not_examined,
            period: period(&self.slow_ns, span_ns),
        }
    }
}
