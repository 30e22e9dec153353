//! The decoders of requests, for `fuzz/`.

use serde::de::DeserializeOwned;

use crate::{Problem, VolumeKey, request};

/// The volume that a part of a path names, as requests that are passed on are looked at.
#[must_use]
pub fn volume_key(part: &str) -> Option<VolumeKey> {
    request::volume_key(part)
}

/// A body as what a route wants.
///
/// # Errors
/// As the API refuses it.
pub fn body<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    request::decode(bytes)
}
