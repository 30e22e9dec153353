//! Commands of a host to a whole server's discovery service in a simulated world: log pages of any offset and length, and any
//! other command among them, while volumes come and go.
//!
//! Promises: nothing panics; each command is answered once at most; nothing of a volume that the host may not open is in
//! what it is told; nothing of it all is left.

use std::cell::Cell;
use std::rc::Rc;

use access::Restrictions;
use io_traits::{Clock, Network, Spawn, Stream};
use nvme_frontend::{DiscoveryRecord, NvmeOptions, nqn_of};
use nvme_wire::log::{GetLogPage, Lid};
use nvme_wire::{AdminOpcode, Nqn, Sqe, Status};
use sim::{SimStream, SimWorld};
use test_hosts::cores::SimNvmeCore;
use units::Duration;
use uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

use crate::input::Input;
use crate::portal;
use crate::raw_host::{CAPSULE_RESP, RawHost, capsule, connect_command, enable_command, take_pdu};
use crate::session::{self, COMMANDS_MAX};

/// Volumes that come and go, by what the host may open: odd ones it may not.
const VOLUMES: u8 = 8;
/// Longer than a connection that is ending may take.
const ALL_IS_OVER: Duration = Duration::from_secs(30);

/// Kinds of the next step, by its first byte.
mod step {
    /// The host asks for a part of the log: its offset and its length in dwords.
    pub(super) const LOG: u8 = 0;
    /// It sends a command as it is, with as many bytes behind it.
    pub(super) const COMMAND: u8 = 1;
    /// A volume is announced: which.
    pub(super) const ANNOUNCE: u8 = 2;
    /// One is withdrawn.
    pub(super) const WITHDRAW: u8 = 3;
    /// So many microseconds pass.
    pub(super) const WAIT: u8 = 4;
    /// Number of kinds.
    pub(super) const COUNT: u8 = 5;
}

fn uuid(volume: u8) -> Uuid {
    Uuid::from_bytes([0xA0 + volume; 16])
}

/// Every second volume is for another host, or another network.
fn record(volume: u8) -> DiscoveryRecord {
    let mut restrictions = Restrictions::default();
    match volume % 4 {
        1 => restrictions.hosts = vec![Nqn::from_uuid(&[5; 16]).into()],
        3 => restrictions.networks = vec!["192.0.2.0/24".parse().expect("a network")],
        _ => {}
    }
    DiscoveryRecord { uuid: uuid(volume), addresses: vec![portal()], restrictions }
}

/// Runs the steps of `bytes`.
pub fn run(bytes: &[u8]) {
    session::play(|world| scenario(world, bytes.to_vec()));
}

async fn scenario(world: SimWorld, bytes: Vec<u8>) {
    let mut input = Input(&bytes);
    let core = SimNvmeCore::new(&world, NvmeOptions::new(portal()));
    let (listener, serving) = (world.listen(portal()).expect("a free address"), core.clone());
    world.spawn(async move { serving.serve(listener).await });
    (0..VOLUMES / 2).for_each(|volume| core.announce(record(volume)));
    let mut host = RawHost::greet(&world).await.expect("greeted");
    let (connect, data) = connect_command(0, 0xFFFF, &Nqn::DISCOVERY);
    for (sqe, data) in [(connect, &data[..]), (enable_command(), &[])] {
        let answer = host.command(sqe, data).await.expect("an answer");
        assert_eq!(answer.status(), Status::SUCCESS);
    }
    let (sent, heard) = (Cell::new(0), Rc::new(Cell::new(0)));
    let stream = host.stream.clone();
    world.spawn(listen(stream.clone(), heard.clone()));
    while sent.get() < COMMANDS_MAX && !input.is_empty() {
        let Some(bytes) = next(&mut input, 100 + sent.get(), &core, &world).await else { continue };
        sent.set(sent.get() + 1);
        if host.send(&bytes).await.is_err() {
            break;
        }
    }
    session::leave(&world, &core, &stream, (sent.get(), || heard.get()), ALL_IS_OVER).await;
}

/// Takes the next step; the command that the host sends, if it does.
async fn next(
    input: &mut Input<'_>,
    cid: u16,
    core: &SimNvmeCore,
    world: &SimWorld,
) -> Option<Vec<u8>> {
    match input.u8() % step::COUNT {
        step::LOG => {
            let (offset, dwords) = (input.u32(), u64::from(input.u16()) + 1);
            let page = GetLogPage::new(Lid::DISCOVERY, 0, offset.into(), dwords * 4);
            return Some(capsule(cid, page.encode(), &[]));
        }
        step::COMMAND => {
            let sqe = Sqe::read_from_bytes(&input.array::<64>()).expect("64 bytes");
            let len = usize::from(input.u16() & 0xFFF);
            return Some(capsule(cid, sqe, input.bytes(len)));
        }
        step::ANNOUNCE => core.announce(record(input.u8() % VOLUMES)),
        step::WITHDRAW => core.withdraw(uuid(input.u8() % VOLUMES)),
        _ => {
            let time = Duration::from_micros(input.u8().into());
            world.sleep_until(world.now() + time).await;
        }
    }
    None
}

/// Takes what the server says.
async fn listen(stream: SimStream, answers: Rc<Cell<u16>>) {
    let mut heard = Vec::new();
    let hidden: Vec<String> = (0..VOLUMES)
        .filter(|volume| volume % 2 == 1)
        .map(|n| nqn_of(uuid(n)).to_string())
        .collect();
    while let Ok(chunk) = stream.recv().await {
        heard.extend(chunk);
        while let Some((kind, data)) = take_pdu(&mut heard) {
            answers.set(answers.get() + u16::from(kind == CAPSULE_RESP));
            let text = String::from_utf8_lossy(&data);
            let told = hidden.iter().find(|nqn| text.contains(nqn.as_str()));
            assert!(told.is_none(), "a host is told of {told:?}");
        }
    }
}

/// The log read as a whole, in pieces and beyond its end, while it changes, and by a host that waits for that.
pub fn seeds() -> Vec<Vec<u8>> {
    let log = |offset: u32, len_bytes: u16| {
        [&[step::LOG][..], &offset.to_le_bytes(), &(len_bytes / 4 - 1).to_le_bytes()].concat()
    };
    let command = |sqe: Sqe| [&[step::COMMAND], sqe.as_bytes(), &[0, 0]].concat();
    let wait = vec![step::WAIT, 200];
    let announce = |volume| vec![step::ANNOUNCE, volume];
    let withdraw = |volume| vec![step::WITHDRAW, volume];
    let event = command(Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, 0));
    let events_on = nvme_wire::feature::SetFeatures {
        fid: nvme_wire::feature::Fid::ASYNC_EVENT_CONFIG,
        save: false,
        value: 1 << 31,
        nsid: 0,
    };
    let whole = [log(0, 1024), wait.clone(), log(1024, 4096), wait.clone()].concat();
    let indexed = GetLogPage { offset_is_index: true, ..GetLogPage::new(Lid::DISCOVERY, 0, 1, 64) };
    vec![
        whole.clone(),
        [log(0, 8192), log(1000, 40), log(2048, 1024), log(3 << 30, 1024)].concat(),
        [whole.clone(), announce(6), announce(7), whole.clone(), withdraw(0), whole].concat(),
        [command(events_on.encode()), event, wait.clone(), announce(5), announce(4), wait].concat(),
        [command(indexed.encode()), command(Sqe::new(AdminOpcode::KEEP_ALIVE.0, 0))].concat(),
    ]
}
