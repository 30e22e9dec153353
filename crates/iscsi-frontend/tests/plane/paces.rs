//! Initiators that send what they owe slowly, or not at all.

use std::cell::Cell;
use std::rc::Rc;

use dataplane::CoreOptions;
use io_traits::{Clock, Spawn};
use iscsi_wire::Cdb;
use iscsi_wire::cdb::opcode as scsi;
use iscsi_wire::pdu::opcode;
use iscsi_wire::sense::ScsiStatus;
use sim::{SimDevice, SimWorld};
use units::{Duration, Instant};

use crate::strict::{Initiator, Received};
use crate::{
    DEVICE_BLOCKS, SimCore, VOLUME, good, pattern, serve, serve_with, session, session_of_port,
    simulate,
};

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

/// A core with so much memory for data.
async fn serve_in(world: &SimWorld, memory_bytes: u64) -> SimCore {
    let options = CoreOptions { memory_bytes, window_bytes: 4 << 20, ..CoreOptions::default() };
    serve_with(world, SimDevice::new(world, DEVICE_BLOCKS), options, false).await
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
        let core = serve(&world, false).await;
        let mut initiator = session(&world, VOLUME).await;
        let tags = begin(&mut initiator, MIB_BLOCKS).await;
        for sn in 0..12 {
            sleep(&world, Duration::from_secs(15)).await;
            initiator.drop_of(tags, sn, 16_384 + 4 * sn, &[7; 4]).await;
        }
        let stats = core.stats();
        assert_eq!((stats.connections, stats.memory_used_bytes), (1, 1 << 20), "it is still there");
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

/// Begins a write of 1 MiB of another initiator. Returns the time at which it has ended, once it has.
async fn another_write(world: &SimWorld) -> Rc<Cell<Option<Instant>>> {
    let mut initiator = session(world, VOLUME).await;
    let ended = Rc::new(Cell::new(None));
    let (clock, at) = (world.clone(), ended.clone());
    world.spawn(async move {
        let data = pattern(MIB_BLOCKS as usize, 2);
        let write = Cdb::with_blocks(scsi::WRITE_10, 0, MIB_BLOCKS);
        assert_eq!(initiator.command(write, &data, 0).await, good(0));
        at.set(Some(clock.now()));
        initiator.log_out().await;
    });
    ended
}

/// PACE-2: initiators that send drop by drop keep their memory as long as there is enough for all, and no longer; one that
/// sends steadily keeps it.
///
/// Method: eight hold nearly all memory for 20 s, and then another one has a write.
#[test]
fn a_trickle_keeps_no_memory_that_others_need() {
    const STEP: Duration = Duration::from_millis(500);
    const HELD: u8 = 8;
    simulate(async |world| {
        let held_bytes = u64::from(HELD) << 20;
        let core = serve_in(&world, held_bytes + (512 << 10)).await;
        let mut initiators = Vec::new();
        for port in 1..=HELD {
            let mut initiator = session_of_port(&world, VOLUME, port).await;
            let tags = begin(&mut initiator, MIB_BLOCKS).await;
            initiators.push((initiator, tags, 16_384));
        }
        let drops = async |initiators: &mut [(Initiator, (u32, u32), u32)], sn, of_first| {
            for (number, (initiator, tags, offset)) in initiators.iter_mut().enumerate() {
                let data = vec![7; if number == 0 { of_first } else { 4 }];
                initiator.drop_of(*tags, sn, *offset, &data).await;
                *offset += data.len() as u32;
            }
            sleep(&world, STEP).await;
        };
        for sn in 0..40 {
            drops(&mut initiators, sn, 4).await;
        }
        assert_eq!(core.stats().memory_used_bytes, held_bytes, "there is enough");
        let (begun, ended) = (world.now(), another_write(&world).await);
        // 5 KiB a second, for as long as what was asked for lasts.
        for sn in 40..60 {
            drops(&mut initiators, sn, 2560).await;
        }
        let took = ended.get().expect("it was held up").since(begun);
        assert!(took > Duration::from_secs(4), "{took:?}");
        assert_eq!(core.stats().memory_used_bytes, 1 << 20, "that of the first alone");
        assert_eq!(core.stats().connections, 1);
    });
}

/// ISCSI-RECEIVE-1: an initiator that begins more than its window has room for gets all of it done, part by part.
#[test]
fn more_writes_than_have_room_all_end() {
    const WRITES: usize = 40;
    simulate(async |world| {
        let core = serve(&world, false).await;
        let mut initiator = session(&world, VOLUME).await;
        let data = pattern(MIB_BLOCKS as usize, 3);
        let write = Cdb::with_blocks(scsi::WRITE_10, 0, MIB_BLOCKS);
        initiator.begins_many = true;
        let mut tags = Vec::new();
        for _ in 0..WRITES {
            tags.push(initiator.begin(write, &data, 0).await);
        }
        let begun = world.now();
        let ended = initiator.finish_all(&tags, &data).await;
        assert!(ended.values().all(|it| *it == (0, 0)), "{ended:?}");
        assert!(world.now().since(begun) < Duration::from_secs(10), "not by a time limit");
        initiator.log_out().await;
        assert_eq!(core.stats().memory_used_bytes, 0);
    });
}

/// MEMORY-5: first parts of many commands do not take the memory without which none of them can be finished.
///
/// Method: eight initiators begin commands whose first parts together are all the memory.
#[test]
fn first_parts_of_commands_do_not_take_the_memory_for_the_rest() {
    const EACH: usize = 64;
    simulate(async |world| {
        let core = serve_in(&world, 8 << 20).await;
        let data = pattern(MIB_BLOCKS as usize, 3);
        let write = Cdb::with_blocks(scsi::WRITE_10, 0, MIB_BLOCKS);
        let (ended, mut initiators) = (Rc::new(Cell::new((0, 0))), Vec::new());
        for port in 1..=8 {
            let mut initiator = session_of_port(&world, VOLUME, port).await;
            initiator.begins_many = true;
            let mut tags = Vec::new();
            for _ in 0..EACH {
                tags.push(initiator.begin(write, &data, 0).await);
            }
            initiators.push((initiator, tags));
        }
        let begun = world.now();
        for (mut initiator, tags) in initiators {
            let (data, ended) = (data.clone(), ended.clone());
            world.spawn(async move {
                let all = initiator.finish_all(&tags, &data).await;
                let (mut done, mut refused) = ended.get();
                for (status, _) in all.into_values() {
                    assert!(status == 0 || status == ScsiStatus::TaskSetFull as u8, "{status:#x}");
                    let count = if status == 0 { &mut done } else { &mut refused };
                    *count += 1;
                }
                ended.set((done, refused));
                initiator.log_out().await;
            });
        }
        while core.stats().connections > 0 {
            assert!(world.now().since(begun) < Duration::from_secs(10), "{:?}", ended.get());
            sleep(&world, Duration::from_millis(100)).await;
        }
        let (done, refused) = ended.get();
        assert_eq!((done + refused, done > 64), (8 * EACH, true), "{done} were done");
        assert_eq!(core.stats().memory_used_bytes, 0);
    });
}
