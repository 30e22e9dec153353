//! Commands left behind by a lost connection do not take effect after what the host has done since.

use client::Options;
use dataplane::CoreOptions;
use io_traits::{Clock, Spawn, Stream};
use nvme_frontend::{NvmeOptions, nqn_of};
use nvme_wire::io::BlockCommand;
use nvme_wire::{ControllerInstance, Cqe, CrossControllerReset, IoOpcode, SglDescriptor, Status};
use sim::SimWorld;
use units::{BLOCK_SIZE, Duration, Lba};
use zerocopy::FromBytes;

use crate::support::raw_host::{
    RawHost, capsule, connect_command, disable_command, enable_command, read_command,
};
use crate::support::{
    VOLUME, connect, data, host, portal, serve_new, serve_slowly, simulate, sleep,
};

const BLOCKS: u64 = 1024;

/// The identity of a raw host, for a client.
fn raw_options() -> Options {
    Options::for_host([9; 16])
}

fn write_in_capsule(cid: u16, lba: u64, stamp: u64) -> Vec<u8> {
    let block_bytes = u32::try_from(BLOCK_SIZE).expect("4096");
    let mut sqe = BlockCommand::new(lba, 1).encode(IoOpcode::WRITE, 1, block_bytes);
    sqe.dptr = SglDescriptor::in_capsule(block_bytes);
    capsule(cid, sqe, data(stamp, 1).as_bytes())
}

async fn reset(admin: &mut RawHost, impacted: ControllerInstance) -> (Status, u64) {
    let answer = admin.command(CrossControllerReset(impacted).encode(), &[]).await;
    let answer = answer.expect("answered");
    (answer.status(), answer.result.get())
}

/// I/O and admin queue of a host whose write is under way to the device, and which `has_left` since; and what its controller is.
async fn write_under_way(
    world: &SimWorld,
    has_left: bool,
) -> (RawHost, RawHost, ControllerInstance) {
    let (mut io, mut admin) = RawHost::io_queue(world, &nqn_of(VOLUME)).await.expect("connected");
    let controller = identify(&mut admin).await;
    io.send(&write_in_capsule(7, 0, 5)).await.expect("taken in");
    sleep(world, Duration::from_micros(500)).await;
    if has_left {
        io.stream.shutdown();
        admin.stream.shutdown();
        sleep(world, Duration::from_millis(1)).await;
    }
    (io, admin, controller)
}

const DONE: (Status, u64) = (Status::SUCCESS, CrossControllerReset::DONE as u64);

/// The network holds a write up, the host finds its connection lost, writes it again on another, and something else
/// after that. The first one arrives when all is over.
#[test]
fn a_write_that_was_held_up_does_not_undo_later_ones() {
    for seed in 0..20 {
        simulate(seed, |world| async move {
            let (core, _) = serve_new(world.clone(), BLOCKS).await;
            let volume = connect(world.clone(), host()).await;
            volume.write(Lba(0), data(1, 1)).await.expect("written");
            let (sender, severed) = local_sync::oneshot();
            let network = world.clone();
            world.spawn(async move {
                let (held_up_for, told_after) = (Duration::from_millis(1), Duration::from_secs(5));
                network.sever_connections(held_up_for, told_after).await;
                sender.send(());
            });
            volume.write(Lba(0), data(2, 1)).await.expect("written, the second time");
            severed.await.expect("it was");
            assert_eq!(volume.client().counters().reconnects, 1);
            volume.write(Lba(0), data(3, 1)).await.expect("written");
            for _ in 0..10 {
                sleep(&world, Duration::from_secs(1)).await;
                let read = volume.read(Lba(0), 1).await.expect("read");
                assert!(read.as_bytes() == data(3, 1).as_bytes(), "seed {seed}");
            }
            volume.client().close().await;
            sleep(&world, Duration::from_secs(1)).await;
            assert_eq!(core.stats().connections, 0);
        });
    }
}

/// CROSS-RESET-3. A request to end a controller that is not there, or not the asking host's, does nothing.
#[test]
fn a_host_ends_its_own_controllers_only() {
    simulate(1, |world| async move {
        let (_core, _) = serve_new(world.clone(), BLOCKS).await;
        let others = connect(world.clone(), host()).await;
        let own = connect(world.clone(), raw_options()).await;
        let (_io, mut admin) = RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("connected");
        let reconnects = async || {
            sleep(&world, Duration::from_millis(100)).await;
            [&others, &own].map(|volume| volume.client().counters().reconnects)
        };
        let instance =
            |volume: &client::Volume<SimWorld>| volume.client().controller().expect("it has one");
        let (of_others, of_own) = (instance(&others), instance(&own));
        assert_ne!((of_others.ciu, of_others.cirn), (of_own.ciu, of_own.cirn));

        assert_eq!(reset(&mut admin, of_others).await, DONE);
        let another_life = ControllerInstance { cirn: of_own.cirn ^ 1, ..of_own };
        assert_eq!(reset(&mut admin, another_life).await, DONE);
        let another_life = ControllerInstance { ciu: of_own.ciu ^ 1, ..of_own };
        assert_eq!(reset(&mut admin, another_life).await, DONE);
        assert_eq!(reconnects().await, [0, 0]);

        assert_eq!(reset(&mut admin, of_own).await, DONE);
        own.read(Lba(0), 1).await.expect("reconnected");
        assert_eq!(reconnects().await, [0, 1]);
        assert_ne!(instance(&own), of_own);
        assert_eq!(reset(&mut admin, of_own).await, DONE, "once more");
        assert_eq!(reconnects().await, [0, 1]);
    });
}

/// CROSS-RESET-1, CROSS-RESET-2. A write is under way to the device when its controller is ended, or when its connections have
/// ended by themselves: either it is there when the command is completed, or it will never be.
#[test]
fn nothing_is_under_way_when_a_controller_has_ended() {
    for has_left in [false, true] {
        simulate(2, |world| async move {
            let _core = serve_slowly(&world, BLOCKS, NvmeOptions::new(portal())).await;
            let reader = connect(world.clone(), host()).await;
            let subsystem = nqn_of(VOLUME);
            let (_io, mut survivor) =
                RawHost::io_queue(&world, &subsystem).await.expect("connected");
            let (_writer, _admin, impacted) = write_under_way(&world, has_left).await;
            assert_eq!(reset(&mut survivor, impacted).await, DONE);
            let then = reader.read(Lba(0), 1).await.expect("read");
            sleep(&world, Duration::from_secs(1)).await;
            let later = reader.read(Lba(0), 1).await.expect("read");
            assert!(then.as_bytes() == later.as_bytes(), "it went on");
            assert!(later.as_bytes() == data(5, 1).as_bytes(), "it was under way");
        });
    }
}

/// Returns the first block, as an I/O queue reads it.
async fn first_block(io: &mut RawHost) -> Vec<u8> {
    io.send(&capsule(8, read_command(0, 1), &[])).await.expect("taken in");
    let reply = io.receive(24 + BLOCK_SIZE + 24).await.expect("answered");
    reply[24..24 + BLOCK_SIZE].to_vec()
}

/// CROSS-RESET-5. A write is under way to the device when its host resets its controller, or when its connections end. The host
/// goes on as any host does, and reads as soon as it may: what it saw does not change by itself.
#[test]
fn what_a_host_sees_behind_a_reset_does_not_change_by_itself() {
    for has_left in [false, true] {
        simulate(4, |world| async move {
            let _core = serve_slowly(&world, BLOCKS, NvmeOptions::new(portal())).await;
            let subsystem = nqn_of(VOLUME);
            let (_writer, mut admin, controller) = write_under_way(&world, has_left).await;
            let mut cntlid = controller.cntlid;
            if has_left {
                admin = RawHost::greet(&world).await.expect("greeted");
                let (connect, who) = connect_command(0, 0xFFFF, &subsystem);
                let cqe = admin.command(connect, &who).await.expect("answered");
                cntlid = cqe.dw0() as u16;
            } else {
                admin.command(disable_command(), &[]).await.expect("disabled");
            }
            admin.command(enable_command(), &[]).await.expect("answered");
            while !admin.csts().await.expect("answered").rdy() {
                sleep(&world, Duration::from_millis(1)).await;
            }
            let (mut io, cqe) =
                RawHost::queue(&world, (1, cntlid), &subsystem).await.expect("an answer");
            assert!(cqe.status().is_success(), "{}", cqe.status());
            let then = first_block(&mut io).await;
            sleep(&world, Duration::from_secs(1)).await;
            let later = first_block(&mut io).await;
            assert!(then == later, "it went on");
            assert!(later == data(5, 1).as_bytes(), "it was under way");
        });
    }
}

/// CROSS-RESET-5. Commands of another host that are under way keep no host waiting.
#[test]
fn no_host_waits_for_what_is_under_way_of_others() {
    simulate(5, |world| async move {
        let _core = serve_slowly(&world, BLOCKS, NvmeOptions::new(portal())).await;
        let (mut io, admin) = RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("connected");
        io.send(&write_in_capsule(7, 0, 5)).await.expect("taken in");
        sleep(&world, Duration::from_micros(500)).await;
        io.stream.shutdown();
        admin.stream.shutdown();
        sleep(&world, Duration::from_millis(1)).await;
        let since = world.now();
        let volume = connect(world.clone(), host()).await;
        let took = world.now().since(since);
        assert!(took < Duration::from_millis(5), "{took:?}: less than a write takes");
        volume.client().close().await;
    });
}

/// ASSOCIATION-3. Method: on one controller an I/O queue is connected, given writes of one block, which the disk does
/// one after the other, and cut, again and again.
#[test]
fn who_leaves_commands_behind_again_and_again_is_put_off() {
    simulate(6, |world| async move {
        let _core = serve_slowly(&world, BLOCKS, NvmeOptions::new(portal())).await;
        let subsystem = nqn_of(VOLUME);
        let (io, mut admin) = RawHost::io_queue(&world, &subsystem).await.expect("connected");
        let cntlid = identify(&mut admin).await.cntlid;
        io.stream.shutdown();
        let mut left_behind = 0;
        let refused = loop {
            sleep(&world, Duration::from_millis(1)).await;
            let asked = RawHost::queue(&world, (1, cntlid), &subsystem).await;
            let (mut io, cqe) = asked.expect("an answer");
            if !cqe.status().is_success() {
                break cqe.status();
            }
            for cid in 0..30 {
                io.send(&write_in_capsule(cid, 0, 5)).await.expect("taken in");
            }
            sleep(&world, Duration::from_millis(1)).await;
            io.stream.shutdown();
            left_behind += 1;
            assert!(left_behind < 100, "one after the other");
        };
        assert_eq!((left_behind, refused), (64, Status::CONNECT_CONTROLLER_BUSY));
        sleep(&world, Duration::from_secs(200)).await;
        let asked = RawHost::queue(&world, (1, cntlid), &subsystem).await;
        assert!(asked.expect("an answer").1.status().is_success(), "they have ended");
    });
}

/// CROSS-RESET-4. A write holds the reset up; the controller that was asked is reset itself, and used again, meanwhile.
#[test]
fn a_reset_whose_controller_was_reset_answers_no_later_command() {
    simulate(3, |world| async move {
        let _core = serve_slowly(&world, BLOCKS, NvmeOptions::new(portal())).await;
        let subsystem = nqn_of(VOLUME);
        let (_io, mut survivor) = RawHost::io_queue(&world, &subsystem).await.expect("connected");
        let (mut io, mut admin) = RawHost::io_queue(&world, &subsystem).await.expect("connected");
        let impacted = identify(&mut admin).await;
        io.send(&write_in_capsule(7, 0, 5)).await.expect("taken in");
        sleep(&world, Duration::from_micros(500)).await;
        let end = CrossControllerReset(impacted).encode();
        survivor.send(&capsule(200, end, &[])).await.expect("taken in");
        sleep(&world, Duration::from_millis(1)).await;
        survivor.send(&capsule(201, disable_command(), &[])).await.expect("taken in");
        let mut answer = async || {
            let bytes = survivor.receive(24).await.expect("answered");
            let cqe = Cqe::read_from_bytes(&bytes[8..]).expect("16 bytes");
            (cqe.cid.get(), cqe.status())
        };
        assert_eq!(answer().await, (200, Status::ABORT_REQUESTED));
        assert_eq!(answer().await, (201, Status::SUCCESS));
        survivor.command(enable_command(), &[]).await.expect("enabled");
        sleep(&world, Duration::from_secs(1)).await;
        let answer = reset(&mut survivor, impacted).await;
        assert_eq!(answer, DONE, "the next answer is that of the next command");
    });
}

async fn identify(admin: &mut RawHost) -> ControllerInstance {
    use nvme_wire::identify::{Cns, Identify, IdentifyController};
    let sqe = Identify::new(Cns::CONTROLLER, 0).encode();
    admin.send(&capsule(99, sqe, &[])).await.expect("taken in");
    let reply = admin.receive(24 + 4096 + 24).await.expect("answered");
    let page = zerocopy::FromBytes::ref_from_bytes(&reply[24..24 + 4096]);
    let controller: &IdentifyController = page.expect("4096 bytes");
    controller.instance().expect("it says who it is")
}

/// A host that does not read its replies is not read from, either. What it had sent when it ended the connection is not
/// carried out: by then it may have sent it again elsewhere.
#[test]
fn what_was_not_read_when_the_host_went_is_not_carried_out() {
    for seed in 0..20 {
        simulate(seed, |world| async move {
            let options = NvmeOptions {
                core: CoreOptions { window_bytes: 2 << 20, ..CoreOptions::default() },
                ..NvmeOptions::new(portal())
            };
            let _core = serve_slowly(&world, BLOCKS, options).await;
            let volume = connect(world.clone(), host()).await;
            volume.write(Lba(256), data(1, 256)).await.expect("written");
            let (mut io, _admin) =
                RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("connected");
            for cid in 0..24 {
                // What comes behind it takes the room again, so that it would have its turn.
                let bytes = match cid {
                    12 => write_in_capsule(cid, 0, 5),
                    _ => capsule(cid, read_command(256, 256), &[]),
                };
                io.send(&bytes).await.expect("taken in");
                sleep(&world, Duration::from_millis(10)).await;
            }
            let is_written = async || {
                let read = volume.read(Lba(0), 1).await.expect("read");
                read.as_bytes() == data(5, 1).as_bytes()
            };
            assert!(!is_written().await, "the server has stopped to read");
            io.stream.shutdown_write();
            io.wait_for_close().await;
            sleep(&world, Duration::from_secs(1)).await;
            assert!(!is_written().await, "no host would hear of it");
        });
    }
}
