//! What a volume is to hosts: a subsystem with one namespace.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use access::Access;
use io_traits::{Device, World};
use nvme_target::NamespaceView;
use nvme_wire::Nqn;
use units::BLOCK_SIZE;
use uuid::Uuid;
use volume::{Volume, VolumeError};

use crate::gate::Lane;

/// A volume as hosts see it.
pub(crate) struct Export<W: World, D: Device> {
    volume: RefCell<Volume<D>>,
    nqn: Nqn,
    transfer_blocks_max: u32,
    /// Which of the core's shards it lies in.
    pub(crate) shard: usize,
    /// Which of the core's devices that is on.
    pub(crate) device: usize,
    /// The engine has said that it takes no more changes before its shard is back.
    takes_no_changes: Cell<bool>,
    /// Who may open it; `None` if that cannot be read.
    access: RefCell<Option<Rc<Access>>>,
    /// Its way to the device.
    pub(crate) lane: Lane<W>,
}

/// The NVMe qualified name of the volume `uuid`, the same on every host and path for life.
#[must_use]
pub fn nqn_of(uuid: Uuid) -> Nqn {
    Nqn::from_uuid(uuid.as_bytes())
}

impl<W: World, D: Device> Export<W, D> {
    pub(crate) fn new(
        volume: Volume<D>,
        shard: usize,
        device: usize,
        transfer_bytes_max: u32,
        lane: Lane<W>,
    ) -> Self {
        Self {
            access: RefCell::new(access_of(&volume)),
            nqn: nqn_of(volume.uuid()),
            volume: RefCell::new(volume),
            transfer_blocks_max: transfer_bytes_max / BLOCK_SIZE as u32,
            shard,
            device,
            takes_no_changes: Cell::new(false),
            lane,
        }
    }

    pub(crate) fn volume(&self) -> Volume<D> {
        self.volume.borrow().clone()
    }

    pub(crate) fn uuid(&self) -> Uuid {
        self.volume.borrow().uuid()
    }

    /// Opens the volume to hosts anywhere, under any name: for a mutant.
    pub(crate) fn forget_restrictions(&self) {
        if let Some(access) = &mut *self.access.borrow_mut() {
            Rc::make_mut(access).restrictions = access::Restrictions::default();
        }
    }

    /// Says something to the volume as it is now.
    pub(crate) fn with_volume<T>(&self, say: impl FnOnce(&Volume<D>) -> T) -> T {
        say(&self.volume.borrow())
    }

    /// The same volume, of a shard that came back.
    pub(crate) fn replace_volume(&self, volume: Volume<D>) {
        // A change that was never answered may have come true.
        self.access.replace(access_of(&volume));
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

    /// Whether the volume can only be read, until its shard is back.
    pub(crate) fn takes_no_changes(&self) -> bool {
        self.takes_no_changes.get()
    }

    pub(crate) fn access(&self) -> Option<Rc<Access>> {
        self.access.borrow().clone()
    }

    pub(crate) fn set_access(&self, access: Access) {
        *self.access.borrow_mut() = Some(Rc::new(access));
    }

    /// Looks at whose it is.
    pub(crate) fn with_owner<T>(&self, look: impl FnOnce(Option<&str>) -> T) -> T {
        let access = self.access.borrow();
        look(access.as_ref().and_then(|access| access.owner.as_deref()))
    }

    pub(crate) fn nqn(&self) -> &Nqn {
        &self.nqn
    }

    /// What the checks of I/O commands need to know, as of now.
    pub(crate) fn view(&self) -> NamespaceView {
        let volume = self.volume.borrow();
        NamespaceView {
            blocks: volume.blocks(),
            metadata: volume.metadata_size(),
            transfer_blocks_max: self.transfer_blocks_max,
            read_only: false,
        }
    }
}

/// Who may open `volume`; `None` if that cannot be read.
fn access_of<D: Device>(volume: &Volume<D>) -> Option<Rc<Access>> {
    let access = Access::decode(&volume.access()).inspect_err(|error| {
        let (volume, name) = (volume.uuid(), volume.name());
        tracing::error!(%volume, name, %error, "nobody may open it: it cannot be read who may; a newer version may have written that");
    });
    access.ok().map(Rc::new)
}
