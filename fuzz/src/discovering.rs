//! A discovery service that lies plays against a whole host, which asks it for what it offers.
//!
//! Promises: nothing panics; whoever asks has an answer or an error within the time he gave, of a bounded length, whatever the
//! service says, and no connection stays open.

use std::cell::{Cell, RefCell};

use client::{Options, discover};
use io_traits::{Clock, Listener, Network, SendBatch, Spawn, Stream};
use nvme_wire::discovery::{DiscoveryLogEntry, DiscoveryLogHeader, SUBTYPE_NVM};
use nvme_wire::fabrics::{self, ConnectResult, Property};
use nvme_wire::log::GetLogPage;
use nvme_wire::pdu::{C2hData, CapsuleResp, CommonHeader, Digests, IcResp, PduFlags, PduType};
use nvme_wire::property::{Cap, Csts, offset};
use nvme_wire::{AdminOpcode, Cqe, FabricsType, Nqn, Sqe, Status};
use sim::{SimStream, SimWorld};
use units::Duration;
use zerocopy::{FromBytes, IntoBytes};

use crate::input::Input;
use crate::portal;
use crate::session;

/// Time that the host gives.
const LIMIT: Duration = Duration::from_secs(5);
/// Entries that a host reads at most.
const ENTRIES_MAX: usize = 16_384;
/// Commands that the service answers before it falls silent: it may say that it has more records than can be read.
const ANSWERS_MAX: usize = 64;
/// Length of the log that the service has at least.
const LOG_MIN: usize = 5 * 1024;

/// How the service answers a command, by the next byte of its input.
mod answer {
    /// As it should be.
    pub(super) const RIGHT: u8 = 0;
    /// That it is done, without data or anything.
    pub(super) const BARE: u8 = 1;
    /// With less data, or data elsewhere: where, how much, and the flags.
    pub(super) const ASKEW: u8 = 2;
    /// With a status.
    pub(super) const STATUS: u8 = 3;
    /// With bytes as they are.
    pub(super) const RAW: u8 = 4;
    /// It closes.
    pub(super) const CLOSE: u8 = 5;
    /// It says nothing.
    pub(super) const SILENCE: u8 = 6;
    /// The log changes: where, and how; then as it should be.
    pub(super) const CHANGE: u8 = 7;
    /// How many there are.
    pub(super) const COUNT: u8 = 8;
}

struct Service {
    stream: SimStream,
    steps: RefCell<Vec<u8>>,
    log: RefCell<Vec<u8>>,
    is_enabled: Cell<bool>,
    answers_left: Cell<usize>,
}

/// The input is how many records the log says it has, then how each command is answered.
pub fn run(bytes: &[u8]) {
    session::play(|world| scenario(world, bytes.to_vec()));
}

async fn scenario(world: SimWorld, bytes: Vec<u8>) {
    let is_honest = bytes == [&[1][..], &2_u64.to_le_bytes()].concat();
    let listener = world.listen(portal()).expect("a free address");
    let serving = world.clone();
    world.spawn(async move {
        while let Ok(stream) = listener.accept().await {
            let mut input = Input(&bytes);
            let log = RefCell::new(log(&mut input));
            let service = Service {
                stream,
                steps: RefCell::new(input.0.to_vec()),
                log,
                is_enabled: Cell::new(false),
                answers_left: Cell::new(ANSWERS_MAX),
            };
            serving.spawn(service.serve());
        }
    });
    let options = Options {
        discovery_timeout: LIMIT,
        header_digest: false,
        data_digest: false,
        ..Options::for_host([9; 16])
    };
    let begin = world.now();
    let found = discover(world.clone(), portal(), options).await;
    assert!(world.now().since(begin) <= LIMIT + Duration::from_secs(1), "it took too long");
    let found = found.map_or(0, |all| all.len());
    assert!(found <= ENTRIES_MAX, "more than anybody reads");
    assert!(found == 2 || !is_honest, "{found} of two");
}

/// Two records, and as many more as the input says there are.
fn log(input: &mut Input<'_>) -> Vec<u8> {
    let (generation, records) = (input.u8(), u64::from_le_bytes(input.array()));
    let header = DiscoveryLogHeader::new(generation.into(), records);
    let entry = |n| DiscoveryLogEntry::tcp(SUBTYPE_NVM, &Nqn::from_uuid(&[n; 16]), portal());
    let mut log = [header.as_bytes(), entry(1).as_bytes(), entry(2).as_bytes()].concat();
    log.resize(LOG_MIN, 0);
    log
}

impl Service {
    async fn serve(self) {
        let mut heard = Vec::new();
        while let Ok(chunk) = self.stream.recv().await {
            heard.extend_from_slice(&chunk);
            while let Some(common) = CommonHeader::from_prefix(&heard) {
                let length = common.plen.get() as usize;
                if heard.len() < length {
                    break;
                }
                let pdu: Vec<u8> = heard.drain(..length).collect();
                if self.answer(&common, &pdu).await.is_none() {
                    return self.stream.shutdown();
                }
            }
        }
    }

    /// `None` if the service is to close.
    async fn answer(&self, common: &CommonHeader, pdu: &[u8]) -> Option<()> {
        let layout = common.layout(Digests::default(), 4).ok()?;
        if layout.pdu_type == PduType::IcReq {
            return self.say(IcResp::new(Digests::default(), 4096).as_bytes()).await;
        }
        if layout.pdu_type != PduType::CapsuleCmd {
            return None;
        }
        let sqe = Sqe::read_from_bytes(&pdu[8..72]).expect("64 bytes");
        self.answers_left.set(self.answers_left.get().checked_sub(1)?);
        let bytes = {
            let steps = self.steps.take();
            let mut input = Input(&steps);
            let bytes = self.words(&sqe, &mut input);
            self.steps.replace(input.0.to_vec());
            bytes
        };
        self.say(&bytes?).await
    }

    async fn say(&self, bytes: &[u8]) -> Option<()> {
        let mut batch = SendBatch::new();
        batch.push_bytes(bytes);
        self.stream.send(batch).await.ok().map(drop)
    }

    /// What the service says to a command.
    fn words(&self, sqe: &Sqe, input: &mut Input<'_>) -> Option<Vec<u8>> {
        let cid = sqe.cid.get();
        Some(match input.u8() % answer::COUNT {
            answer::RIGHT => self.right(sqe),
            answer::BARE => completion(cid, Status::SUCCESS, 0),
            answer::ASKEW => {
                let (offset, len) = (input.u16().into(), input.u16().into());
                data(cid, (offset, len), PduFlags(input.u8()), &self.part(0, len))
            }
            answer::STATUS => completion(cid, Status::from_field(input.u16()), input.u32().into()),
            answer::RAW => {
                let len = usize::from(input.u8());
                input.bytes(len).to_vec()
            }
            answer::CLOSE => return None,
            answer::SILENCE => Vec::new(),
            answer::CHANGE => {
                let (at, change) = (usize::from(input.u16()) % LOG_MIN, input.u8());
                self.log.borrow_mut()[at] ^= change;
                self.right(sqe)
            }
            _ => unreachable!("all are named"),
        })
    }

    /// What it should say.
    fn right(&self, sqe: &Sqe) -> Vec<u8> {
        let cid = sqe.cid.get();
        if sqe.opcode == AdminOpcode::GET_LOG_PAGE.0 {
            let page = GetLogPage::decode(sqe);
            let len = u32::try_from(page.len_bytes).expect("a piece");
            let flags = PduFlags::LAST_PDU.union(PduFlags::SUCCESS);
            return data(cid, (0, len), flags, &self.part(page.offset as usize, len));
        }
        let result = match fabrics::fctype(sqe) {
            _ if sqe.opcode != fabrics::OPCODE => 0,
            FabricsType::CONNECT => ConnectResult::new(1).0.into(),
            FabricsType::PROPERTY_GET => match Property::from(*sqe).ofst.get() {
                offset::CAP => Cap::new(128, 20, Cap::CQR | Cap::CSS_NVM).0,
                offset::CSTS => Csts::new(self.is_enabled.get(), false, 0).0.into(),
                _ => 0,
            },
            _ => {
                self.is_enabled.set(true);
                0
            }
        };
        completion(cid, Status::SUCCESS, result)
    }

    /// `len` bytes of the log; behind its end it begins anew.
    fn part(&self, offset: usize, len: u32) -> Vec<u8> {
        self.log
            .borrow()
            .iter()
            .copied()
            .cycle()
            .skip(offset % LOG_MIN)
            .take(len as usize)
            .collect()
    }
}

fn completion(cid: u16, status: Status, result: u64) -> Vec<u8> {
    let cqe = Cqe::with_result(cid, status, result);
    CapsuleResp::new(cqe, Digests::default()).as_bytes().to_vec()
}

fn data(cid: u16, run: (u32, u32), flags: PduFlags, bytes: &[u8]) -> Vec<u8> {
    [C2hData::new(cid, run, flags, Digests::default(), 4).as_bytes(), bytes].concat()
}

/// A service as it should be, with two records and with more than there are; each wrong answer to each command.
pub fn seeds() -> Vec<Vec<u8>> {
    let log = |records: u64| [&[1][..], &records.to_le_bytes()].concat();
    let mut all = vec![log(2), log(0), log(1000), log(u64::MAX)];
    for wrong in answer::BARE..answer::COUNT {
        for right in 0..10 {
            let operands = [4, 0, 0, 2, 0x0C, 0, 0, 0];
            all.push([&log(2)[..], &vec![answer::RIGHT; right], &[wrong], &operands].concat());
        }
    }
    all
}
