//! What the processor may fetch before it is asked for.

use super::{Body, Child, Map, with_leaf};

impl Map {
    /// Says that the leaf for `key` will be looked at soon, by [`Map::will_get`] for instance.
    pub(crate) fn will_search(&self, key: u64) {
        if let Some(root) = &self.root {
            will_search(root, key);
        }
    }

    /// Says that `key` will be asked for soon.
    pub(crate) fn will_get(&self, key: u64) {
        if let Some(root) = &self.root {
            with_leaf(root, key, |leaf| leaf.will_get(key));
        }
    }
}

/// Has the leaf for `key` fetched, without a look at it. One without a parent is looked at often enough.
fn will_search(child: &Child, key: u64) {
    let Some(node) = child.node() else { return };
    let Body::Inner(inner) = &node.body else { return };
    let children = inner.children.borrow();
    let below = &children[inner.find(key)];
    if inner.level > 1 {
        will_search(below, key);
    } else if let Some(leaf) = below.node() {
        checksum::prefetch(&**leaf);
    }
}
