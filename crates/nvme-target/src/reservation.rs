//! Reservation commands, checked, and what they return. The rules are those of the crate `reservation`.

use alloc::vec::Vec;

use nvme_wire::reservation::{
    CPTPL_CLEAR, CPTPL_KEEP, CPTPL_SET, RACQA_ACQUIRE, RACQA_PREEMPT, RACQA_PREEMPT_AND_ABORT,
    REPORT_PART_LEN, RREGA_REGISTER, RREGA_REPLACE, RREGA_UNREGISTER, RRELA_CLEAR, RRELA_RELEASE,
    RegisteredController, ReservationCommand, ReservationReport, ReservationStatus,
};
use nvme_wire::{IoOpcode, Sqe, Status};
use reservation::{Command, Kind, Refused, Registrant, Reservations};
use zerocopy::{FromZeros, IntoBytes};

use crate::io::IoCommand;

/// Controllers come and go with their associations, so none is named.
const CNTLID_DYNAMIC: u16 = 0xFFFF;

/// A command that changes reservations, without its keys.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReservationChange {
    opcode: IoOpcode,
    fields: ReservationCommand,
}

/// Checks a reservation command.
pub(crate) fn decode_reservation(opcode: IoOpcode, sqe: &Sqe) -> Result<IoCommand, Status> {
    let invalid = Status::INVALID_FIELD.with_dnr();
    let length = sqe.dptr.length.get();
    if opcode == IoOpcode::RESERVATION_REPORT {
        let report = ReservationReport::decode(sqe);
        // Host identifiers have 16 bytes here (Base, clause 7.7).
        if !report.extended {
            return Err(Status::HOST_ID_INCONSISTENT_FORMAT.with_dnr());
        }
        if u64::from(length) < report.len_bytes {
            return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
        }
        let len_bytes = u32::try_from(report.len_bytes).expect("at most a length of 32 bits");
        return Ok(IoCommand::ReservationReport { len_bytes });
    }
    let fields = ReservationCommand::decode(sqe);
    let is_sound = match opcode {
        IoOpcode::RESERVATION_REGISTER => {
            matches!(fields.action, RREGA_REGISTER | RREGA_UNREGISTER | RREGA_REPLACE)
                && matches!(fields.cptpl, CPTPL_KEEP | CPTPL_CLEAR | CPTPL_SET)
        }
        IoOpcode::RESERVATION_ACQUIRE => {
            matches!(fields.action, RACQA_ACQUIRE | RACQA_PREEMPT | RACQA_PREEMPT_AND_ABORT)
                && !fields.ignore_key
                && Kind::from_nvme_code(fields.rtype).is_some()
        }
        _ => {
            let is_typed = Kind::from_nvme_code(fields.rtype).is_some();
            !fields.ignore_key
                && (fields.action == RRELA_CLEAR || fields.action == RRELA_RELEASE && is_typed)
        }
    };
    if !is_sound {
        return Err(invalid);
    }
    if length != ReservationCommand::data_len(opcode) {
        return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
    }
    Ok(IoCommand::Reserve(ReservationChange { opcode, fields }))
}

impl ReservationChange {
    /// The command, with the keys that came as its data.
    pub fn with_keys(self, data: &[u8]) -> Result<Command, Status> {
        let Self { opcode, fields } = self;
        let invalid = Status::INVALID_FIELD.with_dnr();
        let (current, rest) =
            data.split_first_chunk().ok_or(Status::DATA_SGL_LENGTH_INVALID.with_dnr())?;
        let current = u64::from_le_bytes(*current);
        let second = rest.first_chunk().map_or(0, |key| u64::from_le_bytes(*key));
        let kind = || Kind::from_nvme_code(fields.rtype).ok_or(invalid);
        Ok(match opcode {
            IoOpcode::RESERVATION_REGISTER => {
                let persistence = match fields.cptpl {
                    CPTPL_SET => Some(true),
                    CPTPL_CLEAR => Some(false),
                    _ => None,
                };
                let current = (!fields.ignore_key).then_some(current);
                match fields.action {
                    RREGA_REGISTER => Command::Register { key: second, persistence },
                    RREGA_UNREGISTER => Command::Unregister { current, persistence },
                    _ => Command::Replace { current, key: second, persistence },
                }
            }
            IoOpcode::RESERVATION_ACQUIRE => match fields.action {
                RACQA_ACQUIRE => Command::Acquire { current, kind: kind()? },
                action => {
                    let aborts = action == RACQA_PREEMPT_AND_ABORT;
                    Command::Preempt { current, victim: second, kind: kind()?, aborts }
                }
            },
            _ => match fields.action {
                RRELA_CLEAR => Command::Clear { current },
                _ => Command::Release { current, kind: kind()? },
            },
        })
    }
}

/// The status of a refused reservation command.
#[must_use]
pub fn reservation_status(refused: Refused) -> Status {
    match refused {
        Refused::Conflict => Status::RESERVATION_CONFLICT.with_dnr(),
        Refused::ZeroKey | Refused::OtherKind | Refused::SameHost => {
            Status::INVALID_FIELD.with_dnr()
        }
        // Another host may end its registration.
        Refused::Full => Status::CAPACITY_EXCEEDED,
    }
}

/// Encodes the answer to a Reservation Report: at most `len_bytes` bytes, and fewer if there are no more.
#[must_use]
pub fn reservation_report(state: &Reservations, len_bytes: usize) -> Vec<u8> {
    let registrants = state.registrants();
    let status = ReservationStatus {
        generation: state.generation().into(),
        rtype: state.kind().map_or(0, Kind::nvme_code),
        registrants: u16::try_from(registrants.len()).expect("RESERVATION-4").into(),
        ptpls: state.is_persistent().into(),
        ..FromZeros::new_zeroed()
    };
    let mut bytes = Vec::with_capacity(REPORT_PART_LEN * (1 + registrants.len()));
    bytes.extend_from_slice(status.as_bytes());
    for Registrant { host, key, is_holder } in registrants {
        let registrant = RegisteredController {
            cntlid: CNTLID_DYNAMIC.into(),
            rcsts: is_holder.into(),
            rkey: key.into(),
            host_id: host.short_id(),
            ..FromZeros::new_zeroed()
        };
        bytes.extend_from_slice(registrant.as_bytes());
    }
    bytes.truncate(len_bytes);
    bytes
}

#[cfg(test)]
mod tests;
