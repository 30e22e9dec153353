//! From bytes to events.

use nvme_wire::Cqe;
use nvme_wire::Status;
use nvme_wire::pdu::{
    C2hData, CapsuleResp, CommonHeader, DIGEST_LEN, Digests, FatalErrorStatus, IcResp, PduError,
    PduFlags, PduLayout, PduType, R2t, TermReq, header_from_bytes,
};

use crate::ConnectionError;
use crate::connection::{Connection, Phase, R2T_BYTES_MIN, R2TS_MAX, Transfer};
use crate::slots::Command;

/// Byte offset of R2TL in an R2T.
const OFFSET_R2TL: u8 = 16;
/// Longest run of bytes before data, or longest PDU without data: PDO is one byte.
const HEADER_MAX: usize = 256;
/// Bytes of the header that say how long it is.
const COMMON_LEN: usize = size_of::<CommonHeader>();

/// The meaning of received bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// The connection is ready for commands.
    Ready,
    /// The next bytes of the stream are data of a command.
    Data(Payload),
    /// The data of the last [`Event::Data`] should have this CRC-32C.
    DataDigest {
        /// The command's slot.
        slot: u16,
        /// The digest in the PDU.
        received: u32,
    },
    /// The controller wants a part of a command's data; see [`Connection::h2c_pdus`].
    R2t(R2tRequest),
    /// A command ended. Its slot is free.
    Completed {
        /// The command's slot.
        slot: u16,
        /// The completion.
        cqe: Cqe,
        /// Bytes that it moved.
        transferred: u32,
    },
}

/// A run of data in the stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Payload {
    /// The command's slot.
    pub slot: u16,
    /// Offset of the next byte from the start of the command's data.
    pub offset: u32,
    /// Bytes that are left of the run.
    pub len: u32,
}

/// The request of an R2T.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct R2tRequest {
    /// The command's slot.
    pub slot: u16,
    /// Transfer Tag.
    pub ttag: u16,
    /// First byte, from the start of the command's data.
    pub offset: u32,
    /// Number of bytes.
    pub len: u32,
}

/// The next bytes that are expected.
#[derive(Clone, Copy, Debug)]
enum Expect {
    /// The rest of a header.
    Header,
    /// Data that the driver moves. `success`: the command is over behind it.
    Payload { payload: Payload, digest: bool, success: bool },
    /// The digest of the data of a command.
    Digest { slot: u16, success: bool },
    /// Nothing: the completion that a SUCCESS flag stands for.
    Success { slot: u16 },
}

/// The position of the connection in the stream of PDUs.
pub(crate) struct Receive {
    expect: Expect,
    /// The header (or digest) as far as it has come, if it did not come in one piece.
    partial: [u8; HEADER_MAX],
    partial_len: usize,
    /// The last header, for a TermReq.
    last_header: [u8; COMMON_LEN],
}

/// `needed` bytes in one piece: straight from the input, or gathered over several.
enum Gathered<'a> {
    Whole(&'a [u8]),
    Partial,
}

impl Receive {
    pub(crate) fn new() -> Self {
        Self {
            expect: Expect::Header,
            partial: [0; HEADER_MAX],
            partial_len: 0,
            last_header: [0; COMMON_LEN],
        }
    }

    pub(crate) fn last_header(&self) -> &[u8] {
        &self.last_header
    }
}

/// Moves bytes from `bytes` into `partial` until it holds `needed`. Returns how many it took.
fn gather<'a>(
    partial: &'a mut [u8; HEADER_MAX],
    partial_len: &mut usize,
    bytes: &[u8],
    needed: usize,
) -> (usize, Gathered<'a>) {
    let take = bytes.len().min(needed.saturating_sub(*partial_len));
    partial[*partial_len..*partial_len + take].copy_from_slice(&bytes[..take]);
    *partial_len += take;
    if *partial_len < needed {
        (take, Gathered::Partial)
    } else {
        (take, Gathered::Whole(&partial[..needed]))
    }
}

impl Connection {
    /// Data that the stream holds next, if it is data.
    #[must_use]
    pub fn payload(&self) -> Option<Payload> {
        match self.receive.expect {
            Expect::Payload { payload, .. } => Some(payload),
            _ => None,
        }
    }

    /// The driver has moved the next `len` bytes of [`Connection::payload`] out of the stream.
    /// Panics if that is more than there are.
    pub fn on_payload(&mut self, len: u32) {
        let Expect::Payload { mut payload, digest, success } = self.receive.expect else {
            panic!("the stream holds no data");
        };
        payload.offset += len;
        payload.len = payload.len.checked_sub(len).expect("no more than there is");
        let slot = payload.slot;
        self.receive.expect = match (payload.len, digest, success) {
            (1.., _, _) => Expect::Payload { payload, digest, success },
            (0, true, _) => Expect::Digest { slot, success },
            (0, false, true) => Expect::Success { slot },
            (0, false, false) => Expect::Header,
        };
    }

    /// Takes in bytes of the stream up to the next event; returns how many, and the event. To be
    /// called again with what is left until nothing is taken and nothing happens. While
    /// [`Connection::payload`] says that the next bytes are data, the driver takes them first.
    pub fn on_bytes(&mut self, bytes: &[u8]) -> Result<(usize, Option<Event>), ConnectionError> {
        let result = match self.receive.expect {
            Expect::Header => self.on_header_bytes(bytes),
            Expect::Payload { .. } => Ok((0, None)),
            Expect::Digest { slot, success } => Ok(self.on_digest_bytes(bytes, slot, success)),
            Expect::Success { slot } => {
                self.receive.expect = Expect::Header;
                let cid = self.slots.cid(slot);
                let cqe = Cqe::new(cid, Status::SUCCESS);
                self.complete(PduType::C2hData, cqe).map(|event| (0, Some(event)))
            }
        };
        if result.is_err() {
            self.phase = Phase::Ended;
        }
        result
    }

    fn on_digest_bytes(
        &mut self,
        bytes: &[u8],
        slot: u16,
        success: bool,
    ) -> (usize, Option<Event>) {
        let receive = &mut self.receive;
        let (taken, gathered) =
            gather(&mut receive.partial, &mut receive.partial_len, bytes, DIGEST_LEN);
        let Gathered::Whole(digest) = gathered else { return (taken, None) };
        let received = u32_at(digest, 0);
        receive.partial_len = 0;
        receive.expect = if success { Expect::Success { slot } } else { Expect::Header };
        (taken, Some(Event::DataDigest { slot, received }))
    }

    fn on_header_bytes(&mut self, bytes: &[u8]) -> Result<(usize, Option<Event>), ConnectionError> {
        // The usual case: the whole header lies in `bytes`, and nothing is copied.
        if self.receive.partial_len == 0
            && let Some(common) = CommonHeader::from_prefix(bytes)
        {
            let layout = self.layout(&common)?;
            let needed = header_needed(&layout);
            if bytes.len() >= needed {
                let event = self.on_header(&bytes[..needed], &layout)?;
                return Ok((needed, Some(event)));
            }
        }
        let mut partial = self.receive.partial;
        let mut partial_len = self.receive.partial_len;
        let (mut taken, gathered) = gather(&mut partial, &mut partial_len, bytes, COMMON_LEN);
        let mut event = None;
        if let Gathered::Whole(head) = gathered
            && let Some(common) = CommonHeader::from_prefix(head)
        {
            let layout = self.layout(&common)?;
            let needed = header_needed(&layout);
            let rest = &bytes[taken..];
            let (more, gathered) = gather(&mut partial, &mut partial_len, rest, needed);
            taken += more;
            if let Gathered::Whole(header) = gathered {
                event = Some(self.on_header(header, &layout)?);
                partial_len = 0;
            }
        }
        self.receive.partial = partial;
        self.receive.partial_len = partial_len;
        Ok((taken, event))
    }

    /// Checks the lengths of a PDU, and that it may come now.
    fn layout(&mut self, common: &CommonHeader) -> Result<PduLayout, ConnectionError> {
        self.receive.last_header.copy_from_slice(zerocopy::IntoBytes::as_bytes(common));
        let digests = match self.phase {
            Phase::Ready => self.digests,
            Phase::Connecting | Phase::Ended => Digests::default(),
        };
        // This host asks for no alignment, which leaves dwords (HPDA 0).
        let layout = common.layout(digests, 4)?;
        let pdu = layout.pdu_type;
        let expected = match self.phase {
            Phase::Connecting => matches!(pdu, PduType::IcResp | PduType::C2hTermReq),
            Phase::Ready => !pdu.is_from_host() && pdu != PduType::IcResp,
            Phase::Ended => false,
        };
        if expected { Ok(layout) } else { Err(PduError::Sequence { pdu }.into()) }
    }

    /// `bytes` is a PDU up to its data.
    fn on_header(&mut self, bytes: &[u8], layout: &PduLayout) -> Result<Event, ConnectionError> {
        let pdu = layout.pdu_type;
        if layout.header_digest {
            let received = u32_at(bytes, layout.header_len);
            let computed = checksum::crc32c(&bytes[..layout.header_len]);
            if received != computed {
                return Err(PduError::HeaderDigest { pdu, received, computed }.into());
            }
        }
        match pdu {
            PduType::IcResp => {
                self.on_ic_resp(header::<IcResp>(bytes))?;
                Ok(Event::Ready)
            }
            PduType::CapsuleResp => self.complete(pdu, header::<CapsuleResp>(bytes).cqe),
            PduType::C2hData => self.on_c2h_data(header(bytes), layout),
            PduType::R2t => self.on_r2t(header(bytes)),
            PduType::C2hTermReq => {
                let term: &TermReq = header(bytes);
                let fes = FatalErrorStatus(term.fes.get());
                Err(ConnectionError::Terminated { fes, fei: term.fei.get() })
            }
            PduType::IcReq | PduType::H2cTermReq | PduType::CapsuleCmd | PduType::H2cData => {
                Err(PduError::Sequence { pdu }.into())
            }
        }
    }

    fn on_c2h_data(
        &mut self,
        data: &C2hData,
        layout: &PduLayout,
    ) -> Result<Event, ConnectionError> {
        data.check(layout)?;
        let (cid, pdu) = (data.cccid.get(), PduType::C2hData);
        let (offset, len) = (data.datao.get(), data.datal.get());
        let unknown = ConnectionError::UnknownCommand { pdu, cid };
        let (slot, command) = self.slots.find(cid).ok_or(unknown)?;
        let Transfer::ToHost(total) = command.transfer else {
            return Err(PduError::Sequence { pdu }.into());
        };
        if u64::from(offset) + u64::from(len) > u64::from(total) {
            return Err(PduError::DataOutOfRange { pdu, offset, length: len }.into());
        }
        if command.has_all {
            return Err(PduError::Sequence { pdu }.into());
        }
        advance(command, pdu, (offset, len))?;
        command.has_all = layout.flags.contains(PduFlags::LAST_PDU);
        let payload = Payload { slot, offset, len };
        let success = layout.flags.contains(PduFlags::SUCCESS);
        self.receive.expect = Expect::Payload { payload, digest: layout.data_digest, success };
        Ok(Event::Data(payload))
    }

    fn on_r2t(&mut self, r2t: &R2t) -> Result<Event, ConnectionError> {
        let (cid, pdu, round) = (r2t.cccid.get(), PduType::R2t, self.round);
        let (offset, len) = (r2t.r2to.get(), r2t.r2tl.get());
        let unknown = ConnectionError::UnknownCommand { pdu, cid };
        let (slot, command) = self.slots.find(cid).ok_or(unknown)?;
        let Transfer::ToController(total) = command.transfer else {
            return Err(PduError::Sequence { pdu }.into());
        };
        if len == 0 || u64::from(offset) + u64::from(len) > u64::from(total) {
            return Err(PduError::InvalidField { pdu, offset: OFFSET_R2TL, value: len }.into());
        }
        advance(command, pdu, (offset, len))?;
        if len < R2T_BYTES_MIN && command.done < total {
            return Err(PduError::InvalidField { pdu, offset: OFFSET_R2TL, value: len }.into());
        }
        let outstanding = command.count_r2t(round);
        if outstanding > R2TS_MAX {
            let (value, limit) = (outstanding, R2TS_MAX);
            return Err(PduError::LimitExceeded { pdu, value, limit }.into());
        }
        Ok(Event::R2t(R2tRequest { slot, ttag: r2t.ttag.get(), offset, len }))
    }

    fn complete(&mut self, pdu: PduType, cqe: Cqe) -> Result<Event, ConnectionError> {
        let cid = cqe.cid.get();
        let unknown = ConnectionError::UnknownCommand { pdu, cid };
        let (slot, command) = self.slots.find(cid).ok_or(unknown)?;
        let transferred = command.done;
        let len = match command.transfer {
            Transfer::None => 0,
            Transfer::ToHost(len) | Transfer::ToController(len) => len,
        };
        if cqe.status().is_success() && transferred != len {
            return Err(ConnectionError::ShortData { cid, done: transferred, len });
        }
        self.slots.free(slot);
        Ok(Event::Completed { slot, cqe, transferred })
    }
}

/// INITIATOR-3: the run `offset`, `len`, which lies within the command's data, continues what is
/// done of it.
fn advance(command: &mut Command, pdu: PduType, (offset, len): (u32, u32)) -> Result<(), PduError> {
    if offset != command.done {
        return Err(PduError::Sequence { pdu });
    }
    command.done += len;
    Ok(())
}

/// Bytes up to the data, or of the whole PDU if there is none that passes by.
fn header_needed(layout: &PduLayout) -> usize {
    if layout.pdu_type.may_have_data() { layout.data_offset } else { layout.plen }
}

/// The header of type `T`; the caller has seen that `bytes` is long enough.
fn header<T>(bytes: &[u8]) -> &T
where
    T: zerocopy::FromBytes + zerocopy::KnownLayout + zerocopy::Immutable + zerocopy::Unaligned,
{
    header_from_bytes(bytes).expect("HLEN was checked")
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let digest = bytes[at..].first_chunk().expect("its end was checked");
    u32::from_le_bytes(*digest)
}
