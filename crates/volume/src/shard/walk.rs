//! All that the map of a volume names, leaf by leaf, whatever of it is in memory.

use io_traits::Device;
use units::Pba;

use super::Inner;
use super::nodes::{LoadError, read_node};
use super::paging::load_error;
use crate::VolumeError;
use crate::state::VolumeState;
use block_map::{Body, LeafBody, Missing};

impl<D: Device> Inner<D> {
    /// Calls `visit` for each node, and for each block of data with its key. Leaves that are not in
    /// memory do not stay there. Returns keys from which on nodes cannot be read, and why. Nothing
    /// changes meanwhile.
    pub(crate) async fn walk(
        &self,
        state: &VolumeState,
        mut visit: impl FnMut(Pba, Option<u64>),
    ) -> Vec<(u64, VolumeError)> {
        state.map.borrow().retired_places().for_each(|pba| visit(pba, None));
        let (mut at, mut errors) = (0, Vec::new());
        loop {
            let _pin = self.is_paged().then(|| state.pin(at, at.saturating_add(1)));
            let site = state.map.borrow().leaf_at(at);
            let site = match site {
                Ok(site) => site,
                Err(missing) => {
                    let Err(error) = self.load(state, missing).await else { continue };
                    visit(missing.pointer.pba, None);
                    errors.push((at, error));
                    match state.map.borrow().bounds(missing) {
                        Some((_, high)) if high > at && high < u64::MAX => at = high,
                        _ => return errors,
                    }
                    continue;
                }
            };
            site.locations.into_iter().for_each(|pba| visit(pba, None));
            let entries = match site.leaf {
                LeafBody::Absent => Vec::new(),
                LeafBody::InMemory(entries) => entries,
                LeafBody::OnDisk(pointer) => {
                    visit(pointer.pba, None);
                    let missing = Missing { pointer, key: at, level: Some(0) };
                    self.leaf_entries(state, missing).await.unwrap_or_else(|error| {
                        errors.push((at, error));
                        Vec::new()
                    })
                }
            };
            entries.into_iter().for_each(|(key, mapping)| visit(mapping.pba, Some(key)));
            if site.end == u64::MAX {
                return errors;
            }
            at = site.end;
        }
    }

    /// Returns the entries of a leaf that is not in memory, and does not stay there.
    async fn leaf_entries(
        &self,
        state: &VolumeState,
        missing: Missing,
    ) -> Result<Vec<(u64, layout::Mapping)>, VolumeError> {
        let node = read_node(&self.device, state.tree(), missing, &self.counters).await;
        let fits = |node: &_| state.map.borrow().fits(missing, node);
        match node {
            Ok(node) if fits(&node) => match &node.body {
                Body::Leaf(leaf) => Ok(leaf.entries().map(|(k, at)| (k, at.into())).collect()),
                Body::Inner(_) => unreachable!("its level was checked"),
            },
            Ok(_) => {
                let error = layout::DecodeError::Field("node keys");
                Err(load_error(&LoadError::Decode(error), missing))
            }
            Err(error) => Err(load_error(&error, missing)),
        }
    }
}
