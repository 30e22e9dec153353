//! One queue of a host: what it sends.

use std::collections::{BTreeMap, VecDeque};

use crate::command::{Command, Kind, connect_data};
use crate::fault::{H2cFields, Refusal, flip_header_bit};
use crate::pdu::{self, DDGSTF, Digests, Draft, LAST_PDU};
use crate::setup::{Cut, Queue};
use crate::{Fault, Finding, Image, Rng, Setup};

/// Most bytes of a stream that are drawn ahead of their sending.
const AHEAD_MAX: usize = 64 << 10;
const BLOCK: usize = 4096;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    /// Nothing was sent.
    New,
    /// The ICReq was sent.
    Greeted,
    /// The ICResp came, and nothing was sent since.
    Agreed,
    /// The Connect was sent.
    Connecting,
    Live,
    /// The controller has ended the connection, as it had to.
    Ended,
}

/// One queue of a host, from ICReq to the last completion.
pub struct Host {
    pub(crate) setup: Setup,
    pub(crate) rng: Rng,
    pub(crate) image: Image,
    pub(crate) phase: Phase,
    /// Digests agreed on.
    pub(crate) digests: Digests,
    /// Bytes that CPDA stands for.
    pub(crate) alignment: usize,
    pub(crate) maxh2cdata: usize,
    /// Commands of an admin queue that are still to be sent.
    pub(crate) script: VecDeque<Kind>,
    /// Commands still to be drawn.
    pub(crate) left: usize,
    /// Blocks that were read at the end.
    pub(crate) swept: usize,
    pub(crate) flying: Vec<Command>,
    /// The second half of a fused operation, which has to follow at once.
    pub(crate) second_half: Option<Command>,
    /// Bytes that were drawn and not sent.
    pending: VecDeque<u8>,
    pub(crate) incoming: Vec<u8>,
    /// Capsules sent, and how many of them the controller is known to have taken.
    pub(crate) capsules: u64,
    pub(crate) taken: u64,
    fault: Option<Fault>,
    /// A rule was broken: how the controller must end the connection.
    pub(crate) refusal: Option<Refusal>,
    pub(crate) cntlid: u16,
    pub(crate) identified: BTreeMap<u8, Vec<u8>>,
    /// Situations reached, and how often.
    pub(crate) reached: BTreeMap<&'static str, usize>,
    last_data_of: u16,
}

impl Host {
    /// A host that connects to a volume which holds `image`.
    #[must_use]
    pub fn new(seed: u64, setup: Setup, image: Image) -> Self {
        let script = match setup.queue {
            Queue::Admin => {
                vec![Kind::Enable, Kind::Identify { cns: 1 }, Kind::Identify { cns: 0 }]
            }
            Queue::Io { .. } => Vec::new(),
        };
        let left = if script.is_empty() { setup.commands } else { 0 };
        let swept = if setup.sweep { 0 } else { image.blocks() };
        Self {
            rng: Rng::new(seed),
            phase: Phase::New,
            digests: Digests::default(),
            alignment: 4,
            maxh2cdata: BLOCK,
            script: script.into(),
            left,
            swept,
            flying: Vec::new(),
            second_half: None,
            pending: VecDeque::new(),
            incoming: Vec::new(),
            capsules: 0,
            taken: 0,
            fault: setup.fault,
            refusal: None,
            cntlid: 0,
            identified: BTreeMap::new(),
            reached: BTreeMap::new(),
            last_data_of: 0,
            setup,
            image,
        }
    }

    /// The next chunk of the stream; `None` if the host waits for the controller.
    pub fn next_chunk(&mut self) -> Option<Vec<u8>> {
        let ahead = self.rng.between(1, AHEAD_MAX);
        while self.pending.len() < ahead {
            match self.next_pdu() {
                Some(pdu) => self.pending.extend(pdu),
                None => break,
            }
        }
        if self.pending.is_empty() {
            return None;
        }
        let longest = match self.setup.cut {
            Cut::Crumbs => 7,
            Cut::Frames => 1460,
            Cut::Any | Cut::Whole => 64 << 10,
        };
        let longest = longest.min(self.pending.len());
        let is_whole = self.setup.cut == Cut::Whole;
        let len = if is_whole { longest } else { self.rng.between(1, longest) };
        Some(self.pending.drain(..len).collect())
    }

    /// Returns true if all commands are done, or the controller has ended the connection as it had to.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let is_idle = self.phase == Phase::Live
            && self.left == 0
            && self.script.is_empty()
            && self.swept == self.image.blocks()
            && self.flying.is_empty()
            && self.second_half.is_none()
            && self.pending.is_empty()
            && self.refusal.is_none();
        is_idle || self.phase == Phase::Ended
    }

    /// Returns true if a rule was broken, so that the controller has to end the connection.
    #[must_use]
    pub fn has_broken_a_rule(&self) -> bool {
        self.refusal.is_some()
    }

    /// The content of the volume now, as far as this host knows.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// The controller that the queue belongs to.
    #[must_use]
    pub fn cntlid(&self) -> u16 {
        self.cntlid
    }

    /// The data of Identify with this CNS, on an admin queue.
    #[must_use]
    pub fn identified(&self, cns: u8) -> Option<&[u8]> {
        self.identified.get(&cns).map(Vec::as_slice)
    }

    /// Situations that were reached, and how often.
    #[must_use]
    pub fn reached(&self) -> &BTreeMap<&'static str, usize> {
        &self.reached
    }

    pub(crate) fn mark(&mut self, situation: &'static str, is_reached: bool) {
        *self.reached.entry(situation).or_default() += usize::from(is_reached);
    }

    fn next_pdu(&mut self) -> Option<Vec<u8>> {
        match self.phase {
            Phase::New => {
                self.phase = Phase::Greeted;
                Some(self.ic_req())
            }
            Phase::Agreed => {
                self.phase = Phase::Connecting;
                let mut connect =
                    Command::new(Kind::Connect, self.rng.next_u64() as u16 >> 1, 0..0);
                connect.data = connect_data(&self.setup.identity, self.setup.queue);
                connect.is_in_capsule = true;
                Some(self.capsule(connect))
            }
            Phase::Live if self.refusal.is_none() => self.next_live_pdu(),
            Phase::Greeted | Phase::Connecting | Phase::Live | Phase::Ended => None,
        }
    }

    /// A capsule, or the next data that some command owes: which one is left to chance.
    fn next_live_pdu(&mut self) -> Option<Vec<u8>> {
        let owing: Vec<usize> =
            (0..self.flying.len()).filter(|index| !self.flying[*index].asked.is_empty()).collect();
        if owing.is_empty() || self.rng.one_in(3) {
            let command = self.second_half.take().or_else(|| self.draw_command());
            if let Some(command) = command {
                return Some(self.capsule(command));
            }
        }
        if owing.is_empty() {
            return None;
        }
        let index = self.rng.pick(&owing);
        Some(self.h2c_data(index))
    }

    fn ic_req(&self) -> Vec<u8> {
        let mut own = [0; 120];
        let Setup { digests, hpda, maxr2t, .. } = self.setup;
        own[2] = hpda;
        own[3] = u8::from(digests.header) | u8::from(digests.data) << 1;
        own[4..8].copy_from_slice(&maxr2t.to_le_bytes());
        let kind = pdu::IC_REQ;
        Draft { kind, flags: 0, own: &own, data: &[], pdo: 0, padding: 0 }
            .encode(Digests::default())
    }

    /// PDO for a header of `hlen` bytes: as early as may be, or any other place that is allowed.
    fn draw_pdo(&mut self, hlen: usize) -> usize {
        let first = pdu::data_offset(hlen, self.digests, self.alignment);
        let more = (255 - first) / self.alignment;
        first + if self.rng.one_in(3) { self.alignment * self.rng.between(0, more) } else { 0 }
    }

    fn capsule(&mut self, mut command: Command) -> Vec<u8> {
        let sqe = command.sqe(&self.setup);
        let pdo = self.draw_pdo(72);
        let data = if command.is_in_capsule { &command.data[..] } else { &[] };
        let is_flagged = data.is_empty() && self.digests.data && self.rng.one_in(2);
        let flags = if is_flagged { DDGSTF } else { 0 };
        let padding = self.rng.next_u64() as u8;
        let draft = Draft { kind: pdu::CAPSULE_CMD, flags, own: &sqe, data, pdo, padding };
        let mut bytes = draft.encode(self.digests);
        let has_data = !data.is_empty();
        if has_data && command.kind != Kind::Connect {
            self.mark("data in a capsule behind padding", pdo > 76);
            command.is_damaged = self.damage(&mut bytes, pdo);
        }
        if let Some(fault) = self.fault
            && self.phase == Phase::Live
            && self.rng.one_in(3)
        {
            self.refusal =
                flip_header_bit(fault, &mut bytes, command.cid, self.digests, &mut self.rng);
        }
        self.capsules += 1;
        self.flying.push(command);
        bytes
    }

    /// Flips a bit of a PDU's data or of its digest, if it is to be damaged.
    fn damage(&mut self, pdu: &mut [u8], pdo: usize) -> bool {
        let one_in = self.setup.damaged_one_in;
        if !self.digests.data || one_in == 0 || !self.rng.one_in(one_in) {
            return false;
        }
        // One in four in the digest, which is the last four bytes.
        let first = if self.rng.one_in(4) { pdu.len() - 4 } else { pdo };
        pdu[self.rng.between(first, pdu.len() - 1)] ^= 1 << self.rng.between(0, 7);
        self.mark("a damaged data PDU", true);
        true
    }

    /// The next H2CData PDU of the command at `index`.
    fn h2c_data(&mut self, index: usize) -> Vec<u8> {
        let asked = *self.flying[index].asked.front().expect("it owes data");
        let cid = self.flying[index].cid;
        let len = self.draw_len(asked.at, (asked.end - asked.at).min(self.maxh2cdata));
        let end = asked.at + len;
        let is_last = end == asked.end;
        self.mark_h2c(asked.at, end, &asked, cid);
        let pdo = self.draw_pdo(24);
        let mut fields = H2cFields {
            flags: if is_last { LAST_PDU } else { 0 },
            cccid: cid,
            ttag: asked.ttag,
            datao: asked.at,
            datal: len,
            pdo,
            pdo_said: pdo,
        };
        let mut data = self.flying[index].data[asked.at..end].to_vec();
        if let Some(fault) = self.fault
            && self.rng.one_in(3)
        {
            let header_end = pdu::data_offset(24, self.digests, 1);
            self.refusal = fields.break_rule(fault, &asked, header_end, &mut self.rng);
            if fault == Fault::BeyondR2t && is_last && len + 4 <= self.maxh2cdata {
                data.extend([0; 4]);
                fields.datal += 4;
                self.refusal = Some(Refusal { fes: &[4], fei: Some(0), may_be_silent: false, cid });
            }
        }
        let mut bytes = self.encode_h2c(&fields, &data);
        if self.refusal.is_none() {
            self.flying[index].is_damaged |= self.damage(&mut bytes, fields.pdo);
            if let Some(fault) = self.fault
                && self.rng.one_in(3)
            {
                self.refusal = flip_header_bit(fault, &mut bytes, cid, self.digests, &mut self.rng);
            }
        }
        let command = &mut self.flying[index];
        command.asked[0].at = end;
        if is_last {
            command.asked.pop_front();
        }
        bytes
    }

    fn encode_h2c(&mut self, fields: &H2cFields, data: &[u8]) -> Vec<u8> {
        let mut own = [0; 16];
        own[..2].copy_from_slice(&fields.cccid.to_le_bytes());
        own[2..4].copy_from_slice(&fields.ttag.to_le_bytes());
        own[4..8].copy_from_slice(&(fields.datao as u32).to_le_bytes());
        own[8..12].copy_from_slice(&(fields.datal as u32).to_le_bytes());
        let (flags, pdo, padding) = (fields.flags, fields.pdo, self.rng.next_u64() as u8);
        let draft = Draft { kind: pdu::H2C_DATA, flags, own: &own, data, pdo, padding };
        let mut bytes = draft.header(self.digests);
        bytes[3] = fields.pdo_said as u8;
        draft.finish(&mut bytes, self.digests);
        bytes
    }

    /// The number of bytes, of the `max` from `at`, that go into the next PDU.
    fn draw_len(&mut self, at: usize, max: usize) -> usize {
        let to_boundary = BLOCK - at % BLOCK;
        let len = match self.rng.between(0, 9) {
            0..=1 => max,
            // Whole blocks, wherever they begin.
            2..=4 => BLOCK * self.rng.between(1, 4),
            5 => to_boundary,
            6 => to_boundary + BLOCK * self.rng.between(0, 3) + self.rng.between(1, 64),
            7 if max < 2 * BLOCK => self.rng.between(1, 8),
            8 => 4 * self.rng.between(1, max.div_ceil(4)),
            _ => self.rng.between(1, max),
        };
        len.min(max)
    }

    fn mark_h2c(&mut self, at: usize, end: usize, asked: &crate::command::Asked, cid: u16) {
        let is_within = !at.is_multiple_of(BLOCK);
        let has_whole_length = (end - at).is_multiple_of(BLOCK);
        let digested = self.digests.data;
        self.mark("whole blocks from within a block", digested && is_within && has_whole_length);
        self.mark("a part of a block at the end", digested && !end.is_multiple_of(BLOCK));
        self.mark("data that is not dword aligned", !at.is_multiple_of(4));
        self.mark("data of a second R2T", asked.start > 0);
        let is_between = self.last_data_of != cid
            && self.flying.iter().any(|command| {
                let asked = command.asked.front();
                command.cid == self.last_data_of
                    && asked.is_some_and(|asked| asked.at > asked.start)
            });
        self.mark("data of one command between that of another", is_between);
        self.last_data_of = cid;
    }

    /// Notes what unanswered commands may have changed: the connection is over.
    pub(crate) fn end(&mut self, refused: u16) {
        self.phase = Phase::Ended;
        let each = self.setup.namespace.each();
        for command in std::mem::take(&mut self.flying) {
            let is_refused = command.cid == refused || command.partner == Some(refused);
            let is_whole = command.is_in_capsule
                || command.solicited == command.data.len() && command.asked.is_empty();
            if is_refused || !is_whole || command.is_damaged || command.must_differ {
                continue;
            }
            for (start, bytes) in command.writes(each) {
                self.image.may_write(start, &bytes);
            }
        }
    }

    /// The connection was closed by the controller.
    pub fn on_close(&mut self) -> Result<(), Finding> {
        match self.refusal {
            _ if self.phase == Phase::Ended => Ok(()),
            Some(refusal) if refusal.may_be_silent => {
                self.end(refusal.cid);
                Ok(())
            }
            Some(refusal) => Err(format!("closed without the C2HTermReq for {refusal:?}")),
            None => Err("closed without a reason".to_owned()),
        }
    }
}
