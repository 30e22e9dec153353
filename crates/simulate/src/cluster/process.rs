//! A process of a host: what a server does with its place in the cluster.
//!
//! - SIM-PROCESS-1: a device is served when it is claimed, checked, and carries the mark of the
//!   claim.
//! - SIM-PROCESS-2: no request to a device begins when the tenure has ended, nor behind the loss of
//!   the device.
//! - SIM-PROCESS-3: changes of volumes of one device, and the comparison of its records, go one after
//!   the other.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use cluster::{
    DirectoryError, Event, GrantRecord, HostRecord, Keys, Mark, Node, Regrant, Tenure,
    VolumeRecord, VolumeState, Word, World as _,
};
use uuid::Uuid;

use super::network::Surroundings;
use super::plant::{Plant, QUOTA_BLOCKS, TENANT};

/// Time without a word after which a host counts as gone.
pub(super) const LEASE: Duration = Duration::from_secs(3);
/// Longest time of a request to a device.
pub(super) const DEVICE_MS_MAX: u64 = 800;

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// The program of a process.
pub(super) struct Program {
    pub plant: Rc<Plant>,
    pub around: Surroundings,
    pub node: Node<Surroundings>,
    pub tenure: Tenure,
    pub record: HostRecord,
    /// Devices that are claimed, by which claim.
    claimed: RefCell<BTreeMap<Uuid, Mark>>,
    /// Those of them that are served.
    serving: RefCell<BTreeMap<Uuid, Mark>>,
    /// Devices whose records may differ from what they hold.
    doubtful: RefCell<BTreeSet<Uuid>>,
    /// SIM-PROCESS-3.
    busy: RefCell<BTreeSet<Uuid>>,
    /// Devices for which a claim is under way.
    claiming: RefCell<BTreeMap<Uuid, Word>>,
    /// Blocks that this process lets the tenant hold.
    pub bound: Cell<u64>,
    is_granting: Cell<bool>,
    spawned: RefCell<Vec<Task>>,
    /// It has ended by itself.
    pub has_ended: Cell<bool>,
}

/// Notes that a task is to be polled again.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A process, and its tasks.
pub(super) struct Process {
    pub program: Rc<Program>,
    tasks: Vec<Task>,
    flag: Arc<Flag>,
    /// It is stopped, and goes on later.
    pub is_paused: bool,
}

impl Process {
    /// Starts a process that claims `devices`.
    pub(super) fn start(
        plant: Rc<Plant>,
        around: Surroundings,
        record: HostRecord,
        (tenure, devices): (Tenure, Vec<Uuid>),
    ) -> Self {
        let keys = Keys { prefix: "/c/".to_owned() };
        let node = Node::new(around.clone(), keys, record.clone(), (LEASE, tenure.clone()));
        let program = Rc::new(Program {
            plant,
            around,
            node,
            tenure,
            record,
            claimed: RefCell::default(),
            serving: RefCell::default(),
            doubtful: RefCell::default(),
            busy: RefCell::default(),
            claiming: RefCell::default(),
            bound: Cell::new(0),
            is_granting: Cell::new(false),
            spawned: RefCell::default(),
            has_ended: Cell::new(false),
        });
        let tasks: Vec<Task> = vec![Box::pin(program.clone().main(devices))];
        Self { program, tasks, flag: Arc::default(), is_paused: false }
    }

    /// Lets its tasks go on until all of them wait.
    pub(super) fn poll(&mut self) {
        let waker = Waker::from(self.flag.clone());
        let mut context = Context::from_waker(&waker);
        loop {
            self.flag.0.store(false, Ordering::Relaxed);
            self.tasks.append(&mut self.program.spawned.borrow_mut());
            self.tasks.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
            let more = !self.program.spawned.borrow().is_empty();
            if !more && !self.flag.0.load(Ordering::Relaxed) {
                return;
            }
        }
    }
}

impl Program {
    async fn main(self: Rc<Self>, devices: Vec<Uuid>) {
        let Ok(session) = self.node.join().await else {
            self.has_ended.set(true);
            return;
        };
        let own = self.clone();
        self.spawn(async move { own.node.keep(session).await });
        self.spawn(self.clone().doubts());
        self.node.clear_leftovers().await;
        for device in devices {
            self.spawn(self.clone().serve(device, None, 20));
        }
        self.events().await;
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.spawned.borrow_mut().push(Box::pin(task));
        self.go_on();
    }

    fn go_on(&self) {
        self.around.hub().dirty.push(self.around.process);
    }

    async fn pause(&self, low_ms: u64, high_ms: u64) {
        let time = self.around.hub().rng.between(low_ms, high_ms);
        self.around.sleep(Duration::from_millis(time)).await;
    }

    /// Returns whether a request to a device may begin now (SIM-PROCESS-2), by which claim.
    pub(super) fn may_begin(&self, device: Uuid) -> Option<Mark> {
        let mark = self.serving.borrow().get(&device).cloned()?;
        (!self.tenure.has_ended(|| self.around.now())).then_some(mark)
    }

    /// Returns whether hosts are served.
    pub(super) fn serves_hosts(&self) -> bool {
        !self.tenure.is_over(|| self.around.now())
    }

    /// Returns the devices that it serves.
    pub(super) fn serves(&self) -> Vec<Uuid> {
        self.serving.borrow().keys().copied().collect()
    }

    /// Returns whether it has claimed a device, or is about to.
    pub(super) fn may_have(&self, device: Uuid) -> bool {
        self.claimed.borrow().contains_key(&device) || self.claiming.borrow().contains_key(&device)
    }

    /// Returns whether it waits for a claim.
    pub(super) fn is_claiming(&self) -> bool {
        !self.claiming.borrow().is_empty()
    }

    /// Returns whether it acts upon the word that a host is down.
    pub(super) fn relies_on_down(&self, host: &str) -> bool {
        self.claiming.borrow().values().any(|word| word.is_down(host))
    }

    fn show(&self) {
        let serves = self.serves();
        let mut hub = self.around.hub();
        if let Some(seen) = hub.seen.get_mut(&self.around.process) {
            seen.serves = serves;
        }
    }

    async fn events(self: Rc<Self>) {
        loop {
            let event = poll_fn(|_| {
                let events: &Mutex<VecDeque<Event>> = &self.around.events;
                let event = events.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                event.map_or(Poll::Pending, Poll::Ready)
            });
            match event.await {
                Event::Connected => {
                    for device in self.serves() {
                        self.spawn(self.clone().compare(device));
                    }
                }
                Event::CutOff { .. } => {}
                Event::Held { asked } => {
                    let _ = self.tenure.renew(asked, self.around.now());
                }
                Event::ClaimLost { device, .. } => self.abandon(device),
            }
        }
    }

    fn abandon(&self, device: Uuid) {
        self.claimed.borrow_mut().remove(&device);
        self.serving.borrow_mut().remove(&device);
        self.show();
    }

    /// Claims a device, and serves it (SIM-PROCESS-1).
    pub(super) async fn serve(self: Rc<Self>, device: Uuid, word: Option<Word>, attempts: u32) {
        if self.may_have(device) {
            return;
        }
        self.claiming.borrow_mut().insert(device, word.clone().unwrap_or_default());
        for _ in 0..attempts {
            if self.claim(device, word.clone()).await {
                break;
            }
            self.pause(500, 1500).await;
        }
        self.claiming.borrow_mut().remove(&device);
    }

    /// `false`: it may be tried again.
    async fn claim(self: &Rc<Self>, device: Uuid, word: Option<Word>) -> bool {
        let claim = self.plant.claim_of(device);
        let claimed = match word {
            None => self.node.claim(claim).await,
            Some(word) => self.node.take_over(claim, word).await,
        };
        let mark = match claimed {
            Ok(mark) => mark,
            Err(DirectoryError::Foreign { what }) => {
                self.plant.find(format!("a record is not understood: {what}"));
                return true;
            }
            Err(_) => return false,
        };
        self.claimed.borrow_mut().insert(device, mark.clone());
        if self.check_patiently(device).await.is_err() {
            self.claimed.borrow_mut().remove(&device);
            return false;
        }
        self.pause(2, 40).await;
        let is_held = self.claimed.borrow().get(&device) == Some(&mark);
        if !is_held || !self.plant.leave_mark(device, &mark) {
            let _ = self.node.give_back(device).await;
            self.claimed.borrow_mut().remove(&device);
            return false;
        }
        self.serving.borrow_mut().insert(device, mark);
        self.show();
        self.spawn(self.clone().compare(device));
        true
    }

    async fn check_patiently(&self, device: Uuid) -> Result<(), DirectoryError> {
        loop {
            match self.node.check(device).await {
                Err(DirectoryError::Unreachable { .. }) => self.pause(300, 600).await,
                other => return other,
            }
        }
    }

    /// Looks at the mark of a device that it serves, as when a drive is plugged in again.
    pub(super) fn look_at_mark(&self, device: Uuid) {
        let own = self.claimed.borrow().get(&device).cloned();
        let (Some(own), Some(found)) = (own, self.plant.claim_of(device).mark) else { return };
        if found.number > own.number || found.is_later_than(&own) {
            self.node.lost(device, &own, found.host_name);
        }
    }

    /// Gives a device back when nothing is under way at it.
    pub(super) async fn give_back(self: Rc<Self>, device: Uuid) {
        self.alone(device).await;
        let held = self.serving.borrow_mut().remove(&device);
        self.show();
        if held.is_some() {
            self.pause(DEVICE_MS_MAX + 1, DEVICE_MS_MAX + 100).await;
            let _ = self.node.give_back(device).await;
            self.claimed.borrow_mut().remove(&device);
        }
        self.ended(device);
    }

    async fn alone(&self, device: Uuid) {
        poll_fn(|_| match self.busy.borrow_mut().insert(device) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    fn ended(&self, device: Uuid) {
        self.busy.borrow_mut().remove(&device);
        self.go_on();
    }

    /// Compares the records of a device with what it holds.
    async fn compare(self: Rc<Self>, device: Uuid) {
        self.alone(device).await;
        if self.may_begin(device).is_some() {
            let volumes = self.plant.volumes_of(device, self.record.id);
            self.doubtful.borrow_mut().remove(&device);
            if self.node.reconcile(device, volumes).await.is_err() {
                self.doubtful.borrow_mut().insert(device);
            }
        }
        self.ended(device);
    }

    async fn doubts(self: Rc<Self>) {
        loop {
            self.pause(2_000, 4_000).await;
            let doubtful = self.doubtful.borrow().clone();
            for device in doubtful {
                self.spawn(self.clone().compare(device));
            }
        }
    }

    /// Creates a volume for the tenant.
    pub(super) async fn create(self: Rc<Self>, device: Uuid, id: Uuid, name: String, size: u64) {
        self.alone(device).await;
        let volume = self.plant.volume(id, name, size, (device, self.record.id));
        let created = self.create_alone(device, volume).await;
        if matches!(created, Err(DirectoryError::Unreachable { .. })) {
            self.doubtful.borrow_mut().insert(device);
        }
        self.ended(device);
    }

    async fn create_alone(
        &self,
        device: Uuid,
        mut volume: VolumeRecord,
    ) -> Result<(), DirectoryError> {
        if self.may_begin(device).is_none() {
            return Ok(());
        }
        volume.state = VolumeState::Creating;
        let admit = self.plant.admit(&volume);
        self.node.reserve(volume.clone(), Some(admit)).await?;
        self.pause(2, 40).await;
        if self.may_begin(device).is_none() {
            let reason = "the device went".to_owned();
            return Err(DirectoryError::Unreachable { reason });
        }
        volume.state = VolumeState::Ready;
        self.plant.put(device, volume.clone());
        self.node.update(volume.clone(), None).await?;
        self.plant.created(&volume);
        Ok(())
    }

    /// Deletes a volume.
    pub(super) async fn delete(self: Rc<Self>, device: Uuid, id: Uuid) {
        self.alone(device).await;
        if self.may_begin(device).is_some()
            && let Some(volume) = self.plant.take(device, id)
            && self.node.forget(volume).await.is_err()
        {
            self.doubtful.borrow_mut().insert(device);
        }
        self.ended(device);
    }

    /// Asks for more of the tenant's quota, or gives some back.
    pub(super) async fn regrant(self: Rc<Self>, wish: u64) {
        if self.is_granting.replace(true) {
            return;
        }
        let before = self.node.view().grants.get(TENANT).map(|grants| (**grants).clone());
        let before = before.unwrap_or_default();
        let own = before.hosts.get(&self.record.id).copied();
        let others: u64 = before
            .hosts
            .iter()
            .filter(|(host, _)| **host != self.record.id)
            .map(|(_, grant)| grant.blocks)
            .sum();
        let has = own.map_or(0, |grant| grant.blocks);
        // A former process of this host may have left more than is wanted.
        let blocks = wish.min(QUOTA_BLOCKS.saturating_sub(others));
        self.bound.set(self.bound.get().min(blocks));
        let mut after = before.clone();
        let grant = GrantRecord { blocks, session: self.record.session, is_short: blocks < has };
        after.hosts.insert(self.record.id, grant);
        let change = Regrant { owner: TENANT.to_owned(), before, after, gone: Vec::new() };
        if let Ok(true) = self.node.regrant(change).await {
            self.bound.set(blocks);
        }
        self.is_granting.set(false);
    }
}
