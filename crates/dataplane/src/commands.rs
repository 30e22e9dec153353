//! Commands from their coming to their execution: the processor, too, is shared among volumes.
//!
//! ```text
//! receive ──► Connection::execute ──► a lane for each volume ──► Core::run_commands ──► task, reply
//!   ▲                                                                    │
//!   └────────── sockets and timers are looked at between two batches ◄───┘
//! ```
//! - C1: what a connection receives is decoded at once, and executed when its volume's turn comes:
//!   see `turns.rs`. Nothing else on a core takes long.
//! - C2: after [`BATCH_UNITS`] the core takes in what sockets have, before the next command runs:
//!   under a burst, peers find their bytes taken and do not send them again.
//! - C3: a command whose connection has ended meanwhile is not executed.
//! - C4: how many commands wait is bounded by the depths of the queues.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use io_traits::{Device, World};
use nvme_target::{IoCommand, SlotId};
use strangers::source;
use units::{BLOCK_SIZE, Duration};

use crate::connection::{Connection, IoQueue, Role};
use crate::core::Core;
use crate::incoming::Payload;
use crate::reads::{Read, Reads};
use crate::swap::Fused;
use crate::turns::{Lane, LaneId, Turns};

/// Units after which sockets are looked at.
const BATCH_UNITS: u32 = 64;
/// Blocks of data that cost as much as a command: to copy them and take their checksum.
const BLOCKS_PER_UNIT: u64 = 4;
/// An admin command: what it returns is made on the spot.
const ADMIN_UNITS: u32 = 4;
/// A moment that is later than any other of this turn of the core's loop.
const MOMENT: Duration = Duration::from_nanos(1);

/// A command that waits for the processor.
struct Command<W: World, D: Device> {
    connection: Rc<Connection<W, D>>,
    slot: SlotId,
    kind: Kind<W, D>,
}

enum Kind<W: World, D: Device> {
    /// Checked, and ready to run on a volume, with the data that came with it.
    Io(Rc<IoQueue<W, D>>, IoCommand, Option<Box<Payload>>),
    Fused(Box<Fused<W, D>>),
    /// All else: looked at when its turn comes.
    Other,
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
                    Ok(read) => reads.push(read),
                    Err(command) => {
                        reads.run();
                        command.run();
                    }
                }
            }
            reads.run();
            if !commands.turns.borrow().is_empty() {
                // C2: a timer fires when the sockets have been looked at.
                world.sleep_until(world.now() + MOMENT).await;
            }
        }
    }
}

impl<W: World, D: Device> Command<W, D> {
    /// The read of one block that it is, if it is one.
    fn into_read(self) -> Result<Read<W, D>, Self> {
        match self {
            Self { connection, slot, kind: Kind::Io(queue, IoCommand::Read { range }, _) }
                if range.blocks == 1 =>
            {
                Ok(Read { connection, queue, slot, lba: range.start })
            }
            other => Err(other),
        }
    }

    fn run(self) {
        let Self { connection, slot, kind } = self;
        if !connection.is_open() {
            return;
        }
        match kind {
            Kind::Io(queue, command, payload) => {
                connection.run_io(slot, queue, command, payload);
            }
            Kind::Fused(fused) => connection.run_fused(*fused),
            Kind::Other => connection.run_other(slot),
        }
    }
}

/// What a command takes of the processor.
fn units(command: &IoCommand) -> u32 {
    let blocks = match command {
        IoCommand::Read { range }
        | IoCommand::Compare { range }
        | IoCommand::Verify { range }
        | IoCommand::Write { range, .. }
        | IoCommand::CompareAndWrite { range } => range.blocks,
        IoCommand::Deallocate { ranges } => u64::from(*ranges) * BLOCKS_PER_UNIT,
        IoCommand::WriteZeroes { .. }
        | IoCommand::Flush
        | IoCommand::Hint
        | IoCommand::Disconnect => 0,
    };
    units_of_data(blocks)
}

fn units_of_data(blocks: u64) -> u32 {
    1 + u32::try_from(blocks / BLOCKS_PER_UNIT).unwrap_or(u32::MAX / 4)
}

impl<W: World, D: Device> Connection<W, D> {
    /// Takes in a command that is complete; it is executed in its turn (C1).
    pub(crate) fn execute(self: &Rc<Self>, slot: SlotId) {
        // What came before the end of service is executed, what comes behind it is not.
        let is_prepared = self.incoming.is_expected(slot);
        if self.core.is_draining() && !is_prepared {
            return self.incoming.set_late(slot);
        }
        // One that brought data was authorised and decoded before memory was found for that.
        if !is_prepared && let Err(status) = self.must_authenticate(slot) {
            return self.complete(slot, status, 0);
        }
        let role = self.role.borrow();
        if let Role::Io(queue) = &*role
            && self.exchange_of(slot).is_none()
        {
            return self.execute_io(slot, queue);
        }
        drop(role);
        let limits = &self.core.options().limits;
        let bytes = self.command(slot).dptr.length.get().min(limits.transfer_bytes_max);
        let blocks = u64::from(bytes) / BLOCK_SIZE as u64;
        let command = Command { connection: self.clone(), slot, kind: Kind::Other };
        let units = ADMIN_UNITS + units_of_data(blocks);
        self.core.commands().push(self.lane(), command, units);
    }

    fn execute_io(self: &Rc<Self>, slot: SlotId, queue: &Rc<IoQueue<W, D>>) {
        let payload = self.take_payload(slot).map(Box::new);
        let prepared = payload.as_ref().and_then(|payload| payload.command);
        let command = match prepared.map_or_else(|| self.decode_io(slot, queue), Ok) {
            Ok(command) => command,
            Err(status) => return self.complete(slot, status, 0),
        };
        let kind = Kind::Io(queue.clone(), command, payload);
        let waiting = Command { connection: self.clone(), slot, kind };
        // What it replaces is noted where its mapping was.
        if let IoCommand::Write { range, .. } = command
            && range.blocks == 1
        {
            queue.export.with_volume(|volume| volume.prefetch_stage2(range.start));
        }
        let lane = Lane::Volume(queue.export.lane.turns());
        self.core.commands().push(lane, waiting, units(&command));
    }

    /// Takes in a fused operation of `blocks` blocks, which is executed in its turn.
    pub(crate) fn queue_fused(self: &Rc<Self>, fused: Fused<W, D>, blocks: u64) {
        let lane = Lane::Volume(fused.queue.export.lane.turns());
        let units = 2 * units_of_data(blocks);
        let (slot, kind) = (fused.halves[0], Kind::Fused(Box::new(fused)));
        self.core.commands().push(lane, Command { connection: self.clone(), slot, kind }, units);
    }

    /// Where what is not a volume's data waits.
    fn lane(&self) -> Lane {
        // Of a stranger it is not looked at whether there is a volume: that takes its time (E1 of `even.rs`).
        let export = if self.unproven().is_some() { None } else { self.export() };
        match export {
            Some(export) => Lane::Volume(export.lane.turns()),
            None => Lane::Stranger(source(self.peer().ip())),
        }
    }

    fn run_other(self: &Rc<Self>, slot: SlotId) {
        if let Some(queue) = self.exchange_of(slot) {
            return self.authenticate(slot, &queue);
        }
        let association = match &*self.role.borrow() {
            Role::Admin(association) => Some(association.clone()),
            Role::New => None,
            Role::Io(_) => unreachable!("commands of an I/O queue are decoded as they come"),
        };
        match association {
            Some(association) => {
                let connection = self.clone();
                let task = async move { connection.execute_admin(slot, &association) };
                self.core.world().spawn_now(task);
            }
            None => self.execute_connect(slot),
        }
    }
}
