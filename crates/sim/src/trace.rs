//! The trace of a run: always as a hash, as text on request.

use std::cell::{Cell, RefCell};
use std::fmt::{Arguments, Write};
use std::rc::Rc;

use units::Instant;

const HASH_START: u64 = 0xCBF2_9CE4_8422_2325;
const HASH_PRIME: u64 = 0x0000_0100_0000_01B3;

type Print = Box<dyn Fn(&str)>;

/// The events of a run. Cheap to clone; clones are the same trace.
///
/// Two runs with equal hashes took the same way.
#[derive(Clone)]
pub struct Trace {
    shared: Rc<Shared>,
}

struct Shared {
    hash: Cell<u64>,
    events: Cell<u64>,
    line: RefCell<String>,
    /// Receiver of each line as it comes.
    print: Option<Print>,
}

impl Default for Trace {
    fn default() -> Self {
        Self::with_printer(None)
    }
}

impl Trace {
    /// A trace that also hands each event to `print`.
    #[must_use]
    pub fn printing(print: impl Fn(&str) + 'static) -> Self {
        Self::with_printer(Some(Box::new(print)))
    }

    fn with_printer(print: Option<Print>) -> Self {
        let shared = Shared {
            hash: Cell::new(HASH_START),
            events: Cell::new(0),
            line: RefCell::default(),
            print,
        };
        Self { shared: Rc::new(shared) }
    }

    /// Notes an event.
    pub fn note(&self, now: Instant, event: Arguments<'_>) {
        let shared = &self.shared;
        let mut line = shared.line.borrow_mut();
        line.clear();
        write!(line, "{:>12.3} µs  {event}", now.0 as f64 / 1000.0).expect("memory is written");
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(HASH_PRIME);
        shared.hash.set(line.bytes().fold(shared.hash.get(), mix));
        shared.events.set(shared.events.get() + 1);
        if let Some(print) = &shared.print {
            print(&line);
        }
    }

    /// FNV-1a of all events so far.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.shared.hash.get()
    }

    /// Events so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.shared.events.get()
    }
}
