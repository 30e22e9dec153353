//! Rewrites blocks that a scrub finds damaged and memory has whole, before memory is lost.
//!
//! - HEAL-1: nothing is written in place. What is damaged counts as changed, and the next checkpoint
//!   puts it elsewhere (CHECKPOINT-2). But a superblock has no other place: it is rewritten in place, as its
//!   twin is on the device (SUPERBLOCK-4).
//! - HEAL-2: this decides nothing: what memory has is what every answer has come from since the start.
//!   What only the device had stays as it is, an error for its reader.

use std::rc::Rc;

use io_traits::Device;
use layout::Mapping;
use situations::{Situation, situation, situation_if};
use units::{Lba, LbaRange, Pba};

use super::scrub::{Damaged, Structure};
use super::{Inner, SpaceEffect, SpaceRequest};
use crate::state::VolumeState;
use crate::superblocks;

impl<D: Device> Inner<D> {
    /// Rewrites damaged blocks that are whole in memory. No task delays the release of blocks
    /// meanwhile.
    pub(super) async fn heal(&self, damaged: &[Damaged]) {
        let mut wanted = false;
        for Damaged { pba, structure, volume, lba } in damaged {
            wanted |= match structure {
                Structure::Superblock => self.heal_superblock().await,
                Structure::Data
                | Structure::Shared
                | Structure::Outside
                | Structure::Leaked
                | Structure::Count => false,
                // The next checkpoint but one writes the root anyway; a block that was free is in use now.
                Structure::Root | Structure::Free => true,
                Structure::Table => self.heal_table(*pba).await,
                Structure::Bitmap => self.heal_bitmap(*pba),
                Structure::Node => {
                    let uuid = volume.as_ref().map(|(uuid, _)| *uuid);
                    let state = self.states().into_iter().find(|state| Some(state.uuid) == uuid);
                    match (state, lba) {
                        (Some(state), Some(lba)) => self.heal_node(&state, *lba, *pba).await,
                        _ => false,
                    }
                }
            };
        }
        if wanted {
            self.ask_checkpoint();
        }
    }

    /// Returns whether a copy was written, which the next checkpoint makes durable: a flush that fails concerns more than the copy
    /// (COMMIT-5). Where the place takes no writes the other copy holds it alone, and the next scrub tries again.
    async fn heal_superblock(&self) -> bool {
        let mended = superblocks::mend(&self.device, &self.superblock).await;
        mended.unwrap_or_else(|_| {
            self.findings.count_device_error();
            false
        })
    }

    /// Rewrites a descriptor by itself, or a node with all that it leads to: descriptors or
    /// bitmaps.
    async fn heal_table(&self, pba: Pba) -> bool {
        if self.no_checkpoint(0).await.is_err() {
            return false;
        }
        situation(Situation::HealedTable);
        let names = |node: &Mapping| node.pba == pba;
        let is_of_volumes = self.tables.borrow().volumes.pointers().iter().any(names);
        let is_of_extents = self.tables.borrow().extents.pointers().iter().any(names);
        let volumes = self.volumes.all();
        let led_to =
            |state: &&Rc<VolumeState>| is_of_volumes || state.descriptor.get() == Some(pba);
        volumes.values().filter(led_to).for_each(|state| state.changed().mark());
        if is_of_extents {
            let mut pool = self.pool.borrow_mut();
            let owned = pool.owned().to_vec();
            owned.into_iter().for_each(|index| pool.set_changed(index));
        }
        true
    }

    fn heal_bitmap(&self, pba: Pba) -> bool {
        let located = self.superblock.locate(pba);
        located.into_iter().for_each(|(index, _)| self.pool.borrow_mut().set_changed(index));
        situation_if(Situation::HealedBitmap, || located.is_some());
        located.is_some()
    }

    /// Makes the nodes dirty that lead to `lba`, if that at `pba` is among them and in memory.
    async fn heal_node(&self, state: &VolumeState, lba: Lba, pba: Pba) -> bool {
        let first = LbaRange::new(lba, 1);
        let Ok(_claim) = self.claim(state, &[first, first], SpaceEffect::Reclaiming).await else {
            return false;
        };
        let metadata = 2 * state.map.borrow().height() + 2;
        let request = SpaceRequest { data: 0, metadata, effect: SpaceEffect::Reclaiming };
        // Without room, or a journal, the next scrub may have more luck.
        let Ok(_set_aside) = self.set_aside(request).await else { return false };
        // Hosts wait for the claim: not for a checkpoint that is refused.
        let is_over = self.no_checkpoint(0).await.is_ok();
        let site = state.map.borrow().leaf_at(lba.0);
        let is_in_memory =
            is_over && site.is_ok_and(|site| site.pointers.iter().any(|node| node.pba == pba));
        if is_in_memory {
            situation(Situation::HealedNodeRewritten);
            state.map.borrow_mut().rewrite(lba.0);
        }
        is_in_memory
    }
}
