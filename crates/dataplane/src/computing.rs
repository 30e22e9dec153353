//! Order of what is computed on another thread for unauthenticated peers: one step takes up to milliseconds.
//!
//! - COMPUTE-1: few are computed for at a time.
//! - COMPUTE-2: of one source still fewer stand in the line of all, so that a source that opens many connections waits
//!   behind itself, and another one behind a few of these at most.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;

use local_sync::{Permit, Semaphore};
use strangers::source;

/// Exchanges that are computed for at a time (COMPUTE-1): enough to keep another thread busy.
const COMPUTING_MAX: u64 = 4;
/// Exchanges of one source that are computed or stand in line (COMPUTE-2).
const OF_SOURCE_MAX: u64 = 2;

/// The line of a core.
pub struct Computing {
    all: Semaphore,
    /// The line of each source that has exchanges in it, and how many these are.
    sources: RefCell<BTreeMap<IpAddr, (Semaphore, usize)>>,
}

/// A place in the line of all.
pub struct Place<'a> {
    _of_source: Permit,
    _presence: Presence<'a>,
}

/// Leave to compute.
pub struct Turn<'a> {
    _of_all: Permit,
    _place: Place<'a>,
}

/// An exchange of `source` stands in line or is computed for.
struct Presence<'a> {
    line: &'a Computing,
    source: IpAddr,
}

impl Drop for Presence<'_> {
    fn drop(&mut self) {
        let mut sources = self.line.sources.borrow_mut();
        let Some((_, count)) = sources.get_mut(&self.source) else { return };
        *count -= 1;
        if *count == 0 {
            sources.remove(&self.source);
        }
    }
}

impl Default for Computing {
    fn default() -> Self {
        Self { all: Semaphore::new(COMPUTING_MAX), sources: RefCell::default() }
    }
}

impl Computing {
    /// Waits behind what `address` has asked for before (COMPUTE-2).
    pub async fn place(&self, address: IpAddr) -> Place<'_> {
        let source = source(address);
        let places = {
            let mut sources = self.sources.borrow_mut();
            let new = || (Semaphore::new(OF_SOURCE_MAX), 0);
            let (places, count) = sources.entry(source).or_insert_with(new);
            *count += 1;
            places.clone()
        };
        let presence = Presence { line: self, source };
        let of_source = places.acquire(1).await;
        Place { _of_source: of_source, _presence: presence }
    }

    /// Waits behind what others have asked for (COMPUTE-1).
    pub async fn turn<'a>(&'a self, place: Place<'a>) -> Turn<'a> {
        let of_all = self.all.acquire(1).await;
        Turn { _of_all: of_all, _place: place }
    }
}
