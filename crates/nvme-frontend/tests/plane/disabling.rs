//! Controllers that are disabled, shut down or given up in the midst of commands: none is carried out
//! afterwards, nothing is held for them, and no other host notices.

use io_traits::{Clock, Stream};
use nvme_frontend::nqn_of;
use nvme_wire::fabrics::{Property, PropertySize};
use nvme_wire::identify::{Cns, Identify};
use nvme_wire::io::{Abort, BlockCommand};
use nvme_wire::pdu::{Digests, H2cData, R2t};
use nvme_wire::property::{Cc, Csts, offset};
use nvme_wire::{AdminOpcode, Cqe, IoOpcode, Sqe, Status};
use units::{BLOCK_SIZE, Duration, Lba};
use zerocopy::{FromBytes, IntoBytes};

use crate::support::VOLUME;
use crate::support::raw_host::{
    self, RawHost, capsule, connect_command, disable_command, enable_command, write_command,
};
use crate::support::siege::{Siege, besieged};

/// A free part of the volume, which the good host leaves alone.
const FREE: u64 = 1024;

fn set_cc(cc: Cc) -> Sqe {
    Property::set(offset::CC, PropertySize::Four, cc.0.into()).into()
}

/// Checks that the admin queue refuses all but Fabrics commands.
async fn assert_refused(admin: &mut RawHost) {
    let identify = Identify::new(Cns::CONTROLLER, 0).encode();
    let keep_alive = Sqe::new(AdminOpcode::KEEP_ALIVE.0, 0);
    let event_request = Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, 0);
    let abort = Abort { sqid: 0, cid: 1 }.encode();
    for sqe in [identify, keep_alive, event_request, abort] {
        let cqe = admin.command(sqe, &[]).await.expect("answered");
        assert_eq!(cqe.status(), Status::COMMAND_SEQUENCE_ERROR.with_dnr(), "{:#x}", sqe.opcode);
    }
}

/// The R2T for command `cid`, which is the next thing to come.
async fn r2t(io: &mut RawHost, cid: u16) -> R2t {
    let r2t = R2t::read_from_bytes(&io.receive(24).await.expect("an R2T")).expect("24 bytes");
    assert_eq!(r2t.cccid.get(), cid);
    r2t
}

/// H2CData from the start of what `r2t` asks for.
fn first_data(r2t: &R2t, len: u32) -> Vec<u8> {
    let is_last = len == r2t.r2tl.get();
    let ids = (r2t.cccid.get(), r2t.ttag.get());
    let header = H2cData::new(ids, (0, len), is_last, Digests::default(), 4);
    [header.as_bytes(), &vec![0xD7; len as usize]].concat()
}

/// A write of 256 blocks whose data has come in part.
async fn half_written(io: &mut RawHost) {
    io.send(&capsule(20, write_command(FREE, 256), &[])).await.expect("sent");
    let asked = r2t(io, 20).await;
    io.send(&first_data(&asked, 65_536)).await.expect("sent");
}

async fn assert_unwritten(siege: &Siege) {
    let read = siege.good.read(Lba(FREE), 256).await.expect("readable");
    assert!(read.as_bytes().iter().all(|byte| *byte == 0), "some of it was written");
}

/// Method: events are waited for, and a write is half there, when the controller is disabled or shut down; then the host
/// tries what only an enabled controller answers, and enables it again.
#[test]
fn a_disabled_controller_answers_fabrics_commands_alone() {
    let enabled = Cc::enabled(Cc::CSS_NVM);
    for (seed, cc) in [(1, Cc(enabled.0 & !1)), (2, enabled.with_shn(Cc::SHN_NORMAL))] {
        besieged(seed, move |siege| async move {
            let (mut io, mut admin) = siege.io_queue().await;
            half_written(&mut io).await;
            let is_shutdown = cc.en();
            let events = [0x71, 0x72];
            for cid in events {
                let request = Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, 0);
                admin.send(&capsule(cid, request, &[])).await.expect("sent");
            }
            admin.send(&capsule(0x73, set_cc(cc), &[])).await.expect("sent");
            let expected: &[u16] = if is_shutdown { &[0x73] } else { &[0x71, 0x72, 0x73] };
            for cid in expected {
                let bytes = admin.receive(24).await.expect("a completion");
                let cqe = Cqe::read_from_bytes(&bytes[8..]).expect("16 bytes");
                assert_eq!(cqe.cid.get(), *cid, "what waited is over before the reset is");
                let aborted = if *cid == 0x73 { Status::SUCCESS } else { Status::ABORT_REQUESTED };
                assert_eq!(cqe.status(), aborted);
            }
            assert_eq!(io.wait_for_close().await, [0_u8; 0], "its queue is gone");
            let shst = if is_shutdown { Csts::SHST_COMPLETE } else { Csts::SHST_NORMAL };
            let expected = Csts::new(is_shutdown, false, shst);
            assert_eq!(admin.csts().await, Ok(expected));
            assert_refused(&mut admin).await;
            let (again, who) = connect_command(1, 2, &nqn_of(VOLUME));
            let mut late = RawHost::greet(&siege.world).await.expect("greeted");
            let cqe = late.command(again, &who).await.expect("answered");
            assert_eq!(cqe.status(), Status::CONNECT_INVALID_PARAMETERS.with_dnr());
            if is_shutdown {
                admin.command(set_cc(enabled), &[]).await.expect("answered");
                assert_refused(&mut admin).await;
                // What waits for events does so until the reset.
                admin.send(&capsule(0x74, disable_command(), &[])).await.expect("sent");
                admin.receive(3 * 24).await.expect("completions");
            }
            admin.command(enable_command(), &[]).await.expect("answered");
            let cqe = late.command(again, &who).await.expect("answered");
            assert!(cqe.status().is_success(), "{}", cqe.status());
            assert_unwritten(&siege).await;
            siege.assert_over_without(&[&admin, &late]).await;
        });
    }
}

/// Method: a write whose data has come in part, or not at all, is under way when the timer expires. The I/O queue had no
/// deadline of its own so soon.
#[test]
fn a_keep_alive_timer_that_expires_ends_writes_that_wait_for_their_data() {
    besieged(3, |siege| async move {
        let mut admin = RawHost::greet(&siege.world).await.expect("greeted");
        let (mut sqe, who) = connect_command(0, 0xFFFF, &nqn_of(VOLUME));
        // KATO is in dword 12: two seconds.
        sqe.cdw12 = 2000.into();
        let cntlid = admin.command(sqe, &who).await.expect("answered").dw0() as u16;
        admin.command(enable_command(), &[]).await.expect("enabled");
        let begun = siege.world.now();
        let (mut io, cqe) =
            RawHost::queue(&siege.world, (1, cntlid), &nqn_of(VOLUME)).await.expect("an answer");
        assert!(cqe.status().is_success());
        half_written(&mut io).await;
        io.send(&capsule(21, write_command(FREE, 64), &[])).await.expect("sent");
        r2t(&mut io, 21).await;
        assert_eq!(io.wait_for_close().await, [0_u8; 0], "no answer");
        assert_eq!(admin.wait_for_close().await, [0_u8; 0]);
        let lived = siege.world.now().since(begun);
        assert!((2..4).contains(&lived.as_secs()), "closed after {lived:?}");
        assert_unwritten(&siege).await;
        siege.assert_over_without(&[]).await;
    });
}

/// RUNNING-1 and RUNNING-2. Method: the server stands still for much longer than the host's timers, and what the host
/// sends meanwhile comes when the server's own timers are due. Keep Alives have left little of their time before, in steps.
#[test]
fn no_host_is_missed_for_time_in_which_the_server_did_not_run() {
    for spent_ms in (1500..2000).step_by(20) {
        besieged(4, move |siege| async move {
            let mut admin = RawHost::greet(&siege.world).await.expect("greeted");
            let (mut sqe, named) = connect_command(0, 0xFFFF, &nqn_of(VOLUME));
            // KATO is in dword 12: two seconds.
            sqe.cdw12 = 2000.into();
            let cntlid = admin.command(sqe, &named).await.expect("answered").dw0() as u16;
            admin.command(enable_command(), &[]).await.expect("enabled");
            let (mut io, cqe) = RawHost::queue(&siege.world, (1, cntlid), &nqn_of(VOLUME))
                .await
                .expect("an answer");
            assert!(cqe.status().is_success());
            io.send(&capsule(20, write_command(FREE, 256), &[])).await.expect("sent");
            let asked = r2t(&mut io, 20).await;
            io.send(&first_data(&asked, 65_536)).await.expect("sent");
            let keep_alive = Sqe::new(AdminOpcode::KEEP_ALIVE.0, 0);
            // Between two ticks of the server.
            siege.sleep(Duration::from_millis(100)).await;
            admin.command(keep_alive, &[]).await.expect("kept alive");
            siege.sleep(Duration::from_millis(spent_ms)).await;
            siege.world.stand_still(Duration::from_secs(100));
            let answer = admin.command(keep_alive, &[]).await;
            assert!(answer.is_ok_and(|cqe| cqe.status().is_success()), "behind {spent_ms} ms");
            siege.sleep(Duration::from_millis(1500)).await;
            assert!(admin.command(keep_alive, &[]).await.is_ok(), "behind {spent_ms} ms");
            // The rest of what the server had waited for.
            let (ids, rest) = ((20, asked.ttag.get()), (1 << 20) - 65_536);
            let header = H2cData::new(ids, (65_536, rest), true, Digests::default(), 4);
            let data = [header.as_bytes(), &vec![0xD7; rest as usize]].concat();
            io.send(&data).await.expect("sent");
            assert!(io.receive(24).await.is_ok(), "behind {spent_ms} ms");
            io.stream.shutdown();
            admin.stream.shutdown();
        });
    }
}

/// Bytes of half an operation.
const HALF: u32 = 8 * BLOCK_SIZE as u32;

fn half(opcode: IoOpcode, fuse: u8) -> Sqe {
    let mut sqe = BlockCommand::new(FREE, 8).encode(opcode, 1, HALF);
    sqe.flags |= fuse;
    sqe
}

/// A Compare and Write of which one half is there, or both, with or without the data of both. Method: the controller is
/// reset in each of these states.
#[test]
fn a_reset_ends_a_fused_operation_that_is_not_whole() {
    for state in 0..4 {
        besieged(10 + state, move |siege| async move {
            let (mut io, mut admin) = siege.io_queue().await;
            io.send(&capsule(20, half(IoOpcode::COMPARE, Sqe::FUSE_FIRST), &[]))
                .await
                .expect("sent");
            let of_compare = r2t(&mut io, 20).await;
            if state >= 1 {
                let write = half(IoOpcode::WRITE, Sqe::FUSE_SECOND);
                io.send(&capsule(21, write, &[])).await.expect("sent");
                let of_write = r2t(&mut io, 21).await;
                if state >= 2 {
                    io.send(&first_data(&of_write, HALF)).await.expect("sent");
                }
            }
            if state >= 3 {
                io.send(&first_data(&of_compare, HALF / 2)).await.expect("sent");
            }
            let cqe = admin.command(disable_command(), &[]).await.expect("answered");
            assert!(cqe.status().is_success());
            assert_eq!(io.wait_for_close().await, [0_u8; 0], "no answer");
            assert_unwritten(&siege).await;
            siege.assert_over_without(&[&admin]).await;
        });
    }
}

/// Method: a host asks for a queue of another's controller, by its number, for a second time on each of its connections,
/// and with all zeroes for its id, which is then not looked at. It aborts its own Abort.
#[test]
fn a_controllers_queues_are_its_hosts_and_each_is_there_once() {
    besieged(4, |siege| async move {
        let (mut io, mut admin) = siege.io_queue().await;
        let nqn = nqn_of(VOLUME);
        let (other, cqe) = RawHost::queue(&siege.world, (2, 1), &nqn).await.expect("an answer");
        let invalid = Status::CONNECT_INVALID_PARAMETERS.with_dnr();
        assert_eq!((cqe.status(), cqe.dw0()), (invalid, 0x1_0200), "the good host's controller");
        let (admin_again, who) = connect_command(0, 0xFFFF, &nqn);
        let sequence = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
        for host in [&mut io, &mut admin] {
            let cqe = host.command(admin_again, &who).await.expect("answered");
            assert_eq!(cqe.status(), sequence, "a Connect on a connected queue");
        }
        let (queue, mut who) = connect_command(2, 2, &nqn);
        who[..16].fill(0);
        let mut third = RawHost::greet(&siege.world).await.expect("greeted");
        let cqe = third.command(queue, &who).await.expect("answered");
        assert!(cqe.status().is_success(), "{}", cqe.status());
        let mut fourth = RawHost::greet(&siege.world).await.expect("greeted");
        let cqe = fourth.command(queue, &who).await.expect("answered");
        assert_eq!(cqe.status(), sequence, "the queue is there");
        let abort = Abort { sqid: 0, cid: 0x55 }.encode();
        admin.send(&capsule(0x55, abort, &[])).await.expect("sent");
        let bytes = admin.receive(24).await.expect("a completion");
        let cqe = Cqe::read_from_bytes(&bytes[8..]).expect("16 bytes");
        assert_eq!((cqe.status(), cqe.dw0()), (Status::SUCCESS, Abort::NOT_ABORTED));
        let read = raw_host::read_command(0, 1);
        io.send(&capsule(9, read, &[])).await.expect("sent");
        io.receive(24 + BLOCK_SIZE + 24).await.expect("data, and a completion");
        siege.sleep(Duration::from_secs(1)).await;
        siege.assert_over_without(&[&other, &io, &admin, &third, &fourth]).await;
    });
}
