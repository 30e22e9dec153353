//! Looking at the disk between two boots, and repairing it.

use volume::FsckOptions;

use super::Boot;
use crate::rig;

impl Boot {
    /// A disk that is sound, if cut off, has no faults before it is opened.
    pub(super) async fn fsck(&self) {
        let options = FsckOptions { read_data: !self.profile.tight };
        let report = volume::fsck(&self.device, options, |_, _| {}).await;
        if !self.broken.goes_on() || self.broken.tears_roots() {
            return;
        }
        match report {
            Err(error) if self.run.excuses_open(&error) => {}
            Err(error) => self.run.fail(format!("fsck cannot read the disk: {error}")),
            Ok(report) => {
                let mut faults = report.faults.iter();
                if let Some(fault) = faults.find(|fault| !self.run.excuses_fault(fault)) {
                    self.run.fail(format!("fsck finds {fault:?}"));
                }
            }
        }
    }

    /// A disk that is too damaged to be opened has nothing more to repair once it is repaired, and can be
    /// opened.
    pub(super) async fn repair(&self) {
        if volume::repair(&self.device, true, |_, _| ()).await.is_err() {
            // No root is left.
            return;
        }
        let report = volume::fsck(&self.device, FsckOptions { read_data: false }, |_, _| {}).await;
        let faults = report.map(|report| report.faults).unwrap_or_default();
        if let Some(fault) = faults.iter().find(|fault| fault.problem.repair().is_some()) {
            return self.run.fail(format!("a repair leaves {fault:?}"));
        }
        let all: Vec<u16> = (0..self.profile.shards).collect();
        let opened = rig::open(&self.device, &all, self.profile.map_memory).await;
        if let Err(error) = opened {
            self.run.fail(format!("a repaired disk cannot be opened: {error}"));
        }
    }
}
