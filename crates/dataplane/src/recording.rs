//! Recordings of the requests that hosts send to a volume: time, kind and place of each, and no data.
//!
//! - RECORDING-1: while nothing is recorded, a request costs one look at a flag.
//! - RECORDING-2: a recording reserves its memory at its start. Nothing waits for it: a request that finds no room is counted,
//!   and so is one that reads and writes no blocks of the volume.
//! - RECORDING-3: it has an end: after its time, when its client has not asked for it for [`UNASKED_MAX`], and with the volume.
//! - RECORDING-4: its client fetches the requests while it runs, and fetches those again whose answer was lost: they stay until
//!   the client asks for later ones.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use io_traits::{Device, World};
use schedule::Direction;
use units::{Duration, Instant, Lba, LbaRange};
use uuid::Uuid;

use crate::core::Core;
use crate::export::Export;
use crate::request::Request;

/// Recordings at a time on a core: with [`RECORDING_BUFFER_MAX`] they take 24 MiB.
pub const RECORDINGS_MAX: usize = 4;
/// Requests that a recording keeps until they are fetched, at most: 6 MiB of them.
pub const RECORDING_BUFFER_MAX: usize = 1 << 18;
/// Requests that are fetched at once: 192 KiB, which the core copies.
pub const RECORDING_FETCH_MAX: usize = 8192;
/// A client asks several times a second. Longer than a slow network delays a fetch.
pub const UNASKED_MAX: Duration = Duration::from_secs(10);

/// A request of a host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RecordedRequest {
    /// Nanoseconds from the start of the recording until the request had come with all its data.
    pub at_ns: u64,
    /// First block.
    pub start: Lba,
    /// Blocks.
    pub blocks: u32,
    /// A comparison reads; one with a write behind it writes.
    pub direction: Direction,
}

const _: () = assert!(size_of::<RecordedRequest>() == 24);

/// The bounds of a recording.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RecordingTerms {
    /// Tells it from others.
    pub id: Uuid,
    /// Its time.
    pub length: Duration,
    /// Requests that are kept until they are fetched; [`RECORDING_BUFFER_MAX`] at most.
    pub buffer_requests: usize,
}

/// A command of the control side about a recording.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RecordingCommand {
    /// Begin one.
    Start(RecordingTerms),
    /// Return the requests from number `first` on, and forget those before.
    Fetch {
        /// The recording.
        id: Uuid,
        /// Number of requests that the client has.
        first: u64,
    },
    /// End it, and forget what it has.
    End {
        /// The recording.
        id: Uuid,
    },
}

/// The state of a recording.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RecordingStatus {
    /// Its bounds.
    pub terms: RecordingTerms,
    /// Its time is over: nothing is added any more.
    pub is_over: bool,
    /// Requests that are in it, those that were fetched included.
    pub recorded: u64,
    /// Requests that are not in it because there was no room.
    pub left_out: u64,
    /// Requests that are not in it because they read or write no blocks of the volume.
    pub others: u64,
    /// Number of the first of `requests`.
    pub first: u64,
    /// [`RECORDING_FETCH_MAX`] of them at most, as they came.
    pub requests: Vec<RecordedRequest>,
}

/// Why the control side gets no recording.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RecordingError {
    /// There is no such volume (any more): its recording has ended with it.
    #[error("there is no such volume")]
    NoVolume,
    /// The volume has one.
    #[error("the volume is being recorded, by the recording {id}")]
    Runs {
        /// The one that it has.
        id: Uuid,
    },
    /// Others are under way.
    #[error("{RECORDINGS_MAX} recordings are under way on the core")]
    TooMany,
    /// It has ended, and is forgotten.
    #[error("there is no such recording")]
    NotFound,
    /// These requests were fetched and forgotten, or have not come.
    #[error("the recording has the requests from number {first} on, up to and without {end}")]
    NotThere {
        /// The first that is there.
        first: u64,
        /// The number of the next that comes.
        end: u64,
    },
}

/// The recorder of a volume.
#[derive(Default)]
pub(crate) struct Recorder {
    /// RECORDING-1.
    is_on: Cell<bool>,
    recording: RefCell<Option<Recording>>,
}

struct Recording {
    terms: RecordingTerms,
    started: Instant,
    /// The time by which clients are judged (RUNNING-1).
    asked: Instant,
    is_over: bool,
    /// Allocated at the start (RECORDING-2).
    buffer: VecDeque<RecordedRequest>,
    /// Number of the first of these.
    first: u64,
    left_out: u64,
    others: u64,
}

impl Recorder {
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.get()
    }

    /// Takes in a request that has come. `blocks` are those of the volume.
    #[cold]
    fn note(&self, now: Instant, request: &Request, blocks: u64) {
        if let Some(recording) = &mut *self.recording.borrow_mut() {
            recording.note(now, request.blocks().filter(|(_, range)| is_within(*range, blocks)));
            self.is_on.set(!recording.is_over);
        }
    }

    fn start(
        &self,
        terms: RecordingTerms,
        now: Instant,
        asked: Instant,
    ) -> Result<RecordingStatus, RecordingError> {
        let mut recording = self.recording.borrow_mut();
        if let Some(other) = &*recording {
            return Err(RecordingError::Runs { id: other.terms.id });
        }
        let begun = recording.insert(Recording::new(terms, now, asked));
        self.is_on.set(true);
        begun.fetch(0)
    }

    /// Looks at the recording `id`.
    fn with<T>(
        &self,
        id: Uuid,
        now: Instant,
        look: impl FnOnce(&mut Recording) -> T,
    ) -> Result<T, RecordingError> {
        let mut recording = self.recording.borrow_mut();
        let found = recording.as_mut().filter(|recording| recording.terms.id == id);
        let found = found.ok_or(RecordingError::NotFound)?;
        found.end_in_time(now);
        self.is_on.set(!found.is_over);
        Ok(look(found))
    }

    /// Ends the recording, if there is one, and forgets it.
    pub(crate) fn end(&self) {
        self.is_on.set(false);
        self.recording.take();
    }

    /// Returns whether a recording is there whose client asks for it (RECORDING-3).
    fn is_asked(&self, running: Instant) -> bool {
        let recording = self.recording.borrow();
        recording.as_ref().is_some_and(|it| running.since(it.asked) < UNASKED_MAX)
    }
}

fn is_within(range: LbaRange, blocks: u64) -> bool {
    range.start.0.checked_add(range.blocks).is_some_and(|end| end <= blocks)
}

impl Recording {
    fn new(terms: RecordingTerms, started: Instant, asked: Instant) -> Self {
        assert!(terms.buffer_requests <= RECORDING_BUFFER_MAX, "memory is bounded");
        Self {
            terms,
            started,
            asked,
            is_over: false,
            buffer: VecDeque::with_capacity(terms.buffer_requests),
            first: 0,
            left_out: 0,
            others: 0,
        }
    }

    fn end_in_time(&mut self, now: Instant) {
        self.is_over |= now.since(self.started) >= self.terms.length;
    }

    fn note(&mut self, now: Instant, blocks: Option<(Direction, LbaRange)>) {
        self.end_in_time(now);
        if self.is_over {
            return;
        }
        let form = |(direction, LbaRange { start, blocks })| {
            Some((direction, start, u32::try_from(blocks).ok().filter(|blocks| *blocks > 0)?))
        };
        let Some((direction, start, blocks)) = blocks.and_then(form) else {
            self.others += 1;
            return;
        };
        if self.buffer.len() == self.terms.buffer_requests {
            self.left_out += 1;
            return;
        }
        let at_ns = u64::try_from(now.since(self.started).as_nanos()).unwrap_or(u64::MAX);
        self.buffer.push_back(RecordedRequest { at_ns, start, blocks, direction });
    }

    /// RECORDING-4.
    fn fetch(&mut self, first: u64) -> Result<RecordingStatus, RecordingError> {
        let end = self.first + self.buffer.len() as u64;
        if !(self.first..=end).contains(&first) {
            return Err(RecordingError::NotThere { first: self.first, end });
        }
        let had = usize::try_from(first - self.first).expect("no more than are kept");
        self.buffer.drain(..had);
        self.first = first;
        let requests = self.buffer.iter().take(RECORDING_FETCH_MAX).copied().collect();
        Ok(RecordingStatus { requests, ..self.status() })
    }

    fn status(&self) -> RecordingStatus {
        RecordingStatus {
            terms: self.terms,
            is_over: self.is_over,
            recorded: self.first + self.buffer.len() as u64,
            left_out: self.left_out,
            others: self.others,
            first: self.first,
            requests: Vec::new(),
        }
    }
}

/// The volumes of a core that are recorded.
pub(crate) struct Recordings<W: World, D: Device>(RefCell<Vec<Rc<Export<W, D>>>>);

impl<W: World, D: Device> Default for Recordings<W, D> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<W: World, D: Device> Recordings<W, D> {
    /// Begins a recording, if there is room for it.
    fn start(
        &self,
        export: &Rc<Export<W, D>>,
        begin: impl FnOnce(&Recorder) -> Result<RecordingStatus, RecordingError>,
    ) -> Result<RecordingStatus, RecordingError> {
        let mut all = self.0.borrow_mut();
        // One that has a recording is told so, and no other begins.
        let has_one = all.iter().any(|other| Rc::ptr_eq(other, export));
        if !has_one && all.len() == RECORDINGS_MAX {
            return Err(RecordingError::TooMany);
        }
        let begun = begin(&export.recorder)?;
        all.push(export.clone());
        Ok(begun)
    }

    /// Ends the recording of a volume, and forgets it.
    pub(crate) fn end(&self, export: &Export<W, D>, why: &str) {
        let mut all = self.0.borrow_mut();
        if let Some(place) = all.iter().position(|other| other.id() == export.id()) {
            all.swap_remove(place);
            export.recorder.end();
            tracing::info!(volume = %export.uuid(), why, "a recording of its requests has ended");
        }
    }

    /// Ends those whose clients have gone (RECORDING-3).
    fn end_unasked(&self, running: Instant) {
        let mut unasked = self.0.borrow().clone();
        unasked.retain(|export| !export.recorder.is_asked(running));
        unasked.iter().for_each(|export| self.end(export, "its client has gone"));
    }
}

impl<W: World, D: Device> Core<W, D> {
    /// Records a request for `export`, which is being recorded.
    #[cold]
    pub(crate) fn record_request(&self, export: &Export<W, D>, request: &Request) {
        let blocks = export.with_volume(volume::Volume::blocks);
        export.recorder.note(self.world().now(), request, blocks);
    }

    /// Begins, fetches or ends a recording of a volume's requests.
    ///
    /// # Errors
    /// There is no such volume or recording, or another one is under way.
    pub fn recording(
        &self,
        volume: Uuid,
        command: RecordingCommand,
    ) -> Result<RecordingStatus, RecordingError> {
        let export = self.export(volume).ok_or(RecordingError::NoVolume)?;
        let (now, running) = (self.world().now(), self.running_time());
        match command {
            RecordingCommand::Start(terms) => {
                let begin = |recorder: &Recorder| recorder.start(terms, now, running);
                let begun = self.recordings().start(&export, begin)?;
                let seconds = terms.length.as_secs();
                tracing::info!(%volume, recording = %terms.id, seconds, "a recording of its requests begins");
                Ok(begun)
            }
            RecordingCommand::Fetch { id, first } => {
                export.recorder.with(id, now, |recording| {
                    recording.asked = running;
                    recording.fetch(first)
                })?
            }
            RecordingCommand::End { id } => {
                let status = export.recorder.with(id, now, |recording| recording.status())?;
                self.recordings().end(&export, "its client has ended it");
                Ok(RecordingStatus { is_over: true, ..status })
            }
        }
    }

    pub(crate) fn look_after_recordings(&self, running: Instant) {
        self.recordings().end_unasked(running);
    }
}
