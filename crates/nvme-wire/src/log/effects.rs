//! Commands Supported and Effects, LID 05h.

use core::mem::{offset_of, size_of};

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The command is supported.
pub const EFFECT_CSUPP: u32 = 1 << 0;
/// It may change the contents of logical blocks.
pub const EFFECT_LBCC: u32 = 1 << 1;
/// It may change a namespace's capabilities.
pub const EFFECT_NCC: u32 = 1 << 2;
/// It may change which namespaces there are.
pub const EFFECT_NIC: u32 = 1 << 3;
/// Its scope is a namespace.
pub const EFFECT_SCOPE_NAMESPACE: u32 = 1 << 20;
/// Its scope is a controller.
pub const EFFECT_SCOPE_CONTROLLER: u32 = 1 << 21;

/// The effects of each command, by opcode.
#[derive(Clone, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CommandEffects {
    /// 0..1024: admin commands by opcode.
    pub admin: [U32; 256],
    /// 1024..2048: I/O commands by opcode.
    pub io: [U32; 256],
    /// 2048..4096: reserved.
    pub reserved2048: [u8; 2048],
}

const _: () = {
    assert!(size_of::<CommandEffects>() == 4096);
    assert!(offset_of!(CommandEffects, io) == 1024);
};

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;
    use crate::IoOpcode;

    #[test]
    fn effects_lie_where_the_specification_puts_them() {
        let mut effects = CommandEffects::new_zeroed();
        effects.io[usize::from(IoOpcode::WRITE.0)] = (EFFECT_CSUPP | EFFECT_LBCC).into();
        assert_eq!(effects.as_bytes()[1024..1032], [0, 0, 0, 0, 3, 0, 0, 0]);
    }
}
