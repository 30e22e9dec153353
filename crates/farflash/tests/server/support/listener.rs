//! A host with a lasting connection to a discovery service: it waits to be told of changes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use nvme_wire::async_event::AsyncEvent;
use nvme_wire::discovery::{DiscoveryLogEntry, SUBTYPE_NVM};
use nvme_wire::fabrics::{
    CNTLID_DYNAMIC, CONNECT_DATA_LEN, Connect, ConnectData, Property, PropertySize,
};
use nvme_wire::feature::{ASYNC_CONFIG_DISCOVERY_CHANGE, Fid, SetFeatures};
use nvme_wire::log::{GetLogPage, Lid};
use nvme_wire::pdu::{CapsuleCmd, Digests, IcReq};
use nvme_wire::{AdminOpcode, Cqe, HostId, Nqn, SglDescriptor, Sqe, property};
use zerocopy::{FromBytes, IntoBytes};

use crate::support::PATIENCE;

/// CC of a host that enables a controller: EN, 64-byte and 16-byte queue entries.
const CC_ENABLE: u64 = 1 | 6 << 16 | 4 << 20;
/// Longer than any test.
const KEEP_ALIVE_MS: u32 = 3_600_000;
/// Header and entries of a log page, each.
const ENTRY_LEN: usize = 1024;
/// Entries that are read: more than a test has.
const ENTRIES: usize = 15;
/// The command that waits for an event.
const EVENT_CID: u16 = 0xE000;

pub struct Listener {
    stream: TcpStream,
    next_cid: u16,
}

/// The NQN of the host with this number.
pub fn name(number: u8) -> Nqn {
    Nqn::from_uuid(&[number; 16])
}

fn sqe(bytes: &[u8]) -> Sqe {
    Sqe::read_from_bytes(bytes).unwrap()
}

impl Listener {
    /// Connects to the discovery service at `address` as the host with this number, and asks to be told.
    pub fn new(address: SocketAddr, number: u8) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut listener = Self { stream, next_cid: 0 };
        listener.stream.write_all(IcReq::new(Digests::default(), 1).as_bytes()).unwrap();
        listener.hear(128);
        let mut connect = sqe(Connect::new(0, 32, KEEP_ALIVE_MS).as_bytes());
        connect.dptr = SglDescriptor::in_capsule(CONNECT_DATA_LEN);
        let id = HostId([number; 16]);
        let data = ConnectData::new(id, &name(number), &Nqn::DISCOVERY, CNTLID_DYNAMIC);
        listener.command(connect, data.as_bytes());
        let enable = Property::set(property::offset::CC, PropertySize::Four, CC_ENABLE);
        listener.command(sqe(enable.as_bytes()), &[]);
        let (fid, value) = (Fid::ASYNC_EVENT_CONFIG, ASYNC_CONFIG_DISCOVERY_CHANGE);
        let config = SetFeatures { fid, save: false, value, nsid: 0 };
        listener.command(config.encode(), &[]);
        listener.listen();
        listener
    }

    fn listen(&mut self) {
        self.say(EVENT_CID, Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, 0), &[]);
    }

    fn say(&mut self, cid: u16, mut sqe: Sqe, data: &[u8]) {
        sqe.cid = cid.into();
        let head = CapsuleCmd::new(sqe, data.len(), Digests::default(), 4);
        self.stream.write_all(&[head.as_bytes(), data].concat()).unwrap();
    }

    fn hear(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).expect("it says something");
        bytes
    }

    fn completion(&mut self) -> Cqe {
        let completion = Cqe::read_from_bytes(&self.hear(24)[8..]).unwrap();
        assert!(completion.status().is_success(), "{}", completion.status());
        completion
    }

    fn next_cid(&mut self) -> u16 {
        self.next_cid += 1;
        self.next_cid
    }

    /// Sends a command, and demands that its completion is what comes next.
    #[track_caller]
    fn command(&mut self, sqe: Sqe, data: &[u8]) {
        let cid = self.next_cid();
        self.say(cid, sqe, data);
        assert_eq!(self.completion().cid.get(), cid, "it is told of a change");
    }

    /// The volumes that it sees. From then on it is told of changes again.
    fn volumes(&mut self) -> Vec<Nqn> {
        let (cid, len) = (self.next_cid(), (1 + ENTRIES) * ENTRY_LEN);
        let log = GetLogPage::new(Lid::DISCOVERY, 0, 0, len as u64).encode();
        self.say(cid, log, &[]);
        self.hear(24);
        let log = self.hear(len);
        assert_eq!(self.completion().cid.get(), cid);
        let entries = log.chunks_exact(ENTRY_LEN).skip(1);
        let entries = entries.map(|entry| DiscoveryLogEntry::ref_from_bytes(entry).unwrap());
        let volumes = entries.filter(|entry| entry.subtype == SUBTYPE_NVM);
        volumes.map(|entry| entry.subsystem().unwrap()).collect()
    }

    /// Waits to be told until it sees what `fits`. Without a word it does not look.
    pub fn is_told(&mut self, fits: impl Fn(&[Nqn]) -> bool) {
        loop {
            let event = self.completion();
            assert_eq!(event.cid.get(), EVENT_CID);
            assert_eq!(event.dw0(), AsyncEvent::DISCOVERY_CHANGED.encode());
            let volumes = self.volumes();
            self.listen();
            if fits(&volumes) {
                return;
            }
        }
    }

    /// Demands that nothing was said to it so far.
    #[track_caller]
    pub fn is_not_told(&mut self) {
        self.command(Sqe::new(AdminOpcode::KEEP_ALIVE.0, 0), &[]);
    }
}
