//! A host of few words that compares and writes by the standard's own means: two fused commands. The client library has one
//! command for that.

use std::cell::RefCell;
use std::net::SocketAddr;

use io_traits::{Clock, Network, SendBatch, Stream};
use nvme_initiator::{Config, Connection, Event, R2tRequest, Transfer};
use nvme_wire::fabrics::{
    CNTLID_DYNAMIC, Connect, ConnectData, ConnectResult, Property, PropertySize,
};
use nvme_wire::io::BlockCommand;
use nvme_wire::pdu::Digests;
use nvme_wire::property::{Cc, Csts, offset};
use nvme_wire::{Cqe, HostId, IoOpcode, Nqn, Sqe, Status};
use sim::{Rng, SimStream, SimWorld};
use units::Duration;
use zerocopy::IntoBytes;

/// Interval at which an enabled controller is asked whether it is ready.
const POLL_READY: Duration = Duration::from_millis(1);

/// Configuration of the queues: both halves are under way together, and commands carry little data; the server asks
/// for the rest (R2T).
const CONFIG: Config = Config {
    digests: Digests { header: false, data: false },
    depth: 2,
    // No timeout: the scenario cuts what hangs.
    command_timeout: Duration::from_secs(3600),
    in_capsule_max: 16 << 10,
};

/// The connection is lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Gone;

/// One connection.
struct Wire {
    world: SimWorld,
    stream: SimStream,
    connection: Connection,
    received: Vec<u8>,
}

/// An I/O queue of a controller of its own.
pub(crate) struct Queue {
    io: Wire,
    /// The controller lasts as long as this one.
    _admin: Wire,
}

/// Queues to one volume.
pub(crate) struct FusedHost {
    world: SimWorld,
    portal: SocketAddr,
    subsystem: Nqn,
    /// Host identifier.
    id: [u8; 16],
    /// It ends connections between the halves of a pair.
    leaves: bool,
    /// Queues that are not in use: each carries one operation at a time.
    idle: RefCell<Vec<Queue>>,
}

impl FusedHost {
    /// The host `id` of `subsystem`, not connected yet.
    #[must_use]
    pub(crate) fn new(world: &SimWorld, portal: SocketAddr, subsystem: Nqn, id: [u8; 16]) -> Self {
        let world = world.clone();
        Self { world, portal, subsystem, id, leaves: false, idle: RefCell::default() }
    }

    /// The same, which ends connections between the halves of a pair now and then if `leaves` says so.
    #[must_use]
    pub(crate) fn that_leaves(self, leaves: bool) -> Self {
        Self { leaves, ..self }
    }

    /// Compares `blocks` blocks with `expected` and writes `data`: how either half ended.
    ///
    /// # Errors
    /// The connection is lost, and the outcome unknown.
    pub(crate) async fn compare_and_write(
        &self,
        (lba, blocks): (u64, u32),
        expected: &[u8],
        data: &[u8],
    ) -> Result<[Status; 2], Gone> {
        let idle = self.idle.borrow_mut().pop();
        let mut queue = match idle {
            Some(queue) => queue,
            None => self.connect().await?,
        };
        let commands = [(IoOpcode::COMPARE, Sqe::FUSE_FIRST), (IoOpcode::WRITE, Sqe::FUSE_SECOND)];
        let mut halves = [(0, expected), (0, data)];
        for ((opcode, fuse), (slot, payload)) in commands.into_iter().zip(&mut halves) {
            let len = u32::try_from(payload.len()).expect("a small request");
            let mut sqe = BlockCommand::new(lba, blocks).encode(opcode, 1, len);
            sqe.flags |= fuse;
            *slot = queue.io.send(&sqe, payload).await?;
            if fuse == Sqe::FUSE_FIRST {
                self.hesitate(lba).await?;
            }
        }
        let ended = queue.io.complete(halves).await?;
        self.idle.borrow_mut().push(queue);
        Ok(ended)
    }

    /// Waits now and then between the halves, or ends the connection there if hosts may.
    async fn hesitate(&self, lba: u64) -> Result<(), Gone> {
        let now = self.world.now();
        let mut rng = Rng::new(now.0 ^ lba << 48);
        if rng.one_in(8) {
            let micros = 1 << rng.between(3, 12);
            self.world.sleep_until(now + Duration::from_micros(micros)).await;
        }
        if self.leaves && rng.one_in(32) { Err(Gone) } else { Ok(()) }
    }

    /// Connects a queue.
    ///
    /// # Errors
    /// It is refused, or the connection is lost.
    pub(crate) async fn connect(&self) -> Result<Queue, Gone> {
        let mut admin = self.greet().await?;
        let accepted = admin.connect((0, CNTLID_DYNAMIC), &self.id, &self.subsystem).await?;
        let cc = Cc::enabled(Cc::CSS_NVM).0.into();
        let enable = Property::set(offset::CC, PropertySize::Four, cc);
        admin.command(&enable.into(), &[]).await?;
        // It gets ready when what a connection that was cut has left behind is over.
        while !admin.is_ready().await? {
            self.world.sleep_until(self.world.now() + POLL_READY).await;
        }
        let mut io = self.greet().await?;
        io.connect((1, accepted.cntlid()), &self.id, &self.subsystem).await?;
        Ok(Queue { io, _admin: admin })
    }

    async fn greet(&self) -> Result<Wire, Gone> {
        let stream = self.world.connect(self.portal).await.map_err(|_| Gone)?;
        let mut greeting = Vec::new();
        let connection = Connection::new(&CONFIG, |bytes| greeting.extend_from_slice(bytes));
        let mut wire = Wire { world: self.world.clone(), stream, connection, received: Vec::new() };
        wire.say(&greeting).await?;
        match wire.hear().await? {
            Event::Ready => Ok(wire),
            _ => Err(Gone),
        }
    }
}

impl Queue {
    /// Carries out one command that sends `data` or returns `returns` bytes: how it ended, and these.
    ///
    /// # Errors
    /// The connection is lost, and the outcome unknown.
    pub(crate) async fn run(
        &mut self,
        sqe: &Sqe,
        data: &[u8],
        returns: usize,
    ) -> Result<(Status, Vec<u8>), Gone> {
        self.io.begin(sqe, data, returns).await?;
        let mut returned = vec![0; returns];
        loop {
            match self.io.hear().await? {
                Event::R2t(asked) => self.io.give(asked, data).await?,
                Event::Data(run) => {
                    let bytes = self.io.take(run.len as usize).await?;
                    returned[run.offset as usize..][..bytes.len()].copy_from_slice(&bytes);
                }
                Event::Completed { cqe, .. } => return Ok((cqe.status(), returned)),
                Event::Ready | Event::DataDigest { .. } => return Err(Gone),
            }
        }
    }
}

impl Wire {
    async fn say(&mut self, bytes: &[u8]) -> Result<(), Gone> {
        let mut batch = SendBatch::new();
        batch.push_bytes(bytes);
        self.stream.send(batch).await.map_err(|_| Gone)?;
        self.connection.handed_over();
        Ok(())
    }

    /// The next `len` bytes of data.
    async fn take(&mut self, len: usize) -> Result<Vec<u8>, Gone> {
        while self.received.len() < len {
            let chunk = self.stream.recv().await.map_err(|_| Gone)?;
            self.received.extend_from_slice(&chunk);
        }
        self.connection.on_payload(u32::try_from(len).expect("a small request"));
        Ok(self.received.drain(..len).collect())
    }

    async fn hear(&mut self) -> Result<Event, Gone> {
        loop {
            let (taken, event) = self.connection.on_bytes(&self.received).map_err(|_| Gone)?;
            self.received.drain(..taken);
            match event {
                Some(event) => return Ok(event),
                None if taken > 0 => {}
                None => {
                    let chunk = self.stream.recv().await.map_err(|_| Gone)?;
                    self.received.extend_from_slice(&chunk);
                }
            }
        }
    }

    /// Sends a command, and its data as far as it goes along; the slot that stands for it.
    async fn send(&mut self, sqe: &Sqe, data: &[u8]) -> Result<u16, Gone> {
        self.begin(sqe, data, 0).await
    }

    /// The same of a command that returns so many bytes, if it sends none.
    async fn begin(&mut self, sqe: &Sqe, data: &[u8], returns: usize) -> Result<u16, Gone> {
        let len = u32::try_from(data.len()).expect("a small request");
        let returns = u32::try_from(returns).expect("a small request");
        let transfer = match (len, returns) {
            (0, 0) => Transfer::None,
            (0, returns) => Transfer::ToHost(returns),
            _ => Transfer::ToController(len),
        };
        let goes_along = self.connection.sends_in_capsule(sqe, len);
        let (now, mut capsule) = (self.world.now(), Vec::new());
        let put = |head: &[u8]| capsule.extend_from_slice(head);
        let slot = self.connection.submit(now, sqe, transfer, None, put).expect("a free slot");
        capsule.extend_from_slice(if goes_along { data } else { &[] });
        self.say(&capsule).await?;
        Ok(slot)
    }

    /// Sends a command that is answered with a completion and nothing else.
    async fn command(&mut self, sqe: &Sqe, data: &[u8]) -> Result<Cqe, Gone> {
        self.send(sqe, data).await?;
        match self.hear().await? {
            Event::Completed { cqe, .. } if cqe.status().is_success() => Ok(cqe),
            _ => Err(Gone),
        }
    }

    /// Reads whether the controller is ready.
    async fn is_ready(&mut self) -> Result<bool, Gone> {
        let status = Property::get(offset::CSTS, PropertySize::Four);
        let cqe = self.command(&status.into(), &[]).await?;
        Ok(Csts(cqe.result.get() as u32).rdy())
    }

    async fn connect(
        &mut self,
        (qid, cntlid): (u16, u16),
        id: &[u8; 16],
        subsystem: &Nqn,
    ) -> Result<ConnectResult, Gone> {
        let host = Nqn::from_uuid(id);
        let data = ConnectData::new(HostId(*id), &host, subsystem, cntlid);
        let cqe = self.command(&Connect::new(qid, 32, 0).into(), data.as_bytes()).await?;
        Ok(ConnectResult(cqe.result.get() as u32))
    }

    /// Sends what is asked for of the data of either half until both have ended; `halves`: their slots and data.
    async fn complete(&mut self, halves: [(u16, &[u8]); 2]) -> Result<[Status; 2], Gone> {
        let mut ended = [None; 2];
        loop {
            if let [Some(first), Some(second)] = ended {
                return Ok([first, second]);
            }
            let half = |slot: u16| usize::from(slot != halves[0].0);
            match self.hear().await? {
                Event::R2t(asked) => self.give(asked, halves[half(asked.slot)].1).await?,
                Event::Completed { slot, cqe, .. } => ended[half(slot)] = Some(cqe.status()),
                _ => return Err(Gone),
            }
        }
    }

    async fn give(&mut self, asked: R2tRequest, data: &[u8]) -> Result<(), Gone> {
        for pdu in self.connection.h2c_pdus(asked) {
            let bytes = &data[pdu.offset as usize..][..pdu.len as usize];
            self.say(&[pdu.header.as_bytes(), bytes].concat()).await?;
        }
        Ok(())
    }
}
