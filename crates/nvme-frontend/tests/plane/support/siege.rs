//! A live core with a host that keeps the rules, and strangers that do not.

use client::Volume;
use io_traits::Stream;
use nvme_frontend::nqn_of;
use sim::SimWorld;
use units::{Duration, Lba};

use super::raw_host::RawHost;
use super::{SimCore, VOLUME, connect, data, host, serve_new, simulate, sleep};

/// Blocks of the volume.
pub(crate) const BLOCKS: u64 = 4096;

/// The core, and the host that must not notice.
pub(crate) struct Siege {
    pub(crate) world: SimWorld,
    pub(crate) core: SimCore,
    pub(crate) good: Volume<SimWorld>,
    /// Connections of the good host.
    own: usize,
}

/// Runs a scenario to its end in a world of its own, in which the good host has connected and written.
pub(crate) fn besieged<F: Future<Output = ()> + 'static>(
    seed: u64,
    scenario: impl FnOnce(Siege) -> F + 'static,
) {
    simulate(seed, |world| async move {
        let (core, _) = serve_new(world.clone(), BLOCKS).await;
        let good = connect(world.clone(), host()).await;
        scenario(Siege::begin(world, core, good).await).await;
    });
}

impl Siege {
    /// Begins with a core whose only host is the good one, which writes.
    pub(crate) async fn begin(world: SimWorld, core: SimCore, good: Volume<SimWorld>) -> Self {
        good.write(Lba(0), data(1, 256)).await.expect("written");
        let own = core.stats().connections;
        Self { world, core, good, own }
    }

    /// A stranger's I/O queue, and the admin queue that keeps it.
    pub(crate) async fn io_queue(&self) -> (RawHost, RawHost) {
        RawHost::io_queue(&self.world, &nqn_of(VOLUME)).await.expect("there")
    }

    /// Connections that strangers have.
    pub(crate) fn strangers(&self) -> usize {
        self.core.stats().connections - self.own
    }

    /// Lets time pass.
    pub(crate) async fn sleep(&self, duration: Duration) {
        sleep(&self.world, duration).await;
    }

    /// The good host reads back what it wrote, and writes on.
    pub(crate) async fn assert_unharmed(&self) {
        let read = self.good.read(Lba(0), 256).await.expect("unharmed");
        assert!(read.as_bytes() == data(1, 256).as_bytes(), "someone else's bytes");
        self.good.write(Lba(300), data(2, 3)).await.expect("unharmed");
    }

    /// When these have gone the good host works on, no stranger has a connection, and nothing is held for any.
    pub(crate) async fn assert_over_without(&self, strangers: &[&RawHost]) {
        strangers.iter().for_each(|stranger| stranger.stream.shutdown());
        self.assert_unharmed().await;
        self.sleep(Duration::from_secs(3)).await;
        let held = self.core.stats().memory_used_bytes;
        assert_eq!((self.strangers(), held), (0, 0), "a stranger stayed");
    }
}
