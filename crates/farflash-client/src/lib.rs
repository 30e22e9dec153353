//! Volumes for programs with ordinary threads, and for asynchronous ones with any executor.
//!
//! ```no_run
//! use farflash_client::{Cluster, NewVolume, OpenOptions};
//!
//! # fn main() -> Result<(), farflash_client::Error> {
//! let cluster = Cluster::new(["http://192.0.2.1:7420", "http://192.0.2.2:7420"], None)?;
//! let created = cluster.create(&NewVolume::new("db-1", 1 << 30))?;
//!
//! let options = OpenOptions { token: Some(created.tokens.token), ..OpenOptions::default() };
//! let volume = cluster.open("db-1", &options)?;
//! volume.write_at(&[7; 4096], 0)?;
//! let mut block = [0; 4096];
//! volume.read_at(&mut block, 0)?;
//! assert_eq!(block, [7; 4096]);
//! volume.close()?;
//! cluster.delete_with_data("db-1")
//! # }
//! ```
//!
//! - A [`Cluster`] is one or more servers, reached through their API: it creates, finds and deletes volumes, and
//!   decides which hosts may open them.
//! - A [`Volume`] is an open volume: usable on any thread, cheap to clone. Its methods wait;
//!   [`Volume::start`] and [`Volume::submit`] do not, so that one thread can have many requests under way.
//! - A [`VolumeFile`] is a volume as a file of bytes.
//! - A volume made with [`NewVolume::metadata_size`] keeps so many bytes of the application's beside each block.
//!   [`Volume::read_ex`] and its like read, write and compare them with the block's data, as one.
//!
//! `examples/counter.rs` is a program that opens a volume by its name and uses it from several threads.
//!
//! # Asynchronous programs
//! What begins with `start` does not wait and returns a [`Pending`], which can be awaited under any executor:
//! [`Cluster::start_create`] and its like, [`Cluster::start_open`], [`Volume::start`]. They begin when they are called.
//! `examples/awaited.rs` opens a volume by its name, writes and reads.
//! ```no_run
//! # use farflash_client::{Cluster, Data, Error, NewVolume, OpenOptions, Request};
//! # async fn example(cluster: Cluster) -> Result<(), Error> {
//! let created = cluster.start_create(&NewVolume::new("db-1", 1 << 30)).await?;
//! let options = OpenOptions { token: Some(created.tokens.token), ..OpenOptions::default() };
//! let volume = cluster.start_open("db-1", &options).await?;
//! let writes = [0, 4096].map(|offset| {
//!     volume.start(Request::Write { offset, data: Data::lent(vec![7; 4096]) })
//! });
//! for write in writes {
//!     write.await?;
//! }
//! volume.start_close().await?;
//! cluster.start_delete_with_data("db-1").await
//! # }
//! ```
//!
//! # Threads
//! All requests of a process are carried out by one background thread, which sleeps when there is nothing to do,
//! starts with the first volume and ends with the last. A question to an API that the caller does not wait for has
//! a thread of its own meanwhile. After `fork` the child has no such thread: it opens its volumes again, and
//! requests on the parent's fail with [`Error::Forked`].
//!
//! # When a server goes away
//! Requests wait while the connection is made again, and are then repeated: each has the same effect
//! whether carried out once or twice. If the place that was last known does not answer, the cluster
//! is asked where the volume is now. After [`OpenOptions::recovery_timeout`] the requests fail with
//! [`Error::Lost`]; the next one tries again. A server that does not answer a request for 30 seconds counts as
//! gone, too; a request that was sent [`SENDS_MAX`] times, each time on a new connection, and never answered
//! fails, so that it does not hold up the others for ever. A compare-and-swap is never repeated once it was sent: it
//! fails with [`Error::OutcomeUnknown`].
//!
//! # Copies
//! Beside the kernel's own: what is written is copied once, into a buffer that goes to the socket as it is; what is
//! read twice, from where the kernel puts it into a buffer and from there to the caller. [`Data::lent`] writes from
//! memory that is handed over, without a copy, and [`Request::ReadTo`] reads into such memory with one. Blocks with
//! metadata are copied once more, because each block's metadata lies behind its data on the wire.
//!
//! Memory that is only borrowed, as by [`Volume::write_at`] and [`Volume::read_at`], has to be copied: a request
//! belongs to another thread, and the kernel may use its memory for a moment after its outcome is known, longer
//! than any borrow that the compiler can see the end of. Lending it all the same takes `unsafe`, and a wait after
//! each request until it is released.
//!
//! Absent from this crate: the protocol (that is `client`), caching of data, `unsafe`.

#![forbid(unsafe_code)]

mod asking;
mod attending;
mod awaiting;
mod blocks;
mod cluster;
mod data;
mod directory;
mod error;
mod execution;
mod extended;
mod file;
mod open;
mod pending;
mod pieces;
mod request;
mod runtime;
mod session;
mod volume;

pub use blocks::{BlockData, BlocksMut, ReadBlocks};
pub use client::{Blocks, SENDS_MAX, Swap};
pub use cluster::{Cluster, ClusterOptions, NewVolume, ResizeOptions, open, start_open};
pub use control::{
    ApiError, ChangeAuth, ChangeRestrictions, CreatedVolume, Problem, ProblemCode, Restrictions,
    Slo, Tokens, Volume as VolumeRecord, VolumeState,
};
pub use data::{Data, ReadData};
pub use error::{Error, ErrorKind};
pub use file::VolumeFile;
pub use io_traits::Landing;
pub use nvme_wire::log::{DeviceHealth, FailureDomain};
pub use open::{OpenOptions, Target, TargetError};
pub use pending::Pending;
pub use request::{Reply, Request};
pub use runtime::OUTSTANDING_MAX;
pub use volume::{Properties, Volume};
