//! Waiting between tasks of one core: no atomics, no locks, nothing `Send`.
//!
//! - [`all`]: several futures together.
//! - [`first_of`]: whichever of two comes first.
//! - [`oneshot`]: one value, from one task to another.
//! - [`Notify`]: many tasks wait for the next time something happens.
//! - [`Semaphore`]: a counted budget, served in the order of asking.
//! - [`yield_now`]: a task steps back behind those that are ready.
//!
//! Absent from this crate: any runtime. Wakers come from the task that polls.

mod all;
mod first_of;
mod notify;
mod oneshot;
mod semaphore;
mod yielding;

pub use all::all;
pub use first_of::{Either, first_of};
pub use notify::{Notified, Notify};
pub use oneshot::{Receiver, Sender, oneshot};
pub use semaphore::{Acquire, Permit, Semaphore};
pub use yielding::yield_now;

#[cfg(test)]
mod testing;
