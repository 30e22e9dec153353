//! Decisions of a host in a cluster, as values in and values out.
//!
//! ```text
//!  directory (tokio, HTTP, the machine's clock)      tests (memory, a clock of the seed)
//!            └──────────── Read, Wait, Seek, Commit ──────────────┘
//!                                   cluster
//! ```
//! - `claiming` decides whether this host may claim a device, and by which transaction.
//! - `tenure` decides until when a host serves what it has claimed.
//! - `store` names the operations of etcd that decisions are made of; `memory` does them in memory.
//!
//! Absent from this crate: sockets, threads, runtimes, clocks and random numbers. Each time comes in as a [`BootTime`].

/// Says whether the promise `Sabotage::$which` is broken; never without the feature `sabotage`.
macro_rules! broken {
    ($which:ident) => {{
        #[cfg(feature = "sabotage")]
        let is_broken = crate::sabotage::is_on(crate::Sabotage::$which);
        #[cfg(not(feature = "sabotage"))]
        let is_broken = false;
        is_broken
    }};
}

mod boot_time;
mod claim;
mod claiming;
mod keys;
mod memory;
mod records;
#[cfg(feature = "sabotage")]
mod sabotage;
mod store;
mod tenure;
mod word;

pub use boot_time::BootTime;
pub use claim::{Claim, Mark};
pub use claiming::{Action, Claiming, Made, Refusal, last, put_claim};
pub use keys::Keys;
pub use memory::{Backup, MemoryStore};
pub use records::{
    ClaimRecord, CoreRecord, DeviceRecord, GrantRecord, GrantsRecord, HostRecord,
    RestrictionsRecord, VolumeRecord, VolumeState,
};
#[cfg(feature = "sabotage")]
pub use sabotage::{Sabotage, sabotage};
pub use store::{Change, Compare, KeyValue, Op, Store, StoreError, TxnReply, document};
pub use tenure::{Tenure, Term};
pub use word::Word;
