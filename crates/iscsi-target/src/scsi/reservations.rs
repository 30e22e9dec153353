//! Reservations in SCSI's forms (SPC-4, clauses 5.13, 6.15 and 6.16; SPC-2, clauses 7.18 and 7.21).

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Write;

use iscsi_wire::cdb::{opcode, reserve_in, reserve_out, service_action_in};
use iscsi_wire::{Cdb, IscsiName, Sense};
use reservation::{Access, Command, Host, Kind, NoticeKind, Refused, Reservations};

use super::Operation;

/// Bytes of the parameters of PERSISTENT RESERVE OUT, but for those of REGISTER AND MOVE, where a TransportID follows, and of
/// registrations with SPEC_I_PT.
const PARAMETERS_LEN: u32 = 24;
/// Bytes of the parameters of REGISTER AND MOVE: more than with the longest name.
const MOVE_PARAMETERS_MAX: u32 = PARAMETERS_LEN + 256;
/// Bytes of the parameters of a registration that are looked at: with a dozen of the longest TransportIDs. That SPEC_I_PT, which
/// announces them, is not supported is told by the flag and not by their length (SPC-4, clause 6.16.3).
const REGISTER_PARAMETERS_MAX: u32 = 4096;
/// UNREG, of REGISTER AND MOVE.
const UNREGISTERS: u8 = 2;
/// SPEC_I_PT, which is not supported. ALL_TG_PT is: there is one target port, so it changes nothing.
const SPEC_I_PT: u8 = 0x08;
const APTPL: u8 = 1;
/// The only target port, in a descriptor of READ FULL STATUS.
const TARGET_PORT: u16 = 1;
/// TransportIDs are as long as these, and a multiple of four.
const TRANSPORT_ID_LEN_MIN: usize = 24;
/// FORMAT CODE 01b, protocol iSCSI: a name and an ISID.
const ISCSI_PORT: u8 = 0x45;
/// FORMAT CODE 00b, protocol iSCSI: a name.
const ISCSI_DEVICE: u8 = 0x05;

/// A PERSISTENT RESERVE OUT without its parameters.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReserveOut {
    action: u8,
    kind: Option<Kind>,
    len: u32,
}

/// Returns how reservations treat a command; `None` if it never conflicts, or has rules of its own.
#[must_use]
pub fn access_of(cdb: &Cdb) -> Option<Access> {
    match cdb.opcode() {
        opcode::INQUIRY
        | opcode::REPORT_LUNS
        | opcode::REQUEST_SENSE
        | opcode::RESERVE_6
        | opcode::RESERVE_10
        | opcode::RELEASE_6
        | opcode::RELEASE_10
        | opcode::PERSISTENT_RESERVE_OUT => None,
        opcode::SERVICE_ACTION_IN_16 if cdb.byte(1) & 0x1F == service_action_in::GET_LBA_STATUS => {
            Some(Access::Read)
        }
        opcode::TEST_UNIT_READY
        | opcode::READ_CAPACITY_10
        | opcode::SERVICE_ACTION_IN_16
        | opcode::MAINTENANCE_IN
        | opcode::PREVENT_ALLOW
        | opcode::PERSISTENT_RESERVE_IN => Some(Access::Other),
        opcode::READ_6
        | opcode::READ_10
        | opcode::READ_12
        | opcode::READ_16
        | opcode::VERIFY_10
        | opcode::VERIFY_12
        | opcode::VERIFY_16
        | opcode::MODE_SENSE_6
        | opcode::MODE_SENSE_10 => Some(Access::Read),
        _ => Some(Access::Write),
    }
}

/// Decodes the commands of this module; `None` if `cdb` is none of them.
pub(super) fn decode(cdb: &Cdb) -> Option<Result<Operation, Sense>> {
    Some(match cdb.opcode() {
        // LongID, extents and third parties are of the past.
        opcode::RESERVE_6 | opcode::RESERVE_10 if cdb.byte(1) & 0x13 != 0 => {
            Err(Sense::invalid_cdb(1))
        }
        opcode::RELEASE_6 | opcode::RELEASE_10 if cdb.byte(1) & 0x13 != 0 => {
            Err(Sense::invalid_cdb(1))
        }
        opcode::RESERVE_6 | opcode::RESERVE_10 => Ok(Operation::Reserve(Command::Lock)),
        opcode::RELEASE_6 | opcode::RELEASE_10 => Ok(Operation::Reserve(Command::Unlock)),
        opcode::PERSISTENT_RESERVE_IN => {
            Ok(Operation::ReserveIn { action: cdb.byte(1) & 0x1F, len: cdb.u16_at(7).into() })
        }
        opcode::PERSISTENT_RESERVE_OUT => decode_out(cdb),
        _ => return None,
    })
}

fn decode_out(cdb: &Cdb) -> Result<Operation, Sense> {
    let action = cdb.byte(1) & 0x1F;
    let (scope, code) = (cdb.byte(2) >> 4, cdb.byte(2) & 0x0F);
    let has_kind = matches!(
        action,
        reserve_out::RESERVE
            | reserve_out::RELEASE
            | reserve_out::PREEMPT
            | reserve_out::PREEMPT_AND_ABORT
    );
    let kind = Kind::from_scsi_code(code).filter(|_| has_kind);
    if has_kind && (scope != 0 || kind.is_none()) {
        return Err(Sense::invalid_cdb(2));
    }
    let (len, len_max) = match action {
        reserve_out::REGISTER_AND_MOVE => (cdb.u32_at(5), MOVE_PARAMETERS_MAX),
        reserve_out::REGISTER | reserve_out::REGISTER_AND_IGNORE => {
            (cdb.u32_at(5), REGISTER_PARAMETERS_MAX)
        }
        _ => (cdb.u32_at(5), PARAMETERS_LEN),
    };
    if !(PARAMETERS_LEN..=len_max).contains(&len) {
        return Err(Sense::PARAMETER_LIST_LENGTH);
    }
    Ok(Operation::ReserveOut(ReserveOut { action, kind, len }))
}

impl ReserveOut {
    /// Bytes of its parameters.
    #[must_use]
    pub fn len_bytes(self) -> u32 {
        self.len
    }

    /// The command, with its parameters.
    ///
    /// # Errors
    /// They ask for what there is not.
    pub fn with_parameters(self, parameters: &[u8]) -> Result<Command, Sense> {
        let (current, rest) = parameters.split_first_chunk().ok_or(Sense::PARAMETER_LIST_LENGTH)?;
        let (key, rest) = rest.split_first_chunk().ok_or(Sense::PARAMETER_LIST_LENGTH)?;
        let flags = rest.get(4).copied().ok_or(Sense::PARAMETER_LIST_LENGTH)?;
        let (current, key) = (u64::from_be_bytes(*current), u64::from_be_bytes(*key));
        if self.action == reserve_out::REGISTER_AND_MOVE {
            return move_with_parameters(current, key, rest);
        }
        let is_register =
            matches!(self.action, reserve_out::REGISTER | reserve_out::REGISTER_AND_IGNORE);
        if is_register && flags & SPEC_I_PT != 0 {
            return Err(Sense::invalid_parameter(20));
        }
        if self.len != PARAMETERS_LEN {
            return Err(Sense::PARAMETER_LIST_LENGTH);
        }
        let persistence = flags & APTPL != 0;
        let kind = self.kind.ok_or(Sense::invalid_cdb(2));
        Ok(match self.action {
            reserve_out::REGISTER => Command::Set { current: Some(current), key, persistence },
            reserve_out::REGISTER_AND_IGNORE => Command::Set { current: None, key, persistence },
            reserve_out::RESERVE => Command::Acquire { current, kind: kind? },
            reserve_out::RELEASE => Command::Release { current, kind: kind? },
            reserve_out::CLEAR => Command::Clear { current },
            _ => {
                let aborts = self.action == reserve_out::PREEMPT_AND_ABORT;
                Command::Preempt { current, victim: key, kind: kind?, aborts }
            }
        })
    }
}

/// The command REGISTER AND MOVE, of whose parameters `rest` lies behind the keys (SPC-4, clause 6.16.4).
fn move_with_parameters(current: u64, key: u64, rest: &[u8]) -> Result<Command, Sense> {
    let short = Sense::PARAMETER_LIST_LENGTH;
    let ([_, flags, port_high, port_low, len @ ..], transport_id) =
        rest.split_first_chunk::<8>().ok_or(short)?;
    if u32::from_be_bytes(*len) as usize != transport_id.len() {
        return Err(short);
    }
    if [*port_high, *port_low] != TARGET_PORT.to_be_bytes() {
        return Err(Sense::invalid_parameter(18));
    }
    let to = initiator_port(transport_id).ok_or(Sense::invalid_parameter(24))?;
    let (unregisters, persistence) = (flags & UNREGISTERS != 0, flags & APTPL != 0);
    Ok(Command::Move { current, key, to, unregisters, persistence })
}

/// The initiator port of a TransportID; `None` if it names none of iSCSI (SPC-4, clause 7.6.4.6).
fn initiator_port(transport_id: &[u8]) -> Option<Host> {
    let ([form, _, high, low], text) = transport_id.split_first_chunk::<4>()?;
    let is_whole = usize::from(u16::from_be_bytes([*high, *low])) == text.len();
    if *form != ISCSI_PORT || !is_whole {
        return None;
    }
    let text = core::str::from_utf8(text.split(|byte| *byte == 0).next()?).ok()?;
    let (name, isid) = text.split_once(",i,0x")?;
    let is_isid = (1..=12).contains(&isid.len()) && isid.bytes().all(|it| it.is_ascii_hexdigit());
    let isid = u64::from_str_radix(isid, 16).ok().filter(|_| is_isid)?.to_be_bytes();
    let [_, _, isid @ ..] = isid;
    Some(Host::Iscsi { name: IscsiName::new(name).ok()?.as_str().into(), isid })
}

/// The sense data of a refused command; `None` for a reservation conflict, which has a status of its own.
#[must_use]
pub fn refusal_sense(refused: Refused) -> Option<Sense> {
    match refused {
        Refused::Conflict => None,
        Refused::ZeroKey => Some(Sense::invalid_parameter(8)),
        Refused::SameHost => Some(Sense::invalid_parameter(24)),
        Refused::OtherKind => Some(Sense::INVALID_RELEASE),
        Refused::Full => Some(Sense::REGISTRATION_RESOURCES),
    }
}

/// The unit attention for a host that another's command concerned.
#[must_use]
pub fn notice_sense(notice: NoticeKind) -> Sense {
    match notice {
        NoticeKind::RegistrationPreempted => Sense::REGISTRATIONS_PREEMPTED,
        NoticeKind::ReservationReleased => Sense::RESERVATIONS_RELEASED,
        NoticeKind::ReservationPreempted => Sense::RESERVATIONS_PREEMPTED,
    }
}

/// Answers PERSISTENT RESERVE IN.
#[must_use]
pub fn reserve_in_answer(action: u8, state: &Reservations) -> Vec<u8> {
    let list = match action {
        reserve_in::READ_KEYS => {
            state.registrants().flat_map(|registrant| registrant.key.to_be_bytes()).collect()
        }
        reserve_in::READ_RESERVATION => state.kind().map_or_else(Vec::new, |kind| {
            let mut bytes = state.holder_key().to_be_bytes().to_vec();
            bytes.extend([0, 0, 0, 0, 0, kind.scsi_code(), 0, 0]);
            bytes
        }),
        reserve_in::REPORT_CAPABILITIES => return capabilities(state),
        _ => full_status(state),
    };
    let len = u32::try_from(list.len()).expect("RESERVATION-4");
    [&state.generation().to_be_bytes()[..], &len.to_be_bytes(), &list].concat()
}

fn capabilities(state: &Reservations) -> Vec<u8> {
    // ATP_C and PTPL_C; TMV and PTPL_A; all six types.
    let mask = Kind::ALL.iter().fold(0_u16, |mask, kind| {
        let code = u16::from(kind.scsi_code());
        // Type 8 is bit 0 of the second byte, all others lie in the first.
        mask | if code == 8 { 1 } else { 1 << (8 + code) }
    });
    let [first, second] = mask.to_be_bytes();
    vec![0, 8, 5, 0x80 | u8::from(state.is_persistent()), first, second, 0, 0]
}

fn full_status(state: &Reservations) -> Vec<u8> {
    let mut list = Vec::new();
    let kind = state.kind().map_or(0, Kind::scsi_code);
    for registrant in state.registrants() {
        let transport_id = transport_id(registrant.host);
        let (holder, kind) = if registrant.is_holder { (1, kind) } else { (0, 0) };
        list.extend(registrant.key.to_be_bytes());
        list.extend([0, 0, 0, 0, holder, kind, 0, 0, 0, 0]);
        list.extend(TARGET_PORT.to_be_bytes());
        list.extend(u32::try_from(transport_id.len()).expect("a short name").to_be_bytes());
        list.extend(transport_id);
    }
    list
}

/// The TransportID of a host (SPC-4, clause 7.6.4). SCSI has none for hosts of NVMe: they are named as one would call them.
fn transport_id(host: &Host) -> Vec<u8> {
    let (form, name) = match host {
        Host::Iscsi { name, isid } => {
            let mut name = name.clone();
            name.push_str(",i,0x");
            push_hex(&mut name, isid);
            (ISCSI_PORT, name)
        }
        Host::Nvme(id) => {
            let mut name = String::from("nqn.2014-08.org.nvmexpress:uuid:");
            let [a, b, c, d, e] = [0..4, 4..6, 6..8, 8..10, 10..16].map(|part| &id[part]);
            for (n, part) in [a, b, c, d, e].into_iter().enumerate() {
                name.push_str(if n > 0 { "-" } else { "" });
                push_hex(&mut name, part);
            }
            (ISCSI_DEVICE, name)
        }
    };
    let len = (4 + name.len() + 1).next_multiple_of(4).max(TRANSPORT_ID_LEN_MIN);
    let additional = u16::try_from(len - 4).expect("a short name").to_be_bytes();
    let mut bytes = vec![form, 0, additional[0], additional[1]];
    bytes.extend_from_slice(name.as_bytes());
    bytes.resize(len, 0);
    bytes
}

fn push_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        write!(text, "{byte:02x}").expect("a string takes all");
    }
}
