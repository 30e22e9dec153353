//! The locations of a map's nodes on the device, for tasks that read them there.

use layout::Mapping;
use units::Pba;

use super::node::{Body, Child};
use super::{Map, Missing};
use crate::sabotage::{Sabotage, broken};

/// A leaf, and the nodes on the way to it.
pub struct LeafSite {
    /// The first key of the next leaf.
    pub end: u64,
    /// Nodes in memory that are met for the first time here, and lie on the device as they are.
    pub pointers: Vec<Mapping>,
    /// Locations of the last versions of nodes in memory that are met for the first time here.
    pub locations: Vec<Pba>,
    /// The leaf as the tree has it.
    pub leaf: LeafBody,
}

/// The state of a leaf.
pub enum LeafBody {
    /// No leaf: no key up to the bound has an entry.
    Absent,
    /// Its entries.
    InMemory(Vec<(u64, Mapping)>),
    /// Its location: it is not loaded.
    OnDisk(Mapping),
}

impl Map {
    /// The leaf that has the keys from `at` on. Inner nodes are loaded for that, the leaf is not.
    pub fn leaf_at(&self, at: u64) -> Result<LeafSite, Missing> {
        let (pointers, locations, leaf) = (Vec::new(), Vec::new(), LeafBody::Absent);
        let mut site = LeafSite { end: u64::MAX, pointers, locations, leaf };
        let Some(mut child) = self.root.clone() else { return Ok(site) };
        let (mut low, mut level) = (0, None);
        loop {
            // A node is met for the first time where its keys begin.
            let met = low >= at;
            let node = match child {
                Child::InMemory(node) => node,
                Child::OnDisk(pointer) if level != Some(0) => {
                    return Err(Missing { pointer: pointer.into(), key: at, level });
                }
                Child::OnDisk(pointer) => {
                    site.leaf = LeafBody::OnDisk(pointer.into());
                    return Ok(site);
                }
                Child::Absent => return Ok(site),
            };
            if met {
                site.pointers.extend(node.placed.get());
                site.locations.extend(node.location.0.get());
            }
            match &node.body {
                Body::Leaf(leaf) => {
                    let entries = leaf.entries().map(|(key, at)| (key, at.into()));
                    site.leaf = LeafBody::InMemory(entries.collect());
                    return Ok(site);
                }
                Body::Inner(inner) => {
                    let index = inner.find(at);
                    if broken(Sabotage::SiteForgetsParent) {
                        site.end = u64::MAX;
                    }
                    (low, site.end) = inner.span(index, (low, site.end));
                    level = Some(inner.level - 1);
                    let next = inner.children.borrow()[index].clone();
                    child = next;
                }
            }
        }
    }

    /// Returns the locations of the last versions of nodes that left the tree.
    pub fn retired_places(&self) -> impl Iterator<Item = Pba> {
        self.retired.iter().filter_map(|location| location.0.get())
    }

    /// Pointers to all nodes that are on the device as they are in memory.
    pub fn pointers(&self) -> Vec<Mapping> {
        fn below(child: &Child, out: &mut Vec<Mapping>) {
            out.extend(child.pointer());
            if let Some(Body::Inner(inner)) = child.node().map(|node| &node.body) {
                inner.children.borrow().iter().for_each(|child| below(child, out));
            }
        }
        let mut out = Vec::new();
        self.root.iter().for_each(|root| below(root, &mut out));
        out
    }
}
