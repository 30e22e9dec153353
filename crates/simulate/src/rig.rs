//! The server under test, started on a disk: the engine alone, or the whole data plane.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use access::Access;
use auth::{Group, Hash, Policy};
use dataplane::Loss;
use io_traits::{Clock, Network, Spawn};
use local_sync::{Permit, Semaphore};
use nvme_frontend::{NvmeCore, NvmeOptions};
use sim::SimWorld;
use units::{Duration, ShardIndex, Slo};
use uuid::Uuid;
use volume::{
    CheckReport, ExtentAllocator, OpenError, Recovered, Shard, ShardOptions, VolumeError,
    VolumeSpec,
};

use crate::hosts::ADDRESSES;
use crate::model::VolumeModel;
use crate::run::{TENANTS, Terms};
use crate::seam::SeamDevice;
use crate::target::{Failure, Target};

/// A secret that no tenant knows.
const SECRET: u64 = 0x5EC2_E700_0000_0001;
/// So little memory for data that requests of a core wait for it, and enough that each is served: a request is charged for up
/// to three transfers.
const MEMORY_SCARCE: u64 = 4 << 20;
/// The least of it that a connection may have: two of the largest requests.
const WINDOW_LEAST: u64 = 2 << 20;
/// Interval of [`Shard::settle`].
const TICK: Duration = Duration::from_millis(250);

/// Hosts that are connected, by volume and number.
pub(crate) type Hosts = BTreeMap<(Uuid, usize), Target>;

/// A server that runs.
#[derive(Clone)]
pub(crate) struct Rig {
    world: SimWorld,
    shards: Rc<RefCell<Vec<Shard<SeamDevice>>>>,
    core: Option<NvmeCore<SimWorld, SeamDevice>>,
    hosts: Rc<RefCell<Hosts>>,
    /// Permits to change the access of a volume.
    changing: Rc<RefCell<BTreeMap<Uuid, Semaphore>>>,
    service: Service,
}

/// The purpose of a server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Service {
    /// True if there is a data plane.
    pub plane: bool,
    /// True if hosts connect again.
    pub reconnects: bool,
    /// Hosts have to authenticate.
    pub authenticates: bool,
    /// True if shards that fail are brought back. A data plane does that in any case.
    pub returns: bool,
    /// Connections have memory for the data of only two large requests.
    pub scarce: bool,
}

/// Returns the portal of the server.
pub(crate) fn portal() -> SocketAddr {
    SocketAddr::new(ADDRESSES[0], 4420)
}

/// Recovers these shards of a disk, and starts them in this order, with so many bytes of memory for the maps of
/// each. Returns them by their numbers.
///
/// # Errors
/// The disk cannot be opened.
pub(crate) async fn open(
    device: &SeamDevice,
    wanted: &[u16],
    map_memory: Option<u64>,
) -> Result<Vec<Shard<SeamDevice>>, OpenError> {
    let superblock = volume::read_superblock(device).await?;
    let extents = ExtentAllocator::new(&superblock);
    let options = ShardOptions { map_memory, secret: SECRET, ..ShardOptions::default() };
    let mut recovered = Vec::new();
    for &index in wanted {
        let shard = Shard::recover(device.clone(), superblock, index, extents.clone(), options);
        recovered.push(shard.await?);
    }
    let mut shards = Recovered::start_all(recovered).await?;
    shards.sort_by_key(Shard::index);
    Ok(shards)
}

/// The access but for what hosts, not operators, say in it.
fn without_reservations(access: Access) -> Access {
    Access { reservations: Access::default().reservations, ..access }
}

impl Rig {
    /// Runs `shards`, behind a data plane or bare.
    #[must_use]
    pub(crate) fn start(
        world: &SimWorld,
        shards: Vec<Shard<SeamDevice>>,
        service: Service,
    ) -> Self {
        let core = service.plane.then(|| {
            // The cheapest that there is: what a group adds, tests of `auth` show.
            let policy = Policy { hashes: vec![Hash::Sha256], groups: vec![Group::Null] };
            let authentication = service.authenticates.then_some(policy);
            let mut options = NvmeOptions { authentication, ..NvmeOptions::new(portal()) };
            if service.scarce {
                options.core.memory_bytes = MEMORY_SCARCE;
                options.core.window_bytes = WINDOW_LEAST;
            }
            let core = NvmeCore::new(world, options);
            for shard in &shards {
                core.attach(shard.clone());
            }
            core.bound_tenants(TENANTS.map(str::to_owned).to_vec());
            let listener = world.listen(portal()).expect("no other listener");
            let serving = core.clone();
            world.spawn(async move { serving.serve(listener).await });
            core
        });
        let (shards, hosts) = (Rc::new(RefCell::new(shards)), Rc::default());
        let changing = Rc::default();
        let rig = Self { world: world.clone(), shards, core, hosts, changing, service };
        if rig.core.is_none() {
            for (number, shard) in rig.shards().iter().enumerate() {
                rig.run_loops(shard);
                let looking = rig.clone();
                world.spawn(async move { looking.look_after(number, service.returns).await });
            }
        }
        rig
    }

    fn run_loops(&self, shard: &Shard<SeamDevice>) {
        let (committing, checkpointing) = (shard.clone(), shard.clone());
        self.world.spawn(async move { committing.run_committer().await });
        self.world.spawn(async move { checkpointing.run_checkpointer().await });
    }

    /// Does for a bare shard what is to be done now and then.
    async fn look_after(self, number: usize, returns: bool) {
        loop {
            self.pause(TICK).await;
            let shard = self.shards()[number].clone();
            shard.settle();
            if returns
                && shard.is_failed()
                && let Ok(fresh) = shard.reopen().await
            {
                self.run_loops(&fresh);
                self.shards.borrow_mut()[number] = fresh;
            }
        }
    }

    /// The world that it runs in.
    pub(crate) fn world(&self) -> &SimWorld {
        &self.world
    }

    /// Hosts that are connected.
    pub(crate) fn hosts(&self) -> &RefCell<Hosts> {
        &self.hosts
    }

    /// Returns true if hosts connect again.
    pub(crate) fn reconnects(&self) -> bool {
        self.service.reconnects
    }

    /// Returns whether hosts have to authenticate.
    pub(crate) fn authenticates(&self) -> bool {
        self.service.authenticates
    }

    /// Waits until no other worker changes the access of a volume; none does while the permit is kept.
    pub(crate) async fn change_alone(&self, model: &VolumeModel) -> Permit {
        let turn = {
            let mut changing = self.changing.borrow_mut();
            changing.entry(model.uuid()).or_insert_with(|| Semaphore::new(1)).acquire(1)
        };
        turn.await
    }

    /// The data plane, if there is one.
    #[must_use]
    pub(crate) fn core(&self) -> Option<&NvmeCore<SimWorld, SeamDevice>> {
        self.core.as_ref()
    }

    /// Waits.
    pub(crate) async fn pause(&self, duration: Duration) {
        self.world.sleep_until(self.world.now() + duration).await;
    }

    /// The shards. A data plane brings one that failed back, as another.
    #[must_use]
    pub(crate) fn shards(&self) -> Vec<Shard<SeamDevice>> {
        self.core.as_ref().map_or_else(|| self.shards.borrow().clone(), |core| core.shards())
    }

    /// Logical blocks of the volume, if it is there.
    #[must_use]
    pub(crate) fn size(&self, model: &VolumeModel) -> Option<u64> {
        let volume = self.shards()[model.shard].volume(model.uuid())?;
        Some(volume.blocks() * model.sector.per_block())
    }

    /// Creates a volume.
    ///
    /// # Errors
    /// Why not.
    pub(crate) async fn create(&self, model: &VolumeModel, blocks: u64) -> Result<(), Failure> {
        let spec = VolumeSpec { uuid: model.uuid(), name: model.name(), blocks };
        let access = model.access.borrow().latest().encode().expect("it is short");
        let slo = *model.slo.borrow().latest();
        let VolumeModel { metadata, sector, .. } = *model;
        let terms = volume::Terms { slo, access, metadata, sector };
        match &self.core {
            Some(core) => drop(core.create_volume(ShardIndex(model.shard), spec, terms).await?),
            None => drop(self.shards()[model.shard].create_volume_under(spec, terms).await?),
        }
        Ok(())
    }

    /// Deletes a volume.
    ///
    /// # Errors
    /// Why not.
    pub(crate) async fn delete(&self, model: &VolumeModel) -> Result<(), Failure> {
        match &self.core {
            Some(core) => core.delete_volume(model.uuid(), Loss::Accepted).await?,
            None => self.shards()[model.shard].delete_volume(model.uuid()).await?,
        }
        self.hosts.borrow_mut().retain(|(uuid, _), _| *uuid != model.uuid());
        Ok(())
    }

    /// Resizes a volume.
    ///
    /// # Errors
    /// Why not.
    pub(crate) async fn resize(&self, model: &VolumeModel, blocks: u64) -> Result<(), Failure> {
        if let Some(core) = &self.core {
            core.resize_volume(model.uuid(), blocks, Loss::Accepted).await?;
            return Ok(());
        }
        let volume = self.shards()[model.shard].volume(model.uuid()).ok_or(Failure::Deleted)?;
        volume.resize(blocks).await?;
        Ok(())
    }

    /// Returns the server's terms of a volume; `None` if it is not there.
    #[must_use]
    pub(crate) fn terms(&self, model: &VolumeModel) -> Option<Terms> {
        if let Some(core) = &self.core {
            let status = core.volume(model.uuid())?;
            return Some(Terms {
                name: status.name,
                blocks: status.blocks,
                metadata: status.metadata,
                sector: status.sector,
                slo: status.slo,
                access: status.access.map(without_reservations),
            });
        }
        self.terms_of_engine(model)
    }

    /// Returns the engine's terms of the volume.
    #[must_use]
    pub(crate) fn terms_of_engine(&self, model: &VolumeModel) -> Option<Terms> {
        let volume = self.shards()[model.shard].volume(model.uuid())?;
        Some(Terms {
            name: volume.name().to_owned(),
            blocks: volume.blocks(),
            metadata: volume.metadata_size(),
            sector: volume.sector_size(),
            slo: volume.slo(),
            access: Access::decode(&volume.access()).ok().map(without_reservations),
        })
    }

    /// Changes what a volume is promised.
    ///
    /// # Errors
    /// Why not.
    pub(crate) async fn set_slo(&self, model: &VolumeModel, slo: Slo) -> Result<(), Failure> {
        if let Some(core) = &self.core {
            core.set_slo(model.uuid(), slo).await?;
            return Ok(());
        }
        let volume = self.shards()[model.shard].volume(model.uuid()).ok_or(Failure::Deleted)?;
        Ok(volume.set_slo(slo).await?)
    }

    /// Changes which hosts may open a volume.
    ///
    /// # Errors
    /// Why not.
    pub(crate) async fn set_access(
        &self,
        model: &VolumeModel,
        access: Access,
        cut: bool,
    ) -> Result<(), Failure> {
        if let Some(core) = &self.core {
            model.is_cut.set(true);
            core.set_access(model.uuid(), access, cut).await?;
            return Ok(());
        }
        let volume = self.shards()[model.shard].volume(model.uuid()).ok_or(Failure::Deleted)?;
        Ok(volume.set_access(&access.encode().expect("it is short")).await?)
    }

    /// Takes a checkpoint of every shard.
    ///
    /// # Errors
    /// Why not.
    pub(crate) async fn checkpoint(&self) -> Result<(), VolumeError> {
        for shard in self.shards() {
            shard.checkpoint().await?;
        }
        Ok(())
    }

    /// Ends in order.
    ///
    /// # Errors
    /// A last checkpoint could not be written.
    pub(crate) async fn shutdown(&self) -> Result<(), VolumeError> {
        match &self.core {
            Some(core) => core.shutdown().await,
            None => {
                for shard in self.shards() {
                    shard.shutdown().await?;
                }
                Ok(())
            }
        }
    }

    /// Checks that everything fits together. Nothing may be under way.
    pub(crate) async fn check(&self, read_data: bool) -> Vec<CheckReport> {
        let mut reports = Vec::new();
        for shard in self.shards() {
            reports.push(shard.check(read_data).await);
        }
        reports
    }
}
