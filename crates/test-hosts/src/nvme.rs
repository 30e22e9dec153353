//! A host that knows the protocol's bytes and keeps none of its rules unless told to.

use std::net::SocketAddr;

use auth::{Host, Outcome, Parties, Secret};
use io_traits::{Network, SendBatch, Stream, StreamError};
use nvme_wire::auth::Authentication;
use nvme_wire::fabrics::{CONNECT_DATA_LEN, Connect, ConnectData, Property, PropertySize};
use nvme_wire::io::BlockCommand;
use nvme_wire::pdu::{CapsuleCmd, Digests, IcReq};
use nvme_wire::{Cqe, HostId, IoOpcode, Nqn, SglDescriptor, Sqe, property};
use sim::{SimStream, SimWorld};
use zerocopy::{FromBytes, IntoBytes};

/// The address on which the servers of a test listen.
pub fn portal() -> SocketAddr {
    "10.0.0.1:4420".parse().expect("an address")
}

/// CC of a host that enables a controller: EN, 64-byte and 16-byte queue entries.
const CC_ENABLE: u64 = 1 | 6 << 16 | 4 << 20;
pub const CAPSULE_RESP: u8 = 5;
pub const C2H_DATA: u8 = 7;
/// Room for a message of an exchange.
const MESSAGE_ROOM: u32 = 1024;

pub struct RawHost {
    pub stream: SimStream,
    received: Vec<u8>,
    next_cid: u16,
}

/// The bytes of a greeting.
pub fn greeting() -> Vec<u8> {
    IcReq::new(Digests::default(), 1).as_bytes().to_vec()
}

/// The bytes of a command capsule without digests.
pub fn capsule(cid: u16, mut sqe: Sqe, data: &[u8]) -> Vec<u8> {
    sqe.cid = cid.into();
    let mut bytes = CapsuleCmd::new(sqe, data.len(), Digests::default(), 4).as_bytes().to_vec();
    bytes.extend_from_slice(data);
    bytes
}

/// The bytes of a command that sends a message of an exchange.
pub fn say_capsule(cid: u16, message: &[u8]) -> Vec<u8> {
    let len = u32::try_from(message.len()).expect("short");
    capsule(cid, Authentication::send(len).into(), message)
}

/// The bytes of one that fetches a message.
pub fn hear_capsule(cid: u16) -> Vec<u8> {
    let room = SglDescriptor::transport(MESSAGE_ROOM);
    capsule(cid, Authentication::receive(MESSAGE_ROOM, room).into(), &[])
}

/// Takes the next PDU out of what a server said without digests: its type, and the data that was in it. `None` if it is not
/// all there yet.
pub fn take_pdu(heard: &mut Vec<u8>) -> Option<(u8, Vec<u8>)> {
    let length = heard.get(4..8)?;
    let length = u32::from_le_bytes(length.try_into().expect("four bytes")) as usize;
    assert!(length >= 8, "a PDU is as long as its header");
    if heard.len() < length {
        return None;
    }
    let pdu: Vec<u8> = heard.drain(..length).collect();
    let data = if pdu[0] == C2H_DATA { usize::from(pdu[3]) } else { length };
    Some((pdu[0], pdu[data..].to_vec()))
}

/// The parties of an exchange with `subsystem`.
pub fn parties(subsystem: &Nqn) -> Parties {
    Parties { host: host_nqn(), subsystem: *subsystem }
}

/// The NQN of every such host.
fn host_nqn() -> Nqn {
    Nqn::from_uuid(&[9; 16])
}

/// A Connect and its data.
pub fn connect_command(qid: u16, cntlid: u16, subsystem: &Nqn) -> (Sqe, Vec<u8>) {
    let mut sqe = Sqe::from(Connect::new(qid, 32, 0));
    sqe.dptr = SglDescriptor::in_capsule(CONNECT_DATA_LEN);
    let data = ConnectData::new(HostId([9; 16]), &host_nqn(), subsystem, cntlid);
    (sqe, data.as_bytes().to_vec())
}

/// Enables a controller.
pub fn enable_command() -> Sqe {
    Property::set(property::offset::CC, PropertySize::Four, CC_ENABLE).into()
}

/// Disables a controller: a reset.
pub fn disable_command() -> Sqe {
    Property::set(property::offset::CC, PropertySize::Four, CC_ENABLE & !1).into()
}

/// A read of `blocks` blocks.
pub fn read_command(slba: u64, blocks: u32) -> Sqe {
    BlockCommand::new(slba, blocks).encode(IoOpcode::READ, 1, blocks * 4096)
}

/// A write of `blocks` blocks whose data waits for an R2T.
pub fn write_command(slba: u64, blocks: u32) -> Sqe {
    BlockCommand::new(slba, blocks).encode(IoOpcode::WRITE, 1, blocks * 4096)
}

impl RawHost {
    /// A host that has said nothing yet.
    pub fn over(stream: SimStream) -> Self {
        Self { stream, received: Vec::new(), next_cid: 0 }
    }

    /// Connects and greets.
    pub async fn greet(world: &SimWorld) -> Result<Self, StreamError> {
        let stream = world.connect(portal()).await.expect("someone listens");
        let mut host = Self::over(stream);
        host.send(&greeting()).await?;
        host.receive(128).await?;
        Ok(host)
    }

    /// Becomes I/O queue 1 of a new controller: the host, with the admin queue to be kept alive.
    pub async fn io_queue(world: &SimWorld, subsystem: &Nqn) -> Result<(Self, Self), StreamError> {
        let mut admin = Self::greet(world).await?;
        let (sqe, data) = connect_command(0, 0xFFFF, subsystem);
        let accepted = admin.command(sqe, &data).await?;
        let cntlid = accepted.result.get() as u16;
        admin.command(enable_command(), &[]).await?;
        let mut io = Self::greet(world).await?;
        let (sqe, data) = connect_command(1, cntlid, subsystem);
        io.command(sqe, &data).await?;
        Ok((io, admin))
    }

    /// Greets, and asks to be queue `qid` of a controller: what was said to that.
    pub async fn queue(
        world: &SimWorld,
        (qid, cntlid): (u16, u16),
        subsystem: &Nqn,
    ) -> Result<(Self, Cqe), StreamError> {
        let mut host = Self::greet(world).await?;
        let (sqe, data) = connect_command(qid, cntlid, subsystem);
        let answer = host.command(sqe, &data).await?;
        Ok((host, answer))
    }

    /// Authenticates with `secret`: what came of it.
    pub async fn authenticate(
        &mut self,
        subsystem: &Nqn,
        secret: Secret,
    ) -> Result<Outcome, StreamError> {
        let exchange = self.begin_exchange(subsystem, secret).await?;
        self.finish_exchange(exchange).await
    }

    /// Negotiates, and fetches the challenge: the exchange, whose Reply is ready.
    pub async fn begin_exchange(
        &mut self,
        subsystem: &Nqn,
        secret: Secret,
    ) -> Result<Host, StreamError> {
        let (mut exchange, first) = Host::new(parties(subsystem), secret, None, 3);
        self.say(&first).await?;
        self.hear(&mut exchange).await?;
        Ok(exchange)
    }

    /// Goes through the rest of an exchange: what came of it.
    pub async fn finish_exchange(&mut self, mut exchange: Host) -> Result<Outcome, StreamError> {
        while self.step(&mut exchange).await? {}
        Ok(exchange.outcome())
    }

    /// Says or hears the next message of an exchange; whether there was one.
    pub async fn step(&mut self, exchange: &mut Host) -> Result<bool, StreamError> {
        if let Some(bytes) = exchange.message() {
            self.say(&bytes).await?;
        } else if exchange.outcome() == Outcome::UnderWay {
            self.hear(exchange).await?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Sends a message of an exchange.
    pub async fn say(&mut self, message: &[u8]) -> Result<(), StreamError> {
        let len = u32::try_from(message.len()).expect("short");
        self.command(Authentication::send(len).into(), message).await.map(drop)
    }

    /// Fetches one.
    async fn hear(&mut self, exchange: &mut Host) -> Result<(), StreamError> {
        self.next_cid += 1;
        self.send(&hear_capsule(self.next_cid)).await?;
        let data = self.receive(24 + MESSAGE_ROOM as usize).await?;
        if let Some(job) = exchange.receive(&data[24..], &mut |bytes| bytes.fill(7)) {
            exchange.computed(&job.run());
        }
        self.receive(24).await.map(drop)
    }

    /// Sends bytes as they are.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        let mut batch = SendBatch::new();
        batch.push_bytes(bytes);
        self.stream.send(batch).await.map(drop)
    }

    /// Sends a command that needs no data transfer of its own and returns its completion.
    pub async fn command(&mut self, sqe: Sqe, data: &[u8]) -> Result<Cqe, StreamError> {
        self.next_cid += 1;
        let bytes = capsule(self.next_cid, sqe, data);
        self.send(&bytes).await?;
        let response = self.receive(24).await?;
        assert_eq!(response[0], CAPSULE_RESP, "a completion");
        Ok(Cqe::read_from_bytes(&response[8..]).expect("16 bytes"))
    }

    /// Controller Status, on an admin queue.
    pub async fn csts(&mut self) -> Result<property::Csts, StreamError> {
        let get = Property::get(property::offset::CSTS, PropertySize::Four);
        Ok(property::Csts(self.command(get.into(), &[]).await?.dw0()))
    }

    /// The next `len` bytes.
    pub async fn receive(&mut self, len: usize) -> Result<Vec<u8>, StreamError> {
        while self.received.len() < len {
            let chunk = self.stream.recv().await?;
            self.received.extend_from_slice(&chunk);
        }
        Ok(self.received.drain(..len).collect())
    }

    /// Reads until the server closes.
    pub async fn wait_for_close(&mut self) -> Vec<u8> {
        while let Ok(chunk) = self.stream.recv().await {
            self.received.extend_from_slice(&chunk);
        }
        std::mem::take(&mut self.received)
    }
}
