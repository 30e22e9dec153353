//! The array profiler: latency of many drives at once, to six nines, with the causes of slow requests.
//!
//! The method is that of the all-flash-array study: random reads of 4 KiB with one request outstanding, one pinned
//! thread for each drive, percentiles over drives (III-B, figures 6 to 13), and the causes that it found by hand (IV).
//!
//! ```text
//! drive ──► recorder ──► Latencies, Timeline ──► Profile ──► merge, compare, show
//!   thread    (pure)            (pure)            (saved)          (pure)
//!               └─ slow requests ──► trace::Collector ──► cause::attribute
//!                                     (kernel events)         (pure)
//! ```
//!
//! - PROFILE-1: drives are opened for reading alone, and nothing is written to them but by a [`Preconditioning`], which a
//!   caller has to make.
//! - PROFILE-2: a percentile is shown only if ten requests or more lie beyond it.
//!
//! Absent from this crate: arguments, and printing.

pub mod cause;
mod clock;
mod compare;
mod cpus;
mod drive;
mod figures;
mod latencies;
mod precondition;
mod reader;
mod recorder;
pub mod result;
mod run;
pub mod show;
mod steady;
mod timeline;
pub mod trace;

pub use clock::{now_ns, sleep_until_ns};
pub use compare::{Basis, Change, Comparison, Verdict, compare};
pub use cpus::allowed_cpus;
pub use drive::{Drive, DriveError, Source};
pub use figures::{FIGURES, Figure, Outlier, OverDrives, outliers, over_drives};
pub use latencies::{BadLatencies, Latencies, NINES, Nines};
pub use precondition::{PreconditionError, Preconditioned, Preconditioning, ROUNDS_MAX};
pub use reader::{Limit, Read, Reader};
pub use recorder::{Recorder, Room, SlowerThan};
pub use result::{MergeError, Profile, ReadError};
pub use run::{DRIVES_MAX, Plan, RunError, run};
pub use steady::{WINDOW, Window};
pub use timeline::{SLICES_MAX, Slice, Timeline};
