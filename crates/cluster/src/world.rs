//! The surroundings of a host: its clock, its way to etcd, its sight of other hosts.

use std::future::Future;
use std::time::Duration;

use uuid::Uuid;

use crate::store::Store;
use crate::{BootTime, ClaimRecord, DirectoryError, Event, Sighting, View};

/// The surroundings of a host: the machine, or a simulation.
pub trait World: Send + Sync + 'static {
    /// A member of etcd.
    type Store: Store;

    /// Returns the time of this moment.
    fn now(&self) -> BootTime;

    /// Waits for `time`.
    fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send;

    /// Returns the way to a member of etcd, which numbers name in turn. A request may take so long as `patience` says.
    ///
    /// # Errors
    /// There is no way to it now.
    fn open(&self, member: usize, patience: Duration) -> Result<Self::Store, DirectoryError>;

    /// Looks for the holder of a device's claim at the addresses that the claim names, in a bounded time.
    fn seek(
        &self,
        device: Uuid,
        claim: &ClaimRecord,
        view: &View,
    ) -> impl Future<Output = Option<Sighting>> + Send;

    /// Returns an id that nothing else has.
    fn new_id(&self) -> Uuid;

    /// Tells the host what it has to act upon.
    fn tell(&self, event: Event);

    /// Tells the host that its view has changed.
    fn view_changed(&self);
}
