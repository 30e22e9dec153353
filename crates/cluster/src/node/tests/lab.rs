//! Hosts, their clock and an etcd in memory, in one thread: time passes only when no task can go on.
//!
//! A task is polled only if its waker was called, so that a wake-up which is missing is seen.

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use uuid::Uuid;

use crate::memory::{Backup, MemoryStore};
use crate::store::Compared;
use crate::{
    BootTime, Claim, ClaimRecord, Compare, DirectoryError, Event, HostRecord, KeyValue, Keys, Node,
    Op, Sighting, Store, StoreError, Tenure, TxnReply, VolumeRecord, VolumeState, Watch,
    WatchEvent, World, document,
};

/// The lease of each host.
pub(super) const LEASE: Duration = Duration::from_secs(3);
/// Changes in a transaction that a real etcd takes by default.
const ETCD_OPS_MAX: usize = 128;
/// Polls in a run: more means that tasks wake each other for ever.
const POLLS_MAX: u32 = 200_000;

/// Something that happens in etcd just before a request is carried out.
type Hook = Box<dyn FnOnce(&mut MemoryStore) + Send>;

/// The outcome of a transaction.
pub(super) enum Fate {
    AsAsked,
    /// This comes before.
    Behind(Hook),
    /// It is carried out twice, and the second answer is given.
    Twice,
    /// It is not answered, be it carried out or not.
    Lost {
        is_done: bool,
    },
    /// The answer takes so long.
    Late(Duration),
}

#[derive(Default)]
struct Inside {
    etcd: MemoryStore,
    now: Duration,
    timers: Vec<(Duration, Waker)>,
    watchers: Vec<Waker>,
}

/// One machine's part of the surroundings.
#[derive(Default)]
struct Own {
    told: Vec<Event>,
    views: u32,
    /// etcd cannot be reached until then.
    cut_until: Duration,
    /// Its watches tell nothing, until then.
    mute_until: Duration,
    /// Watches begun before this number of breaks have ended.
    breaks: u32,
    fates: VecDeque<Fate>,
    doubles: bool,
    sighted: BTreeMap<Uuid, Sighting>,
    sought: Vec<ClaimRecord>,
    /// The members that were opened, and the patience with each.
    opened: Vec<(usize, Duration)>,
    /// Transactions that named changes.
    changes: u32,
    compares: u32,
}

/// The surroundings of a host, and its members of etcd.
#[derive(Clone)]
pub(super) struct Machine {
    inside: Arc<Mutex<Inside>>,
    own: Arc<Mutex<Own>>,
}

fn lock<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Machine {
    fn now(&self) -> Duration {
        lock(&self.inside).now
    }

    fn is_cut(&self) -> bool {
        self.now() < lock(&self.own).cut_until
    }

    /// Waits until `time`.
    async fn until(&self, time: Duration) {
        poll_fn(|context| {
            let mut inside = lock(&self.inside);
            if inside.now >= time {
                return Poll::Ready(());
            }
            inside.timers.push((time, context.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// Does something to etcd, of which watches are told.
    fn ask<T>(&self, what: impl FnOnce(&mut MemoryStore) -> T) -> Result<T, StoreError> {
        if self.is_cut() {
            return Err(unanswered("cut", false));
        }
        let mut inside = lock(&self.inside);
        let answer = what(&mut inside.etcd);
        inside.watchers.drain(..).for_each(Waker::wake);
        Ok(answer)
    }

    pub(super) fn told(&self) -> Vec<Event> {
        std::mem::take(&mut lock(&self.own).told)
    }

    /// Returns the devices of claims that were lost since the last call, each with its holder.
    pub(super) fn lost(&self) -> Vec<(Uuid, Option<String>)> {
        let lost = self.told().into_iter().filter_map(|event| match event {
            Event::ClaimLost { device, holder } => Some((device, holder)),
            _ => None,
        });
        lost.collect()
    }

    pub(super) fn views(&self) -> u32 {
        lock(&self.own).views
    }

    pub(super) fn cut_for(&self, time: Duration) {
        let now = self.now();
        lock(&self.own).cut_until = now + time;
        lock(&self.inside).watchers.drain(..).for_each(Waker::wake);
    }

    pub(super) fn mute_for(&self, time: Duration) {
        let now = self.now();
        lock(&self.own).mute_until = now + time;
    }

    /// Ends its watches.
    pub(super) fn break_watches(&self) {
        lock(&self.own).breaks += 1;
        lock(&self.inside).watchers.drain(..).for_each(Waker::wake);
    }

    /// Gives its next transactions these fates, in order.
    pub(super) fn fates(&self, fates: impl IntoIterator<Item = Fate>) {
        lock(&self.own).fates = fates.into_iter().collect();
    }

    /// Has all transactions carried out twice from now on.
    pub(super) fn double_all(&self) {
        lock(&self.own).doubles = true;
    }

    /// Has a host seen when it is looked for.
    pub(super) fn sight(&self, host: Uuid) {
        let sighting = Sighting { address: ([192, 0, 2, 1], 7420).into(), answers: true };
        lock(&self.own).sighted.insert(host, sighting);
    }

    /// Returns the hosts of claims that were looked for since the last call.
    pub(super) fn sought(&self) -> Vec<Uuid> {
        let sought = std::mem::take(&mut lock(&self.own).sought);
        sought.into_iter().map(|claim| claim.host).collect()
    }

    /// Returns the members that were opened since the last call, and the patience with each.
    pub(super) fn opened(&self) -> Vec<(usize, Duration)> {
        std::mem::take(&mut lock(&self.own).opened)
    }

    /// Returns the number of transactions with changes since the last call.
    pub(super) fn changes(&self) -> u32 {
        std::mem::take(&mut lock(&self.own).changes)
    }

    /// Returns the number of comparisons since the last call.
    pub(super) fn compares(&self) -> u32 {
        std::mem::take(&mut lock(&self.own).compares)
    }
}

fn unanswered(reason: &str, may_be_done: bool) -> StoreError {
    StoreError { may_be_done, error: DirectoryError::Unreachable { reason: reason.to_owned() } }
}

impl World for Machine {
    type Store = Self;

    fn now(&self) -> BootTime {
        BootTime(Self::now(self))
    }

    async fn sleep(&self, time: Duration) {
        let until = Self::now(self) + time;
        self.until(until).await;
    }

    fn open(&self, member: usize, patience: Duration) -> Result<Self, DirectoryError> {
        lock(&self.own).opened.push((member, patience));
        match self.is_cut() {
            true => Err(unanswered("no way", false).into()),
            false => Ok(self.clone()),
        }
    }

    async fn seek(
        &self,
        _device: Uuid,
        claim: &ClaimRecord,
        _view: &crate::View,
    ) -> Option<Sighting> {
        let mut own = lock(&self.own);
        own.sought.push(claim.clone());
        own.sighted.get(&claim.host).copied()
    }

    fn new_id(&self) -> Uuid {
        Uuid::from_u128(0xc1)
    }

    fn tell(&self, event: Event) {
        lock(&self.own).told.push(event);
    }

    fn view_changed(&self) {
        lock(&self.own).views += 1;
    }
}

impl Store for Machine {
    type Watch = Stream;

    async fn range(&self, prefix: &str) -> Result<(Vec<KeyValue>, i64), StoreError> {
        self.ask(|etcd| (etcd.range(prefix).cloned().collect(), etcd.revision()))
    }

    async fn txn(
        &self,
        compare: &[Compare],
        then: &[Op],
        or_else: &[Op],
    ) -> Result<TxnReply, StoreError> {
        assert!(then.len() <= ETCD_OPS_MAX, "etcd refuses {} changes at once", then.len());
        let fate = {
            let mut own = lock(&self.own);
            let changes = then.iter().any(|op| !matches!(op, Op::Get(_)));
            own.changes += u32::from(changes);
            let otherwise = if own.doubles { Fate::Twice } else { Fate::AsAsked };
            own.fates.pop_front().unwrap_or(otherwise)
        };
        let (mut times, mut is_lost, mut late) = (1, false, Duration::ZERO);
        let mut hook: Hook = Box::new(|_| {});
        match fate {
            Fate::AsAsked => {}
            Fate::Behind(before) => hook = before,
            Fate::Twice => times = 2,
            Fate::Lost { is_done } => (times, is_lost) = (u32::from(is_done), true),
            Fate::Late(time) => late = time,
        }
        let reply = self.ask(|etcd| {
            hook(etcd);
            let replies = (0..times).map(|_| etcd.txn(compare, then, or_else));
            replies.last()
        })?;
        let until = self.now() + late;
        self.until(until).await;
        match reply.filter(|_| !is_lost) {
            Some(Ok(reply)) => Ok(reply),
            Some(Err(_)) => Err(unanswered("the lease has ended", false)),
            None => Err(unanswered("no answer", true)),
        }
    }

    async fn watch(&self, prefix: &str, revision: i64) -> Result<Stream, StoreError> {
        let breaks = lock(&self.own).breaks;
        let (machine, prefix) = (self.clone(), prefix.to_owned());
        self.ask(|_| Stream { machine, prefix, revision, known: 0, breaks })
    }

    async fn compare(&self, prefix: &str, revision: i64) -> Result<Compared, StoreError> {
        lock(&self.own).compares += 1;
        self.ask(|etcd| etcd.compare(prefix, revision))
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<i64, StoreError> {
        self.ask(|etcd| etcd.grant_lease(ttl))
    }

    async fn keep_lease(&self, lease: i64) -> Result<bool, StoreError> {
        self.ask(|etcd| etcd.keep_lease(lease))
    }

    async fn revoke_lease(&self, lease: i64) -> Result<(), StoreError> {
        self.ask(|etcd| etcd.end_lease(lease))
    }
}

/// A watch.
pub(super) struct Stream {
    machine: Machine,
    prefix: String,
    revision: i64,
    known: usize,
    breaks: u32,
}

impl Watch for Stream {
    async fn next(&mut self) -> Result<Vec<WatchEvent>, StoreError> {
        poll_fn(|context| {
            let (breaks, mute_until) = {
                let own = lock(&self.machine.own);
                (own.breaks, own.mute_until)
            };
            if self.machine.is_cut() {
                return Poll::Ready(Err(unanswered("cut", false)));
            }
            if breaks != self.breaks {
                return Poll::Ready(Err(unanswered("the watch has ended", false)));
            }
            let mut inside = lock(&self.machine.inside);
            if inside.now < mute_until {
                inside.timers.push((mute_until, context.waker().clone()));
                return Poll::Pending;
            }
            let told = inside.etcd.changes_after(self.known, &self.prefix, self.revision);
            self.known = inside.etcd.changes();
            if told.is_empty() {
                inside.watchers.push(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(Ok(told))
        })
        .await
    }
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

struct Task {
    future: Pin<Box<dyn Future<Output = ()>>>,
    flag: Arc<Flag>,
}

/// The tasks of all hosts.
#[derive(Default)]
pub(super) struct Lab {
    inside: Arc<Mutex<Inside>>,
    tasks: Vec<Task>,
}

/// A host with its surroundings.
#[derive(Clone)]
pub(super) struct Host {
    pub(super) node: Arc<Node<Machine>>,
    pub(super) machine: Machine,
    pub(super) record: HostRecord,
}

pub(super) fn keys() -> Keys {
    Keys { prefix: "/t/".to_owned() }
}

pub(super) fn device(n: u128) -> Uuid {
    Uuid::from_u128(0xd0 + n)
}

/// A claim of a device whose contents stay.
pub(super) fn claim(n: u128) -> Claim {
    Claim { device: device(n), name: format!("d{n}"), ..Claim::default() }
}

/// Host `n`.
pub(super) fn record(n: u128) -> HostRecord {
    HostRecord {
        id: Uuid::from_u128(n),
        name: format!("h{n}"),
        session: Uuid::from_u128(0x5000 + n),
        boot: format!("b{n}"),
        version: "0".to_owned(),
        api: ([192, 0, 2, 1], 7420).into(),
        api_certificate: None,
        discovery: None,
        labels: BTreeMap::new(),
        portals_also: Vec::new(),
        fence_after_ms: None,
        cores: Vec::new(),
        devices: Vec::new(),
    }
}

/// Volume `n` on device `d0` of host 1.
pub(super) fn volume(n: u128, name: &str) -> VolumeRecord {
    VolumeRecord {
        id: Uuid::from_u128(0xf00 + n),
        name: name.to_owned(),
        owner: None,
        size_bytes: 4096,
        sector_bytes: 4096,
        host: Uuid::from_u128(1),
        device: device(0),
        core: 0,
        portal: ([192, 0, 2, 1], 4420).into(),
        state: VolumeState::Ready,
        promise: serde_json::Value::Null,
        nbd: crate::NbdRecord::default(),
        iscsi: None,
        restrictions: None,
    }
}

impl Lab {
    /// A host that is not in touch with etcd yet.
    pub(super) fn host(&self, record: HostRecord, tenure: Tenure) -> Host {
        self.host_with(record, (LEASE, tenure))
    }

    pub(super) fn host_with(&self, record: HostRecord, terms: (Duration, Tenure)) -> Host {
        let machine = Machine { inside: self.inside.clone(), own: Arc::default() };
        let node = Arc::new(Node::new(machine.clone(), keys(), record.clone(), terms));
        Host { node, machine, record }
    }

    /// Begins the first session of a host, and keeps on beginning others.
    pub(super) fn join(&mut self, host: &Host) {
        let session = self.run(host.node.join()).unwrap_or_else(|error| panic!("{error}"));
        let node = host.node.clone();
        self.spawn(async move { node.keep(session).await });
    }

    /// A host that is connected, and serves without a term.
    pub(super) fn joined(&mut self, n: u128) -> Host {
        let host = self.host(record(n), Tenure::endless());
        self.join(&host);
        host.machine.told();
        host
    }

    pub(super) fn spawn(&mut self, future: impl Future<Output = ()> + 'static) {
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        self.tasks.push(Task { future: Box::pin(future), flag });
    }

    /// Runs all tasks until this one has ended.
    pub(super) fn run<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        let waker = Waker::from(flag.clone());
        for _ in 0..POLLS_MAX {
            if flag.0.swap(false, Ordering::SeqCst) {
                if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    return value;
                }
            } else if !self.poll_one() {
                self.pass_time();
            }
        }
        panic!("nothing comes to an end");
    }

    fn poll_one(&mut self) -> bool {
        let due = |task: &Task| task.flag.0.swap(false, Ordering::SeqCst);
        let Some(at) = self.tasks.iter().position(due) else { return false };
        let waker = Waker::from(self.tasks[at].flag.clone());
        let polled = self.tasks[at].future.as_mut().poll(&mut Context::from_waker(&waker));
        if polled.is_ready() {
            drop(self.tasks.remove(at));
        }
        true
    }

    /// Goes on to the next moment at which something is to happen.
    fn pass_time(&self) {
        let mut inside = lock(&self.inside);
        let next = inside.timers.iter().map(|(time, _)| *time).min();
        let next = next.expect("something is to happen").max(inside.now);
        let passed = next - inside.now;
        inside.now = next;
        inside.etcd.advance(passed);
        let (due, later) =
            std::mem::take(&mut inside.timers).into_iter().partition(|(time, _)| *time <= next);
        inside.timers = later;
        let due: Vec<(Duration, Waker)> = due;
        due.into_iter().for_each(|(_, waker)| waker.wake());
        inside.watchers.drain(..).for_each(Waker::wake);
    }

    /// Lets time pass.
    pub(super) fn pause(&mut self, time: Duration) {
        let machine = Machine { inside: self.inside.clone(), own: Arc::default() };
        self.run(async move { World::sleep(&machine, time).await });
    }

    /// Lets all tasks go on until they wait.
    pub(super) fn settle(&mut self) {
        while self.poll_one() {}
    }

    pub(super) fn now(&self) -> Duration {
        lock(&self.inside).now
    }

    /// Does something to etcd that no host of the test does.
    pub(super) fn etcd<T>(&self, what: impl FnOnce(&mut MemoryStore) -> T) -> T {
        let mut inside = lock(&self.inside);
        let done = what(&mut inside.etcd);
        inside.watchers.drain(..).for_each(Waker::wake);
        done
    }

    /// Writes a key.
    pub(super) fn put(&self, key: String, value: &impl serde::Serialize) {
        let put = Op::Put { key, value: document(value), lease: None };
        self.etcd(|etcd| etcd.txn(&[], &[put], &[])).expect("no lease is named");
    }

    /// Removes a key.
    pub(super) fn delete(&self, key: String) {
        self.etcd(|etcd| etcd.txn(&[], &[Op::Delete(key)], &[])).expect("no lease is named");
    }

    /// Returns a key.
    pub(super) fn get(&self, key: &str) -> Option<KeyValue> {
        self.etcd(|etcd| etcd.get(key).cloned())
    }

    /// Returns the value of a key.
    pub(super) fn read<T: for<'de> serde::Deserialize<'de>>(&self, key: &str) -> Option<T> {
        self.get(key).map(|kv| serde_json::from_slice(&kv.value).expect("as it was written"))
    }

    /// Returns the names of all keys that begin so, without that.
    pub(super) fn names(&self, prefix: &str) -> Vec<String> {
        let name = |kv: &KeyValue| kv.key[prefix.len()..].to_owned();
        self.etcd(|etcd| etcd.range(prefix).map(name).collect())
    }

    /// Goes back to a backup. Watches end.
    pub(super) fn restore(&self, backup: &Backup, hosts: &[&Host]) {
        self.etcd(|etcd| etcd.restore(backup));
        hosts.iter().for_each(|host| host.machine.break_watches());
    }
}
