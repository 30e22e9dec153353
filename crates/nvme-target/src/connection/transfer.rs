//! The transfer of a command's data, as its SGL descriptor says (TCP, clause 3.5).

use nvme_wire::opcode::DataDirection;
use nvme_wire::sgl::SglForm;
use nvme_wire::{IoOpcode, Sqe, Status, fabrics};

/// The only PSDT that fabrics allow.
const PSDT_SGL: u8 = 1;

/// The transfer of a command's data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Transfer {
    /// No data comes from the host. Some may go to it.
    NotFromHost,
    /// The rest of this capsule is the data.
    InCapsule(u32),
    /// The controller asks for the data with R2T.
    Solicited(u32),
}

/// Reads the SGL of `sqe`, whose capsule carries `capsule_data_len` bytes of data.
pub(super) fn classify(
    sqe: &Sqe,
    capsule_data_len: u32,
    transfer_bytes_max: u32,
) -> Result<Transfer, Status> {
    // A Connect is told by its own check, in its own words.
    if sqe.psdt() != PSDT_SGL && !fabrics::is_connect(sqe) {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    let direction = match sqe.opcode {
        fabrics::OPCODE => DataDirection::of(fabrics::fctype(sqe).0),
        opcode => DataDirection::of(opcode),
    };
    let length = sqe.dptr.length.get();
    // It brings what is to be there and what is to come.
    let pair = sqe.opcode == IoOpcode::COMPARE_AND_WRITE.0;
    let transfer_bytes_max = transfer_bytes_max.saturating_mul(if pair { 2 } else { 1 });
    // No known command moves data both ways; the layer that knows the opcodes refuses it.
    if matches!(direction, DataDirection::None | DataDirection::Both) {
        return Ok(Transfer::NotFromHost);
    }
    let to_controller = direction == DataDirection::ToController;
    match sqe.dptr.form() {
        SglForm::InCapsule { offset, .. } if to_controller => {
            if offset != 0 {
                Err(Status::SGL_OFFSET_INVALID.with_dnr())
            } else if length != capsule_data_len {
                Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr())
            } else if length == 0 {
                Ok(Transfer::NotFromHost)
            } else {
                Ok(Transfer::InCapsule(length))
            }
        }
        SglForm::Transport { .. } => {
            if capsule_data_len > 0 {
                Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.with_dnr())
            } else if length > transfer_bytes_max {
                Err(Status::INVALID_FIELD.with_dnr())
            } else if to_controller && length > 0 {
                Ok(Transfer::Solicited(length))
            } else {
                Ok(Transfer::NotFromHost)
            }
        }
        // Sixteen zero bytes: some hosts leave the field alone where there is no data.
        SglForm::Other { identifier: 0 } if length == 0 && capsule_data_len == 0 => {
            Ok(Transfer::NotFromHost)
        }
        SglForm::InCapsule { .. } | SglForm::Other { .. } => {
            Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.with_dnr())
        }
    }
}

#[cfg(test)]
mod tests {
    use nvme_wire::SglDescriptor;

    use super::*;

    fn classified(
        opcode: IoOpcode,
        dptr: SglDescriptor,
        data_len: u32,
    ) -> Result<Transfer, Status> {
        let mut sqe = Sqe::new(opcode.0, 1);
        sqe.dptr = dptr;
        classify(&sqe, data_len, 1 << 20).map_err(Status::code)
    }

    #[test]
    fn each_descriptor_leads_to_its_transfer_or_status() {
        let (read, write) = (IoOpcode::READ, IoOpcode::WRITE);
        let in_capsule = SglDescriptor::in_capsule(4096);
        let transport = SglDescriptor::transport(4096);
        assert_eq!(classified(write, in_capsule, 4096), Ok(Transfer::InCapsule(4096)));
        assert_eq!(classified(write, transport, 0), Ok(Transfer::Solicited(4096)));
        assert_eq!(classified(read, transport, 0), Ok(Transfer::NotFromHost));
        assert_eq!(
            classified(IoOpcode::FLUSH, SglDescriptor::transport(0), 0),
            Ok(Transfer::NotFromHost)
        );
        assert_eq!(classified(write, SglDescriptor::NONE, 0), Ok(Transfer::NotFromHost));

        let type_invalid = Err(Status::SGL_DESCRIPTOR_TYPE_INVALID);
        assert_eq!(classified(read, in_capsule, 4096), type_invalid);
        assert_eq!(classified(write, transport, 4096), type_invalid);
        for identifier in [0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0xF0] {
            assert_eq!(
                classified(write, SglDescriptor { identifier, ..transport }, 0),
                type_invalid
            );
        }
        let offset = SglDescriptor { address: 4.into(), ..in_capsule };
        assert_eq!(classified(write, offset, 4096), Err(Status::SGL_OFFSET_INVALID));
        assert_eq!(classified(write, in_capsule, 512), Err(Status::DATA_SGL_LENGTH_INVALID));
        let too_long = SglDescriptor::transport((1 << 20) + 1);
        assert_eq!(classified(write, too_long, 0), Err(Status::INVALID_FIELD));
        assert_eq!(classified(read, too_long, 0), Err(Status::INVALID_FIELD));
    }

    #[test]
    fn prps_are_refused() {
        let mut sqe = Sqe::new(IoOpcode::READ.0, 1);
        for psdt in [0, 2, 3] {
            sqe.flags = psdt << 6;
            assert_eq!(classify(&sqe, 0, 1 << 20), Err(Status::INVALID_FIELD.with_dnr()));
        }
    }
}
