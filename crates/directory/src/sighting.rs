//! Looking for a host that the directory has lost.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use cluster::{ClaimRecord, Sighting, View};
use uuid::Uuid;

/// Looks for the holder of a device's claim, whose lease has ended, at the addresses that the claim names, in a
/// bounded time. `None`: the holder is not there, as far as can be seen from here.
pub type Seek = Arc<
    dyn Fn(Uuid, &ClaimRecord, &View) -> Pin<Box<dyn Future<Output = Option<Sighting>> + Send>>
        + Send
        + Sync,
>;
