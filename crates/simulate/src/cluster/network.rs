//! The way of hosts to etcd: requests and answers that come late, twice or never, and watches.
//!
//! - SIM-NETWORK-1: a request is carried out when it arrives, however late, also when its host does not wait for it
//!   any more.
//! - SIM-NETWORK-2: of a request that arrives twice the host gets the first answer that comes, which may be that to
//!   the second.
//! - SIM-NETWORK-3: a watch tells changes in their order. It may end with an error, or without a word.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use cluster::memory::{Backup, MemoryStore};
use cluster::{
    BootTime, ClaimRecord, Compare, Compared, DirectoryError, Event, KeyValue, Op, Sighting, Store,
    StoreError, TxnReply, View, Watch, WatchEvent, World,
};
use sim::Rng;
use uuid::Uuid;

/// A request to etcd.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Range(String),
    Txn(Vec<Compare>, Vec<Op>, Vec<Op>),
    Watch(String, i64),
    Compare(String, i64),
    GrantLease(Duration),
    KeepLease(i64),
    RevokeLease(i64),
}

/// An answer of etcd.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    Range(Vec<KeyValue>, i64),
    Txn(TxnReply),
    Watch(u64),
    Compare(Compared),
    Lease(i64),
    Kept(bool),
    Done,
}

/// Something that is due at a time.
#[derive(Clone, Debug)]
pub(super) enum Due {
    /// A request arrives at etcd.
    Arrive { process: u64, request: u64 },
    /// An answer arrives at its host; `Err` if the host is told that it failed.
    Answer { process: u64, request: u64, reply: Result<Reply, StoreError> },
    /// A watch has something to tell.
    Tell { watch: u64 },
    /// A process is to go on.
    Wake { process: u64 },
    /// Leases may have ended.
    Leases,
    /// A request to a device is done.
    DeviceDone { process: u64, device: Uuid, number: u64 },
    /// A client asks for something.
    Client,
    /// An operator, or a fault.
    Turn,
}

/// The link of a host to etcd.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Link {
    /// Cut in both directions.
    pub cut: bool,
    /// One in so many requests, or answers, is lost; 0 for none.
    pub loses: u64,
    /// One in so many requests arrives twice.
    pub doubles: u64,
    /// Each takes a good part of the time that a host waits.
    pub slow: bool,
    /// One in so many takes long.
    pub delays: u64,
}

/// The clock of a machine: it runs faster or slower than time, may jump ahead, and begins again at each boot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// Time at its start.
    pub since: Duration,
    /// Its outside at that time.
    pub showed: Duration,
    /// Its speed in millionths.
    pub speed: u64,
}

impl Clock {
    pub(super) fn at(&self, now: Duration) -> BootTime {
        let run = now.saturating_sub(self.since).as_nanos() as u64;
        let run = (u128::from(run) * u128::from(self.speed) / 1_000_000) as u64;
        BootTime(self.showed + Duration::from_nanos(run))
    }

    /// Time that passes while this clock shows `time` more.
    fn lasts(&self, time: Duration) -> Duration {
        let nanos = time.as_nanos() * 1_000_000 / u128::from(self.speed);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX / 4))
    }
}

#[derive(Debug)]
struct Pending {
    request: Request,
    /// Set while the host waits.
    awaited: bool,
}

#[derive(Debug)]
struct Watching {
    process: u64,
    prefix: String,
    from: i64,
    known: usize,
    /// Changes on their way, and the error that ends it.
    told: VecDeque<Result<Vec<WatchEvent>, StoreError>>,
    is_due: bool,
    /// Nothing comes any more.
    is_mute: bool,
}

/// Time, chance, etcd and the network: what hosts share.
#[derive(Debug)]
pub(super) struct Hub {
    pub now: Duration,
    pub rng: Rng,
    pub etcd: MemoryStore,
    /// Set while etcd answers nothing.
    pub is_down: bool,
    pub links: Vec<Link>,
    pub clocks: Vec<Clock>,
    /// Hosts that do not reach each other.
    pub apart: BTreeMap<(usize, usize), bool>,
    queue: BTreeMap<(Duration, u64), Due>,
    last: u64,
    pending: BTreeMap<u64, Pending>,
    answers: BTreeMap<u64, Result<Reply, StoreError>>,
    watches: BTreeMap<u64, Watching>,
    /// Processes that may go on.
    pub dirty: Vec<u64>,
    /// The outside of each process: its machine, its id, and the devices that it serves, if it hangs.
    pub seen: BTreeMap<u64, Seen>,
    /// Changes of etcd up to this one were sent to watchers.
    told_up_to: usize,
}

/// The outside of a process.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub machine: usize,
    pub host: Uuid,
    pub hangs: bool,
    pub serves: Vec<Uuid>,
}

fn lost(may_be_done: bool) -> StoreError {
    let error = DirectoryError::Unreachable { reason: "no answer".to_owned() };
    StoreError { may_be_done, error }
}

impl Hub {
    pub(super) fn new(rng: Rng, hosts: usize) -> Self {
        let clock = Clock { since: Duration::ZERO, showed: Duration::ZERO, speed: 1_000_000 };
        Self {
            now: Duration::ZERO,
            rng,
            etcd: MemoryStore::default(),
            is_down: false,
            links: vec![Link::default(); hosts],
            clocks: vec![clock; hosts],
            apart: BTreeMap::new(),
            queue: BTreeMap::new(),
            last: 0,
            pending: BTreeMap::new(),
            answers: BTreeMap::new(),
            watches: BTreeMap::new(),
            dirty: Vec::new(),
            seen: BTreeMap::new(),
            told_up_to: 0,
        }
    }

    pub(super) fn after(&mut self, time: Duration, due: Due) {
        self.last += 1;
        self.queue.insert((self.now + time, self.last), due);
    }

    /// Goes to what is due next.
    pub(super) fn next(&mut self) -> Due {
        let ((at, _), due) = self.queue.pop_first().expect("a turn is always due");
        self.etcd.advance(at - self.now);
        self.now = at;
        due
    }

    fn machine_of(&self, process: u64) -> usize {
        self.seen.get(&process).map_or(0, |seen| seen.machine)
    }

    fn between(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_micros(self.rng.between(low * 1000, high * 1000))
    }

    /// The time that a message takes; `None` if it is lost.
    fn travel(&mut self, link: Link) -> Option<Duration> {
        if link.cut || self.rng.one_in(link.loses) {
            return None;
        }
        Some(match self.rng.one_in(link.delays) {
            true => self.between(500, 20_000),
            false if link.slow => self.between(50, 450),
            false => self.between(1, 15),
        })
    }

    /// Sends a request. It fails at the latest when the host's clock shows `patience` more.
    fn send(&mut self, process: u64, request: Request, patience: Duration) -> u64 {
        self.last += 1;
        let id = self.last;
        let machine = self.machine_of(process);
        let (link, clock) = (self.links[machine], self.clocks[machine]);
        let reply = Err(lost(true));
        self.after(clock.lasts(patience), Due::Answer { process, request: id, reply });
        self.pending.insert(id, Pending { request, awaited: true });
        let times = 1 + u64::from(self.rng.one_in(link.doubles));
        for _ in 0..times {
            if let Some(time) = self.travel(link) {
                self.after(time, Due::Arrive { process, request: id });
            }
        }
        id
    }

    /// SIM-NETWORK-1.
    pub(super) fn arrive(&mut self, process: u64, id: u64) -> Option<String> {
        let request = self.pending.get(&id)?.request.clone();
        let link = self.links[self.machine_of(process)];
        if self.is_down || link.cut {
            return None;
        }
        let reply = self.carry_out(process, &request);
        if let Some(time) = self.travel(link) {
            self.after(time, Due::Answer { process, request: id, reply });
        }
        self.changed();
        Some(format!("{request:.60?}"))
    }

    fn carry_out(&mut self, process: u64, request: &Request) -> Result<Reply, StoreError> {
        let etcd = &mut self.etcd;
        Ok(match request {
            Request::Range(prefix) => {
                Reply::Range(etcd.range(prefix).cloned().collect(), etcd.revision())
            }
            Request::Txn(compare, then, or_else) => {
                Reply::Txn(etcd.txn(compare, then, or_else).map_err(|_| lost(false))?)
            }
            Request::Watch(prefix, from) => {
                self.last += 1;
                let watching = Watching {
                    process,
                    prefix: prefix.clone(),
                    from: *from,
                    known: 0,
                    told: VecDeque::new(),
                    is_due: false,
                    is_mute: false,
                };
                self.watches.insert(self.last, watching);
                let id = self.last;
                self.tell_soon(id);
                Reply::Watch(id)
            }
            Request::Compare(prefix, revision) => Reply::Compare(etcd.compare(prefix, *revision)),
            Request::GrantLease(ttl) => {
                let lease = etcd.grant_lease(*ttl);
                self.after(*ttl, Due::Leases);
                Reply::Lease(lease)
            }
            Request::KeepLease(lease) => {
                let is_kept = etcd.keep_lease(*lease);
                self.leases_end();
                Reply::Kept(is_kept)
            }
            Request::RevokeLease(lease) => {
                etcd.end_lease(*lease);
                Reply::Done
            }
        })
    }

    /// Looks again when the next lease may end.
    pub(super) fn leases_end(&mut self) {
        if let Some(time) = self.etcd.next_end() {
            self.after(time, Due::Leases);
        }
    }

    /// Has watches tell what has changed.
    pub(super) fn changed(&mut self) {
        if self.told_up_to == self.etcd.changes() {
            return;
        }
        self.told_up_to = self.etcd.changes();
        let ids: Vec<u64> = self.watches.keys().copied().collect();
        ids.into_iter().for_each(|id| self.tell_soon(id));
    }

    fn tell_soon(&mut self, id: u64) {
        let process = match self.watches.get(&id) {
            Some(watch) if !watch.is_due && !watch.is_mute => watch.process,
            _ => return,
        };
        let link = self.links[self.machine_of(process)];
        // What a stream carries is sent again until it comes.
        let time = match self.rng.one_in(link.delays) {
            true => self.between(500, 4_000),
            false => self.between(1, 15),
        };
        if let Some(watch) = self.watches.get_mut(&id) {
            watch.is_due = true;
        }
        self.after(time, Due::Tell { watch: id });
    }

    /// SIM-NETWORK-3.
    pub(super) fn tell(&mut self, id: u64) {
        let Some(process) = self.watches.get(&id).map(|watch| watch.process) else { return };
        let is_cut = self.links[self.machine_of(process)].cut || self.is_down;
        let Some(watch) = self.watches.get_mut(&id) else { return };
        watch.is_due = false;
        if is_cut {
            // A way that is cut forgets what goes over it.
            watch.is_mute = true;
            return;
        }
        let events = self.etcd.changes_after(watch.known, &watch.prefix, watch.from);
        watch.known = self.etcd.changes();
        if !events.is_empty() && !watch.is_mute {
            watch.told.push_back(Ok(events));
            self.dirty.push(process);
        }
    }

    pub(super) fn answer(&mut self, process: u64, id: u64, reply: Result<Reply, StoreError>) {
        if reply.is_ok() && self.links[self.machine_of(process)].cut {
            return;
        }
        if let Some(pending) = self.pending.get_mut(&id)
            && std::mem::take(&mut pending.awaited)
        {
            self.answers.insert(id, reply);
            self.dirty.push(process);
        }
    }

    /// Ends the watches of a machine, or of all: with an error, or without a word.
    pub(super) fn break_watches(&mut self, machine: Option<usize>, silently: bool) {
        let of = |seen: Option<&Seen>| {
            machine.is_none_or(|it| seen.is_some_and(|seen| seen.machine == it))
        };
        for watch in self.watches.values_mut().filter(|watch| of(self.seen.get(&watch.process))) {
            watch.is_mute = true;
            if !silently {
                watch.told.push_back(Err(lost(true)));
                self.dirty.push(watch.process);
            }
        }
    }

    /// Restores etcd from a backup. Hosts that are connected by a way that breaks are told by that.
    pub(super) fn restore(&mut self, backup: &Backup, silently: bool) {
        self.etcd.restore(backup);
        self.told_up_to = 0;
        self.break_watches(None, silently);
        self.leases_end();
    }

    /// Nothing of this process goes on.
    pub(super) fn forget_process(&mut self, process: u64) {
        self.watches.retain(|_, watch| watch.process != process);
    }

    fn are_apart(&self, one: usize, other: usize) -> bool {
        *self.apart.get(&(one.min(other), one.max(other))).unwrap_or(&false)
    }
}

/// The hub, as all that runs in a simulation holds it.
pub(super) type Shared = Arc<Mutex<Hub>>;

pub(super) fn lock(hub: &Shared) -> MutexGuard<'_, Hub> {
    hub.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The surroundings of one process.
#[derive(Clone)]
pub(super) struct Surroundings {
    pub hub: Shared,
    pub process: u64,
    pub machine: usize,
    pub events: Arc<Mutex<VecDeque<Event>>>,
}

/// The way of a process to etcd.
#[derive(Clone)]
pub(super) struct Way {
    of: Surroundings,
    patience: Duration,
}

/// A stream of changes.
pub(super) struct Stream {
    of: Surroundings,
    id: u64,
}

impl Surroundings {
    pub(super) fn hub(&self) -> MutexGuard<'_, Hub> {
        lock(&self.hub)
    }
}

impl World for Surroundings {
    type Store = Way;

    fn now(&self) -> BootTime {
        let hub = self.hub();
        hub.clocks[self.machine].at(hub.now)
    }

    async fn sleep(&self, time: Duration) {
        let until = {
            let mut hub = self.hub();
            let lasts = hub.clocks[self.machine].lasts(time) + Duration::from_micros(1);
            hub.after(lasts, Due::Wake { process: self.process });
            hub.now + lasts
        };
        std::future::poll_fn(|_| match self.hub().now >= until {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    fn open(&self, _member: usize, patience: Duration) -> Result<Way, DirectoryError> {
        Ok(Way { of: self.clone(), patience })
    }

    async fn seek(&self, device: Uuid, claim: &ClaimRecord, _view: &View) -> Option<Sighting> {
        self.sleep(Duration::from_millis(20)).await;
        let hub = self.hub();
        let is_it = |seen: &&Seen| {
            let is_there = seen.hangs || seen.serves.contains(&device);
            seen.host == claim.host && is_there && !hub.are_apart(self.machine, seen.machine)
        };
        let others = hub.seen.iter().filter(|(process, _)| **process != self.process);
        let seen = others.map(|(_, seen)| seen).find(is_it)?;
        Some(Sighting { address: ([192, 0, 2, 1], 7420).into(), answers: !seen.hangs })
    }

    fn new_id(&self) -> Uuid {
        let rng = &mut self.hub().rng;
        Uuid::from_u64_pair(rng.next_u64(), rng.next_u64())
    }

    fn tell(&self, event: Event) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push_back(event);
        self.hub().dirty.push(self.process);
    }

    fn view_changed(&self) {}
}

impl Way {
    async fn ask(&self, request: Request) -> Result<Reply, StoreError> {
        let Surroundings { process, .. } = self.of;
        let id = self.of.hub().send(process, request, self.patience);
        std::future::poll_fn(|_| match self.of.hub().answers.remove(&id) {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        })
        .await
    }
}

impl Store for Way {
    type Watch = Stream;

    async fn range(&self, prefix: &str) -> Result<(Vec<KeyValue>, i64), StoreError> {
        match self.ask(Request::Range(prefix.to_owned())).await? {
            Reply::Range(keys, revision) => Ok((keys, revision)),
            other => panic!("a range is answered by {other:?}"),
        }
    }

    async fn txn(
        &self,
        compare: &[Compare],
        then: &[Op],
        or_else: &[Op],
    ) -> Result<TxnReply, StoreError> {
        let request = Request::Txn(compare.to_vec(), then.to_vec(), or_else.to_vec());
        match self.ask(request).await? {
            Reply::Txn(reply) => Ok(reply),
            other => panic!("a transaction is answered by {other:?}"),
        }
    }

    async fn watch(&self, prefix: &str, revision: i64) -> Result<Stream, StoreError> {
        match self.ask(Request::Watch(prefix.to_owned(), revision)).await? {
            Reply::Watch(id) => Ok(Stream { of: self.of.clone(), id }),
            other => panic!("a watch is answered by {other:?}"),
        }
    }

    async fn compare(&self, prefix: &str, revision: i64) -> Result<Compared, StoreError> {
        match self.ask(Request::Compare(prefix.to_owned(), revision)).await? {
            Reply::Compare(compared) => Ok(compared),
            other => panic!("a comparison is answered by {other:?}"),
        }
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<i64, StoreError> {
        match self.ask(Request::GrantLease(ttl)).await? {
            Reply::Lease(lease) => Ok(lease),
            other => panic!("a lease is answered by {other:?}"),
        }
    }

    async fn keep_lease(&self, lease: i64) -> Result<bool, StoreError> {
        match self.ask(Request::KeepLease(lease)).await? {
            Reply::Kept(is_kept) => Ok(is_kept),
            other => panic!("a lease that is kept is answered by {other:?}"),
        }
    }

    async fn revoke_lease(&self, lease: i64) -> Result<(), StoreError> {
        self.ask(Request::RevokeLease(lease)).await.map(drop)
    }
}

impl Watch for Stream {
    async fn next(&mut self) -> Result<Vec<WatchEvent>, StoreError> {
        std::future::poll_fn(|_| {
            let mut hub = self.of.hub();
            let told = hub.watches.get_mut(&self.id).map(|watch| watch.told.pop_front());
            match told {
                Some(Some(told)) => Poll::Ready(told),
                Some(None) => Poll::Pending,
                None => Poll::Ready(Err(lost(true))),
            }
        })
        .await
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.of.hub().watches.remove(&self.id);
    }
}
