//! Decisions of a host in a cluster, as values in and values out.
//!
//! ```text
//!  directory (tokio, HTTP, the machine's clock)      tests (memory, a clock of the seed)
//!            └──────────── Read, Wait, Seek, Commit ──────────────┘
//!                                   cluster
//! ```
//! - `claiming` decides whether this host may claim a device, and by which transaction.
//! - `tenure` decides until when a host serves what it has claimed.
//! - `store` names the operations of etcd that decisions are made of; `memory` does them for tests.
//!
//! Absent from this crate: sockets, threads, runtimes, clocks and random numbers. Each time comes in as a [`BootTime`].

mod boot_time;
mod claim;
mod claiming;
mod keys;
#[cfg(test)]
mod memory;
mod records;
mod sabotage;
mod store;
mod tenure;
mod word;

pub use boot_time::BootTime;
pub use claim::{Claim, Mark};
pub use claiming::{Action, Claiming, Made, Refusal, last, put_claim};
pub use keys::Keys;
pub use records::{
    ClaimRecord, CoreRecord, DeviceRecord, GrantRecord, GrantsRecord, HostRecord,
    RestrictionsRecord, VolumeRecord, VolumeState,
};
pub use store::{Compare, KeyValue, Op, TxnReply, document};
pub use tenure::{Tenure, Term};
pub use word::Word;
