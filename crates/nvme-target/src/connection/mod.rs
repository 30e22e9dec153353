//! One NVMe/TCP connection: the transport's state machine.
//!
//! Bytes go into [`Connection::poll`], steps come out; payload passes by as parts of the input. The
//! driver handles each step and polls again until [`Step::NeedMore`].
//!
//! - NVME-CONNECTION-1: nothing but an ICReq is taken before the ICReq, nothing but a Connect before the Connect.
//! - NVME-CONNECTION-2: a command holds exactly one slot from its capsule to its completion. There are at most as many
//!   slots as the queue has entries, made when they are needed first; a host that submits more is cut off.
//! - NVME-CONNECTION-3: data is asked for only where the driver granted memory. At most one R2T per command is
//!   outstanding, so every host's MAXR2T is kept, and a command's data arrives in order.
//! - NVME-CONNECTION-4: a fault in a PDU's header ends the connection with a C2HTermReq; a wrong data digest or a
//!   wrong command ends that command alone.
//! - NVME-CONNECTION-5: how the input is cut into chunks has no effect on what comes out.
//! - NVME-CONNECTION-6: of a PDU that has begun, and of data that was asked for, something arrives within each
//!   [`Limits::stall_timeout`] (`owed.rs`); ICReq and Connect are complete within [`Limits::handshake_timeout`]. The driver's
//!   clock should stand still while it does not read: the host is not to blame then.
//! - NVME-CONNECTION-7: an Asynchronous Event Request that comes again while it waits is the same one, and is not answered
//!   twice.
//!
//! Sending is in `reply.rs`, fused operations are in `fused.rs`, the SGL rules are in `transfer.rs`.

mod fused;
mod owed;
mod receive;
mod reply;
mod slots;
mod transfer;

use core::fmt;

use nvme_wire::pdu::{Digests, FatalErrorStatus, PduError};
use nvme_wire::{Sqe, Status};
use units::{BLOCK_SIZE, Duration, Instant, MetadataSize};

use fused::Fusing;
use owed::Owed;
pub use slots::SlotId;
use slots::Slots;

use crate::sabotage::{Sabotage, broken};

/// In-capsule data on the admin queue, and before Connect: fixed by the transport specification.
pub const ADMIN_IN_CAPSULE_BYTES: u32 = 8192;
/// Longest header with its digest: ICReq has 128 bytes and no digest.
const HEADER_BYTES_MAX: usize = 128;
/// Alignment of data from the host: ICResp asks for none beyond a dword (CPDA = 0).
const CPDA_BYTES: usize = 4;

/// Limits and timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// In-capsule data on an I/O queue, in bytes. More saves small writes the trip of an R2T, but
    /// comes without asking: a host can send this much for every entry of the queue.
    pub in_capsule_bytes_max: u32,
    /// Data of one command, in bytes (MDTS): 4 KiB times a power of two. Metadata of blocks comes on top.
    pub transfer_bytes_max: u32,
    /// Data of one H2CData PDU in bytes (MAXH2CDATA): a multiple of 4, at least 4096.
    pub h2c_data_bytes_max: u32,
    /// Entries of a queue (MQES).
    pub queue_entries_max: u16,
    /// I/O queues of a controller.
    pub io_queues_max: u16,
    /// From the TCP connection to a successful Connect.
    pub handshake_timeout: Duration,
    /// From one byte to the next of a PDU, and from an R2T, or a byte that it asked for, to the next such byte.
    pub stall_timeout: Duration,
}

/// A block has at most such a part of its data as metadata.
const METADATA_PART: u32 = 64;
const _: () = assert!(MetadataSize::Bytes64.bytes() * METADATA_PART as usize == BLOCK_SIZE);

impl Limits {
    /// The longest transfer of one command: its data, and as much metadata as blocks can have. What the
    /// namespace's format and size allow is checked with the command.
    const fn command_bytes_max(&self) -> u32 {
        self.transfer_bytes_max.saturating_add(self.transfer_bytes_max / METADATA_PART)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // A page of the databases that write the largest pages.
            in_capsule_bytes_max: 16 << 10,
            transfer_bytes_max: 1 << 20,
            h2c_data_bytes_max: 1 << 20,
            queue_entries_max: 128,
            io_queues_max: 128,
            handshake_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
        }
    }
}

/// Data of a command that comes next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Awaited {
    /// The command.
    pub slot: SlotId,
    /// The offset of the next byte from the start of the command's data.
    pub offset: u32,
    /// Bytes that follow one another.
    pub len_bytes: u32,
}

/// The driver's next action.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step<'a> {
    /// The input is used up.
    NeedMore,
    /// A command came whose data has yet to arrive. Check it and find memory for it, or complete it
    /// at once with an error.
    Prepare {
        /// The command.
        slot: SlotId,
        /// Bytes of data.
        len_bytes: u32,
        /// True if the data waits for [`Connection::grant`]. If not it follows immediately.
        solicited: bool,
    },
    /// Data of a command, in order and without gaps.
    Data {
        /// The command.
        slot: SlotId,
        /// Its offset in bytes from the start of the command's data.
        offset: u32,
        /// The data, a part of the input.
        bytes: &'a [u8],
    },
    /// All data of a PDU has been handed out, and this is its digest. Compare; report a difference
    /// with [`Connection::digest_failed`].
    Digest {
        /// The command.
        slot: SlotId,
        /// First byte that the digest covers, from the start of the command's data.
        offset: u32,
        /// Number of bytes that it covers.
        len_bytes: u32,
        /// CRC-32C as the host sent it.
        received: u32,
    },
    /// A command is complete, with its data if it has any. It is the driver's until it calls
    /// [`Connection::complete`] or [`Connection::complete_with_data`].
    Execute {
        /// The command.
        slot: SlotId,
    },
    /// Two commands are complete that are one operation: the driver's, as for [`Step::Execute`].
    ExecuteFused {
        /// The first half.
        first: SlotId,
        /// The second half.
        second: SlotId,
    },
    /// A command that was handed out by [`Step::Prepare`] has failed and has been answered: forget
    /// it and its buffer.
    Discard {
        /// The command.
        slot: SlotId,
        /// The status that was returned.
        status: Status,
    },
    /// A command was answered with an error at once, and never handed out.
    Refused {
        /// The status that was returned.
        status: Status,
    },
    /// The connection is over: send what is in the outbox, then close the socket.
    Closed(CloseReason),
}

/// Why a connection is over.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CloseReason {
    /// The host broke the transport's rules; a TermReq tells it so.
    Protocol(PduError),
    /// The client speaks this protocol.
    OtherProtocol(&'static str),
    /// The host submitted more commands than the queue has entries. The driver ends the whole association, as the
    /// specification wants (Base, clause 3.3.2.6).
    QueueOverrun,
    /// The host sent a TermReq.
    HostTerminated(FatalErrorStatus),
    /// No ICReq or no successful Connect in time.
    HandshakeTimeout,
    /// A PDU was begun, or data was asked for, and nothing more of it came.
    Stalled,
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protocol(error) => write!(f, "the host broke the protocol: {error}"),
            Self::OtherProtocol(name) => {
                write!(f, "the client speaks {name}, and this port NVMe/TCP without TLS")
            }
            Self::QueueOverrun => {
                f.write_str("the host sent more commands than the queue has entries")
            }
            Self::HostTerminated(status) => {
                write!(f, "the host ended it with a TermReq: {}", status.name())
            }
            Self::HandshakeTimeout => f.write_str("the host does not connect"),
            Self::Stalled => f.write_str("the host does not send what it announced"),
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    AwaitIcReq,
    AwaitConnect,
    Live { qid: u16 },
    Closed(CloseReason),
}

/// The rest of a PDU behind its header.
struct Body {
    /// The slot that the data belongs to; `None` if it is to be dropped.
    slot: Option<SlotId>,
    /// Padding before the data.
    padding_left: usize,
    /// Offset of this PDU's data in the command's.
    offset: u32,
    data_len: u32,
    data_left: u32,
    digest: [u8; 4],
    digest_left: usize,
}

/// A header of which only a part has come.
struct PartialHeader {
    bytes: [u8; HEADER_BYTES_MAX],
    len: usize,
}

/// One connection, that is one queue pair.
pub struct Connection {
    limits: Limits,
    state: State,
    digests: Digests,
    /// Alignment in bytes that the host requires of data (HPDA).
    host_data_alignment: usize,
    in_capsule_bytes_max: u32,
    sq_flow_control: bool,
    sq_entries: u16,
    sq_head: u16,
    slots: Slots,
    fusing: Fusing,
    owed: Owed,
    partial: PartialHeader,
    body: Option<Body>,
    created: Instant,
}

impl Connection {
    /// A connection that was accepted at `now`.
    #[must_use]
    pub fn new(now: Instant, limits: &Limits) -> Self {
        Self {
            limits: *limits,
            state: State::AwaitIcReq,
            digests: Digests::default(),
            host_data_alignment: 4,
            in_capsule_bytes_max: ADMIN_IN_CAPSULE_BYTES,
            sq_flow_control: true,
            sq_entries: 2,
            sq_head: 0,
            slots: Slots::new(1),
            fusing: Fusing::new(),
            owed: Owed::new(now),
            partial: PartialHeader { bytes: [0; HEADER_BYTES_MAX], len: 0 },
            body: None,
            created: now,
        }
    }

    /// The command in `slot`.
    #[must_use]
    pub fn command(&self, slot: SlotId) -> &Sqe {
        &self.slots.get(slot).sqe
    }

    /// The queue that this connection is, once Connect has succeeded; 0 is the admin queue.
    #[must_use]
    pub fn qid(&self) -> Option<u16> {
        match self.state {
            State::Live { qid } => Some(qid),
            _ => None,
        }
    }

    /// Digests agreed on in the IC exchange.
    #[must_use]
    pub fn digests(&self) -> Digests {
        self.digests
    }

    /// Number of slots: one above the largest [`SlotId`] so far.
    #[must_use]
    pub fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// Commands that have come and have not been completed.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slots.in_flight()
    }

    /// Says that the digest in the last [`Step::Digest`] differs from that of the data. The command
    /// then ends with Transient Transport Error once all of its data has come; the connection lives.
    pub fn digest_failed(&mut self, slot: SlotId) {
        self.slots.get_mut(slot).digest_failed = !broken(Sabotage::TakeWrongData);
    }

    /// When to call [`Connection::on_timeout`], as things stand.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        match self.state {
            State::AwaitIcReq | State::AwaitConnect => {
                Some(self.created + self.limits.handshake_timeout)
            }
            State::Live { .. } => Some(self.owed_since()? + self.limits.stall_timeout),
            State::Closed(_) => None,
        }
    }

    /// Ends the connection if the host let a deadline pass.
    pub fn on_timeout(&mut self, now: Instant) -> Option<CloseReason> {
        if self.next_timeout().is_some_and(|deadline| deadline <= now) {
            self.close(match self.state {
                State::Live { .. } => CloseReason::Stalled,
                _ => CloseReason::HandshakeTimeout,
            });
        }
        match self.state {
            State::Closed(reason) => Some(reason),
            _ => None,
        }
    }

    /// Returns true if the next bytes belong to data of a command.
    #[must_use]
    pub fn is_in_data(&self) -> bool {
        self.body.is_some()
    }

    /// The data that the next bytes are, if a command waits for them: they can be received where they belong, and be told by
    /// [`Connection::landed`] instead of [`Connection::poll`].
    #[must_use]
    pub fn awaited(&self) -> Option<Awaited> {
        let body = self.body.as_ref().filter(|body| body.padding_left == 0)?;
        let slot = body.slot.filter(|slot| self.slots.get(*slot).is_collecting())?;
        let offset = body.offset + (body.data_len - body.data_left);
        (body.data_left > 0).then_some(Awaited { slot, offset, len_bytes: body.data_left })
    }

    /// The first `len_bytes` of what was awaited have come, and are where they belong. Panics if no as many were awaited.
    pub fn landed(&mut self, now: Instant, len_bytes: u32) {
        let body = self.body.as_mut().expect("awaited");
        body.data_left = body.data_left.checked_sub(len_bytes).expect("no more than was awaited");
        self.owed.on_bytes(now, len_bytes as usize);
    }

    /// Since when the host has sent nothing of what it owes: the rest of a PDU, data for an R2T, or the second half of a
    /// fused operation. `None` if it owes nothing.
    #[must_use]
    pub fn owed_since(&self) -> Option<Instant> {
        let in_pdu = self.partial.len > 0 || self.body.is_some();
        let last_byte = self.owed.last_byte();
        let pdu = in_pdu.then_some(last_byte);
        let half = self.fusing.waiting_since().map(|since| since.max(last_byte));
        pdu.into_iter().chain(self.owed.r2t_since()).chain(half).min()
    }

    /// Bytes that the host has sent so far of what it owed, while it owes anything.
    #[must_use]
    pub fn owed_bytes_received(&self) -> Option<u64> {
        self.owed_since().map(|_| self.owed.progress_bytes())
    }

    fn close(&mut self, reason: CloseReason) {
        self.state = State::Closed(reason);
        self.body = None;
        self.partial.len = 0;
    }
}
