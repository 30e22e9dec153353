//! State shared by the threads of one boot: a server that runs, and the model of the content of its devices.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farflash_client::{
    BlockData, Cluster, Error, ErrorKind, OpenOptions, Reply, Request, Restrictions, Volume,
};

use crate::contents::{self, BLOCK, Stamp};
use crate::model::{self, Finding};
use crate::supply::Supply;

/// The name of the host that may open what is restricted to hosts.
pub(crate) const HOST: &str =
    "nqn.2014-08.org.nvmexpress:uuid:6c7a9f2e-0b1d-4f60-8f3e-2b8a51c0d901";
/// The name of another.
pub(crate) const STRANGER: &str =
    "nqn.2014-08.org.nvmexpress:uuid:6c7a9f2e-0b1d-4f60-8f3e-2b8a51c0d902";
/// A connection that is lost is not sought for longer: the server is dead.
const RECOVERY: Duration = Duration::from_millis(1);

/// A volume that threads share.
pub(crate) type Shared = Arc<Mutex<model::Volume>>;

/// State that lasts from boot to boot.
#[derive(Default)]
pub(crate) struct Model {
    pub(crate) volumes: BTreeMap<u64, Shared>,
    /// Addresses and tokens of deleted volumes.
    pub(crate) deleted: Vec<(String, String)>,
    pub(crate) next_volume: u64,
}

/// Counts of operations.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) data: AtomicU64,
    pub(crate) control: AtomicU64,
    pub(crate) no_space: AtomicU64,
}

pub(crate) struct Boot {
    pub(crate) cluster: Cluster,
    pub(crate) model: Mutex<Model>,
    pub(crate) supply: Supply,
    /// The server is about to be killed or told to end: requests may fail.
    pub(crate) is_ending: AtomicBool,
    /// Nothing new is begun.
    pub(crate) is_stopping: AtomicBool,
    pub(crate) findings: Mutex<Vec<Finding>>,
    pub(crate) stamps: Arc<AtomicU64>,
    pub(crate) counts: Arc<Counts>,
    /// The disk is so small that it may be full.
    pub(crate) may_be_full: bool,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Outcome of a request.
#[derive(Debug)]
pub(crate) enum Outcome<T> {
    Done(T),
    /// There was no space; nothing was changed.
    NoSpace,
    /// The power or the server is gone. What was asked for is under way.
    Gone,
}

impl Boot {
    pub(crate) fn found(&self, what: impl Into<String>) {
        lock(&self.findings).push(Finding(what.into()));
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    /// Nothing more is to be begun.
    pub(crate) fn is_over(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed) || self.may_fail()
    }

    /// Returns true if a request may fail, because there is no power or no server.
    pub(crate) fn may_fail(&self) -> bool {
        self.supply.is_off() || self.is_ending.load(Ordering::Relaxed)
    }

    /// Sorts out why a request failed. One that fails without reason is a finding.
    pub(crate) fn outcome<T>(&self, what: &str, result: Result<T, Error>) -> Outcome<T> {
        match result {
            Ok(done) => Outcome::Done(done),
            Err(_) if self.may_fail() => Outcome::Gone,
            Err(error) if self.may_be_full && error.kind() == ErrorKind::NoSpace => {
                self.counts.no_space.fetch_add(1, Ordering::Relaxed);
                Outcome::NoSpace
            }
            Err(error) => {
                self.found(format!("{what} failed without reason: {error} ({:?})", error.kind()));
                Outcome::Gone
            }
        }
    }

    pub(crate) fn next_stamp(&self) -> Stamp {
        self.stamps.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn volumes(&self) -> Vec<Shared> {
        lock(&self.model).volumes.values().cloned().collect()
    }
}

/// Returns true if this host may open a volume.
pub(crate) fn admits(restrictions: &Restrictions) -> bool {
    let Restrictions { hosts, networks, .. } = restrictions;
    (hosts.is_empty() || hosts.iter().any(|host| host == HOST))
        && (networks.is_empty() || networks.iter().any(|network| network == "127.0.0.0/8"))
}

pub(crate) fn options(token: &str, host: &str) -> OpenOptions {
    OpenOptions {
        token: Some(token.to_owned()),
        host_nqn: Some(host.to_owned()),
        recovery_timeout: RECOVERY,
        ..OpenOptions::default()
    }
}

/// Blocks of a volume, as a request takes them.
pub(crate) fn filled(volume: &model::Volume, first: u64, stamps: &[Stamp]) -> BlockData {
    let metadata_size = volume.metadata as usize;
    let mut data = vec![0; stamps.len() * BLOCK];
    let mut metadata = vec![0; stamps.len() * metadata_size];
    for (index, (lba, stamp)) in (first..).zip(stamps).enumerate() {
        let of_block = &mut metadata[index * metadata_size..(index + 1) * metadata_size];
        let block = &mut data[index * BLOCK..(index + 1) * BLOCK];
        contents::fill(volume.place(lba), *stamp, block, of_block);
    }
    BlockData { data: farflash_client::Data::lent(data), metadata }
}

/// Asks for `blocks` blocks.
pub(crate) fn read_request(volume: &model::Volume, first: u64, blocks: u64) -> Request {
    let (offset, len) = (first * BLOCK as u64, blocks as usize * BLOCK);
    match volume.metadata {
        0 => Request::Read { offset, len },
        _ => Request::ReadEx { offset, len },
    }
}

/// The writes that the blocks of an answer are of, or what is wrong with them.
pub(crate) fn identify(
    volume: &model::Volume,
    first: u64,
    reply: Reply,
) -> Result<Vec<Stamp>, Finding> {
    let (data, metadata) = match reply {
        Reply::Data(data) => (data.to_vec(), Vec::new()),
        Reply::Blocks(blocks) => (blocks.data.to_vec(), blocks.metadata),
        other => return Err(Finding(format!("a read is answered by {other:?}"))),
    };
    let size = volume.metadata as usize;
    let identify = |(index, block): (usize, &[u8])| {
        let lba = first + index as u64;
        let metadata = &metadata[index * size..(index + 1) * size];
        let of_block = contents::identify(volume.place(lba), block, metadata);
        of_block.map_err(|wrong| Finding(format!("{}: block {lba} {wrong}", volume.name)))
    };
    data.chunks_exact(BLOCK).enumerate().map(identify).collect()
}

/// An open volume beside its model.
pub(crate) struct Opened {
    pub(crate) shared: Shared,
    pub(crate) volume: Volume,
}
