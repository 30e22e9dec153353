//! Checks that the watch delivers events (SESSION-7).
//!
//! A middlebox between a host and etcd may forget a connection without ending it: then nothing comes by the watch, no event and
//! no error, while requests are answered. So the host compares now and then that the watch has delivered all that etcd holds.

use super::Node;
use crate::World;
use crate::store::{Store, StoreError};

/// It is looked every so many times that the lease is kept: once within its length.
const TIMES: u32 = 3;

/// The findings of a session so far.
#[derive(Debug, Default)]
pub(super) struct Silence {
    times: u32,
    /// Up to which revision the watch had told when it had not told all at the last look.
    doubted_at: Option<i64>,
}

impl Silence {
    /// Looks, if it is time to; the lease was just kept, and etcd is at `revision`. `true`: the watch has told nothing since the look
    /// before, and did not tell all that was to be told then: what is on its way comes sooner.
    ///
    /// # Errors
    /// etcd does not answer.
    pub(super) async fn is_found<W: World>(
        &mut self,
        node: &Node<W>,
        store: &W::Store,
        revision: i64,
    ) -> Result<bool, StoreError> {
        self.times += 1;
        if !self.times.is_multiple_of(TIMES) {
            return Ok(false);
        }
        let (seen, keys) = node.state(|state| (state.seen, state.keys));
        let doubted_at = self.doubted_at.take();
        // Nothing was changed in all of etcd.
        if revision <= seen {
            return Ok(false);
        }
        // Others may share etcd, whose changes are not told here.
        let found = store.compare(&node.keys.prefix, seen).await?;
        if !found.is_changed && found.keys == keys {
            return Ok(false);
        }
        self.doubted_at = Some(seen);
        Ok(doubted_at == Some(seen))
    }
}
