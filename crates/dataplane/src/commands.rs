//! Commands from their coming to their execution: the processor, too, is shared among volumes.
//!
//! ```text
//! receive ──► Core::submit ──► a lane for each volume ──► Core::run_commands ──► task, outcome
//!   ▲                                                             │
//!   └──────── sockets and timers are looked at between two batches
//! ```
//! - COMMAND-1: what a session receives is decoded at once, and executed when its volume's turn comes:
//!   see `turns.rs`. Nothing else on a core takes long.
//! - COMMAND-2: after [`BATCH_UNITS`] the core takes in what sockets have, before the next command runs:
//!   under a burst, peers find their bytes taken and do not send them again.
//! - COMMAND-3: a command whose session has ended meanwhile is not executed.
//! - COMMAND-4: how many commands wait is bounded by the depths of the queues.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use io_traits::{Device, World};
use units::Duration;

use crate::core::Core;
use crate::execute::Job;
use crate::export::Export;
use crate::reads::{Read, Reads};
use crate::request::{Request, units_of_data};
use crate::session::{Session, Tag};
use crate::turns::{Lane, LaneId, Turns};

/// Units after which sockets are looked at.
const BATCH_UNITS: u32 = 64;
/// The cost of a command that is none of a volume's data: what it returns is made on the spot.
const CALL_UNITS: u32 = 4;
/// A moment that is later than any other of this turn of the core's loop.
const MOMENT: Duration = Duration::from_nanos(1);

/// A command that waits for the processor.
enum Command<W: World, D: Device> {
    /// Ready to run on a volume.
    Request(Job<W, D>, Request),
    /// All else: what a front end does when its turn comes.
    Call(Rc<dyn Session>, Box<dyn FnOnce()>),
}

/// The commands of a core that wait.
pub(crate) struct Commands<W: World, D: Device> {
    turns: RefCell<Turns<Command<W, D>>>,
    /// Wakes [`Core::run_commands`] when there are some again.
    idle: RefCell<Option<Waker>>,
}

impl<W: World, D: Device> Default for Commands<W, D> {
    fn default() -> Self {
        Self { turns: RefCell::default(), idle: RefCell::new(None) }
    }
}

impl<W: World, D: Device> Commands<W, D> {
    pub(crate) fn add_lane(&self) -> LaneId {
        self.turns.borrow_mut().add_lane()
    }

    /// The volume is gone. What waited there has lost its connection, or is about to.
    pub(crate) fn remove_lane(&self, lane: LaneId) {
        // Dropped behind the borrow: it may be the last to hold a connection.
        let gone = self.turns.borrow_mut().remove_lane(lane);
        drop(gone);
    }

    fn push(&self, lane: Lane, command: Command<W, D>, units: u32) {
        self.turns.borrow_mut().push(lane, command, units);
        self.idle.take().into_iter().for_each(Waker::wake);
    }

    /// Waits until a command waits.
    async fn some(&self) {
        poll_fn(|context| {
            if !self.turns.borrow().is_empty() {
                return Poll::Ready(());
            }
            *self.idle.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl<W: World, D: Device> Core<W, D> {
    /// Executes commands, each when its turn comes, for as long as the core lives.
    pub(crate) async fn run_commands(&self) {
        let (world, commands) = (self.world(), self.commands());
        let mut reads = Reads::default();
        loop {
            commands.some().await;
            self.look_whether_to_serve();
            let mut spent = 0;
            while spent < BATCH_UNITS {
                let next = commands.turns.borrow_mut().pop();
                let Some((command, units)) = next else { break };
                spent += units;
                match command.into_read() {
                    Ok(read) => reads.push(world, read),
                    Err(command) => {
                        if !command.is_write() {
                            reads.run(world);
                        }
                        command.run(world);
                    }
                }
            }
            reads.run(world);
            if !commands.turns.borrow().is_empty() {
                // COMMAND-2: a timer fires when the sockets have been looked at.
                world.sleep_until(world.now() + MOMENT).await;
            }
        }
    }
}

impl<W: World, D: Device> Command<W, D> {
    /// The read of one block that it is, if it is one.
    fn into_read(self) -> Result<Read<W, D>, Self> {
        match self {
            Self::Request(job, Request::Read(range)) if range.blocks == 1 => {
                Ok(Read { job, lba: range.start })
            }
            other => Err(other),
        }
    }

    /// Returns whether it is a write. It may be carried out before reads that came earlier, which stay one group: all of them are
    /// under way together, so their order is free.
    fn is_write(&self) -> bool {
        matches!(self, Self::Request(_, Request::Write { .. }))
    }

    fn run(self, world: &W) {
        match self {
            Self::Request(job, request) if job.session.link().is_open() => job.run(world, request),
            Self::Call(session, call) if session.link().is_open() => call(),
            Self::Request(..) | Self::Call(..) => {}
        }
    }
}

impl<W: World, D: Device> Core<W, D> {
    /// Takes in a request of `session` for `export`; it is carried out in its turn (COMMAND-1). Its end is told to
    /// [`Session::complete`] under `tag`. Memory for what a read returns is found here, within the session's window; what
    /// is charged for the data of a request comes with that.
    pub fn submit(
        &self,
        session: Rc<dyn Session>,
        tag: Tag,
        export: &Rc<Export<W, D>>,
        request: Request,
    ) {
        // What a write replaces is noted where its mapping was.
        if let Some(lba) = request.single_write() {
            export.with_volume(|volume| volume.prefetch_stage2(lba));
        }
        session.link().counts().count(&request);
        if export.recorder.is_on() {
            self.record_request(export, &request);
        }
        let (lane, units) = (Lane::Volume(export.lane.turns()), request.units());
        let job = Job { aborts: session.link().aborts(), session, tag, export: export.clone() };
        self.commands().push(lane, Command::Request(job, request), units);
    }

    /// Runs `call` when it is the turn of `export`, or without one, of the source of `session`, unless the session is
    /// closed before. The call moves about `len_bytes` bytes.
    pub fn run_in_turn(
        &self,
        session: Rc<dyn Session>,
        export: Option<&Export<W, D>>,
        len_bytes: u64,
        call: impl FnOnce() + 'static,
    ) {
        let lane = match export {
            Some(export) => Lane::Volume(export.lane.turns()),
            None => Lane::Stranger(session.link().source()),
        };
        let units = CALL_UNITS + units_of_data(len_bytes);
        self.commands().push(lane, Command::Call(session, Box::new(call)), units);
    }
}
