//! NVMe beside another protocol, before one core.

use std::rc::Rc;

use dataplane::{Core, Loss};
use io_traits::{Network, Spawn};
use test_hosts::lines::{self, Host, LineFrontend};
use units::{BLOCK_SIZE, Lba};

use crate::support::{VOLUME, connect, host, serve_new, simulate};

const BLOCKS: u64 = 64;

/// Hosts of both protocols read what the other wrote, hear of a resize, and are cut when the volume is gone.
#[test]
fn two_protocols_serve_one_volume() {
    for seed in 0..4 {
        simulate(seed, async |world| {
            let (core, _device) = serve_new(world.clone(), BLOCKS).await;
            let beside: Core<_, _> = (*core).clone();
            beside.add_frontend(Rc::new(LineFrontend), []);
            let listener = world.listen(lines::portal()).expect("a free address");
            world.spawn(async move { beside.serve(&LineFrontend, listener).await });
            let by_nvme = connect(world.clone(), host()).await;
            let mut by_line = Host::with_volume(&world, VOLUME).await;
            assert_eq!(core.stats().connections_let_in, 3, "admin queue, I/O queue, lines");

            assert_eq!(by_line.ask("2 write 0 3 7").await, "2 done");
            let read = by_nvme.read(Lba(3), 1).await.expect("readable");
            assert_eq!(read.as_bytes(), [7; BLOCK_SIZE]);
            by_nvme.write(Lba(4), read.into_slice()).await.expect("written");
            assert_eq!(by_line.read(4).await, 7);

            core.resize_volume(VOLUME, 2 * BLOCKS, Loss::Accepted).await.expect("room");
            assert_eq!(by_line.line().await, Some(format!("* 0 has {}", 2 * BLOCKS)));
            core.delete_volume(VOLUME, Loss::Accepted).await.expect("a volume");
            assert_eq!(by_line.line().await.as_deref(), Some("* closed: the volume is gone"));
            assert!(by_nvme.read(Lba(3), 1).await.is_err());
        });
    }
}
