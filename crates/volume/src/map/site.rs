//! Where the nodes of a map lie on the device, for whoever reads them there.

use layout::Mapping;
use units::Pba;

use super::node::{Body, Child};
use super::{Leaf, Map, Missing};

/// A leaf, and the nodes on the way to it.
pub(crate) struct LeafSite<'a> {
    /// Where the keys of the next leaf begin.
    pub(crate) end: u64,
    /// Nodes that are met for the first time here, and lie on the device.
    pub(crate) pointers: Vec<Mapping>,
    pub(crate) leaf: LeafBody<'a>,
}

/// What is known of a leaf.
pub(crate) enum LeafBody<'a> {
    Absent,
    InMemory(&'a Leaf),
    OnDisk(Mapping),
}

impl Map {
    /// The leaf that has the keys from `at` on. Inner nodes are loaded for that, the leaf is not.
    pub(crate) fn leaf_at(&self, at: u64) -> Result<LeafSite<'_>, Missing> {
        let mut site = LeafSite { end: u64::MAX, pointers: Vec::new(), leaf: LeafBody::Absent };
        let Some(mut child) = self.root.as_ref() else { return Ok(site) };
        let (mut low, mut level) = (0, None);
        loop {
            // A node is met for the first time where its keys begin.
            let met = low >= at;
            let Some(node) = child.node.get() else {
                if !child.is_absent() {
                    if level != Some(0) {
                        return Err(Missing { pointer: child.on_disk, key: at, level });
                    }
                    site.leaf = LeafBody::OnDisk(child.on_disk);
                }
                return Ok(site);
            };
            site.pointers.extend(node.placed.get().filter(|_| met));
            match &node.body {
                Body::Leaf(leaf) => {
                    site.leaf = LeafBody::InMemory(leaf);
                    return Ok(site);
                }
                Body::Inner(inner) => {
                    let index = inner.find(at);
                    if index > 0 {
                        low = inner.keys[index];
                    }
                    site.end = inner.keys.get(index + 1).copied().unwrap_or(site.end);
                    level = Some(inner.level - 1);
                    child = &inner.children[index];
                }
            }
        }
    }

    /// Pointers to all nodes that are on the device as they are in memory.
    pub(crate) fn pointers(&self) -> Vec<Mapping> {
        fn below(child: &Child, out: &mut Vec<Mapping>) {
            out.extend(child.pointer().filter(|pointer| pointer.pba != Pba(0)));
            if let Some(Body::Inner(inner)) = child.node.get().map(|node| &node.body) {
                inner.children.iter().for_each(|child| below(child, out));
            }
        }
        let mut out = Vec::new();
        self.root.iter().for_each(|root| below(root, &mut out));
        out
    }
}
