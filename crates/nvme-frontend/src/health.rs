//! The health of a volume as its hosts see it: the SMART / Health log, and the warnings that they are sent.

use std::collections::BTreeMap;

use dataplane::{Export, SPARE_THRESHOLD_PERCENT, spare_percent};
use io_traits::{Device, World};
use nvme_target::Health;
use nvme_wire::log::{CRITICAL_READ_ONLY, CRITICAL_RELIABILITY, CRITICAL_SPARE};
use units::BLOCK_SIZE;

use crate::frontend::NvmeCore;

/// Critical Warning bits of a volume whose pool has so much left.
fn warnings<W: World, D: Device>(export: &Export<W, D>, spare_percent: u8) -> u8 {
    let low = if spare_percent < SPARE_THRESHOLD_PERCENT { CRITICAL_SPARE } else { 0 };
    let lost = CRITICAL_RELIABILITY | CRITICAL_READ_ONLY;
    low | if export.takes_no_changes() { lost } else { 0 }
}

impl<W: World, D: Device> NvmeCore<W, D> {
    /// Reads, writes, errors, hours and minutes are counted since the server started: nothing of them is
    /// kept on the device. The spare is what of the volume's pool is free. Of wear and temperature nothing is said:
    /// a drive that is asked for them holds up its I/O.
    pub(crate) fn health_of(&self, export: &Export<W, D>) -> Health {
        let volume = export.volume();
        let stats = volume.stats();
        let available_spare = spare_percent(&volume.shard().capacity());
        Health {
            critical_warning: warnings(export, available_spare),
            available_spare,
            available_spare_threshold: SPARE_THRESHOLD_PERCENT,
            bytes_read: u128::from(stats.blocks_read) * BLOCK_SIZE as u128,
            bytes_written: u128::from(stats.blocks_written) * BLOCK_SIZE as u128,
            host_reads: u128::from(stats.reads),
            host_writes: u128::from(stats.writes),
            media_errors: u128::from(volume.media_errors()),
            busy_minutes: u128::from(export.busy().as_secs() / 60),
            power_cycles: u128::from(volume.shard().starts()),
            unsafe_shutdowns: u128::from(volume.shard().was_cut_off()),
            power_on_hours: u128::from(self.uptime().as_secs() / 3600),
        }
    }

    /// Tells hosts of warnings, those that asked for it.
    pub(crate) fn tell_warnings(&self) {
        let mut spares = BTreeMap::new();
        for association in self.all_associations() {
            let Some(export) = association.subject.export() else { continue };
            if association.controller.borrow().wants_warnings() {
                let spare = || spare_percent(&export.volume().shard().capacity());
                let spare = *spares.entry(export.shard()).or_insert_with(spare);
                association.on_warnings(warnings(export, spare));
            }
        }
    }
}
