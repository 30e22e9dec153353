//! Initiators that send what they owe slowly, or not at all.

use io_traits::Clock;
use iscsi_wire::Cdb;
use iscsi_wire::cdb::opcode as scsi;
use iscsi_wire::pdu::opcode;
use sim::SimWorld;
use units::Duration;

use crate::strict::{Initiator, Received};
use crate::{VOLUME, pattern, serve, session, session_of_port, simulate};

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

/// An initiator that reads slowly is served to the end, and has the time to get to a NOP-In; one that does not read is cut off.
///
/// Method: 12 MiB are read at 128 KiB a second.
#[test]
fn a_slow_reader_is_waited_for_and_a_deaf_one_is_not() {
    const READS: usize = 12;
    simulate(async |world| {
        let core = serve(&world, false).await;
        let (mut slow, mut deaf) =
            (session(&world, VOLUME).await, session_of_port(&world, VOLUME, 1).await);
        for initiator in [&mut slow, &mut deaf] {
            for _ in 0..READS {
                let read = Cdb::with_blocks(scsi::READ_10, 0, MIB_BLOCKS);
                initiator.begin(read, &[], 1 << 20).await;
            }
        }
        let (begun, mut left) = (world.now(), READS << 20);
        while left > 0 {
            let Received { bhs, data } = slow.receive().await.expect("it is waited for");
            if bhs.opcode == opcode::NOP_IN {
                slow.answer_ping(&bhs).await;
                continue;
            }
            left -= data.len();
            let fraction = u64::try_from(data.len()).expect("short") * 1000 / (128 << 10);
            sleep(&world, Duration::from_millis(fraction)).await;
        }
        assert!(world.now().since(begun) > Duration::from_secs(80), "slow indeed");
        assert_eq!(core.stats().connections, 1, "the other one was cut off");
    });
}
