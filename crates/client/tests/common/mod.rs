//! A small honest target in the simulated world, which can be told to misbehave, and what tests of
//! the client do with it.

mod connection;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;

use auth::Secret;
use client::{Backoff, Client, Options, Volume};
use io_traits::{Buffer, BufferSlice, Listener, Network, Spawn, Stream};
use local_sync::{Notify, Semaphore};
use nvme_wire::io::BlockCommand;
use nvme_wire::property::{Cap, Cc};
use nvme_wire::{IoOpcode, Nqn, Status};
use sim::{SimStream, SimWorld, Simulation};
use units::{BLOCK_SIZE, Duration, Instant};

use self::connection::Connection;

pub(crate) const UUID: [u8; 16] = *b"a-volume-of-mine";

/// Reactions of the target to a Cross-Controller Reset.
#[derive(Clone, Copy)]
pub(crate) enum Reset {
    /// It completes the command when the reset is over, so long after it came.
    Held(Duration),
    /// It completes the command at once, and so long after it came its log page says that the reset has ended with
    /// this status (CCRS).
    Logged(Duration, u8),
    /// It completes the command at once, and has no log page.
    Unlogged,
    /// It refuses the command until its log page is read and what is over is to be removed from it.
    LogFull,
}

/// Gives up as soon as clients of applications do.
pub(crate) fn impatient() -> Backoff {
    let patience = Duration::from_millis(500);
    Backoff {
        delay_min: Duration::from_millis(10),
        delay_max: patience / 2,
        give_up_after: patience,
        refused_for: patience,
        seed: 1,
    }
}

pub(crate) fn address() -> SocketAddr {
    "10.0.0.1:4420".parse().expect("an address")
}

/// State of the target, shared by its connections.
pub(crate) struct Target {
    world: SimWorld,
    pub(crate) nqn: Nqn,
    pub(crate) blocks: RefCell<BTreeMap<u64, Vec<u8>>>,
    pub(crate) size: Cell<u64>,
    /// Log2 of the block size that it says it has, and the metadata of a block.
    pub(crate) lbads: Cell<u8>,
    pub(crate) metadata_bytes: Cell<u16>,
    /// Blocks of the largest atomic write, less one.
    pub(crate) nawupf: Cell<u16>,
    /// I/O commands taken in: opcode and first block.
    pub(crate) log: RefCell<Vec<(u8, u64)>>,
    /// First blocks of writes that forced unit access.
    pub(crate) forced: RefCell<Vec<u64>>,
    /// Connections accepted.
    pub(crate) accepted: Cell<u32>,
    /// Connections among these that the client has not ended.
    pub(crate) open: Cell<u32>,
    /// Streams of the connections now open.
    streams: RefCell<Vec<SimStream>>,
    /// Cut all connections instead of taking in this many-th I/O command from now.
    pub(crate) cut_after: Cell<Option<u32>>,
    /// Damage the data digest of this many replies.
    pub(crate) damage: Cell<u32>,
    /// Fail this many I/O commands with a status.
    pub(crate) fail: Cell<Option<(u32, Status)>>,
    /// The same of commands of the admin queue, those that connect among them, and damage.
    pub(crate) fail_admin: Cell<Option<(u32, Status)>>,
    pub(crate) damage_admin: Cell<u32>,
    /// Take commands in, answer none.
    pub(crate) mute: Cell<bool>,
    /// Answer nothing at all, ICReqs neither.
    pub(crate) silent: Cell<bool>,
    /// Answer no I/O command on this block.
    pub(crate) deaf: Cell<Option<u64>>,
    /// Cut all connections on an I/O command on this block.
    pub(crate) fatal: Cell<Option<u64>>,
    /// Refuse new connections.
    pub(crate) down: Cell<bool>,
    /// Answer the Connect of an I/O queue twice.
    pub(crate) repeats_connects: Cell<bool>,
    /// Ask every queue to prove that it knows this.
    pub(crate) secret: RefCell<Option<Secret>>,
    pub(crate) success_flag: Cell<bool>,
    /// Delay before each answer with a piece of a log page.
    pub(crate) log_pause: Cell<Duration>,
    /// Records that the discovery log says it has. Those behind the first five are zeroes.
    pub(crate) records: Cell<u64>,
    /// Generation of the discovery log, and by how much it grows with each piece that is read.
    pub(crate) generation: Cell<(u64, u64)>,
    pub(crate) keep_alives: Cell<u32>,
    /// Command sets that the controller reports, as a part of CAP.
    pub(crate) command_sets: Cell<u64>,
    /// Values that were written to CC.
    pub(crate) configurations: RefCell<Vec<Cc>>,
    /// `None`: it does not know the command.
    pub(crate) reset: Cell<Option<Reset>>,
    /// Resets asked for, and times that their log page was read.
    pub(crate) resets: Cell<u32>,
    pub(crate) reset_logs: Cell<u32>,
    /// When the log page says that the last one is over.
    reset_over: Cell<Instant>,
    events: Notify,
    changed: Cell<bool>,
    /// Always have an event to tell.
    pub(crate) restless: Cell<bool>,
    pub(crate) event_requests: Cell<u32>,
}

impl Target {
    pub(crate) fn start(world: &SimWorld) -> Rc<Self> {
        let target = Rc::new(Self {
            world: world.clone(),
            nqn: Nqn::from_uuid(&UUID),
            blocks: RefCell::default(),
            size: Cell::new(1 << 20),
            lbads: Cell::new(12),
            metadata_bytes: Cell::new(0),
            nawupf: Cell::new(31),
            log: RefCell::default(),
            forced: RefCell::default(),
            accepted: Cell::new(0),
            open: Cell::new(0),
            streams: RefCell::default(),
            cut_after: Cell::new(None),
            damage: Cell::new(0),
            fail: Cell::new(None),
            fail_admin: Cell::new(None),
            damage_admin: Cell::new(0),
            mute: Cell::new(false),
            silent: Cell::new(false),
            deaf: Cell::new(None),
            fatal: Cell::new(None),
            down: Cell::new(false),
            repeats_connects: Cell::new(false),
            secret: RefCell::default(),
            success_flag: Cell::new(true),
            log_pause: Cell::new(Duration::ZERO),
            records: Cell::new(5),
            generation: Cell::new((9, 0)),
            keep_alives: Cell::new(0),
            command_sets: Cell::new(Cap::CSS_NVM),
            configurations: RefCell::default(),
            reset: Cell::new(None),
            resets: Cell::new(0),
            reset_logs: Cell::new(0),
            reset_over: Cell::new(Instant(0)),
            events: Notify::new(),
            changed: Cell::new(false),
            restless: Cell::new(false),
            event_requests: Cell::new(0),
        });
        let listener = world.listen(address()).expect("a free address");
        let accepting = target.clone();
        world.spawn(async move {
            while let Ok(stream) = listener.accept().await {
                if accepting.down.get() {
                    stream.shutdown();
                    continue;
                }
                accepting.accepted.set(accepting.accepted.get() + 1);
                accepting.open.set(accepting.open.get() + 1);
                accepting.streams.borrow_mut().push(stream.clone());
                let connection = Connection::new(accepting.clone(), stream);
                accepting.world.spawn(connection.clone().send());
                accepting.world.spawn(connection.receive());
            }
        });
        target
    }

    pub(crate) fn cut(&self) {
        for stream in self.streams.borrow_mut().drain(..) {
            stream.shutdown();
        }
    }

    pub(crate) fn resize(&self, blocks: u64) {
        self.size.set(blocks);
        self.changed.set(true);
        self.events.notify_all();
    }

    pub(crate) fn count(&self, opcode: IoOpcode) -> usize {
        self.log.borrow().iter().filter(|(logged, _)| *logged == opcode.0).count()
    }

    fn read(&self, command: &BlockCommand) -> Vec<u8> {
        let blocks = self.blocks.borrow();
        let range = command.slba..command.slba + u64::from(command.nlb);
        let zeroes = vec![0; BLOCK_SIZE];
        range.flat_map(|lba| blocks.get(&lba).unwrap_or(&zeroes).clone()).collect()
    }

    fn write(&self, command: &BlockCommand, data: &[u8]) {
        self.forced.borrow_mut().extend(command.fua.then_some(command.slba));
        let blocks = data.chunks(BLOCK_SIZE).map(<[u8]>::to_vec);
        self.blocks.borrow_mut().extend((command.slba..).zip(blocks));
    }
}

pub(crate) fn options() -> Options {
    Options { depth: 8, ..Options::for_host([7; 16]) }
}

pub(crate) fn filled(blocks: usize, byte: u8) -> BufferSlice {
    let mut buffer = Buffer::new(blocks);
    buffer.as_mut_bytes().fill(byte);
    buffer.into_slice()
}

/// Runs `test` with a target in a world of `seed`.
pub(crate) fn with_target<F: Future<Output = ()> + 'static>(
    seed: u64,
    test: impl FnOnce(SimWorld, Rc<Target>) -> F,
) {
    let simulation = Simulation::new(seed);
    let world = simulation.world();
    let target = Target::start(&world);
    simulation
        .run(test(world, target))
        .unwrap_or_else(|stalled| panic!("seed {seed}: {stalled:?}"));
}

pub(crate) async fn open(world: &SimWorld, target: &Target, options: Options) -> Volume<SimWorld> {
    let client = Client::connect(world.clone(), address(), &target.nqn, options).await;
    client.expect("connects").volume().await.expect("a volume")
}

/// Runs `count` tasks side by side to their end.
pub(crate) async fn all<F: Future<Output = ()> + 'static>(
    world: &SimWorld,
    tasks: impl IntoIterator<Item = F>,
) {
    const MANY: u64 = 1 << 20;
    let running = Semaphore::new(MANY);
    for task in tasks {
        let permit = running.try_acquire(1).expect("fewer than many");
        world.spawn(async move {
            task.await;
            drop(permit);
        });
    }
    running.acquire(MANY).await;
}
