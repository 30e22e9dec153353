//! Cross-Controller Reset: one controller of a subsystem ends another of the same host (Base 2.3,
//! clauses 5.4.3 and 8.3.3).

use crate::{AdminOpcode, Sqe};

/// One life of a controller. Its ID is used again after it; these three fields together are unique.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ControllerInstance {
    /// Controller ID.
    pub cntlid: u16,
    /// Controller Instance Uniquifier: differs from that of the last controller of this number.
    pub ciu: u8,
    /// Controller Instance Random Number.
    pub cirn: u64,
}

/// A Cross-Controller Reset command's fields: the impacted controller.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CrossControllerReset(pub ControllerInstance);

impl CrossControllerReset {
    /// Bit 0 of the completion's dword 0, Immediate Reset Successful: the reset is over, and nothing
    /// that was sent to the impacted controller is carried out from now on.
    pub const DONE: u32 = 1 << 0;

    /// The fields of `sqe`.
    #[must_use]
    pub fn decode(sqe: &Sqe) -> Self {
        let [cntlid0, cntlid1, ciu, _] = sqe.cdw10.to_bytes();
        let cirn = u64::from(sqe.cdw12.get()) | u64::from(sqe.cdw13.get()) << 32;
        let cntlid = u16::from_le_bytes([cntlid0, cntlid1]);
        Self(ControllerInstance { cntlid, ciu, cirn })
    }

    /// The command.
    #[must_use]
    pub fn encode(&self) -> Sqe {
        let ControllerInstance { cntlid, ciu, cirn } = self.0;
        let mut sqe = Sqe::new(AdminOpcode::CROSS_CONTROLLER_RESET.0, 0);
        sqe.cdw10 = (u32::from(cntlid) | u32::from(ciu) << 16).into();
        sqe.cdw12 = (cirn as u32).into();
        sqe.cdw13 = ((cirn >> 32) as u32).into();
        sqe
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_makes_the_round_trip() {
        let instance = ControllerInstance { cntlid: 0x0102, ciu: 3, cirn: 0x0405_0607_0809_0A0B };
        let sqe = CrossControllerReset(instance).encode();
        assert_eq!(sqe.opcode, 0x38);
        assert_eq!(sqe.cdw10.get(), 0x0003_0102);
        assert_eq!((sqe.cdw12.get(), sqe.cdw13.get()), (0x0809_0A0B, 0x0405_0607));
        assert_eq!(CrossControllerReset::decode(&sqe), CrossControllerReset(instance));
    }
}
