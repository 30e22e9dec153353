//! A volume as front ends see it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use access::Access;
use io_traits::{Device, World};
use reservation::Reservations;
use units::{DeviceIndex, ShardIndex};
use uuid::Uuid;
use volume::{Volume, VolumeError};

use crate::gate::Lane;
use crate::recording::Recorder;
use crate::reservations::VolumeReservations;
use crate::session::ExportId;

/// A volume that hosts can open.
pub struct Export<W: World, D: Device> {
    volume: RefCell<Volume<D>>,
    id: ExportId,
    /// The index of its shard among the core's shards.
    pub(crate) shard: ShardIndex,
    /// The number of that shard's device among the core's devices.
    pub(crate) device: DeviceIndex,
    /// The engine has said that it takes no more changes before its shard is back.
    takes_no_changes: Cell<bool>,
    /// The hosts that may open it; `None` if that cannot be read.
    access: RefCell<Option<Rc<Access>>>,
    /// Reservations of hosts.
    pub(crate) reservations: VolumeReservations,
    /// Its way to the device.
    pub(crate) lane: Lane<W>,
    pub(crate) recorder: Recorder,
}

impl<W: World, D: Device> Export<W, D> {
    pub(crate) fn new(
        id: ExportId,
        volume: Volume<D>,
        shard: ShardIndex,
        device: DeviceIndex,
        lane: Lane<W>,
    ) -> Self {
        let access = access_of(&volume);
        let reservations = access.as_ref().map_or_else(Reservations::default, reservations_of);
        Self {
            access: RefCell::new(access),
            reservations: VolumeReservations::new(reservations),
            id,
            volume: RefCell::new(volume),
            shard,
            device,
            takes_no_changes: Cell::new(false),
            lane,
            recorder: Recorder::default(),
        }
    }

    /// Tells it apart from the other exports of the core.
    #[must_use]
    pub fn id(&self) -> ExportId {
        self.id
    }

    /// The number of the shard in which it lies, in the order of [`crate::Core::attach`].
    #[must_use]
    pub fn shard(&self) -> ShardIndex {
        self.shard
    }

    /// The number of the device on which it lies.
    #[must_use]
    pub fn device(&self) -> DeviceIndex {
        self.device
    }

    /// The volume. Another once its shard has come back after a failure.
    #[must_use]
    pub fn volume(&self) -> Volume<D> {
        self.volume.borrow().clone()
    }

    /// The identity of the volume.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.volume.borrow().uuid()
    }

    /// Counts a command that was answered with the error of this name.
    pub fn note_error(&self, name: &'static str) {
        self.lane.note_error(name);
    }

    /// The time for which at least one of its requests was there.
    #[must_use]
    pub fn busy(&self) -> std::time::Duration {
        self.lane.busy()
    }

    /// Opens the volume to hosts anywhere, under any name: for a mutant.
    pub(crate) fn forget_restrictions(&self) {
        if let Some(access) = &mut *self.access.borrow_mut() {
            Rc::make_mut(access).restrictions = access::Restrictions::default();
        }
    }

    /// Looks at the volume as it is now.
    pub fn with_volume<T>(&self, say: impl FnOnce(&Volume<D>) -> T) -> T {
        say(&self.volume.borrow())
    }

    /// The same volume, of a shard that came back.
    pub(crate) fn replace_volume(&self, volume: Volume<D>) {
        // A change that was never answered may have come true.
        let access = access_of(&volume);
        self.reservations
            .restore(access.as_ref().map_or_else(Reservations::default, reservations_of));
        self.access.replace(access);
        self.volume.replace(volume);
        self.takes_no_changes.set(false);
    }

    /// The same volume, of a shard that was closed and is back: nothing else has changed (HELD-3).
    pub(crate) fn go_on_with(&self, volume: Volume<D>) {
        self.volume.replace(volume);
        self.takes_no_changes.set(false);
    }

    /// Notes an error of the engine: some are states.
    pub(crate) fn on_error(&self, error: &VolumeError) {
        // A request may have begun before its shard came back.
        let is_lost =
            matches!(error, VolumeError::JournalLost) && self.volume().shard().is_failed();
        if is_lost && !self.takes_no_changes.replace(true) {
            let volume = self.volume().uuid();
            tracing::error!(%volume, "takes no more changes: the journal cannot be written");
        }
    }

    /// Returns whether the volume can only be read, until its shard is back.
    #[must_use]
    pub fn takes_no_changes(&self) -> bool {
        self.takes_no_changes.get()
    }

    /// The tokens and restrictions of the volume; `None` if they cannot be read.
    #[must_use]
    pub fn access(&self) -> Option<Rc<Access>> {
        self.access.borrow().clone()
    }

    /// Looks at what hosts have registered and reserved.
    pub fn with_reservations<T>(&self, look: impl FnOnce(&Reservations) -> T) -> T {
        self.reservations.with(look)
    }

    pub(crate) fn set_access(&self, access: Access) {
        *self.access.borrow_mut() = Some(Rc::new(access));
    }

    /// Looks at whose it is.
    pub(crate) fn with_owner<T>(&self, look: impl FnOnce(Option<&str>) -> T) -> T {
        let access = self.access.borrow();
        look(access.as_ref().and_then(|access| access.owner.as_deref()))
    }
}

/// Returns the hosts that may open `volume`; `None` if that cannot be read.
fn access_of<D: Device>(volume: &Volume<D>) -> Option<Rc<Access>> {
    let access = Access::decode(&volume.access()).inspect_err(|error| {
        let (volume, name) = (volume.uuid(), volume.name());
        tracing::error!(%volume, name, %error, "no host may open it: its restrictions cannot be read; a newer version may have written them");
    });
    access.ok().map(Rc::new).filter(|access| {
        let reserved = Reservations::from_record(&access.reservations);
        let is_readable = access.reservations.is_empty() || reserved.is_ok();
        if let (false, Err(error)) = (is_readable, reserved) {
            let (volume, name) = (volume.uuid(), volume.name());
            tracing::error!(%volume, name, %error, "no host may open it: its reservations cannot be read; a newer version may have written them");
        }
        is_readable
    })
}

/// The reservations of a volume whose access list could be read.
fn reservations_of(access: &Rc<Access>) -> Reservations {
    Reservations::from_record(&access.reservations).unwrap_or_default()
}
