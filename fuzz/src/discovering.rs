//! A discovery service that lies plays against a whole host, which asks it for what it offers.
//!
//! Promises: nothing panics; the caller gets an answer or an error within its time limit, of a bounded length,
//! whatever the service says, and no connection stays open.

use std::cell::{Cell, RefCell};

use client::{Options, discover};
use io_traits::{Clock, Listener, Network, Spawn};
use nvme_wire::discovery::{DiscoveryLogEntry, DiscoveryLogHeader, SUBTYPE_NVM};
use nvme_wire::fabrics::{self, ConnectResult, Property};
use nvme_wire::log::GetLogPage;
use nvme_wire::property::{Cap, Csts, offset};
use nvme_wire::{AdminOpcode, FabricsType, Nqn, Sqe, Status};
use sim::SimWorld;
use units::Duration;
use zerocopy::IntoBytes;

use crate::input::Input;
use crate::liar::{Liar, Truth, completion, whole, wrong_answers};
use crate::portal;
use crate::session;

/// Time that the host gives.
const LIMIT: Duration = Duration::from_secs(5);
/// Entries that a host reads at most.
const ENTRIES_MAX: usize = 16_384;
/// Length of the log that the service has at least.
const LOG_MIN: usize = 5 * 1024;

struct Service {
    log: RefCell<Vec<u8>>,
    is_enabled: Cell<bool>,
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
            let service = Service { log, is_enabled: Cell::new(false) };
            serving.spawn(Liar::new(stream, input.0, service).serve());
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

impl Truth for Service {
    fn words(&self, sqe: &Sqe) -> Vec<u8> {
        let cid = sqe.cid.get();
        if sqe.opcode == AdminOpcode::GET_LOG_PAGE.0 {
            let page = GetLogPage::decode(sqe);
            return whole(cid, &self.part(page.offset as usize, page.len_bytes as usize));
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

    fn change(&self, at: u16, bits: u8) {
        self.log.borrow_mut()[usize::from(at) % LOG_MIN] ^= bits;
    }
}

impl Service {
    /// Returns `len` bytes of the log; after its end it begins again.
    fn part(&self, offset: usize, len: usize) -> Vec<u8> {
        self.log.borrow().iter().copied().cycle().skip(offset % LOG_MIN).take(len).collect()
    }
}

/// A service as it should be, with two records and with more than there are; each wrong answer to each command.
pub fn seeds() -> Vec<Vec<u8>> {
    let log = |records: u64| [&[1][..], &records.to_le_bytes()].concat();
    let mut all = vec![log(2), log(0), log(1000), log(u64::MAX)];
    all.extend(wrong_answers(&log(2), 10));
    all
}
