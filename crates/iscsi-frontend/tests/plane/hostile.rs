//! Initiators that break the rules harm no session but their own.

use io_traits::Clock;
use iscsi_frontend::target_name_of;
use iscsi_wire::cdb::opcode as scsi;
use iscsi_wire::pdu::{
    self, BHS_LEN, CONTINUE, FINAL, IMMEDIATE, Lengths, NO_TAG, WRITE, opcode, reject,
};
use iscsi_wire::{Cdb, text};
use sim::SimWorld;
use units::Duration;

use crate::strict::Initiator;
use crate::{
    BLOCK, BLOCKS, SimCore, VOLUME, good, pattern, portal, read, serve, session, session_of_port,
    simulate,
};

/// The end of a connection comes sooner than any time limit brings it.
const AT_ONCE: Duration = Duration::from_secs(1);
/// MaxRecvDataSegmentLength of the target.
const RECEIVE_MAX: usize = 256 << 10;

/// The header of a command that brings `edtl` bytes, of which `len` come with it.
fn command(initiator: &Initiator, cdb: Cdb, edtl: u32, len: usize) -> [u8; BHS_LEN] {
    let mut command: pdu::ScsiCommand = pdu::blank(opcode::SCSI_COMMAND);
    (command.itt, command.cdb, command.edtl) = (1.into(), cdb.0, edtl.into());
    command.cmd_sn = initiator.cmd_sn().into();
    command.flags |= if edtl > 0 { WRITE } else { 0 };
    command.lengths = Lengths::of_data(len);
    command.encode()
}

/// Asserts that nothing of the sessions that ended is left, and that another initiator is served.
async fn assert_unharmed(world: &SimWorld, core: &SimCore) {
    world.sleep_until(world.now() + Duration::from_secs(2)).await;
    let stats = core.stats();
    assert_eq!((stats.connections, stats.memory_used_bytes), (0, 0));
    let mut other = session(world, VOLUME).await;
    assert!(read(&mut other, 0, 1).await == [0; BLOCK]);
    other.log_out().await;
}

#[test]
fn what_is_no_iscsi_ends_the_connection() {
    simulate(async |world| {
        let core = serve(&world, false).await;
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xFF; 2000], &[0; 64], &[0x43; 4000]] {
            let mut stranger = Initiator::connect(&world, portal()).await;
            let begun = world.now();
            stranger.send_bytes(bytes).await;
            assert!(stranger.is_closed().await, "{:?}", &bytes[..4]);
            assert!(world.now().since(begun) < AT_ONCE, "{:?}: by a time limit", &bytes[..4]);
            let mut known = session(&world, VOLUME).await;
            known.send_bytes(bytes).await;
            assert!(known.is_closed().await, "{:?}", &bytes[..4]);
        }
        assert_unharmed(&world, &core).await;
    });
}

/// Method: headers with sound digests that announce more than was agreed on, or what was not agreed on.
#[test]
fn headers_that_announce_too_much_end_the_session() {
    simulate(async |world| {
        let core = serve(&world, false).await;
        let (begun, write) = (world.now(), Cdb::with_blocks(scsi::WRITE_10, 0, 256));
        for len in [8 << 20, (1 << 24) - 1, 16_388] {
            let mut initiator = session(&world, VOLUME).await;
            initiator.send_header(command(&initiator, write, 1 << 20, len)).await;
            assert!(initiator.is_closed().await, "{len} bytes at once");
        }
        // What would be kept whole: more than the target has declared to take in a PDU.
        for opcode in [opcode::NOP_OUT, opcode::TEXT_REQUEST, opcode::TASK_REQUEST] {
            let mut initiator = session(&world, VOLUME).await;
            let mut header: pdu::Bhs = pdu::blank(opcode | IMMEDIATE);
            (header.itt, header.lengths) = (7.into(), Lengths::of_data(RECEIVE_MAX + 4));
            initiator.send_header(header.encode()).await;
            assert!(initiator.is_closed().await, "{opcode:#x}");
        }
        // Data for a command that brings none.
        let mut initiator = session(&world, VOLUME).await;
        initiator.send_header(command(&initiator, Cdb([0; 16]), 0, 512)).await;
        assert!(initiator.is_closed().await);
        // Data for a command that there is not.
        let initiator = session(&world, VOLUME).await;
        let mut out: pdu::DataOut = pdu::blank(opcode::DATA_OUT);
        (out.itt, out.ttt, out.lengths) = (77.into(), 5.into(), Lengths::of_data(4096));
        initiator.send_header(out.encode()).await;
        initiator.send_bytes(&[0; 100]).await;
        initiator.hang_up();
        // A command number that leaves one out.
        let mut initiator = session(&world, VOLUME).await;
        let mut skips = command(&initiator, Cdb([0; 16]), 0, 0);
        skips[24..28].copy_from_slice(&(initiator.cmd_sn() + 1).to_be_bytes());
        initiator.send_header(skips).await;
        assert!(initiator.is_closed().await);
        assert!(world.now().since(begun) < Duration::from_secs(5), "none by a time limit");
        assert_unharmed(&world, &core).await;
    });
}

/// An additional header is as long as a byte can say, and its contents mean nothing to the target.
#[test]
fn additional_headers_are_passed_over() {
    simulate(async |world| {
        let core = serve(&world, false).await;
        let mut initiator = session(&world, VOLUME).await;
        let mut header = command(&initiator, Cdb([0; 16]), 0, 0).to_vec();
        header[4] = 255;
        header.resize(BHS_LEN + 255 * 4, 0xA5);
        initiator.send_long_header(&header).await;
        assert_eq!(initiator.finish_raw(1).await, good(0));
        assert!(read(&mut initiator, 0, 1).await == [0; BLOCK], "the bytes behind it are in step");
        initiator.log_out().await;
        // Not in a login, even one that would succeed.
        let mut stranger = Initiator::connect(&world, portal()).await;
        let mut text = Vec::new();
        text::put(&mut text, "InitiatorName", "iqn.2026-01.com.example:host");
        text::put(&mut text, "TargetName", &target_name_of(VOLUME));
        let mut login: pdu::LoginRequest = pdu::blank(opcode::LOGIN_REQUEST | IMMEDIATE);
        (login.flags, login.lengths) = (0x87, Lengths::of_data(text.len()));
        login.lengths.ahs_words = 255;
        text.resize(text.len().next_multiple_of(4), 0);
        stranger.send_bytes(&[&login.encode()[..], &[0; 255 * 4], &text].concat()).await;
        assert!(stranger.is_closed_unanswered().await);
        assert_unharmed(&world, &core).await;
    });
}

/// Method: initiators go in the middle of a login, of a header and of data.
#[test]
fn what_breaks_off_leaves_nothing_behind() {
    simulate(async |world| {
        let core = serve(&world, false).await;
        let write = Cdb::with_blocks(scsi::WRITE_10, 0, 2);
        for cut in [1, 7, 47, 48] {
            let stranger = Initiator::connect(&world, portal()).await;
            let mut login: pdu::LoginRequest = pdu::blank(opcode::LOGIN_REQUEST | IMMEDIATE);
            login.lengths = Lengths::of_data(400);
            stranger.send_bytes(&login.encode()[..cut]).await;
            stranger.hang_up();
            let initiator = session(&world, VOLUME).await;
            let header = command(&initiator, write, 8192, 4096);
            initiator.send_bytes(&header[..cut]).await;
            initiator.hang_up();
            let initiator = session(&world, VOLUME).await;
            initiator.send_header(command(&initiator, write, 8192, 4096)).await;
            initiator.send_bytes(&vec![1; 80 * cut]).await;
            initiator.hang_up();
            // What it was asked for does not come.
            let mut initiator = session(&world, VOLUME).await;
            let large = Cdb::with_blocks(scsi::WRITE_10, 0, 256);
            initiator.begin(large, &pattern(256, 1), 0).await;
            initiator.asked().await;
            initiator.hang_up();
        }
        assert_unharmed(&world, &core).await;
    });
}

/// Method: one byte at a time, of everything that an initiator sends.
#[test]
fn bytes_may_come_one_by_one() {
    simulate(async |world| {
        let core = serve(&world, false).await;
        let mut initiator = Initiator::connect(&world, portal()).await;
        initiator.drips = true;
        initiator.log_in_to(&target_name_of(VOLUME)).await.expect("it may open it");
        assert_eq!(initiator.command(Cdb([0; 16]), &[], 0).await.sense, Some((6, 0x29, 0)));
        let data = pattern(1, 3);
        let write = Cdb::with_blocks(scsi::WRITE_10, 9, 1);
        assert_eq!(initiator.command(write, &data, 0).await, good(0));
        assert!(read(&mut initiator, 9, 1).await == data);
        initiator.log_out().await;
        assert_unharmed(&world, &core).await;
    });
}

/// Method: requests of a login that never ends, and one with more text than there may be.
#[test]
fn a_login_has_an_end() {
    simulate(async |world| {
        let core = serve(&world, false).await;
        let mut stranger = Initiator::connect(&world, portal()).await;
        let mut asked = 0;
        while stranger.go_on_with_login(&[0]).await {
            asked += 1;
            assert!(asked < 100, "it never ends");
        }
        assert!(asked > 10, "{asked}");
        assert!(stranger.is_closed().await);
        let mut stranger = Initiator::connect(&world, portal()).await;
        let text = vec![b'x'; 8000];
        let mut asked = 0;
        while stranger.go_on_with_login(&text).await {
            asked += 1;
            assert!(asked < 20, "{asked} times 8000 bytes are kept");
        }
        assert!(stranger.is_closed().await);
        let mut stranger = Initiator::connect(&world, portal()).await;
        let mut login: pdu::LoginRequest = pdu::blank(opcode::LOGIN_REQUEST | IMMEDIATE);
        login.lengths = Lengths::of_data(8193);
        let begun = world.now();
        stranger.send_bytes(&login.encode()).await;
        assert!(stranger.is_closed().await);
        assert!(world.now().since(begun) < AT_ONCE, "so much is not even taken in");
        assert_unharmed(&world, &core).await;
    });
}

/// Text that goes on in another request, or is longer than a request may be, is refused, and the session goes on.
#[test]
fn text_that_is_too_long_is_refused() {
    simulate(async |world| {
        let core = serve(&world, false).await;
        let mut discovery = Initiator::discover(&world, portal(), None).await.expect("open");
        for (flags, len, pair) in [
            (CONTINUE, 8000, 8000),
            (CONTINUE, 16_400, 16_400),
            (FINAL, 16_400, 16_400),
            // Of pairs that are each short enough.
            (FINAL, 16_400, 4100),
        ] {
            let mut request: pdu::TextRequest = pdu::blank(opcode::TEXT_REQUEST | IMMEDIATE);
            (request.flags, request.itt, request.ttt) = (flags, 9.into(), NO_TAG.into());
            request.cmd_sn = discovery.cmd_sn().into();
            let mut text = Vec::new();
            for number in 0..len / pair {
                let key = if number == 0 { "SendTargets" } else { "X-com.example.more" };
                text::put(&mut text, key, &"A".repeat(pair - key.len() - 2));
            }
            assert_eq!(text.len(), len);
            discovery.send(request.encode(), &text).await;
            assert_eq!(discovery.refused().await, reject::PROTOCOL_ERROR, "{flags:#x} {len}");
        }
        assert_eq!(discovery.send_targets("All").await.len(), 4);
        discovery.log_out().await;
        assert_unharmed(&world, &core).await;
    });
}

/// Method: far more commands than the window has room for, of 256 KiB each, while the initiator reads nothing; another one is
/// served meanwhile. Commands beyond the window are passed over, and the others end in the end.
#[test]
fn a_flood_of_commands_holds_up_no_other_initiator() {
    const EACH: u32 = 64;
    const WINDOW: usize = 128;
    simulate(async |world| {
        let core = serve(&world, false).await;
        let mut flooding = session(&world, VOLUME).await;
        flooding.begins_many = true;
        let reading = Cdb::with_blocks(scsi::READ_10, 0, EACH);
        for _ in 0..3 * WINDOW {
            flooding.begin(reading, &[], EACH * BLOCK as u32).await;
        }
        let mut other = session_of_port(&world, VOLUME, 2).await;
        let data = pattern(16, 4);
        let write = Cdb::with_blocks(scsi::WRITE_10, BLOCKS - 16, 16);
        assert_eq!(other.command(write, &data, 0).await, good(0));
        assert!(read(&mut other, BLOCKS - 16, 16).await == data);
        let used = core.stats().memory_used_bytes;
        assert!(used <= 16 << 20, "{used} bytes for two sessions");
        assert_eq!(flooding.bytes_of_reads(WINDOW).await, WINDOW * EACH as usize * BLOCK);
        flooding.hang_up();
        other.log_out().await;
        assert_unharmed(&world, &core).await;
    });
}
