//! Prefetch hints to the processor.

use super::Map;
use super::descent::{with_leaf, with_leaf_node};

impl Map {
    /// Says that the leaf for `key` will be looked at soon, by [`Map::will_get`] for instance.
    pub fn will_search(&self, key: u64) {
        if let Some(root) = &self.root {
            with_leaf_node(root, key, checksum::prefetch);
        }
    }

    /// Says that `key` will be asked for soon. `true` if that takes a search of what is on its way only now: then
    /// [`Map::will_get_searched`] is to be told, too.
    pub fn will_get(&self, key: u64) -> bool {
        let leaf =
            self.root.as_ref().and_then(|root| with_leaf(root, key, |leaf| leaf.will_get(key)));
        leaf.unwrap_or_default()
    }

    /// Says that `key` will be asked for soon, and searches it.
    pub fn will_get_searched(&self, key: u64) {
        if let Some(root) = &self.root {
            with_leaf(root, key, |leaf| leaf.will_get_searched(key));
        }
    }
}
