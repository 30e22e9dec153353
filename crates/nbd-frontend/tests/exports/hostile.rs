//! Clients that break the rules harm no connection but their own.

use io_traits::Clock;
use nbd_wire::{
    Command, CommandFlags, HeaderStyle, OptionCode, OptionHeader, OptionReplyKind, REQUEST_LEN,
    Request,
};
use units::Duration;

use crate::client::{Client, place};
use crate::{NONE, open_to, serve, simulate};

/// The end of a connection comes sooner than any time limit brings it.
const AT_ONCE: Duration = Duration::from_secs(1);

/// The bytes of a request without payload.
fn request(command: Command, len_bytes: u64) -> Vec<u8> {
    let flags = CommandFlags::default();
    Request { flags, command, cookie: 7, offset: 0, len_bytes }.encode(HeaderStyle::Compact)
}

#[test]
fn what_is_no_nbd_ends_the_connection() {
    simulate(async |world| {
        let (core, _) = serve(&world, &open_to(&["0.0.0.0/0"])).await;
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xFF; 40], &[0; 64]] {
            let mut client = Client::connect_silently(&world, place()).await;
            let begun = world.now();
            client.send(bytes).await;
            assert!(client.is_closed().await);
            assert!(world.now().since(begun) < AT_ONCE, "{:?}: by a time limit", &bytes[..4]);
            let mut client = Client::open(&world, "db").await;
            let begun = world.now();
            client.send(bytes).await;
            assert!(client.is_closed().await);
            // Less than a header is waited for.
            let is_whole = bytes.len() >= REQUEST_LEN;
            let is_soon = world.now().since(begun) < AT_ONCE;
            assert!(is_soon || !is_whole, "{:?}: by a time limit", &bytes[..4]);
        }
        // Longer than any payload.
        let mut client = Client::open(&world, "db").await;
        let begun = world.now();
        client.send(&request(Command::WRITE, (32 << 20) + 1)).await;
        assert!(client.is_closed().await);
        assert!(world.now().since(begun) < AT_ONCE, "by a time limit");
        assert_eq!(core.stats().memory_used_bytes, 0);
    });
}

#[test]
fn options_are_refused_and_the_haggling_goes_on() {
    simulate(async |world| {
        let (_core, _) = serve(&world, &open_to(&["0.0.0.0/0"])).await;
        let mut client = Client::connect(&world, place()).await;
        let long = vec![7; 100_000];
        for (option, data, kind) in [
            (OptionCode::GO, &b""[..], OptionReplyKind::ERR_INVALID),
            (OptionCode::INFO, &[0xFF; 20], OptionReplyKind::ERR_INVALID),
            (OptionCode::LIST, b"x", OptionReplyKind::ERR_INVALID),
            (OptionCode::SET_META_CONTEXT, b"\0\0\0\x02db\0\0\0\0", OptionReplyKind::ERR_INVALID),
            (OptionCode::STARTTLS, b"", OptionReplyKind::ERR_POLICY),
            (OptionCode(4), b"", OptionReplyKind::ERR_UNSUP),
            (OptionCode(0xFFFF_FFFF), b"abc", OptionReplyKind::ERR_UNSUP),
            (OptionCode::INFO, &long, OptionReplyKind::ERR_TOO_BIG),
        ] {
            let replies = client.option(option, data).await;
            let [(found, _)] = &replies[..] else { panic!("{option:?}: {replies:?}") };
            assert_eq!(*found, kind, "{option:?}");
        }
        assert!(client.go("db").await.is_ok());
        let mut client = Client::connect(&world, place()).await;
        let header = OptionHeader { option: OptionCode::LIST, len_bytes: u32::MAX };
        let begun = world.now();
        client.send(&header.encode()).await;
        assert!(client.is_closed().await);
        assert!(world.now().since(begun) < AT_ONCE, "so much is not even passed over");
    });
}

/// Method: one byte at a time, of everything that a client sends.
#[test]
fn bytes_may_come_one_by_one() {
    simulate(async |world| {
        let (_core, _) = serve(&world, &open_to(&["0.0.0.0/0"])).await;
        let mut client = Client::open(&world, "db").await;
        let mut bytes = request(Command::WRITE, 10);
        bytes.extend_from_slice(b"0123456789");
        for byte in bytes {
            client.send(&[byte]).await;
        }
        let (_, written) = client.answer(0).await.expect("an answer");
        assert_eq!(written.error, 0);
        for byte in request(Command::READ, 10) {
            client.send(&[byte]).await;
        }
        let (_, read) = client.answer(0).await.expect("an answer");
        assert_eq!(read.data, b"0123456789");
    });
}

#[test]
fn a_client_that_is_silent_where_it_owes_something_is_cut_off() {
    simulate(async |world| {
        let (core, _) = serve(&world, &open_to(&["0.0.0.0/0"])).await;
        let mut haggling = Client::connect(&world, place()).await;
        let mut in_header = Client::open(&world, "db").await;
        in_header.send(&request(Command::READ, 1)[..9]).await;
        let mut in_payload = Client::open(&world, "db").await;
        in_payload.send(&request(Command::WRITE, 1 << 20)).await;
        in_payload.send(&[1; 1000]).await;
        let mut idle = Client::open(&world, "db").await;
        assert!(haggling.is_closed().await);
        assert!(in_header.is_closed().await);
        assert!(in_payload.is_closed().await);
        world.sleep_until(world.now() + Duration::from_secs(600)).await;
        assert_eq!(idle.read(0, 1).await, [0], "an open export may lie idle");
        assert_eq!(core.stats().memory_used_bytes, 0);
    });
}

/// Method: clients that send a byte, or a whole option, every five seconds, and open nothing.
#[test]
fn a_client_that_haggles_for_ever_keeps_no_place() {
    simulate(async |world| {
        let (core, _) = serve(&world, &open_to(&["0.0.0.0/0"])).await;
        let clients =
            [Client::connect(&world, place()).await, Client::connect(&world, place()).await];
        let option = OptionHeader { option: OptionCode::LIST, len_bytes: 0 }.encode();
        for (number, byte) in option.iter().enumerate().take(8) {
            assert_eq!(core.stats().connections, if number < 6 { 2 } else { 0 }, "{number}");
            clients[0].send(&[*byte]).await;
            clients[1].send(&option).await;
            world.sleep_until(world.now() + Duration::from_millis(5200)).await;
        }
    });
}

/// Method: far more requests than may be under way, and far more data than a connection may have in memory, while the client
/// reads nothing; another client is served meanwhile, and the first one gets all of its answers in the end.
#[test]
fn a_flood_of_requests_waits_and_holds_up_no_other_client() {
    simulate(async |world| {
        const COUNT: usize = 3000;
        let (core, _) = serve(&world, &open_to(&["0.0.0.0/0"])).await;
        let mut flooding = Client::open(&world, "db").await;
        for _ in 0..COUNT / 100 {
            let some: Vec<u8> = (0..100).flat_map(|_| request(Command::READ, 64 << 10)).collect();
            flooding.send(&some).await;
        }
        let mut other = Client::open(&world, "db").await;
        assert_eq!(other.write(5, b"hello").await, 0);
        assert_eq!(other.read(5, 5).await, b"hello");
        let used = core.stats().memory_used_bytes;
        assert!(used <= 32 << 20, "{used} bytes for two connections");
        for number in 0..COUNT {
            let (_, answer) = flooding.answer(0).await.expect("an answer");
            assert_eq!((answer.error, answer.data.len()), (0, 64 << 10), "answer {number}");
        }
        drop(flooding);
        assert_eq!(other.ask(Command::FLUSH, NONE, 0, 0).await.map(|it| it.error), Some(0));
        assert_eq!(core.stats().memory_used_bytes, 0);
    });
}

/// Method: clients go in the middle of a payload.
#[test]
fn disconnecting_in_the_middle_of_a_payload_leaves_nothing_behind() {
    simulate(async |world| {
        let (core, _) = serve(&world, &open_to(&["0.0.0.0/0"])).await;
        for _ in 0..20 {
            let client = Client::open(&world, "db").await;
            client.send(&request(Command::WRITE, 1 << 20)).await;
            client.send(&[1; 5000]).await;
            client.leave();
        }
        let mut client = Client::open(&world, "db").await;
        assert_eq!(client.read(0, 5000).await, [0; 5000], "half a write is none");
        world.sleep_until(world.now() + Duration::from_secs(2)).await;
        assert_eq!(core.stats().memory_used_bytes, 0);
    });
}
