//! Everything that a host may send, by an encoder that shares no code with the target (`wire_oracle`).
//!
//! Each seed is a connection: digests, alignment, flow control, limits, metadata, commands, sizes and offsets of
//! their PDUs, padding, order, cuts, and how much of a command's data is asked for at once. What the target sends
//! is decoded by the oracle, which also knows what every block must hold. `FARFLASH_TEST_SCALE` multiplies the
//! seeds.

mod driver;

use std::collections::BTreeMap;

use driver::{CNTLID, Driver, UUID, Volume, host};
use nvme_target::{CloseReason, Limits};
use nvme_wire::Nqn;
use units::MetadataSize;
use wire_oracle::pdu::Digests;
use wire_oracle::{Fault, Finding, Host, Identity, Image, Namespace, Queue, Rng, Setup};

const BLOCKS: usize = 96;

fn seeds(count: u64) -> std::ops::Range<u64> {
    let scale = std::env::var("FARFLASH_TEST_SCALE").ok().and_then(|text| text.parse().ok());
    0..count * scale.unwrap_or(1_u64)
}

/// A connection of I/O queue 1 and the target at its other end.
struct Exchange {
    rng: Rng,
    host: Host,
    target: Driver,
    /// Where the answers that the host has seen end.
    unseen: Vec<u8>,
}

impl Exchange {
    /// Draws a connection from `seed`, after `adjust` has had its say.
    fn new(seed: u64, adjust: impl FnOnce(&mut Setup, &mut Rng)) -> Self {
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
    fn run(&mut self) -> Result<(), Finding> {
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

/// Runs all `seeds`, and counts the situations that they reach.
fn run_all(
    seeds: std::ops::Range<u64>,
    adjust: impl Fn(&mut Setup, &mut Rng),
) -> BTreeMap<&'static str, usize> {
    let mut reached = BTreeMap::new();
    for seed in seeds {
        let mut exchange = Exchange::new(seed, &adjust);
        if let Err(finding) = exchange.run() {
            panic!("seed {seed}: {finding}");
        }
        for (situation, count) in exchange.host.reached() {
            *reached.entry(*situation).or_default() += count;
        }
    }
    reached
}

#[test]
fn what_is_written_in_any_pdus_is_what_is_read() {
    let reached = run_all(seeds(1000), |_, _| {});
    println!("{reached:#?}");
    for (situation, count) in reached {
        assert!(count >= 20, "{situation}: {count} times");
    }
}

/// A damaged digest, or a damaged bit of data, costs its command alone.
#[test]
fn damaged_data_changes_nothing() {
    let reached = run_all(seeds(500), |setup, rng| {
        setup.digests = Digests { header: rng.one_in(2), data: true };
        setup.damaged_one_in = 5;
    });
    assert!(reached["a damaged data PDU"] > 200, "{reached:?}");
}

/// C4. Method: each fault once in a drawn exchange, at a PDU that is drawn, too.
#[test]
fn a_broken_rule_ends_the_connection_and_changes_nothing() {
    for fault in Fault::ALL {
        let reached = run_all(seeds(100), |setup, rng| {
            if fault.is_in_digested_header() {
                setup.digests = Digests { header: true, data: rng.one_in(2) };
            }
            setup.fault = Some(fault);
        });
        let refused = reached.get("a fault that was refused").copied().unwrap_or_default();
        assert!(refused >= 30, "{fault:?}: {refused}");
    }
}

/// A host that broke a rule is told so, and the reason is the one that it was told.
#[test]
fn the_reason_that_is_kept_is_the_one_that_the_host_is_told() {
    for seed in seeds(100) {
        let mut exchange = Exchange::new(seed, |setup, _| setup.fault = Some(Fault::TransferTag));
        exchange.run().unwrap_or_else(|finding| panic!("seed {seed}: {finding}"));
        if exchange.host.has_broken_a_rule() {
            let Some(CloseReason::Protocol(error)) = exchange.target.closed else {
                panic!("seed {seed}: {:?}", exchange.target.closed);
            };
            assert_eq!((error.fes().0, error.fei()), (1, 10), "seed {seed}");
        }
    }
}
