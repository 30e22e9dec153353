//! Kernel events from tracefs: formats and pages as pure logic, and one instance of the tracer with its reader.
//!
//! ```text
//! per_cpu/cpuN/trace_pipe_raw ──► pages ──► kept for seconds ──► window of a slow request ──► events ──► cause
//!       (read 20 times a second)   (raw bytes)                     (decoded only then)
//! ```
//!
//! The tracer is an instance of its own, so others' buffers and settings are left alone; it is removed at the end.

mod collector;
mod decode;
mod format;
mod kept;
mod page;
mod tracefs;

pub use collector::{Collector, Note};
pub use decode::{Decoder, EVENTS, EventSpec};
pub use format::{Field, Format, FormatError};
pub use kept::{Kept, Window};
pub use page::{Events, Page, RawEvent};
pub use tracefs::{Tracer, TracerError};
