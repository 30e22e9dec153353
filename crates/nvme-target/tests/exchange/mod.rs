//! A host of `wire_oracle` and a target over memory, and the bytes between them.

use nvme_target::Limits;
use nvme_wire::Nqn;
use units::MetadataSize;
use wire_oracle::{Finding, Host, Identity, Image, Namespace, Queue, Rng, Setup};

use crate::driver::{CNTLID, Driver, UUID, Volume, host};

const BLOCKS: usize = 96;

/// A connection of I/O queue 1 and the target at its other end.
pub(crate) struct Exchange {
    rng: Rng,
    pub(crate) host: Host,
    pub(crate) target: Driver,
    /// The bytes of answers that the host has not received yet.
    unseen: Vec<u8>,
}

impl Exchange {
    /// Draws a connection from `seed`, after `adjust` has had its say.
    pub(crate) fn new(seed: u64, adjust: impl FnOnce(&mut Setup, &mut Rng)) -> Self {
        let mut rng = Rng::new(seed);
        let metadata = rng.pick(&[
            MetadataSize::None,
            MetadataSize::None,
            MetadataSize::Bytes8,
            MetadataSize::Bytes16,
            MetadataSize::Bytes64,
        ]);
        let limits = Limits {
            in_capsule_bytes_max: rng.pick(&[4096, 8192, 16 << 10, 12_292]),
            h2c_data_bytes_max: rng.pick(&[4096, 4100, 8192, 65_536, 1 << 20]),
            ..Limits::default()
        };
        let namespace = Namespace {
            metadata: metadata.bytes(),
            in_capsule_max: limits.in_capsule_bytes_max as usize,
            transfer_blocks_max: 256,
        };
        let identity = Identity {
            hostid: [9; 16],
            hostnqn: host().to_string(),
            subnqn: Nqn::from_uuid(&UUID).to_string(),
        };
        let queue = Queue::Io { qid: 1, cntlid: CNTLID };
        let mut setup = Setup::draw(&mut rng, &identity, queue, namespace);
        adjust(&mut setup, &mut rng);
        let mut target = Driver::with_limits(&limits).with_controller();
        target.volume = Volume::new(BLOCKS as u64, metadata);
        target.grants = rng.one_in(2);
        let host = Host::new(rng.next_u64(), setup, Image::new(BLOCKS, namespace.each()));
        Self { rng, host, target, unseen: Vec::new() }
    }

    /// Goes on until the host is done.
    pub(crate) fn run(&mut self) -> Result<(), Finding> {
        while !self.host.is_done() {
            let chunk = self.host.next_chunk();
            if let Some(chunk) = &chunk {
                self.target.feed(chunk);
            }
            // Memory is found for a part of the data now, for more later.
            let is_open = self.target.closed.is_none();
            if is_open && (chunk.is_none() || self.rng.one_in(4)) {
                let piece = self.rng.pick(&[1 << 20, 4096, 8192, 5000, 1111, 40_000, 4104]);
                self.target.grant_some(piece);
            }
            self.unseen.append(&mut self.target.out);
            if chunk.is_none() && self.unseen.is_empty() && self.target.closed.is_none() {
                return Err("neither side goes on".to_owned());
            }
            if chunk.is_none() || self.rng.one_in(2) {
                self.host.on_bytes(&std::mem::take(&mut self.unseen))?;
            }
            if let Some(reason) = self.target.closed {
                self.host.on_bytes(&std::mem::take(&mut self.unseen))?;
                self.host.on_close().map_err(|finding| format!("{finding} ({reason})"))?;
            }
        }
        match self.host.image().first_wrong(0, &self.target.volume.bytes) {
            Some(block) => Err(format!("block {block} holds what was not written")),
            None => Ok(()),
        }
    }
}
