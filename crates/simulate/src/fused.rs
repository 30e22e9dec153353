//! A host of few words that compares and writes by the standard's own means: two fused commands. The client library has one
//! command for that.

use std::cell::RefCell;
use std::net::SocketAddr;

use io_traits::{Network, SendBatch, Stream};
use nvme_wire::fabrics::{CONNECT_DATA_LEN, Connect, ConnectData, Property, PropertySize};
use nvme_wire::io::BlockCommand;
use nvme_wire::pdu::{CapsuleCmd, CapsuleResp, Digests, H2cData, IcReq, IcResp, PduType, R2t};
use nvme_wire::property::{Cc, offset};
use nvme_wire::{Cqe, HostId, IoOpcode, Nqn, SglDescriptor, Sqe, Status};
use sim::{SimStream, SimWorld};
use zerocopy::{FromBytes, IntoBytes};

/// What goes with a command. More is asked for by the server.
const IN_CAPSULE_BYTES_MAX: usize = 16 << 10;
/// Bytes of a PDU that has them asked for.
const H2C_BYTES_MAX: usize = 8 << 10;
/// Identifiers of the halves; only they are under way.
const HALVES: [u16; 2] = [100, 101];

/// The connection is lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Gone;

/// One connection.
struct Wire {
    stream: SimStream,
    received: Vec<u8>,
}

/// An I/O queue of a controller of its own.
struct Queue {
    io: Wire,
    /// The controller lasts as long as this one.
    _admin: Wire,
}

/// Queues to one volume.
pub(crate) struct FusedHost {
    world: SimWorld,
    portal: SocketAddr,
    subsystem: Nqn,
    /// Those that nobody uses: each carries one operation at a time.
    idle: RefCell<Vec<Queue>>,
}

impl FusedHost {
    /// A host of `subsystem`, not connected yet.
    #[must_use]
    pub(crate) fn new(world: &SimWorld, portal: SocketAddr, subsystem: Nqn) -> Self {
        Self { world: world.clone(), portal, subsystem, idle: RefCell::default() }
    }

    /// Compares `blocks` blocks with `expected` and writes `data`: how either half ended.
    ///
    /// # Errors
    /// Nobody knows, since the connection is lost.
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
        let payloads = [expected, data];
        for (((opcode, fuse), cid), payload) in commands.into_iter().zip(HALVES).zip(payloads) {
            let len = u32::try_from(payload.len()).expect("a small request");
            let mut sqe = BlockCommand::new(lba, blocks).encode(opcode, 1, len);
            sqe.flags |= fuse;
            let is_inside = payload.len() <= IN_CAPSULE_BYTES_MAX;
            if is_inside {
                sqe.dptr = SglDescriptor::in_capsule(len);
            }
            queue.io.send(cid, sqe, if is_inside { payload } else { &[] }).await?;
        }
        let ended = queue.io.complete(payloads).await?;
        self.idle.borrow_mut().push(queue);
        Ok(ended)
    }

    async fn connect(&self) -> Result<Queue, Gone> {
        let mut admin = self.greet().await?;
        let accepted = admin.connect(0, 0xFFFF, &self.subsystem).await?;
        let cc = Cc::enabled(Cc::CSS_NVM).0.into();
        let enable = Property::set(offset::CC, PropertySize::Four, cc);
        admin.command(as_sqe(enable.as_bytes()), &[]).await?;
        let mut io = self.greet().await?;
        let cntlid = u16::try_from(accepted.result.get() & 0xFFFF).expect("16 bits");
        io.connect(1, cntlid, &self.subsystem).await?;
        Ok(Queue { io, _admin: admin })
    }

    async fn greet(&self) -> Result<Wire, Gone> {
        let stream = self.world.connect(self.portal).await.map_err(|_| Gone)?;
        let mut wire = Wire { stream, received: Vec::new() };
        wire.say(IcReq::new(Digests::default(), 1).as_bytes()).await?;
        wire.hear(size_of::<IcResp>()).await?;
        Ok(wire)
    }
}

fn as_sqe(bytes: &[u8]) -> Sqe {
    Sqe::read_from_bytes(bytes).expect("64 bytes")
}

impl Wire {
    async fn say(&mut self, bytes: &[u8]) -> Result<(), Gone> {
        let mut batch = SendBatch::new();
        batch.push_bytes(bytes);
        self.stream.send(batch).await.map(drop).map_err(|_| Gone)
    }

    async fn hear(&mut self, len: usize) -> Result<Vec<u8>, Gone> {
        while self.received.len() < len {
            let chunk = self.stream.recv().await.map_err(|_| Gone)?;
            self.received.extend_from_slice(&chunk);
        }
        Ok(self.received.drain(..len).collect())
    }

    /// The next PDU, which has no data.
    async fn hear_pdu(&mut self) -> Result<Vec<u8>, Gone> {
        let mut pdu = self.hear(8).await?;
        let len = u32::from_le_bytes(pdu[4..8].try_into().expect("four bytes")) as usize;
        pdu.extend(self.hear(len - 8).await?);
        Ok(pdu)
    }

    async fn send(&mut self, cid: u16, mut sqe: Sqe, data: &[u8]) -> Result<(), Gone> {
        sqe.cid = cid.into();
        let head = CapsuleCmd::new(sqe, data.len(), Digests::default(), 4);
        self.say(&[head.as_bytes(), data].concat()).await
    }

    /// Sends a command that is answered with a completion and nothing else.
    async fn command(&mut self, sqe: Sqe, data: &[u8]) -> Result<Cqe, Gone> {
        self.send(0, sqe, data).await?;
        let pdu = self.hear_pdu().await?;
        let cqe = CapsuleResp::read_from_bytes(&pdu).map_err(|_| Gone)?.cqe;
        if cqe.status().code() == Status::SUCCESS { Ok(cqe) } else { Err(Gone) }
    }

    async fn connect(&mut self, qid: u16, cntlid: u16, subsystem: &Nqn) -> Result<Cqe, Gone> {
        let mut sqe = as_sqe(Connect::new(qid, 32, 0).as_bytes());
        sqe.dptr = SglDescriptor::in_capsule(CONNECT_DATA_LEN);
        let host = Nqn::from_uuid(&[9; 16]);
        let data = ConnectData::new(HostId([9; 16]), &host, subsystem, cntlid);
        self.command(sqe, data.as_bytes()).await
    }

    /// Sends what is asked for of either half's data until both have ended.
    async fn complete(&mut self, payloads: [&[u8]; 2]) -> Result<[Status; 2], Gone> {
        let mut ended = [None; 2];
        loop {
            if let [Some(first), Some(second)] = ended {
                return Ok([first, second]);
            }
            let pdu = self.hear_pdu().await?;
            match PduType::from_u8(pdu[0]) {
                Some(PduType::R2t) => {
                    let asked = R2t::read_from_bytes(&pdu).map_err(|_| Gone)?;
                    let half = usize::from(asked.cccid.get() - HALVES[0]);
                    self.give(&asked, payloads[half]).await?;
                }
                Some(PduType::CapsuleResp) => {
                    let cqe = CapsuleResp::read_from_bytes(&pdu).map_err(|_| Gone)?.cqe;
                    ended[usize::from(cqe.cid.get() - HALVES[0])] = Some(cqe.status());
                }
                _ => return Err(Gone),
            }
        }
    }

    async fn give(&mut self, asked: &R2t, payload: &[u8]) -> Result<(), Gone> {
        let (mut at, end) = (asked.r2to.get(), asked.r2to.get() + asked.r2tl.get());
        while at < end {
            let len = (end - at).min(H2C_BYTES_MAX as u32);
            let ids = (asked.cccid.get(), asked.ttag.get());
            let head = H2cData::new(ids, (at, len), at + len == end, Digests::default(), 4);
            let bytes = &payload[at as usize..(at + len) as usize];
            self.say(&[head.as_bytes(), bytes].concat()).await?;
            at += len;
        }
        Ok(())
    }
}
