//! The start of a boot: what a crash, or an end in order, left of each volume.

use sim::Rng;
use units::{Lba, LbaRange};

use super::Boot;
use crate::content::{self, Shown};
use crate::hosts::ADDRESSES;
use crate::model::VolumeModel;
use crate::requests::terms::guest;
use crate::rig::Rig;
use crate::target::Target;

/// Hosts that ask for each volume at a start.
const KNOCKS: u32 = 3;

impl Boot {
    /// Everything that was acknowledged is there, and nothing else.
    pub(super) async fn verify(&self, rig: &Rig, mut rng: Rng) {
        rig.compare_terms(&self.run);
        for model in self.run.volumes() {
            self.run.take_damage();
            let size = rig.size(&model);
            let is_unexpected = model.must_exist().is_some_and(|must| must != size.is_some());
            if is_unexpected && !self.run.excuses_existence(&model, size.is_some()) {
                let word = if size.is_some() { "is there again" } else { "is gone" };
                return self.run.fail(format!("volume {} {word}", model.id));
            }
            model.found(size.is_some());
            let Some(size) = size else { continue };
            self.verify_terms(rig, &model);
            self.prove_doors(rig, &model, &mut rng).await;
            if !self.plan.reads {
                continue;
            }
            let Some(target) = rig.target(&model).await else {
                return self.run.fail(format!("volume {} cannot be opened", model.id));
            };
            self.verify_volume(&model, &target, size).await;
        }
    }

    /// The terms of a volume are what they may be, to the engine and to the data plane. They are known then.
    fn verify_terms(&self, rig: &Rig, model: &VolumeModel) {
        let Some(found) = rig.terms(model) else {
            return self.run.fail(format!("volume {} is not served", model.id));
        };
        self.run.check_terms(model, &found);
        let now = self.run.now();
        model.sizes.borrow_mut().settle(found.blocks * model.sector.per_block(), now);
        model.slo.borrow_mut().settle(found.slo, now);
        if let Some(access) = found.access {
            model.access.borrow_mut().settle(access, now);
        }
        model.is_cut.set(false);
        if let Some(found) = rig.reserved(model) {
            self.run.check_restarted(model, &found);
        }
    }

    /// Hosts of any kind ask for a volume.
    async fn prove_doors(&self, rig: &Rig, model: &VolumeModel, rng: &mut Rng) {
        if rig.core().is_none() {
            return;
        }
        for _ in 0..KNOCKS {
            let mut guest = guest(model, rng);
            guest.address = ADDRESSES[rng.below(ADDRESSES.len() as u64) as usize];
            rig.come_from(guest.address);
            rig.knock(&self.run, model, &guest).await;
        }
        rig.come_from(ADDRESSES[0]);
    }

    async fn verify_volume(&self, model: &VolumeModel, target: &Target, size: u64) {
        let invoked = self.run.now();
        let mut all: Vec<Shown> = Vec::new();
        let most = target.transfer_blocks_max();
        let mut at = 0;
        while at < size {
            let whole = LbaRange::new(Lba(at), most.min(size - at));
            let found = target.read(whole).await;
            let ranges: Vec<LbaRange> = match found {
                Ok(_) => vec![whole],
                Err(_) => (at..whole.end().0).map(|lba| LbaRange::new(Lba(lba), 1)).collect(),
            };
            for range in ranges {
                let again = if range == whole { found.clone() } else { target.read(range).await };
                match again {
                    Ok(bytes) => {
                        let blocks = bytes.chunks(model.sector.bytes()).zip(range.start.0..);
                        all.extend(blocks.map(|(b, lba)| content::shown(model.id, lba, b)));
                    }
                    Err(_) => {
                        self.run.check_read(model, range, invoked, &again);
                        all.push(Shown::Unknown);
                    }
                }
            }
            at = whole.end().0;
        }
        self.run.check_shown(model, 0, &all, (invoked, self.run.now()));
    }
}
