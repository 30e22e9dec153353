//! Everything that a target may send, by an encoder that shares no code with the host (`wire_oracle`).
//!
//! Each seed is a connection: digests, alignment, MAXH2CDATA, sizes and offsets of R2Ts and of data PDUs, padding,
//! order of PDUs, and cuts. What the host sends is decoded by the oracle. `FARFLASH_TEST_SCALE` multiplies the seeds.

use std::collections::BTreeMap;
use std::ops::Range;

use nvme_initiator::{Config, Connection, ConnectionError, Event, R2tRequest, Transfer};
use nvme_wire::io::BlockCommand;
use nvme_wire::pdu::Digests;
use nvme_wire::{IoOpcode, Sqe, Status};
use units::{Duration, Instant};
use wire_oracle::crc::crc32c;
use wire_oracle::{Finding, Rng, Target, TargetFault, TargetSetup};

const BLOCKS: usize = 512;
const COMMANDS: usize = 14;

fn seeds(count: u64) -> Range<u64> {
    let scale = std::env::var("FARFLASH_TEST_SCALE").ok().and_then(|text| text.parse().ok());
    0..count * scale.unwrap_or(1_u64)
}

/// A command of the host's.
struct Flying {
    range: Range<usize>,
    opcode: IoOpcode,
    data: Vec<u8>,
    /// The data that a read has brought, and the offset at which the last data PDU began.
    received: Vec<u8>,
    pdu_start: usize,
    is_damaged: bool,
    must_differ: bool,
}

/// A host and the target at its other end.
struct Exchange {
    rng: Rng,
    connection: Connection,
    out: Vec<u8>,
    target: Target,
    each: usize,
    /// The content of the target, as the host knows.
    memory: Vec<u8>,
    flying: BTreeMap<u16, Flying>,
    left: usize,
    /// Data PDUs whose digest was wrong.
    damaged: usize,
}

impl Exchange {
    fn new(seed: u64, adjust: impl FnOnce(&mut TargetSetup)) -> Self {
        let mut rng = Rng::new(seed);
        let each = 512 + rng.pick(&[0, 0, 8, 64]);
        let memory = rng.bytes(BLOCKS * each);
        let mut setup = TargetSetup::draw(&mut rng);
        adjust(&mut setup);
        let digests = match setup.fault {
            Some(TargetFault::HeaderBit) => Digests { header: true, data: rng.one_in(2) },
            _ => Digests { header: !rng.one_in(3), data: !rng.one_in(3) },
        };
        let config = Config {
            digests,
            depth: rng.between(1, 9) as u16,
            command_timeout: Duration::from_secs(10),
            in_capsule_max: rng.pick(&[0, 4096, 8192, 5000]) as u32,
        };
        let mut out = Vec::new();
        let connection = Connection::new(&config, |bytes| out.extend_from_slice(bytes));
        let target = Target::new(rng.next_u64(), setup, memory.clone(), each);
        let flying = BTreeMap::new();
        Self { rng, connection, out, target, each, memory, flying, left: COMMANDS, damaged: 0 }
    }

    /// Goes on until all commands have ended, or the target has broken a rule.
    fn run(&mut self) -> Result<(), Finding> {
        loop {
            while self.connection.is_ready() && self.left > 0 && !self.rng.one_in(4) {
                if !self.submit() {
                    break;
                }
            }
            let out = std::mem::take(&mut self.out);
            self.connection.handed_over();
            for chunk in out.chunks(self.rng.pick(&[1, 100, 1460, 65_536])) {
                self.target.on_bytes(chunk)?;
            }
            let Some(chunk) = self.target.next_chunk() else {
                if self.target.broken.is_some() {
                    return Err("the host did not notice".to_owned());
                }
                if self.left == 0 && self.flying.is_empty() {
                    return self.check_end();
                }
                continue;
            };
            if let Err(error) = self.feed(&chunk)? {
                return self.check_refusal(&error);
            }
        }
    }

    fn check_end(&self) -> Result<(), Finding> {
        let damaged: usize = self.target.damaged.values().sum();
        if self.damaged != damaged {
            return Err(format!("{damaged} data PDUs were damaged, {} were noticed", self.damaged));
        }
        if self.memory != self.target.memory {
            return Err("the target holds what was not written".to_owned());
        }
        Ok(())
    }

    /// The host ended the connection: it must have had a reason, and say so.
    fn check_refusal(&mut self, error: &ConnectionError) -> Result<(), Finding> {
        let fault = self.target.broken.ok_or_else(|| format!("without a reason: {error}"))?;
        let term = self.connection.term_req(error).ok_or("no H2CTermReq")?;
        let fes = u16::from_le_bytes([term[8], term[9]]);
        let allowed: &[u16] = match fault {
            TargetFault::HeaderBit => &[3],
            TargetFault::CommandIdentifier
            | TargetFault::DataLength
            | TargetFault::DataUnaligned => &[1],
            TargetFault::DataOffset => &[2, 4],
            TargetFault::R2tOffset => &[1, 2],
        };
        if !allowed.contains(&fes) {
            return Err(format!("{fault:?} is refused with FES {fes}: {error}"));
        }
        self.target.on_bytes(&term)
    }

    /// Submits a command on blocks that no other is about; whether there was room.
    fn submit(&mut self) -> bool {
        let count = self.rng.pick(&[1, 1, 2, 8, 9, 16, 33, 100]);
        let start = self.rng.between(0, BLOCKS - count);
        let range = start * self.each..(start + count) * self.each;
        let overlaps =
            |other: &Flying| other.range.start < range.end && range.start < other.range.end;
        if self.flying.values().any(overlaps) {
            return false;
        }
        let opcode =
            self.rng.pick(&[IoOpcode::READ, IoOpcode::WRITE, IoOpcode::WRITE, IoOpcode::COMPARE]);
        let mut must_differ = false;
        let data = match opcode {
            IoOpcode::READ => Vec::new(),
            IoOpcode::WRITE => self.rng.bytes(range.len()),
            _ => {
                let mut data = self.memory[range.clone()].to_vec();
                must_differ = self.rng.one_in(2);
                let at = self.rng.between(0, data.len() - 1);
                data[at] ^= u8::from(must_differ);
                data
            }
        };
        let len = range.len() as u32;
        let transfer = match opcode {
            IoOpcode::READ => Transfer::ToHost(len),
            _ => Transfer::ToController(len),
        };
        let sqe = BlockCommand::new(start as u64, count as u32).encode(opcode, 1, 0);
        let out = &mut self.out;
        let connection = &mut self.connection;
        let submitted = connection
            .submit(Instant(0), &sqe, transfer, None, |header| out.extend_from_slice(header));
        let Some(slot) = submitted else { return false };
        self.put_in_capsule(&sqe, transfer, &data);
        let (received, pdu_start, is_damaged) = (Vec::new(), 0, false);
        let flying = Flying { range, opcode, data, received, pdu_start, is_damaged, must_differ };
        assert!(self.flying.insert(slot, flying).is_none(), "slot {slot} is free");
        self.left -= 1;
        true
    }

    fn put_in_capsule(&mut self, sqe: &Sqe, transfer: Transfer, data: &[u8]) {
        let Transfer::ToController(len) = transfer else { return };
        if self.connection.sends_in_capsule(sqe, len) {
            self.out.extend_from_slice(data);
            if self.connection.digests().data {
                self.out.extend_from_slice(&crc32c(data).to_le_bytes());
            }
        }
    }

    /// Takes in what the target sent; inside, whether the host takes it.
    fn feed(&mut self, mut bytes: &[u8]) -> Result<Result<(), ConnectionError>, Finding> {
        loop {
            if let Some(payload) = self.connection.payload() {
                let len = bytes.len().min(payload.len as usize);
                let (data, rest) = bytes.split_at(len);
                bytes = rest;
                let flying = self.flying.get_mut(&payload.slot).ok_or("data of no command")?;
                if flying.received.len() != payload.offset as usize {
                    return Err(format!("{payload:?} behind {} bytes", flying.received.len()));
                }
                flying.received.extend_from_slice(data);
                self.connection.on_payload(len as u32);
                if len < payload.len as usize {
                    return Ok(Ok(()));
                }
                continue;
            }
            let (taken, event) = match self.connection.on_bytes(bytes) {
                Ok(progress) => progress,
                Err(error) => return Ok(Err(error)),
            };
            bytes = &bytes[taken..];
            match event {
                None => return Ok(Ok(())),
                Some(event) => self.on_event(event)?,
            }
        }
    }

    fn on_event(&mut self, event: Event) -> Result<(), Finding> {
        match event {
            Event::Ready => {
                let digests = self.connection.digests();
                let agreed = self.target.digests();
                if (digests.header, digests.data) != (agreed.header, agreed.data) {
                    return Err(format!("{digests:?} instead of {agreed:?}"));
                }
            }
            Event::Data(payload) => {
                let flying = self.flying.get_mut(&payload.slot).ok_or("data of no command")?;
                flying.pdu_start = payload.offset as usize;
            }
            Event::DataDigest { slot, received } => {
                let flying = self.flying.get_mut(&slot).ok_or("a digest of no command")?;
                if crc32c(&flying.received[flying.pdu_start..]) != received {
                    flying.is_damaged = true;
                    self.damaged += 1;
                }
            }
            Event::R2t(request) => self.answer(request)?,
            Event::Completed { slot, cqe, .. } => {
                let flying = self.flying.remove(&slot).ok_or("a completion of no command")?;
                self.complete(&flying, cqe.status())?;
            }
        }
        Ok(())
    }

    fn answer(&mut self, request: R2tRequest) -> Result<(), Finding> {
        let flying = self.flying.get(&request.slot).ok_or("an R2T for no command")?;
        for pdu in self.connection.h2c_pdus(request) {
            let data = &flying.data[pdu.offset as usize..][..pdu.len as usize];
            self.out.extend_from_slice(pdu.header.as_bytes());
            self.out.extend_from_slice(data);
            if self.connection.digests().data {
                self.out.extend_from_slice(&crc32c(data).to_le_bytes());
            }
        }
        Ok(())
    }

    fn complete(&mut self, flying: &Flying, status: Status) -> Result<(), Finding> {
        let expected = if flying.must_differ { Status::COMPARE_FAILURE } else { Status::SUCCESS };
        if status.code() != expected {
            return Err(format!("{status:?} instead of {expected:?}"));
        }
        let there = &mut self.memory[flying.range.clone()];
        match flying.opcode {
            IoOpcode::WRITE => there.copy_from_slice(&flying.data),
            IoOpcode::READ if !flying.is_damaged && *there != flying.received => {
                return Err(format!("{:?} is read wrong", flying.range));
            }
            _ => {}
        }
        Ok(())
    }
}

fn run_all(seeds: Range<u64>, adjust: impl Fn(&mut TargetSetup)) -> BTreeMap<&'static str, usize> {
    let mut reached = BTreeMap::new();
    for seed in seeds {
        let mut exchange = Exchange::new(seed, &adjust);
        exchange.run().unwrap_or_else(|finding| panic!("seed {seed}: {finding}"));
        for (situation, count) in exchange.target.reached() {
            *reached.entry(*situation).or_default() += count;
        }
        let is_broken = exchange.target.broken.is_some();
        *reached.entry("a fault that was refused").or_default() += usize::from(is_broken);
    }
    reached
}

#[test]
fn what_is_written_at_any_r2ts_is_what_is_read_in_any_pdus() {
    let mut reached = run_all(seeds(1000), |_| {});
    println!("{reached:#?}");
    reached.remove("a fault that was refused");
    for (situation, count) in reached {
        assert!(count >= 20, "{situation}: {count} times");
    }
}

/// The digest that is reported for a damaged data PDU is not that of the data.
#[test]
fn damaged_data_is_reported() {
    let reached = run_all(seeds(400), |setup| setup.damaged_one_in = 6);
    assert!(reached["a damaged data PDU"] > 200, "{reached:?}");
}

/// Method: each fault once in a drawn exchange, at a PDU that is drawn, too.
#[test]
fn a_broken_rule_ends_the_connection() {
    for fault in TargetFault::ALL {
        let reached = run_all(seeds(100), |setup| {
            setup.digests.header |= fault == TargetFault::HeaderBit;
            setup.fault = Some(fault);
        });
        let refused = reached["a fault that was refused"];
        assert!(refused >= 30, "{fault:?}: {refused}");
    }
}
