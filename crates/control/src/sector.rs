//! The sizes that logical blocks can have.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use units::SectorSize;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// Bytes of a logical block, as hosts address a volume: 512 or 4096.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SectorBytes(SectorSize);

impl SectorBytes {
    /// Their number.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.0.bytes()
    }
}

/// A size that logical blocks cannot have.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("logical blocks have 512 or 4096 bytes; {0} is not possible")]
pub struct SectorBytesError(pub u64);

impl TryFrom<u64> for SectorBytes {
    type Error = SectorBytesError;

    fn try_from(bytes: u64) -> Result<Self, SectorBytesError> {
        SectorSize::from_bytes(bytes).map(Self).ok_or(SectorBytesError(bytes))
    }
}

impl From<SectorBytes> for SectorSize {
    fn from(bytes: SectorBytes) -> Self {
        bytes.0
    }
}

impl From<SectorSize> for SectorBytes {
    fn from(size: SectorSize) -> Self {
        Self(size)
    }
}

impl PartialSchema for SectorBytes {
    fn schema() -> RefOr<Schema> {
        let sizes = SectorSize::ALL.map(|size| size.bytes() as u64);
        ObjectBuilder::new().schema_type(Type::Integer).enum_values(Some(sizes)).into()
    }
}

impl ToSchema for SectorBytes {}

impl Serialize for SectorBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0.bytes() as u64)
    }
}

impl<'de> Deserialize<'de> for SectorBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::try_from(u64::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_logical_blocks_cannot_have_is_refused() {
        for bytes in [512_u64, 4096] {
            let parsed: SectorBytes = serde_json::from_str(&bytes.to_string()).expect("possible");
            assert_eq!(serde_json::to_string(&parsed).expect("a number"), bytes.to_string());
        }
        assert_eq!(SectorBytes::default(), SectorBytes::try_from(4096).expect("possible"));
        let error = serde_json::from_str::<SectorBytes>("1024").expect_err("impossible");
        assert!(error.to_string().starts_with("logical blocks have 512 or 4096"), "{error}");
    }
}
