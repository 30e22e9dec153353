//! The end of a boot in order: what must hold when nothing is under way.

use io_traits::{Clock, DeviceError};
use units::Duration;
use volume::{CheckReport, Finding, VolumeError};

use super::{Boot, End, Watched};
use crate::rig::Rig;

/// Time for the background to finish its work, and the last part of it, in which the disk is asked nothing any more.
const QUIET: Duration = Duration::from_millis(600);
const SILENCE: Duration = Duration::from_millis(50);
/// Further parts that it may take: the map of a deleted volume goes leaf by leaf. What is tried again and again goes on longer.
const SILENCES_MAX: usize = 100;

impl Boot {
    /// With nothing under way, everything fits together; and all of it ends in order.
    pub(super) async fn quiesce(&mut self, rig: &Rig) -> Watched<()> {
        self.disk().crash_at_event(u64::MAX);
        if let Watched::Ended(end) =
            self.watch("who goes on", Box::pin(self.prove_going_on(rig))).await
        {
            return Watched::Ended(end);
        }
        let resting = async {
            let taken = rig.checkpoint().await;
            self.background_ends().await;
            taken
        };
        match self.watch("a checkpoint", resting).await {
            Watched::Ended(end) => return Watched::Ended(end),
            Watched::Done(Err(error)) => {
                self.run.check_checkpoint(Err(error.into()));
                return self.watch("a read", Box::pin(self.prove_reading(rig))).await;
            }
            Watched::Done(Ok(())) => {}
        }
        if let Some(left) = rig.left_in_line() {
            self.run.fail(left);
            return Watched::Ended(End::Failed);
        }
        rig.check_allotments(&self.run);
        let read_data = !self.profile.tight;
        let reports = match self.watch("a check", rig.check(read_data)).await {
            Watched::Done(reports) => reports,
            Watched::Ended(end) => return Watched::Ended(end),
        };
        self.run.take_damage();
        let mut findings = reports.into_iter().flat_map(|report| self.unexcused(report));
        if let Some(finding) = findings.next() {
            self.run.fail(format!("the check finds {finding:?}"));
            return Watched::Ended(End::Failed);
        }
        if self.rng.one_in(2) {
            return self.end_in_order(rig).await;
        }
        Watched::Done(())
    }

    /// Waits until the background has nothing to do.
    async fn background_ends(&self) {
        self.world.sleep_until(self.world.now() + (QUIET - SILENCE)).await;
        for _ in 0..SILENCES_MAX {
            let before = self.disk().events();
            self.world.sleep_until(self.world.now() + SILENCE).await;
            if self.disk().events() == before {
                break;
            }
        }
    }

    /// Ends in order: with a last checkpoint.
    pub(super) async fn end_in_order(&self, rig: &Rig) -> Watched<()> {
        match self.watch("the end", rig.shutdown()).await {
            Watched::Done(ended) => {
                self.run.check_checkpoint(ended.map_err(|error| error.into()));
                Watched::Done(())
            }
            Watched::Ended(end) => Watched::Ended(end),
        }
    }

    /// Returns the findings of a check that the damage to the disk does not excuse. A finding is excused by its
    /// location, except for blocks that only nodes at such locations name.
    fn unexcused(&self, report: CheckReport) -> Vec<Finding> {
        let is_refused = |finding: &Finding| match finding {
            Finding::Unreadable(VolumeError::Device(DeviceError::Io { range, .. })) => {
                self.broken.hides(*range)
            }
            _ => false,
        };
        let unread = report.findings.iter().any(is_refused);
        let excused = |finding: &Finding| match finding {
            Finding::Unaccounted { .. } if unread => true,
            finding => is_refused(finding) || self.run.excuses_finding(finding),
        };
        report.findings.into_iter().filter(|finding| !excused(finding)).collect()
    }
}
