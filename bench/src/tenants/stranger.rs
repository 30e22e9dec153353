//! A host that may open nothing, and how long the server takes for each answer until it has said so.
//!
//! - STRANGER-1: a time is from before the command is given to the kernel until after the last byte of its
//!   answer came. What the host computes itself is in none.
//! - STRANGER-2: the host polls: to be woken takes longer, and less evenly, than what is looked for.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use auth::{Hash, Host, KEY_LEN_MAX, Outcome, Parties, Secret};
use nvme_initiator::{Config, Connection, Event, Transfer};
use nvme_wire::auth::Authentication;
use nvme_wire::fabrics::{
    CNTLID_DYNAMIC, Connect, ConnectData, ConnectResult, Property, PropertySize,
};
use nvme_wire::log::{GetLogPage, Lid};
use nvme_wire::pdu::Digests;
use nvme_wire::property::{Cc, offset};
use nvme_wire::{Cqe, HostId, Nqn, SglDescriptor, Sqe};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use zerocopy::IntoBytes;

/// Limit for an answer; beyond it something is wrong.
const PATIENCE: Duration = Duration::from_secs(30);
/// Room for a message of the exchange.
const MESSAGE_ROOM: u32 = 1024;
/// Entries of the queue that is asked for.
const ENTRIES: u16 = 32;
/// A token that opens nothing.
const WRONG_TOKEN: [u8; KEY_LEN_MAX] = [0x5A; KEY_LEN_MAX];

/// Answers of the server until a host without the right token is refused, where hosts have to authenticate.
pub(super) const ANSWERS: [&str; 6] = [
    "Connect accepted",
    "Negotiate taken",
    "Challenge",
    "Reply taken",
    "Failure1",
    "connection closed",
];

/// The connection of an unauthenticated host.
pub(super) struct Stranger {
    stream: TcpStream,
    queue: Connection,
    /// Data of the last command.
    data: Vec<u8>,
}

impl Stranger {
    /// Connects from `source`, and greets.
    pub(super) fn from(source: Ipv4Addr, portal: SocketAddr) -> Result<Self> {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        bind(&socket, &SocketAddr::from((source, 0)))?;
        connect(&socket, &portal)?;
        let mut stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let config = Config {
            digests: Digests::default(),
            depth: 1,
            command_timeout: units::Duration::from_secs(PATIENCE.as_secs()),
            in_capsule_max: 0,
        };
        let mut greeting = Vec::new();
        let queue = Connection::new(&config, |bytes| greeting.extend_from_slice(bytes));
        stream.write_all(&greeting)?;
        let mut stranger = Self { stream, queue, data: Vec::new() };
        stranger.answer()?;
        Ok(stranger)
    }

    /// Returns the time of the refusal of a subsystem that does not exist, where hosts need not authenticate, in
    /// ns.
    pub(super) fn meets_refusal(mut self, parties: &Parties) -> Result<f64> {
        let (cqe, took) = self.connect(parties)?;
        ensure!(!cqe.status().is_success(), "a stranger was let in");
        Ok(took)
    }

    /// Returns the time of each of [`ANSWERS`], in ns.
    pub(super) fn fails_to_authenticate(
        mut self,
        parties: Parties,
    ) -> Result<[f64; ANSWERS.len()]> {
        let mut took = [0.0; ANSWERS.len()];
        let (cqe, to_connect) = self.connect(&parties)?;
        let result = ConnectResult(cqe.result.get() as u32);
        ensure!(
            cqe.status().is_success() && result.authentication_required(),
            "not asked for a token"
        );
        took[0] = to_connect;
        let secret = Secret::new(Hash::Sha256, &WRONG_TOKEN);
        let (mut host, negotiate) = Host::new(parties, secret, None, 1);
        took[1] = self.say(&negotiate)?;
        took[2] = self.hear(&mut host)?;
        took[3] = self.say(&host.message().context("no Challenge came")?)?;
        took[4] = self.hear(&mut host)?;
        let failed = Instant::now();
        ensure!(matches!(host.outcome(), Outcome::Failed(_)), "a stranger was believed");
        ensure!(self.read(&mut [0; 1])?.0 == 0, "more was said after the end");
        took[5] = nanoseconds(failed.elapsed());
        Ok(took)
    }

    /// Returns the time of the first page of the discovery log, in ns.
    pub(super) fn looks_at_discovery(mut self, host: Nqn) -> Result<f64> {
        let (cqe, _) = self.connect(&Parties { host, subsystem: Nqn::DISCOVERY })?;
        ensure!(cqe.status().is_success(), "discovery is refused: {}", cqe.status());
        let enable = u64::from(Cc::enabled(Cc::CSS_NVM).0);
        let set = Property::set(offset::CC, PropertySize::Four, enable);
        let (cqe, _) = self.command(set.into(), &[], 0)?;
        ensure!(cqe.status().is_success(), "not enabled: {}", cqe.status());
        let page = GetLogPage::new(Lid::DISCOVERY, 0, 0, u64::from(MESSAGE_ROOM));
        let (cqe, took) = self.command(page.encode(), &[], MESSAGE_ROOM)?;
        ensure!(cqe.status().is_success(), "no log: {}", cqe.status());
        Ok(took)
    }

    fn connect(&mut self, parties: &Parties) -> Result<(Cqe, f64)> {
        let id = HostId([0x5A; 16]);
        let data = ConnectData::new(id, &parties.host, &parties.subsystem, CNTLID_DYNAMIC);
        self.command(Connect::new(0, ENTRIES, 0).into(), data.as_bytes(), 0)
    }

    fn say(&mut self, message: &[u8]) -> Result<f64> {
        let length = u32::try_from(message.len())?;
        let (cqe, took) = self.command(Authentication::send(length).into(), message, 0)?;
        ensure!(cqe.status().is_success(), "a message was refused: {}", cqe.status());
        Ok(took)
    }

    fn hear(&mut self, host: &mut Host) -> Result<f64> {
        let receive = Authentication::receive(MESSAGE_ROOM, SglDescriptor::transport(MESSAGE_ROOM));
        let (cqe, took) = self.command(receive.into(), &[], MESSAGE_ROOM)?;
        ensure!(cqe.status().is_success(), "no message came: {}", cqe.status());
        let job = host.receive(&self.data, &mut |bytes| bytes.fill(7));
        ensure!(job.is_none(), "the null group comes first");
        Ok(took)
    }

    /// Its completion, and how long it took (STRANGER-1).
    fn command(&mut self, sqe: Sqe, data: &[u8], room: u32) -> Result<(Cqe, f64)> {
        let transfer = match (u32::try_from(data.len())?, room) {
            (0, 0) => Transfer::None,
            (0, room) => Transfer::ToHost(room),
            (len, _) => Transfer::ToController(len),
        };
        self.data.clear();
        let mut capsule = Vec::new();
        let put = |head: &[u8]| capsule.extend_from_slice(head);
        let slot = self.queue.submit(units::Instant(0), &sqe, transfer, None, put);
        ensure!(slot.is_some(), "a command is outstanding");
        capsule.extend_from_slice(data);
        let begin = Instant::now();
        self.stream.write_all(&capsule)?;
        match self.answer()? {
            (Event::Completed { cqe, .. }, came) => Ok((cqe, nanoseconds(came - begin))),
            (other, _) => Err(anyhow!("not a completion: {other:?}")),
        }
    }

    /// Takes in what comes until a command has ended or the greeting is over; when its last byte came.
    fn answer(&mut self) -> Result<(Event, Instant)> {
        let mut buffer = [0; 2 * MESSAGE_ROOM as usize];
        loop {
            let (count, came) = self.read(&mut buffer)?;
            ensure!(count > 0, "the server closed the connection");
            let mut bytes = &buffer[..count];
            let mut ended = None;
            loop {
                if let Some(payload) = self.queue.payload() {
                    let (data, rest) = bytes.split_at(bytes.len().min(payload.len as usize));
                    self.data.extend_from_slice(data);
                    self.queue.on_payload(data.len() as u32);
                    bytes = rest;
                }
                let (taken, event) = self.queue.on_bytes(bytes)?;
                bytes = &bytes[taken..];
                match event {
                    Some(event @ (Event::Ready | Event::Completed { .. })) => ended = Some(event),
                    None if taken == 0 => break,
                    Some(_) | None => {}
                }
            }
            if let Some(event) = ended {
                return Ok((event, came));
            }
        }
    }

    /// The next bytes, and when they came (STRANGER-2).
    fn read(&mut self, buffer: &mut [u8]) -> Result<(usize, Instant)> {
        let begin = Instant::now();
        loop {
            let outcome = self.stream.read(buffer);
            let now = Instant::now();
            match outcome {
                Ok(count) => return Ok((count, now)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    ensure!(now - begin < PATIENCE, "no answer after {PATIENCE:?}");
                    std::hint::spin_loop();
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn nanoseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64
}
