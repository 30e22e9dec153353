//! Space: blocks that are mapped or not, and pools that run short.

use access::Access;
use io_traits::Clock;
use iscsi_wire::Cdb;
use iscsi_wire::cdb::{opcode as scsi, service_action_in};
use sim::SimDevice;
use units::{Duration, SectorSize, ShardIndex, Slo};
use uuid::Uuid;
use volume::{Terms, VolumeSpec};

use crate::strict::Initiator;
use crate::{BLOCKS, VOLUME, admit, failed, good, pattern, serve, serve_on, session, simulate};

/// The runs that GET LBA STATUS tells from `lba` on, at most `max`: first block, blocks, provisioning status.
async fn runs(initiator: &mut Initiator, lba: u64, max: u32) -> Vec<(u64, u32, u8)> {
    let mut cdb = Cdb::with_blocks(scsi::SERVICE_ACTION_IN_16, lba, 8 + 16 * max);
    cdb.0[1] = service_action_in::GET_LBA_STATUS;
    let ended = initiator.command(cdb, &[], 8 + 16 * max).await;
    assert_eq!((ended.status, ended.sense), (0, None));
    let word = |at: usize| ended.data[at..at + 4].try_into().expect("four bytes");
    assert_eq!(u32::from_be_bytes(word(0)) as usize, ended.data.len() - 4);
    let run = |bytes: &[u8]| {
        let (lba, rest) = bytes.split_first_chunk().expect("sixteen bytes");
        let (blocks, rest) = rest.split_first_chunk().expect("eight bytes");
        (u64::from_be_bytes(*lba), u32::from_be_bytes(*blocks), rest[0])
    };
    ended.data[8..].chunks_exact(16).map(run).collect()
}

async fn unmap(initiator: &mut Initiator, lba: u64, blocks: u32) {
    let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
    list.extend_from_slice(&lba.to_be_bytes());
    list.extend_from_slice(&blocks.to_be_bytes());
    list.extend([0; 4]);
    let mut cdb = Cdb([0; 16]);
    (cdb.0[0], cdb.0[8]) = (scsi::UNMAP, 24);
    assert_eq!(initiator.command(cdb, &list, 0).await, good(0));
}

#[test]
fn blocks_are_mapped_while_they_hold_data() {
    simulate(async |world| {
        let _core = serve(&world, false).await;
        let mut initiator = session(&world, VOLUME).await;
        let all = BLOCKS as u32;
        assert_eq!(runs(&mut initiator, 0, 4).await, [(0, all, 1)]);
        for (lba, blocks) in [(5, 3), (20, 1)] {
            let cdb = Cdb::with_blocks(scsi::WRITE_16, lba, blocks);
            assert_eq!(initiator.command(cdb, &pattern(blocks as usize, 1), 0).await, good(0));
        }
        let expected = [(0, 5, 1), (5, 3, 0), (8, 12, 1), (20, 1, 0), (21, all - 21, 1)];
        assert_eq!(runs(&mut initiator, 0, 9).await, expected);
        assert_eq!(runs(&mut initiator, 0, 3).await, expected[..3]);
        assert_eq!(runs(&mut initiator, 6, 2).await, [(6, 2, 0), (8, 12, 1)]);
        unmap(&mut initiator, 5, 2).await;
        assert_eq!(runs(&mut initiator, 0, 2).await, [(0, 7, 1), (7, 1, 0)]);
        let end = u64::from(all) - 1;
        assert_eq!(runs(&mut initiator, end, 1).await, [(end, 1, 1)]);
    });
}

/// A physical block is mapped as a whole: so are all logical blocks in it.
#[test]
fn small_blocks_are_mapped_with_their_physical_one() {
    const SMALL: Uuid = Uuid::from_u128(3);
    simulate(async |world| {
        let core = serve(&world, false).await;
        let spec = VolumeSpec { uuid: SMALL, name: SMALL.to_string(), blocks: BLOCKS };
        let terms = Terms { sector: SectorSize::Bytes512, ..Terms::default() };
        core.create_volume(ShardIndex(0), spec, terms).await.expect("room");
        admit(&core, SMALL, Access::default()).await;
        let mut initiator = session(&world, SMALL).await;
        let write = Cdb::with_blocks(scsi::WRITE_16, 17, 1);
        assert_eq!(initiator.command(write, &pattern(1, 1)[..512], 0).await, good(0));
        let all = BLOCKS as u32 * 8;
        let expected = [(3, 13, 1), (16, 8, 0), (24, all - 24, 1)];
        assert_eq!(runs(&mut initiator, 3, 9).await, expected);
        assert_eq!(runs(&mut initiator, 19, 1).await, [(19, 5, 0)]);
        unmap(&mut initiator, 14, 30).await;
        assert_eq!(runs(&mut initiator, 0, 9).await, [(0, all, 1)]);
    });
}

/// Blocks of a device of 64 MiB: a twentieth of it is more than what the engine keeps back.
const SMALL_DEVICE_BLOCKS: u64 = 16_384;
const STEP: u32 = 128;

/// Writes until it is refused, with `attentions` told on the way. Returns the blocks written.
async fn fill(initiator: &mut Initiator, attentions: &mut u32) -> u64 {
    let data = pattern(STEP as usize, 3);
    let mut lba = 0;
    loop {
        let cdb = Cdb::with_blocks(scsi::WRITE_16, lba, STEP);
        let ended = initiator.command(cdb, &data, 0).await;
        match ended.sense {
            None => lba += u64::from(STEP),
            Some((6, 0x38, 7)) => *attentions += 1,
            Some(_) => {
                assert_eq!(ended, failed(7, 0x27, 7, -(data.len() as i64)));
                return lba;
            }
        }
    }
}

/// An initiator is warned once while its pool runs full, writes to the full one are refused, and when there was room again, it
/// is warned again.
#[test]
fn a_pool_that_runs_full_is_told() {
    const LARGE: Uuid = Uuid::from_u128(4);
    simulate(async |world| {
        let core = serve_on(&world, SimDevice::new(&world, SMALL_DEVICE_BLOCKS), false).await;
        let spec =
            VolumeSpec { uuid: LARGE, name: LARGE.to_string(), blocks: 2 * SMALL_DEVICE_BLOCKS };
        core.create_volume(ShardIndex(0), spec, Slo::default()).await.expect("thin");
        admit(&core, LARGE, Access::default()).await;
        let mut initiator = session(&world, LARGE).await;
        for round in 0..2 {
            let mut attentions = 0;
            let written = fill(&mut initiator, &mut attentions).await;
            assert!(written > SMALL_DEVICE_BLOCKS / 2, "round {round}");
            // The last blocks may have been written within one tick.
            world.sleep_until(world.now() + Duration::from_secs(1)).await;
            attentions += u32::from(ready(&mut initiator).await);
            assert_eq!(attentions, 1, "round {round}");
            for _ in 0..3 {
                world.sleep_until(world.now() + Duration::from_secs(2)).await;
                assert!(!ready(&mut initiator).await, "it is told once");
            }
            unmap(&mut initiator, 0, 2 * SMALL_DEVICE_BLOCKS as u32).await;
            for _ in 0..30 {
                world.sleep_until(world.now() + Duration::from_secs(2)).await;
                assert!(!ready(&mut initiator).await, "there is more room");
            }
        }
    });
}

/// Returns whether the initiator is told of the threshold.
async fn ready(initiator: &mut Initiator) -> bool {
    match initiator.command(Cdb([0; 16]), &[], 0).await.sense {
        None => false,
        Some((6, 0x38, 7)) => true,
        other => panic!("{other:?}"),
    }
}
