//! The way down to a leaf.

use layout::Mapping;

use super::{Body, Child, Leaf, Missing, Node};

/// Returns the mapping of `key`.
pub(super) fn look_up(
    child: &Child,
    key: u64,
    level: Option<u8>,
) -> Result<Option<Mapping>, Missing> {
    let node = match child {
        Child::InMemory(node) => node,
        Child::OnDisk(pointer) => return Err(Missing { pointer: (*pointer).into(), key, level }),
        Child::Absent => return Ok(None),
    };
    match &node.body {
        Body::Leaf(leaf) => {
            node.touch();
            Ok(leaf.search(key).ok().map(|index| leaf.mapping(index)))
        }
        Body::Inner(inner) => {
            look_up(&inner.children.borrow()[inner.find(key)], key, Some(inner.level - 1))
        }
    }
}

/// Applies `look` to the leaf for `key`, if it is in memory.
pub(super) fn with_leaf<T>(child: &Child, key: u64, look: impl FnOnce(&Leaf) -> T) -> Option<T> {
    with_leaf_node(child, key, |node| match &node.body {
        Body::Leaf(leaf) => look(leaf),
        Body::Inner(_) => unreachable!("it is at the end of the way down"),
    })
}

/// Applies `look` to the node of the leaf for `key`, if it is in memory. Unless it is the root, the
/// node was not accessed before.
pub(super) fn with_leaf_node<T>(
    child: &Child,
    key: u64,
    look: impl FnOnce(&Node) -> T,
) -> Option<T> {
    let node = child.node()?;
    let Body::Inner(inner) = &node.body else { return Some(look(node)) };
    let below = &inner.children.borrow()[inner.find(key)];
    if inner.level > 1 {
        with_leaf_node(below, key, look)
    } else {
        below.node().map(|leaf| look(leaf))
    }
}
