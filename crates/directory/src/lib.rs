//! The directory: the hosts, devices and volumes that make up a service.
//!
//! ```text
//!  server ──▶ Directory (trait) ┬ Alone: one host, nothing to install
//!                               └ Etcd:  many hosts; View ◀─ snapshot + watch, Session = lease
//! ```
//! The contents of a device decide about its volumes. By the directory hosts agree on the rest: the host that serves a
//! device, the owner of a name, the location of a volume. It is not asked on the data path: a look-up reads the [`View`] in
//! memory, which stays as it was while the directory is away.
//!
//! # The host that serves a device
//! Under a cluster's prefix in etcd lie `hosts/ID` and `host-names/NAME` (under the host's lease), and without a lease `cluster` (its identity),
//! `devices/ID` (a claim), `claimed/ID` (its last claim, also when that was given back), `volumes/ID`, `names/NAME`, and
//! `tenants/NAME`, which puts a tenant's changes in a row, and `grants/NAME`, how its quota is divided among hosts; and
//! `registered/ID`, the last registration of a host that stops by itself. Under the lease is `changed/ID`, too: that something was
//! changed about a device in this session.
//!
//! - CLAIM-1: a host serves a device only from the moment that its claim was made until it gives the claim back or learns that it
//!   lost it. It gives the claim back after it has stopped serving the device, when no request to it is under way.
//! - CLAIM-2: a claim passes from one host to another in two ways only: its holder gives it back, or an
//!   operator has another host take it over. The latter is refused if the holder is seen at an address that
//!   its claim names ([`Seek`]), and, of one that does not stop by itself (CLAIM-7), unless the operator says of it by name that
//!   it is down ([`Word`]); it is one transaction, made next, which compares the claim that was read and that the holder's lease
//!   has ended. No lapse of time passes a claim on. A host goes on with a claim of its own that a former process made: under the
//!   same kernel and in the same network namespace that one is dead (IDENTITY-2); else it is looked for as any holder is, since
//!   two machines, or two containers of one machine, may have one id.
//! - CLAIM-3: each transaction that changes volumes or names compares that the claim of their device is the
//!   one that this process made (its modification revision, the claim's *epoch*).
//! - CLAIM-4: a host that finds its claim to be another's stops serving the device at once, and reports it. It looks whenever it
//!   comes (back) to etcd before it asks for anything else, even if another process is this host by now, and at each event on the
//!   claim while it is there.
//! - CLAIM-5: a host that claims a device notes it under `claimed/ID` in the same transaction, and the note stays when the claim
//!   is given back. A host that finds no claim of a device that it had has lost it: another host took it over and has given it
//!   back. Only where the note is gone, too, etcd has forgotten the device, and the host claims it again. A device that ends with
//!   its host is not taken over: that host deletes the note.
//! - CLAIM-6: a cluster has an identity, made once. A device names the cluster that it belongs to, and a host serves it only if
//!   that is its own; a host without a directory, only one that names none. A host that claims a device that names none writes
//!   the identity to it, durably, before it serves anything of it. It passes to another cluster only by an operator's word.
//! - CLAIM-7: a host may be one that stops by itself: that serves only for a time after it asked for what showed that it is
//!   registered (`tenure.rs`). Its claims say so. By an operator's word such a claim passes only after another host has seen its
//!   holder unregistered for a longer time, without a break: the registration of such a host is noted under `registered/ID` in
//!   the same transaction, where it stays, and the transaction that takes over compares that note. When the host is back it looks
//!   at its claims both before and after it registers, and serves again when it has stopped serving what it lost.
//!
//! - CLAIM-8: etcd may be restored from a backup, or lose everything. As CLAIM-5 has it, the last claim of a device has the
//!   highest revision that is noted of it. A host that finds a lower one than that of its own claim has not lost it to another
//!   host: etcd has forgotten it. It claims the device again, unless the holder that etcd names is [seen](Seek) to serve it. Of a
//!   device that belongs to the cluster some claim is noted: where none is, a host gets it only by an operator's word that the
//!   former holder is down.
//! - CLAIM-9: claims of a device are counted, in etcd and by the [`Mark`] that the device carries: the host that claims it marks
//!   it, durably, before it serves anything of it. A device whose mark is of a later claim than etcd knows of, and of another
//!   host, is claimed only by an operator's word that this host is down, and not while that host is registered. The next claim
//!   counts on from the higher of both numbers. So a host that finds a claim of a higher number than its own, in etcd or on the
//!   device ([`Directory::lost`]), has lost the device, whatever etcd has forgotten.
//!
//! **At most one host of a cluster serves a device, unless an operator wrongly confirms that an unreachable host is down.**
//! Claims of a device are ordered by their revisions. Let B hold the one after A's. By CLAIM-2 A gave it back, and by CLAIM-1
//! serves no more; or an operator had B take it over, and confirmed by A's name that A is down. If A is not dead but cut off from
//! etcd, its lease having ended, it goes on serving until it sees etcd again (CLAIM-4), or B's mark, if both reach the device
//! (CLAIM-9): that is the price of CLAIM-2, under which a data path does not stop because etcd is away, and why only a person may
//! say it. What can be checked of it is: an A that B can reach is seen, also one that hangs, and keeps its claim. Left to the
//! word alone are an A that neither etcd nor B reaches, one that listens no more but has not ended yet, one whose claim is of a
//! release that named no addresses, and one that comes back to B's network in the moment between B's look and its transaction.
//! Even then A changes nothing in the directory: its epoch is not that of the claim (CLAIM-3). **Of an A that stops by itself
//! nothing is left to the word** (CLAIM-7, TENURE-1 to TENURE-3): let its record be gone at *x* and not back until B's
//! transaction. All that A goes by was true before *x*, and A asked for it still earlier; so A has stopped when B, which counts
//! from after *x*, takes over. That leaves out clocks that stand still, of a virtual machine that is paused and goes on, say; and
//! a request that a process had begun when it was stopped for longer than all of this, or that a kernel holds for longer, and
//! that reaches the device afterwards.
//!
//! **At most one host serves a device that belongs to a cluster, unless an operator wrongly confirms** that a host is down, as
//! above, or that no host of the cluster serves the device any more. A host of another cluster, or of none, is refused by
//! CLAIM-6. That rests on what the device says of itself, and so leaves out devices that belong to no cluster: what a host
//! without a directory serves, only the kernel of each machine keeps for one process, and a host of a cluster that claims it
//! makes it its own; and of two clusters that claim one for the first time in the same moment, one is told from the other unless
//! it waits between its look and its write until the other has read back what it wrote.
//!
//! **A volume and its record agree after a crash at any point.** A volume is made in three steps: its name and record (state
//! `creating`) in one transaction, the volume on its device, the record's state. It is deleted in two: from its device, from the
//! directory. At each start and each return to etcd the host compares what its devices hold with their records
//! ([`Directory::reconcile`]), and the device is right: a record without its volume goes, with the name; a volume without a
//! record gets one, and the name if no other volume has it. No change to a volume runs meanwhile. What lay on a device that ends
//! with its process goes from the directory when that leaves, or when its host is back.
//!
//! Absent from this crate: volumes themselves, the API, and anything on the data path.

mod alone;
mod boot_time;
mod etcd;
mod http;
mod identity;
mod sighting;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::watch;
use uuid::Uuid;

pub use alone::Alone;
pub use boot_time::BootClock;
pub use cluster::{
    Admit, BootTime, Claim, ClaimRecord, Conflict, CoreRecord, DeviceRecord, DirectoryError, Event,
    GrantRecord, GrantsRecord, HostRecord, Mark, NbdRecord, Reach, Regrant, RestrictionsRecord,
    Sighting, Tenure, Term, View, VolumeRecord, VolumeState, Word,
};
#[cfg(feature = "fuzzing")]
pub use etcd::take_answer;
pub use etcd::{
    Etcd, EtcdAccessError, EtcdAddress, EtcdAddressError, EtcdCredentials, EtcdOptions,
};
pub use http::{HttpAnswer, HttpError, HttpRequest};
pub use identity::Identity;
pub use sighting::Seek;

/// The answer to a question to the directory, later.
pub type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T, DirectoryError>> + Send + 'a>>;

/// Agreement among hosts on the device that each serves, and on names and volumes. The crate's
/// documentation states the guarantees.
pub trait Directory: Send + Sync + 'static {
    /// The identity of the cluster that this host is one of (CLAIM-6); `None` if it is a service by itself. It does not change.
    fn cluster(&self) -> Option<Uuid>;
    /// The view as of the last update.
    fn view(&self) -> Arc<View>;
    /// Changes whenever the view has.
    fn changes(&self) -> watch::Receiver<u64>;
    /// The next thing to act upon. Only one may wait for it at a time.
    fn event(&self) -> Pin<Box<dyn Future<Output = Event> + Send + '_>>;
    /// Says how this host is from now on.
    fn describe(&self, host: HostRecord) -> Reply<'_, ()>;
    /// Makes a device this host's (CLAIM-1, CLAIM-2). The mark is what the device has to carry before anything of it is served
    /// (CLAIM-9).
    fn claim(&self, claim: Claim) -> Reply<'_, Mark>;
    /// The same, also with one of a host that is gone, by an operator's word (CLAIM-2). Refused if it is seen, or neither stops
    /// by itself nor is said to be down.
    fn take_over(&self, claim: Claim, word: Word) -> Reply<'_, Mark>;
    /// This host has found on a device that it serves the mark of a later claim (CLAIM-9), of the host `holder`: the device is
    /// lost, as it is if that is found in the directory. Nothing is done if it is not held under the claim that is marked by
    /// `own`.
    fn lost(&self, device: Uuid, own: &Mark, holder: String);
    /// Fails unless the directory is there and the device is this host's: to be asked before a change
    /// to a volume.
    fn check(&self, device: Uuid) -> Reply<'_, ()>;
    /// Waits until the view shows what `owner` was given so far. A caller that has a change judged waits here
    /// before it holds what others wait for: the judgement itself then need not wait for long.
    fn catch_up<'a>(&'a self, owner: &'a str) -> Reply<'a, ()>;
    /// Takes the volume's name and makes its record.
    fn reserve(&self, volume: VolumeRecord) -> Reply<'_, ()> {
        self.reserve_if(volume, None)
    }
    /// The same, if `admit` has nothing against it. It judges by a view that shows all that the volume's
    /// owner was given before, on whichever host and by whomever, and nothing comes between.
    fn reserve_if(&self, volume: VolumeRecord, admit: Option<Admit>) -> Reply<'_, ()>;
    /// Changes a volume's record if `admit` has nothing against it, as for [`Directory::reserve_if`].
    fn update_if(&self, volume: VolumeRecord, admit: Option<Admit>) -> Reply<'_, ()>;
    /// Changes a volume's record. Where another device has that of a volume of the same id, it stays as it is.
    fn update(&self, volume: VolumeRecord) -> Reply<'_, ()>;
    /// Removes a volume's record and gives up its name; with the same exception.
    fn forget(&self, volume: VolumeRecord) -> Reply<'_, ()>;
    /// Makes the records of a device those of `volumes`, which are all that it holds.
    fn reconcile(&self, device: Uuid, volumes: Vec<VolumeRecord>) -> Reply<'_, Vec<Conflict>>;
    /// Divides a quota again if it is still divided as is said. `false`: it is not, or a host lives that must
    /// not, and nothing was changed.
    fn regrant(&self, change: Regrant) -> Reply<'_, bool>;
    /// Removes all that is known of a device, which an operator asserts to be gone for good: its volumes' records and names, and
    /// its claim. Refused as [`Directory::take_over`] is. Should the device come all the same, it is claimed, and its volumes get records.
    fn forget_device(&self, claim: Claim, word: Word) -> Reply<'_, ()>;
    /// Gives back all claims and ends the host's lease: its devices are served no more.
    fn leave(&self) -> Reply<'_, ()>;
}
