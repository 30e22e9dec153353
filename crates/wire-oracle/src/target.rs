//! One connection of a target: the mirror of [`crate::Host`].

use std::collections::{BTreeMap, VecDeque};

use crate::pdu::{self, Digests, Draft, LAST_PDU, Pdu, SUCCESS};
use crate::{Controller, Finding, Rng};

/// Least that an R2T asks for, but for the end of a command's data: hosts may refuse crumbs.
const R2T_BYTES_MIN: usize = 512;
const READ: u8 = 0x02;
const COMPARE: u8 = 0x05;
const ASYNC_EVENT_REQUEST: u8 = 0x0C;
const FABRICS: u8 = 0x7F;

/// A rule that a target breaks once. The host ends the connection with it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TargetFault {
    /// One bit of a header behind the common header, or of its digest. Takes header digests.
    HeaderBit,
    /// C2HData for a command that is not outstanding.
    CommandIdentifier,
    /// C2HData whose DATAO is not the next byte.
    DataOffset,
    /// C2HData whose DATAL is not the length of the data.
    DataLength,
    /// C2HData that does not begin at a multiple of four bytes.
    DataUnaligned,
    /// An R2T that does not ask for the next byte.
    R2tOffset,
}

impl TargetFault {
    /// Each fault.
    pub const ALL: [Self; 6] = [
        Self::HeaderBit,
        Self::CommandIdentifier,
        Self::DataOffset,
        Self::DataLength,
        Self::DataUnaligned,
        Self::R2tOffset,
    ];
}

/// The terms that a target agrees to, and the faults that it injects.
#[derive(Clone, Debug)]
pub struct TargetSetup {
    /// Digests that it agrees to, if the host asks for them.
    pub digests: Digests,
    /// CPDA, 0 to 31.
    pub cpda: u8,
    /// MAXH2CDATA.
    pub maxh2cdata: usize,
    /// True if SUCCESS may stand for a completion.
    pub may_succeed: bool,
    /// One in this many data PDUs is damaged; 0 for none.
    pub damaged_one_in: u64,
    /// A rule that is broken once.
    pub fault: Option<TargetFault>,
}

impl TargetSetup {
    /// Everything that the specification leaves to a controller, drawn by chance.
    #[must_use]
    pub fn draw(rng: &mut Rng) -> Self {
        Self {
            digests: Digests { header: !rng.one_in(3), data: !rng.one_in(3) },
            cpda: if rng.one_in(2) { 0 } else { rng.between(0, 31) as u8 },
            maxh2cdata: 4 * rng.pick(&[1024, 1025, 2048, 3333, 16_384, 1 << 18]),
            may_succeed: rng.one_in(2),
            damaged_one_in: 0,
            fault: None,
        }
    }
}

/// A command that the target works on.
struct Job {
    cid: u16,
    is_read: bool,
    /// First byte in the memory.
    at: usize,
    /// The data that is received or sent.
    data: Vec<u8>,
    /// Bytes that went, or that came.
    done: usize,
    /// Bytes that R2Ts asked for.
    solicited: usize,
    /// R2Ts that are outstanding: tag, first byte that has not come, and end.
    asked: VecDeque<(u16, usize, usize)>,
    is_compare: bool,
    wants_data: bool,
    /// Dwords 0 and 1 of its completion.
    result: u64,
}

/// One connection of a target over memory, from ICReq on.
///
/// It reads of a command its opcode, SGL and first block. A read is answered with the memory, a write goes there; a
/// Compare is answered with Compare Failure if it differs, everything else with success.
pub struct Target {
    setup: TargetSetup,
    rng: Rng,
    digests: Digests,
    /// Bytes that HPDA stands for.
    alignment: usize,
    maxr2t: usize,
    is_agreed: bool,
    incoming: Vec<u8>,
    pending: VecDeque<u8>,
    jobs: Vec<Job>,
    next_ttag: u16,
    each: usize,
    /// All blocks.
    pub memory: Vec<u8>,
    /// Commands of which some data was damaged.
    pub damaged: BTreeMap<u16, usize>,
    /// Answers Fabrics commands, and all that come before an I/O queue is connected.
    controller: Option<Controller>,
    /// The connection is an I/O queue. One without a controller is from the start.
    is_io: bool,
    /// A rule that was broken.
    pub broken: Option<TargetFault>,
    reached: BTreeMap<&'static str, usize>,
}

impl Target {
    /// A target over `memory`, blocks of `each` bytes.
    #[must_use]
    pub fn new(seed: u64, setup: TargetSetup, memory: Vec<u8>, each: usize) -> Self {
        Self {
            setup,
            rng: Rng::new(seed),
            digests: Digests::default(),
            alignment: 4,
            maxr2t: 0,
            is_agreed: false,
            incoming: Vec::new(),
            pending: VecDeque::new(),
            jobs: Vec::new(),
            next_ttag: 0,
            each,
            memory,
            damaged: BTreeMap::new(),
            controller: None,
            is_io: true,
            broken: None,
            reached: BTreeMap::new(),
        }
    }

    /// The same as a connection of `controller`, which a host connects to, enables and identifies. Until the Connect of
    /// an I/O queue nothing is damaged.
    #[must_use]
    pub fn with_controller(mut self, controller: Controller) -> Self {
        (self.controller, self.is_io) = (Some(controller), false);
        self
    }

    /// Returns true if the connection is an I/O queue.
    #[must_use]
    pub fn is_io(&self) -> bool {
        self.is_io
    }

    /// Situations that were reached, and how often.
    #[must_use]
    pub fn reached(&self) -> &BTreeMap<&'static str, usize> {
        &self.reached
    }

    /// Digests agreed on.
    #[must_use]
    pub fn digests(&self) -> Digests {
        self.digests
    }

    fn mark(&mut self, situation: &'static str, is_reached: bool) {
        *self.reached.entry(situation).or_default() += usize::from(is_reached);
    }

    /// The next chunk for the host; `None` if the target waits for it.
    pub fn next_chunk(&mut self) -> Option<Vec<u8>> {
        let ahead = self.rng.between(1, 64 << 10);
        while self.pending.len() < ahead && self.put_next() {}
        if self.pending.is_empty() {
            return None;
        }
        let longest = self.rng.pick(&[7, 100, 1460, 64 << 10]).min(self.pending.len());
        let len = self.rng.between(1, longest);
        Some(self.pending.drain(..len).collect())
    }

    /// Takes in bytes from the host.
    pub fn on_bytes(&mut self, bytes: &[u8]) -> Result<(), Finding> {
        self.incoming.extend_from_slice(bytes);
        let alignment = if self.is_agreed { 4 * (usize::from(self.setup.cpda) + 1) } else { 4 };
        while let Some(pdu) = pdu::take(&mut self.incoming, self.digests, alignment)? {
            match pdu.kind {
                pdu::IC_REQ if !self.is_agreed => self.on_ic_req(&pdu)?,
                pdu::CAPSULE_CMD if self.is_agreed => self.on_capsule(&pdu)?,
                pdu::H2C_DATA if self.is_agreed => self.on_data(&pdu)?,
                pdu::H2C_TERM_REQ if self.broken.is_some() => {}
                _ => return Err(format!("out of sequence: {:02x?} {:02x?}", pdu.header, pdu.data)),
            }
        }
        Ok(())
    }

    fn on_ic_req(&mut self, pdu: &Pdu) -> Result<(), Finding> {
        let header = &pdu.header;
        let reserved = header[16..].iter().all(|byte| *byte == 0);
        if pdu.u16_at(8) != 0 || header[10] > 31 || header[11] > 3 || !reserved {
            return Err(format!("ICReq: {header:02x?}"));
        }
        self.alignment = 4 * (usize::from(header[10]) + 1);
        self.maxr2t = pdu.u32_at(12) as usize;
        let wanted = Digests { header: header[11] & 1 != 0, data: header[11] & 2 != 0 };
        let agreed = Digests {
            header: wanted.header && self.setup.digests.header,
            data: wanted.data && self.setup.digests.data,
        };
        let mut own = [0; 120];
        own[2] = self.setup.cpda;
        own[3] = u8::from(agreed.header) | u8::from(agreed.data) << 1;
        own[4..8].copy_from_slice(&(self.setup.maxh2cdata as u32).to_le_bytes());
        self.put(pdu::IC_RESP, 0, &own, &[]);
        self.digests = agreed;
        self.is_agreed = true;
        Ok(())
    }

    fn on_capsule(&mut self, pdu: &Pdu) -> Result<(), Finding> {
        let (sqe, wrong) =
            (&pdu.header[8..72], |what: &str| format!("{what}: {:02x?}", pdu.header));
        let cid = u16::from_le_bytes([sqe[2], sqe[3]]);
        if self.jobs.iter().any(|job| job.cid == cid) {
            return Err(wrong("identifier of an outstanding command"));
        }
        let len = u32::from_le_bytes(sqe[32..36].try_into().expect("four bytes")) as usize;
        let slba = u64::from_le_bytes(sqe[40..48].try_into().expect("eight bytes")) as usize;
        let (is_read, is_in_capsule) = (sqe[0] == READ, sqe[39] == 0x01);
        let descriptor_is_right = match sqe[39] {
            0x01 => sqe[24..32] == [0; 8] && len == pdu.data.len(),
            0x5A => pdu.data.is_empty(),
            _ => len == 0 && pdu.data.is_empty(),
        };
        if sqe[1] & 0xC0 != 0x40 || !descriptor_is_right {
            return Err(wrong("PSDT or SGL"));
        }
        if self.controller.is_some() && (sqe[0] == FABRICS || !self.is_io) {
            self.answer(sqe, len);
            return Ok(());
        }
        let at = slba * self.each;
        let moves_data = sqe[0] & 3 == 1 || is_read;
        if moves_data && at + len > self.memory.len() {
            return Err(wrong("blocks that are not there"));
        }
        let mut data = if is_read { self.memory[at..at + len].to_vec() } else { pdu.data.clone() };
        let wants_data = moves_data && !is_read && !is_in_capsule;
        if wants_data {
            data = vec![0; len];
        }
        let done = if is_read || wants_data { 0 } else { data.len() };
        let (solicited, asked, is_compare) = (0, VecDeque::new(), sqe[0] == COMPARE);
        let result = 0;
        let job =
            Job { cid, is_read, at, data, done, solicited, asked, is_compare, wants_data, result };
        self.jobs.push(job);
        Ok(())
    }

    /// Answers what connects, enables and identifies.
    fn answer(&mut self, sqe: &[u8], len: usize) {
        let controller = self.controller.as_mut().expect("there is one");
        let cid = u16::from_le_bytes([sqe[2], sqe[3]]);
        let answer = if sqe[0] == FABRICS {
            self.is_io |= sqe[4] == 0x01 && sqe[42..44] != [0; 2];
            controller.fabrics(sqe)
        } else if sqe[0] == ASYNC_EVENT_REQUEST {
            // There is never an event.
            return;
        } else {
            let is_to_host = sqe[0] & 3 == 2;
            controller.admin(sqe, if is_to_host { len } else { 0 })
        };
        self.jobs.push(Job {
            cid,
            is_read: !answer.data.is_empty(),
            at: 0,
            data: answer.data,
            done: 0,
            solicited: 0,
            asked: VecDeque::new(),
            is_compare: false,
            wants_data: false,
            result: answer.result,
        });
    }

    fn on_data(&mut self, pdu: &Pdu) -> Result<(), Finding> {
        let wrong = |what: &str| Err(format!("{what}: {:02x?}", pdu.header));
        let (cid, ttag) = (pdu.u16_at(8), pdu.u16_at(10));
        let (offset, len) = (pdu.u32_at(12) as usize, pdu.u32_at(16) as usize);
        let Some(job) = self.jobs.iter_mut().find(|job| job.cid == cid) else {
            return wrong("CCCID");
        };
        let Some((tag, at, end)) = job.asked.front_mut() else {
            return wrong("no R2T is outstanding");
        };
        if *tag != ttag {
            return wrong("TTAG");
        }
        if len != pdu.data.len() || len > self.setup.maxh2cdata {
            return wrong("DATAL");
        }
        if offset != *at || offset + len > *end {
            return wrong("DATAO");
        }
        if (pdu.flags & LAST_PDU != 0) != (offset + len == *end) {
            return wrong("LAST_PDU");
        }
        if pdu.u32_at(20) != 0 {
            return wrong("reserved bytes");
        }
        job.data[offset..offset + len].copy_from_slice(&pdu.data);
        job.done += len;
        *at += len;
        if *at == *end {
            job.asked.pop_front();
        }
        Ok(())
    }

    /// Puts one more PDU into the stream; whether there was one to be sent.
    fn put_next(&mut self) -> bool {
        if self.broken.is_some() {
            return false;
        }
        let ready: Vec<usize> = (0..self.jobs.len())
            .filter(|index| {
                let job = &self.jobs[*index];
                let may_ask = job.wants_data
                    && job.solicited < job.data.len()
                    && job.asked.len() <= self.maxr2t;
                job.is_read || may_ask || job.done == job.data.len()
            })
            .collect();
        if ready.is_empty() {
            return false;
        }
        let index = self.rng.pick(&ready);
        let job = &self.jobs[index];
        if job.is_read && job.done < job.data.len() {
            self.put_data(index);
        } else if job.done < job.data.len() {
            self.put_r2t(index);
        } else {
            self.put_completion(index);
        }
        true
    }

    fn put_data(&mut self, index: usize) {
        let Job { cid, done, .. } = self.jobs[index];
        let left = self.jobs[index].data.len() - done;
        let len = match self.rng.between(0, 5) {
            0 => left,
            1 if left < 8192 => self.rng.between(1, 8),
            2 => 4096 * self.rng.between(1, 4),
            3 => 4096 - done % 4096,
            _ => self.rng.between(1, left),
        };
        let len = len.min(left);
        let is_last = len == left;
        let is_success = is_last && self.setup.may_succeed && self.rng.one_in(2);
        let mut flags = if is_last { LAST_PDU } else { 0 };
        flags |= if is_success { SUCCESS } else { 0 };
        let data = self.jobs[index].data[done..done + len].to_vec();
        let mut own = [0; 16];
        own[..2].copy_from_slice(&cid.to_le_bytes());
        own[4..8].copy_from_slice(&(done as u32).to_le_bytes());
        own[8..12].copy_from_slice(&(len as u32).to_le_bytes());
        self.mark("data that begins within a block", done % 4096 != 0);
        self.mark("several data PDUs of a read", done > 0);
        if self.break_rule(&mut own, &data, flags) {
            return;
        }
        let start = self.pending.len();
        self.put(pdu::C2H_DATA, flags, &own, &data);
        let one_in = self.setup.damaged_one_in;
        if self.is_io && self.digests.data && one_in > 0 && self.rng.one_in(one_in) {
            let end = self.pending.len();
            let first = if self.rng.one_in(4) { end - 4 } else { end - 4 - len };
            let at = self.rng.between(first.max(start), end - 1);
            self.pending[at] ^= 1 << self.rng.between(0, 7);
            *self.damaged.entry(cid).or_default() += 1;
            self.mark("a damaged data PDU", true);
        }
        self.jobs[index].done += len;
        if is_success {
            self.mark("SUCCESS", true);
            self.jobs.swap_remove(index);
        } else if is_last {
            // What is left is the completion.
            let job = &mut self.jobs[index];
            (job.is_read, job.done) = (false, 0);
            job.data.clear();
        }
    }

    /// Breaks the rule that is to be broken, if it concerns C2HData.
    fn break_rule(&mut self, own: &mut [u8; 16], data: &[u8], flags: u8) -> bool {
        let Some(fault) = self.setup.fault.filter(|_| self.rng.one_in(4)) else { return false };
        let mut pdo = pdu::data_offset(24, self.digests, self.alignment);
        match fault {
            TargetFault::HeaderBit if !self.digests.header => return false,
            TargetFault::R2tOffset => return false,
            TargetFault::HeaderBit => {}
            TargetFault::CommandIdentifier => own[self.rng.between(0, 1)] ^= 0x80,
            TargetFault::DataOffset => own[4] ^= 1 << self.rng.between(0, 7),
            TargetFault::DataLength => own[8] ^= 1 << self.rng.between(0, 7),
            TargetFault::DataUnaligned => pdo += self.rng.between(1, 3),
        }
        let draft = Draft { kind: pdu::C2H_DATA, flags, own, data, pdo, padding: 0 };
        let mut bytes = draft.encode(self.digests);
        if fault == TargetFault::HeaderBit {
            bytes[self.rng.between(8, 27)] ^= 1 << self.rng.between(0, 7);
        }
        self.pending.extend(bytes);
        self.broken = Some(fault);
        true
    }

    fn put_r2t(&mut self, index: usize) {
        let Job { cid, solicited, .. } = self.jobs[index];
        let left = self.jobs[index].data.len() - solicited;
        let len = match self.rng.between(0, 4) {
            0 => left,
            1 => 4096 * self.rng.between(1, 4),
            2 => R2T_BYTES_MIN + self.rng.between(0, 9),
            _ => self.rng.between(R2T_BYTES_MIN.min(left), left),
        };
        let len = len.min(left);
        self.next_ttag = self.next_ttag.wrapping_add(self.rng.between(1, 999) as u16);
        let mut own = [0; 16];
        own[..2].copy_from_slice(&cid.to_le_bytes());
        own[2..4].copy_from_slice(&self.next_ttag.to_le_bytes());
        own[4..8].copy_from_slice(&(solicited as u32).to_le_bytes());
        own[8..12].copy_from_slice(&(len as u32).to_le_bytes());
        if self.setup.fault == Some(TargetFault::R2tOffset) && self.rng.one_in(4) {
            own[4] ^= 1 << self.rng.between(0, 7);
            self.broken = self.setup.fault;
        }
        self.mark("several R2Ts of a write", solicited > 0);
        self.mark("an R2T that is not dword aligned", solicited % 4 != 0);
        self.put(pdu::R2T, 0, &own, &[]);
        let job = &mut self.jobs[index];
        job.asked.push_back((self.next_ttag, solicited, solicited + len));
        job.solicited += len;
        let is_several = job.asked.len() > 1;
        self.mark("several R2Ts outstanding", is_several);
    }

    fn put_completion(&mut self, index: usize) {
        let job = self.jobs.swap_remove(index);
        let memory = &mut self.memory[job.at..][..if job.is_compare { job.data.len() } else { 0 }];
        let differs = job.is_compare && *memory != job.data;
        if !job.is_compare && !job.data.is_empty() {
            self.memory[job.at..job.at + job.data.len()].copy_from_slice(&job.data);
        }
        let status: u16 = if differs { 0x285 << 1 } else { 0 };
        let mut own = [0; 16];
        own[..8].copy_from_slice(&job.result.to_le_bytes());
        own[12..14].copy_from_slice(&job.cid.to_le_bytes());
        own[14..16].copy_from_slice(&status.to_le_bytes());
        self.put(pdu::CAPSULE_RESP, 0, &own, &[]);
    }

    fn put(&mut self, kind: u8, flags: u8, own: &[u8], data: &[u8]) {
        let first = pdu::data_offset(24, self.digests, self.alignment);
        let more = (255 - first) / self.alignment;
        let far = if self.rng.one_in(3) { self.rng.between(0, more) } else { 0 };
        let (pdo, padding) = (first + self.alignment * far, self.rng.next_u64() as u8);
        self.mark("padding", !data.is_empty() && pdo > 28);
        let draft = Draft { kind, flags, own, data, pdo, padding };
        self.pending.extend(draft.encode(self.digests));
    }
}
