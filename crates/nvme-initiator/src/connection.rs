//! One queue pair: what the host may send, and when a command is late.

use alloc::vec::Vec;

use nvme_wire::fabrics::{self, CONNECT_DATA_LEN};
use nvme_wire::pdu::{CapsuleCmd, Digests, IcReq, IcResp, MAXH2CDATA_MIN, PduType, TermReq};
use nvme_wire::{SglDescriptor, Sqe};
use units::{Duration, Instant};
use zerocopy::IntoBytes;

use crate::receive::Receive;
use crate::sabotage::{Sabotage, broken};
use crate::slots::{Command, Slots};
use crate::{ConnectionError, H2cPdus, HeaderBytes, R2tRequest};

/// Most commands outstanding on a connection: leaves 64 generations in a Command Identifier
/// (INITIATOR-2).
pub const DEPTH_MAX: u16 = 1024;
/// R2Ts that the controller may have outstanding per command (MAXR2T). They are answered in order;
/// what they ask for waits as PDUs until it can be sent.
pub(crate) const R2TS_MAX: u32 = 16;
/// Least that an R2T may ask for, but for the end of a command's data: each costs a PDU.
pub(crate) const R2T_BYTES_MIN: u32 = 512;

/// The configuration of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Digests to offer; the controller may agree to fewer.
    pub digests: Digests,
    /// Commands outstanding at once, 1 to [`DEPTH_MAX`].
    pub depth: u16,
    /// Longest time that a command may take.
    pub command_timeout: Duration,
    /// Most data bytes that go with a command in its capsule; 0 for none. A Connect is exempt.
    pub in_capsule_max: u32,
}

/// The data that a command moves.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Transfer {
    /// None.
    None,
    /// This many bytes from the controller.
    ToHost(u32),
    /// This many bytes to the controller.
    ToController(u32),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    /// ICReq is on its way.
    Connecting,
    /// Commands flow.
    Ready,
    /// An error was returned (INITIATOR-4).
    Ended,
}

/// A queue pair.
pub struct Connection {
    pub(crate) phase: Phase,
    pub(crate) offered: Digests,
    pub(crate) digests: Digests,
    /// Data that goes to the controller starts at a multiple of this, from the start of its PDU.
    alignment: usize,
    maxh2cdata: u32,
    in_capsule_max: u32,
    command_timeout: Duration,
    /// Counts [`Connection::handed_over`].
    pub(crate) round: u32,
    pub(crate) slots: Slots,
    pub(crate) receive: Receive,
}

impl Connection {
    /// A connection that begins with the ICReq given to `out`.
    ///
    /// Panics if the depth is 0 or beyond [`DEPTH_MAX`].
    #[must_use]
    pub fn new(config: &Config, mut out: impl FnMut(&[u8])) -> Self {
        assert!((1..=DEPTH_MAX).contains(&config.depth), "depth {} is not usable", config.depth);
        out(IcReq::new(config.digests, R2TS_MAX).as_bytes());
        Self {
            phase: Phase::Connecting,
            offered: config.digests,
            digests: Digests::default(),
            alignment: 4,
            maxh2cdata: MAXH2CDATA_MIN,
            in_capsule_max: config.in_capsule_max,
            command_timeout: config.command_timeout,
            round: 0,
            slots: Slots::new(config.depth),
            receive: Receive::new(),
        }
    }

    pub(crate) fn on_ic_resp(&mut self, response: &IcResp) -> Result<(), ConnectionError> {
        response.check(self.offered)?;
        self.digests = response.digests();
        self.alignment = if broken(Sabotage::IgnoreCpda) { 4 } else { response.data_alignment() };
        self.maxh2cdata = response.maxh2cdata.get();
        self.phase = Phase::Ready;
        Ok(())
    }

    /// Returns true if commands may be submitted.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// Digests in use. With data digests the driver computes CRC-32C of what it sends, and
    /// compares it with what [`crate::Event::DataDigest`] says of what it received.
    #[must_use]
    pub fn digests(&self) -> Digests {
        self.digests
    }

    /// Commands that could be submitted now.
    #[must_use]
    pub fn free_slots(&self) -> usize {
        self.slots.free_count()
    }

    /// Commands outstanding.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.slots.capacity() - self.slots.free_count()
    }

    /// Sets how much data may go in a capsule, once the controller has said it.
    pub fn set_in_capsule_max(&mut self, bytes: u32) {
        self.in_capsule_max = bytes;
    }

    /// Returns true if a command that sends `len` bytes takes them along in its capsule. The driver
    /// then sends them, and with data digests their CRC-32C, right behind the header.
    #[must_use]
    pub fn sends_in_capsule(&self, sqe: &Sqe, len: u32) -> bool {
        len <= self.in_capsule_max || sqe.opcode == fabrics::OPCODE && len <= CONNECT_DATA_LEN
    }

    /// Gives the capsule of `sqe` to `out`, with Command Identifier and data pointer filled in,
    /// up to where in-capsule data starts. Returns the slot that stands for the command in
    /// events, or `None`, and nothing is sent, if all are occupied.
    ///
    /// A command with no `timeout` is given the connection's. Panics before the connection is
    /// ready.
    pub fn submit(
        &mut self,
        now: Instant,
        sqe: &Sqe,
        transfer: Transfer,
        timeout: Option<Duration>,
        out: impl FnOnce(&[u8]),
    ) -> Option<u16> {
        assert!(self.is_ready(), "a command on a connection that is not ready");
        let (dptr, in_capsule) = match transfer {
            Transfer::None => (SglDescriptor::NONE, 0),
            Transfer::ToHost(len) => (SglDescriptor::transport(len), 0),
            Transfer::ToController(len) if self.sends_in_capsule(sqe, len) => {
                (SglDescriptor::in_capsule(len), len)
            }
            Transfer::ToController(len) => (SglDescriptor::transport(len), 0),
        };
        let deadline = now + timeout.unwrap_or(self.command_timeout);
        let (slot, cid) = self.slots.occupy(Command::new(transfer, in_capsule, deadline))?;
        let sqe = Sqe { cid: cid.into(), dptr, flags: sqe.flags | Sqe::PSDT_SGL, ..*sqe };
        let capsule = CapsuleCmd::new(sqe, in_capsule as usize, self.digests, self.alignment);
        if self.digests.header || in_capsule > 0 {
            out(HeaderBytes::new(capsule.as_bytes(), capsule.ch).as_bytes());
        } else {
            out(capsule.as_bytes());
        }
        Some(slot)
    }

    /// The PDUs that answer `request`.
    #[must_use]
    pub fn h2c_pdus(&self, request: R2tRequest) -> H2cPdus {
        H2cPdus {
            request,
            cid: self.slots.cid(request.slot),
            digests: self.digests,
            alignment: self.alignment,
            len_max: self.maxh2cdata,
            done: 0,
        }
    }

    /// Says that all PDUs so far were handed over to be sent. Until then R2Ts are outstanding for
    /// certain, whatever the controller has seen.
    pub fn handed_over(&mut self) {
        self.round = self.round.wrapping_add(1);
    }

    /// When the first outstanding command will be late.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.slots.earliest().map(|(_, deadline)| deadline)
    }

    /// The slot of a command that is late at `now`, if there is one. The cure is to reset the
    /// connection: an Abort is answered at best after the command itself.
    #[must_use]
    pub fn on_timeout(&self, now: Instant) -> Option<u16> {
        self.slots.earliest().filter(|(_, deadline)| *deadline <= now).map(|(slot, _)| slot)
    }

    /// The H2CTermReq that tells the controller about `error`, unless it knows.
    #[must_use]
    pub fn term_req(&self, error: &ConnectionError) -> Option<Vec<u8>> {
        let (pdu_error, quoted) = (error.pdu_error()?, self.receive.last_header());
        // One TermReq is not answered by another, whatever is wrong with it (TCP, clause 3.5).
        if quoted[0] == PduType::C2hTermReq as u8 {
            return None;
        }
        Some(TermReq::encode(PduType::H2cTermReq, &pdu_error, quoted))
    }
}
