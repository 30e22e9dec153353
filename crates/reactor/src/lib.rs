//! The real world: one pinned thread per core, with its own ring, timers, sockets and devices.
//!
//! [`spawn_thread`] starts a core, [`run_on_current_thread`] makes one of the calling thread. What
//! runs there gets a [`Handle`], which is the core's [`io_traits::World`], and from [`OwnedDevice`]
//! a [`FileDevice`]. Nothing of a core is shared; a [`mailbox`] carries messages in.
//!
//! One turn of a core: run the tasks that are ready, hand all that they asked for to the kernel in
//! one call, deliver all that is done, fire timers. So replies that became ready together leave
//! together. A core without work polls for a while, if that has paid off lately, and then sleeps.
//!
//! Absent: protocols, volumes, `unsafe`.

#![forbid(unsafe_code)]

mod arrivals;
mod core;
mod cpu;
mod events;
mod handle;
mod hot;
mod idle;
mod listener;
mod mailbox;
mod net;
mod offload;
mod open;
mod random;
mod run_delay;
mod sharing;
mod space_below;
mod storage;
mod sysfs;
mod time_of_day;
mod timers;

pub use self::core::{
    CoreConfig, CoreThread, Ended, StartError, run_on_current_thread, spawn_thread,
};
pub use cpu::{allowed_cpus, leave_cores};
pub use events::Events;
pub use handle::{Handle, Sleep};
pub use idle::IdlePolicy;
pub use listener::TcpListener;
pub use mailbox::{MAILBOX_MAX, Receiver, Sender, Undelivered, mailbox};
pub use net::TcpStream;
pub use offload::start_offload;
pub use open::{
    DeviceWarning, FlushPolicy, OpenError, OpenFile, OpenOptions, OwnedDevice, PathState,
    create_sparse,
};
pub use storage::FileDevice;
pub use time_of_day::{clock_behind, not_before, unix_time};
pub use uring::{RingCounters, SetupError, self_test};

#[cfg(test)]
mod tests;
