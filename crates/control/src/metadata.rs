//! Sizes of the metadata that blocks have.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use units::MetadataSize;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// Bytes of metadata that each block of a volume has: 0, 8, 16 or 64.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MetadataBytes(MetadataSize);

/// Why blocks cannot have so much metadata.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("blocks have 8, 16 or 64 bytes of metadata, or none (0); {0} is not possible")]
pub struct MetadataBytesError(pub u64);

impl TryFrom<u64> for MetadataBytes {
    type Error = MetadataBytesError;

    fn try_from(bytes: u64) -> Result<Self, MetadataBytesError> {
        MetadataSize::from_bytes(bytes).map(Self).ok_or(MetadataBytesError(bytes))
    }
}

impl From<MetadataBytes> for MetadataSize {
    fn from(bytes: MetadataBytes) -> Self {
        bytes.0
    }
}

impl PartialSchema for MetadataBytes {
    fn schema() -> RefOr<Schema> {
        let sizes = MetadataSize::ALL.map(|size| size.bytes() as u64);
        ObjectBuilder::new().schema_type(Type::Integer).enum_values(Some(sizes)).into()
    }
}

impl ToSchema for MetadataBytes {}

impl Serialize for MetadataBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0.bytes() as u64)
    }
}

impl<'de> Deserialize<'de> for MetadataBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::try_from(u64::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_blocks_cannot_have_is_refused_with_what_they_can() {
        for bytes in [0_u64, 8, 16, 64] {
            let parsed: MetadataBytes = serde_json::from_str(&bytes.to_string()).expect("possible");
            assert_eq!(serde_json::to_string(&parsed).expect("a number"), bytes.to_string());
        }
        let error = serde_json::from_str::<MetadataBytes>("12").expect_err("impossible");
        assert!(error.to_string().starts_with("blocks have 8, 16 or 64 bytes"), "{error}");
    }
}
