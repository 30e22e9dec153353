//! What the processor may fetch before it is asked for.

use super::Map;
use super::descent::{with_leaf, with_leaf_node};

impl Map {
    /// Says that the leaf for `key` will be looked at soon, by [`Map::will_get`] for instance.
    pub(crate) fn will_search(&self, key: u64) {
        if let Some(root) = &self.root {
            with_leaf_node(root, key, checksum::prefetch);
        }
    }

    /// Says that `key` will be asked for soon.
    pub(crate) fn will_get(&self, key: u64) {
        if let Some(root) = &self.root {
            with_leaf(root, key, |leaf| leaf.will_get(key));
        }
    }
}
