//! Waiting between tasks of one core: no atomics, no locks, nothing `Send`.
//!
//! - [`oneshot`]: one value, from one task to another.
//! - [`Notify`]: many tasks wait for the next time something happens.
//! - [`Semaphore`]: a counted budget, served in the order of asking.
//!
//! Absent from this crate: any runtime. Wakers come from whoever polls.

mod notify;
mod oneshot;
mod semaphore;

pub use notify::{Notified, Notify};
pub use oneshot::{Receiver, Sender, oneshot};
pub use semaphore::{Acquire, Permit, Semaphore};

#[cfg(test)]
mod testing;
