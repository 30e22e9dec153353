//! Decisions of a host in a cluster, without I/O: membership, claims of devices, leases, records of volumes, quotas.
//!
//! ```text
//!  directory (tokio, HTTP, the machine's clock)      farflash-sim (an etcd in memory, a clock of the seed)
//!            └──── World: clock, ways to etcd ── Store: range, txn, watch, lease ──────┘
//!                                    Node
//! ```
//! - `node` is a host's place in the cluster: its session, its claims, its changes. The host polls its futures, which wait for
//!   nothing but what [`World`] and [`Store`] give.
//! - `claiming` decides whether this host may claim a device, and by which transaction.
//! - `tenure` decides until when a host serves what it has claimed.
//! - `store` names the operations of etcd that decisions are made of; `memory` does them for the simulator.
//!
//! Absent from this crate: sockets, threads, runtimes, clocks and random numbers. Each time comes in as a [`BootTime`].

mod boot_time;
mod claim;
mod claiming;
mod error;
mod event;
mod keys;
pub mod memory;
mod node;
mod race;
mod records;
mod sabotage;
mod sighting;
mod signal;
mod store;
mod tenure;
mod view;
mod word;
mod world;

pub use boot_time::BootTime;
pub use claim::{Claim, Mark};
pub use claiming::{Action, Claiming, Made, Refusal, last, put_claim};
pub use error::DirectoryError;
pub use event::{Admit, Conflict, Event, Regrant};
pub use keys::Keys;
pub use node::{Node, Session};
pub use records::{
    ClaimRecord, CoreRecord, DeviceRecord, GrantRecord, GrantsRecord, HostRecord, NbdRecord,
    RestrictionsRecord, VolumeRecord, VolumeState,
};
#[cfg(feature = "sabotage")]
pub use sabotage::{Sabotage, sabotage};
pub use sighting::Sighting;
pub use store::{
    Compare, Compared, KeyValue, Op, Store, StoreError, TxnReply, Watch, WatchEvent, document,
};
pub use tenure::{Tenure, Term};
pub use view::{Reach, View};
pub use word::Word;
pub use world::World;
