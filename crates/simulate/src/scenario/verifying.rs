//! The start of a boot: what a crash, or an end in order, left of each volume.

use units::{BLOCK_SIZE, Lba, LbaRange};

use super::Boot;
use crate::content::{self, Shown};
use crate::model::VolumeModel;
use crate::rig::Rig;
use crate::target::Target;

impl Boot {
    /// Everything that was acknowledged is there, and nothing else.
    pub(super) async fn verify(&self, rig: &Rig) {
        for model in self.run.volumes() {
            self.run.take_damage();
            let now = self.run.now();
            let size = rig.size(&model);
            let is_unexpected = model.must_exist().is_some_and(|must| must != size.is_some());
            if is_unexpected && !self.run.excuses_existence(&model, size.is_some()) {
                let word = if size.is_some() { "is there again" } else { "is gone" };
                return self.run.fail(format!("volume {} {word}", model.id));
            }
            model.found(size.is_some());
            let Some(size) = size else { continue };
            if !model.sizes(now, now).contains(&size) {
                let id = model.id;
                return self.run.fail(format!("volume {id} has {size} blocks"));
            }
            model.set_size(size, now);
            let Some(target) = rig.target(&model).await else {
                return self.run.fail(format!("volume {} cannot be opened", model.id));
            };
            self.verify_volume(&model, &target, size).await;
        }
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
                        let blocks = bytes.chunks(BLOCK_SIZE).zip(range.start.0..);
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
