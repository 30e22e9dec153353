//! An SLO as it lies in descriptors and entries.

use units::Slo;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::DecodeError;

const KIND_DEFAULT: u8 = 0;
const KIND_SHARE: u8 = 1;
const KIND_RATE: u8 = 2;

/// An SLO. Zeroes are the default, so that a volume without one needs none written.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct PackedSlo {
    /// 0..8: weight, or blocks read a second.
    first: U64,
    /// 8..16: blocks written a second.
    second: U64,
    /// 16: 0 default, 1 share, 2 rate.
    kind: u8,
    /// 17..24: zero.
    reserved: [u8; 7],
}

const _: () = assert!(size_of::<PackedSlo>() == 24);

impl PackedSlo {
    pub(crate) fn new(kind: u8, first: u64, second: u64) -> Self {
        Self { first: first.into(), second: second.into(), kind, reserved: [0; 7] }
    }

    /// Kind, and the two numbers.
    pub(crate) fn parts(&self) -> (u8, u64, u64) {
        (self.kind, self.first.get(), self.second.get())
    }

    /// # Errors
    /// No SLO.
    pub(crate) fn unpack(&self) -> Result<Slo, DecodeError> {
        let weight = u32::try_from(self.first.get());
        match (self.kind, weight) {
            (KIND_DEFAULT, _) => Ok(Slo::default()),
            (KIND_SHARE, Ok(weight)) => Ok(Slo::Share { weight }),
            (KIND_RATE, _) => Ok(Slo::Rate {
                reads_per_second: self.first.get(),
                writes_per_second: self.second.get(),
            }),
            _ => Err(DecodeError::Field("SLO")),
        }
    }
}

impl From<Slo> for PackedSlo {
    fn from(slo: Slo) -> Self {
        match slo {
            Slo::Share { weight } => Self::new(KIND_SHARE, weight.into(), 0),
            Slo::Rate { reads_per_second, writes_per_second } => {
                Self::new(KIND_RATE, reads_per_second, writes_per_second)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_survive_and_zeroes_are_the_default() {
        let rate = Slo::Rate { reads_per_second: u64::MAX, writes_per_second: 0 };
        for slo in [Slo::default(), Slo::Share { weight: u32::MAX }, rate] {
            assert_eq!(PackedSlo::from(slo).unpack(), Ok(slo));
        }
        assert_eq!(PackedSlo::new(0, 0, 0).unpack(), Ok(Slo::default()));
        for bad in [PackedSlo::new(3, 1, 0), PackedSlo::new(1, 1 << 32, 0)] {
            assert_eq!(bad.unpack(), Err(DecodeError::Field("SLO")));
        }
    }
}
