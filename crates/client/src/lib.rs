//! The initiator library: volumes of an NVMe/TCP target, for asynchronous Rust on one core.
//!
//! ```no_run
//! # async fn example(world: impl io_traits::World) -> Result<(), Box<dyn std::error::Error>> {
//! use client::{Client, Options};
//! use units::Lba;
//!
//! let nqn = "nqn.2014-08.org.nvmexpress:uuid:6c7a9f2e-0b1d-4f60-8f3e-2b8a51c0d9aa".parse()?;
//! let options = Options { queues: 2, ..Options::for_host([7; 16]) };
//! let client = Client::connect(world, "192.0.2.1:4420".parse()?, &nqn, options).await?;
//! let volume = client.volume().await?;
//! let data = io_traits::Buffer::from_bytes(b"hello").into_slice();
//! volume.write(Lba(0), data).await?;
//! assert_eq!(volume.read(Lba(0), 1).await?.as_bytes()[..5], *b"hello");
//! client.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Concurrency
//! All handles are clones of one another and used from one core. Any number of requests may be
//! under way; each queue carries [`Options::depth`](field@Options::depth) of them at once, the
//! rest wait in line. What becomes ready in one turn of the core leaves in one send.
//!
//! # Lost connections
//! A lost connection is made again ([`Options::reconnect`]), and what was outstanding is sent
//! again, in the order in which it was submitted. Every request here has the same effect whether it
//! is carried out once or twice: it reads, or it sets the contents of its blocks. What the lost
//! connections left behind must not come behind that, or it would undo what was written since: so the
//! controller that was lost is ended through the new one (Cross-Controller Reset) before anything is
//! sent again. A target without that command, which farflash is not, leaves what it has not carried
//! out when it hears that a connection has ended; if the network keeps that from it, by the keep alive
//! timeout ([`Options::keep_alive`]).
//!
//! What another host wrote to the same blocks, between a write whose answer was lost and its repetition, the repetition
//! undoes. Hosts that share blocks change them by [`Volume::compare_and_swap`], which is never sent again.
//!
//! Nor is anything sent again to a namespace whose format is another than when it was opened: the size of its blocks, or of
//! their metadata. It fails with [`Error::FormatChanged`], as does whatever is asked of it later.
//!
//! Sent on [`SENDS_MAX`] connections without an answer, a request fails; from [`SUSPECT_AFTER`] on, such requests
//! are sent one at a time on each queue. Order between requests that overlap and are outstanding at the same time
//! is not defined, with or without a reconnect: a caller that needs an order waits for the first to end.
//!
//! # Cancellation
//! A request's future can be dropped at any time. Whether the request is carried out is then
//! open; its memory is kept until the target is done with it.
//!
//! Absent from this crate: a runtime (any [`io_traits::World`] will do), splitting of requests
//! above the target's limits, caching.

mod admin;
mod association;
mod client;
mod counters;
mod discovery;
mod error;
mod events;
mod extended;
mod link;
mod namespace;
mod options;
mod queue;
mod receive;
mod requests;
mod reservations;
mod reset;
mod supervisor;
mod volume;

pub use client::Client;
pub use counters::Counters;
pub use discovery::{Discovered, discover};
pub use error::{ConnectError, Disconnect, Error};
pub use extended::{Blocks, BlocksRead};
pub use nvme_wire::ControllerInstance;
pub use options::{Backoff, Credentials, Options, QUEUES_MAX, Reconnect};
pub use queue::{SENDS_MAX, SUSPECT_AFTER};
pub use reservations::Reservations;
pub use supervisor::STEADY;
pub use volume::{Swap, Volume};
