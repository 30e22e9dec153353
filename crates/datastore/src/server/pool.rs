//! Threads that call RocksDB, which blocks: readers and writers, with a queue each.
//!
//! A connection has at most one group of requests in a queue, so a queue is never longer than there may be
//! connections.

use std::collections::VecDeque;
use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use datastore::{Class, Reserved};
use resp::{Protocol, Request};
use tokio::sync::oneshot;

use super::reads::Room;
use super::stats::{Stats, micros};
use super::store::Store;
use super::tasks;

/// Replies of one group beyond this length are sent before the group goes on.
const GROUP_REPLY_LEN: usize = 256 << 10;

/// Requests of one class that follow each other on a connection.
pub(crate) struct Group {
    pub(crate) requests: VecDeque<Request>,
    pub(crate) protocol: Protocol,
    pub(crate) out: Vec<u8>,
    pub(crate) share: Reserved,
    /// Memory of the share that is not for replies.
    pub(crate) held: usize,
}

struct Job {
    work: Work,
    queued_at: Instant,
}

enum Work {
    Serve(Group, oneshot::Sender<Group>),
    /// Finds out whether RocksDB refuses writes.
    Probe(oneshot::Sender<Option<String>>),
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

/// Threads of one class.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    class: Class,
    queue: Mutex<Queue>,
    changed: Condvar,
    store: Arc<Store>,
    stats: Arc<Stats>,
}

impl Pool {
    pub(crate) fn start(
        class: Class,
        threads: u32,
        store: &Arc<Store>,
        stats: &Arc<Stats>,
    ) -> std::io::Result<Self> {
        let (store, stats) = (Arc::clone(store), Arc::clone(stats));
        let shared = Arc::new(Shared {
            class,
            queue: Mutex::default(),
            changed: Condvar::new(),
            store,
            stats,
        });
        let name = if class == Class::Read { "reader" } else { "writer" };
        let start = |index| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name(format!("{name}-{index}")).spawn(move || shared.work())
        };
        let threads = (0..threads).map(start).collect::<Result<_, _>>()?;
        Ok(Self { shared, threads })
    }

    /// Has a thread serve as many of the group's requests as their replies allow, at least one.
    pub(crate) async fn serve(&self, group: Group) -> Option<Group> {
        let (done, served) = oneshot::channel();
        self.push(Work::Serve(group, done));
        served.await.ok()
    }

    /// Returns the error with which RocksDB refuses writes, if it does.
    pub(crate) async fn probe(&self) -> Option<String> {
        let (done, probed) = oneshot::channel();
        self.push(Work::Probe(done));
        probed.await.ok().flatten()
    }

    fn push(&self, work: Work) {
        let job = Job { work, queued_at: Instant::now() };
        self.shared.stats.of(self.shared.class).queued.add(1);
        self.shared.queue.lock().expect("no panic while it is held").jobs.push_back(job);
        self.shared.changed.notify_one();
    }

    /// Ends the threads behind all that is queued.
    pub(crate) fn stop(self) {
        self.shared.queue.lock().expect("no panic while it is held").closed = true;
        self.shared.changed.notify_all();
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn next(&self) -> Option<Job> {
        let mut queue = self.queue.lock().expect("no panic while it is held");
        loop {
            match queue.jobs.pop_front() {
                None if queue.closed => return None,
                None => queue = self.changed.wait(queue).expect("no panic while it is held"),
                job => return job,
            }
        }
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            self.stats.of(self.class).queued.sub(1);
            // A thread that ended would be missed by all clients; so the one whose request it was loses its connection.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.run(job))) {
                tasks::note_panic("a request", &self.stats, &*panic);
            }
        }
    }

    fn run(&self, Job { work, queued_at }: Job) {
        // One that went meanwhile wants nothing.
        match work {
            Work::Serve(group, done) => {
                let _ = done.send(self.serve(group, queued_at));
            }
            Work::Probe(done) => {
                let _ = done.send(self.store.refusal());
            }
        }
    }

    fn serve(&self, mut group: Group, queued_at: Instant) -> Group {
        let begin = Instant::now();
        let stats = self.stats.of(self.class);
        stats.waited_us.add(micros(begin - queued_at));
        let before = group.requests.len();
        match self.class {
            Class::Read => self.read(&mut group),
            _ => self.write(&mut group),
        }
        stats.requests.add((before - group.requests.len()) as u64);
        stats.served_us.add(micros(begin.elapsed()));
        group
    }

    fn read(&self, group: &mut Group) {
        while let Some(request) = group.requests.pop_front() {
            self.compute(1);
            let Group { out, share, held, protocol, .. } = group;
            self.store.read(
                &request,
                *protocol,
                &mut Room { out, share, held: *held },
                &self.stats,
            );
            if group.out.len() >= GROUP_REPLY_LEN {
                break;
            }
        }
    }

    fn write(&self, group: &mut Group) {
        self.compute(group.requests.len() as u64);
        let Group { requests, out, share, held, protocol } = group;
        let requests = Vec::from(std::mem::take(requests));
        self.store.write(&requests, *protocol, &mut Room { out, share, held: *held }, &self.stats);
    }

    /// Stands for the work of a service above its store.
    fn compute(&self, requests: u64) {
        for turn in 0..self.store.serve.busy_loop.saturating_mul(requests) {
            black_box(turn);
        }
    }
}
