//! The server under test, started on a disk: the engine alone, or the whole data plane.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use client::{Backoff, Client, Options, Reconnect};
use dataplane::{Core, CoreOptions, nqn_of};
use io_traits::{Clock, Network, Spawn};
use sim::SimWorld;
use units::Duration;
use uuid::Uuid;
use volume::{
    CheckReport, ExtentAllocator, OpenError, Recovered, Shard, ShardOptions, Terms, VolumeError,
    VolumeSpec,
};

use crate::fused::FusedHost;
use crate::model::VolumeModel;
use crate::seam::SeamDevice;
use crate::target::{Failure, Target};

/// What no tenant knows.
const SECRET: u64 = 0x5EC2_E700_0000_0001;
/// How often [`Shard::settle`] is called.
const TICK: Duration = Duration::from_millis(250);

/// A server that runs.
#[derive(Clone)]
pub(crate) struct Rig {
    world: SimWorld,
    shards: Rc<RefCell<Vec<Shard<SeamDevice>>>>,
    core: Option<Core<SimWorld, SeamDevice>>,
    /// Hosts of each volume.
    hosts: Rc<RefCell<BTreeMap<Uuid, Target>>>,
    reconnects: bool,
}

/// What a server is started for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Service {
    /// Whether there is a data plane.
    pub plane: bool,
    /// Whether hosts connect again.
    pub reconnects: bool,
    /// Whether shards that fail are brought back. A data plane does that in any case.
    pub returns: bool,
}

fn portal() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 4420))
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

impl Rig {
    /// Runs `shards`, behind a data plane or bare.
    #[must_use]
    pub(crate) fn start(
        world: &SimWorld,
        shards: Vec<Shard<SeamDevice>>,
        service: Service,
    ) -> Self {
        let core = service.plane.then(|| {
            let core = Core::new(world, CoreOptions::new(portal()));
            for shard in &shards {
                core.attach(shard.clone());
            }
            let listener = world.listen(portal()).expect("nobody else listens");
            let serving = core.clone();
            world.spawn(async move { serving.serve(listener).await });
            core
        });
        let (shards, hosts) = (Rc::new(RefCell::new(shards)), Rc::default());
        let reconnects = service.reconnects;
        let rig = Self { world: world.clone(), shards, core, hosts, reconnects };
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

    /// The data plane, if there is one.
    #[must_use]
    pub(crate) fn core(&self) -> Option<&Core<SimWorld, SeamDevice>> {
        self.core.as_ref()
    }

    /// Waits.
    pub(crate) async fn pause(&self, duration: Duration) {
        self.world.sleep_until(self.world.now() + duration).await;
    }

    /// The shards. A data plane brings one that failed back, as another.
    #[must_use]
    pub(crate) fn shards(&self) -> Vec<Shard<SeamDevice>> {
        self.core.as_ref().map_or_else(|| self.shards.borrow().clone(), Core::shards)
    }

    /// Where requests for a volume go; `None` if it is not there.
    pub(crate) async fn target(&self, model: &VolumeModel) -> Option<Target> {
        let uuid = model.uuid();
        let volume = self.shards()[model.shard].volume(uuid)?;
        if self.core.is_none() {
            return Some(Target::Engine(volume));
        }
        if let Some(host) = self.hosts.borrow().get(&uuid) {
            return Some(host.clone());
        }
        let reconnect = match self.reconnects {
            true => Reconnect::Backoff(Backoff { seed: model.id, ..Backoff::default() }),
            false => Reconnect::Never,
        };
        let options = Options { reconnect, queues: 2, ..Options::for_host([7; 16]) };
        let client = Client::connect(self.world.clone(), portal(), &nqn_of(uuid), options).await;
        let host = client.ok()?.volume().await.ok()?;
        let fused = FusedHost::new(&self.world, portal(), nqn_of(uuid));
        let target = Target::Plane(host, Rc::new(fused));
        self.hosts.borrow_mut().insert(uuid, target.clone());
        Some(target)
    }

    /// Blocks of the volume, if it is there.
    #[must_use]
    pub(crate) fn size(&self, model: &VolumeModel) -> Option<u64> {
        self.shards()[model.shard].volume(model.uuid()).map(|volume| volume.blocks())
    }

    /// Creates a volume.
    ///
    /// # Errors
    /// Why not.
    pub(crate) async fn create(&self, model: &VolumeModel, blocks: u64) -> Result<(), Failure> {
        let spec = VolumeSpec { uuid: model.uuid(), name: format!("v{}", model.id), blocks };
        let terms = Terms { metadata: model.metadata, ..Terms::default() };
        match &self.core {
            Some(core) => drop(core.create_volume(model.shard, spec, terms).await?),
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
            Some(core) => core.delete_volume(model.uuid()).await?,
            None => self.shards()[model.shard].delete_volume(model.uuid()).await?,
        }
        self.hosts.borrow_mut().remove(&model.uuid());
        Ok(())
    }

    /// Resizes a volume.
    ///
    /// # Errors
    /// Why not.
    pub(crate) async fn resize(&self, model: &VolumeModel, blocks: u64) -> Result<(), Failure> {
        if let Some(core) = &self.core {
            core.resize_volume(model.uuid(), blocks).await?;
            return Ok(());
        }
        let volume = self.shards()[model.shard].volume(model.uuid()).ok_or(Failure::Deleted)?;
        volume.resize(blocks).await?;
        Ok(())
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
