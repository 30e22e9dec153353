//! Initiators that send what they owe slowly, or not at all.

use io_traits::Clock;
use iscsi_wire::Cdb;
use iscsi_wire::cdb::opcode as scsi;
use sim::SimWorld;
use units::Duration;

use crate::strict::Initiator;
use crate::{VOLUME, pattern, serve, session, simulate};

/// Blocks of 1 MiB.
const MIB_BLOCKS: u32 = 256;

async fn sleep(world: &SimWorld, duration: Duration) {
    world.sleep_until(world.now() + duration).await;
}

/// Begins a write, and returns the tag by which its data is asked for.
async fn begin(initiator: &mut Initiator, blocks: u32) -> (u32, u32) {
    let data = pattern(blocks as usize, 1);
    let itt = initiator.begin(Cdb::with_blocks(scsi::WRITE_10, 0, blocks), &data, 0).await;
    (itt, initiator.asked().await)
}

/// Data that was asked for is awaited no longer for it that the initiator says other things meanwhile.
#[test]
fn data_that_does_not_come_is_not_hidden_by_other_commands() {
    simulate(async |world| {
        let core = serve(&world, false).await;
        let mut initiator = session(&world, VOLUME).await;
        begin(&mut initiator, MIB_BLOCKS).await;
        for second in 0.. {
            assert!(second < 60, "the memory is held");
            initiator.begin(Cdb([0; 16]), &[], 0).await;
            if initiator.receive().await.is_none() {
                assert!(second > 20, "{second}");
                break;
            }
            sleep(&world, Duration::from_secs(1)).await;
        }
        sleep(&world, Duration::from_secs(2)).await;
        assert_eq!(core.stats().memory_used_bytes, 0);
    });
}

/// An initiator whose data comes slowly and steadily is waited for, however long the whole takes.
#[test]
fn data_that_comes_steadily_is_waited_for() {
    simulate(async |world| {
        let _core = serve(&world, false).await;
        let mut initiator = session(&world, VOLUME).await;
        let tags = begin(&mut initiator, MIB_BLOCKS).await;
        for sn in 0..12 {
            sleep(&world, Duration::from_secs(15)).await;
            initiator.drop_of(tags, sn, 16_384 + 4 * sn, &[7; 4]).await;
        }
        initiator.begin(Cdb([0; 16]), &[], 0).await;
        assert!(initiator.receive().await.is_some(), "it is still there");
    });
}
