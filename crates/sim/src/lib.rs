//! A simulated world behind the same traits as the real one.
//!
//! A run is a function of its seed: time is virtual and jumps to the next event when no task is
//! ready, and everything that varies (latencies, how a byte stream is cut into chunks, which sectors
//! survive a crash) is drawn from one generator.
//!
//! - [`Simulation`] owns the tasks and time; [`SimWorld`] is its handle for the code under test.
//! - [`SimDevice`] is a disk with a volatile cache that can crash, rot and fail.
//! - Streams and listeners live in one network per simulation.
//! - `windows.rs`: rates and promises, checked over every window of a run.
//!
//! Absent from this crate: real time, threads, sockets, files.

mod device;
mod network;
mod trace;
mod windows;
mod world;

pub use device::{Damage, DamageKind, Defect, DeviceFaults, SimDevice, Survival};
pub use network::{SimListener, SimStream};
/// The one source of chance in a simulation.
pub use random::SplitMix as Rng;
pub use trace::Trace;
pub use windows::{Excess, Judge};
pub use world::{SimWorld, Simulation, Stalled};

#[cfg(test)]
mod tests;
