//! Clients that send what they owe slowly.

use std::cell::Cell;
use std::rc::Rc;

use dataplane::CoreOptions;
use io_traits::{Clock, Spawn};
use nbd_wire::{Command, HeaderStyle, Request};
use sim::SimWorld;
use units::{Duration, Instant};

use crate::client::Client;
use crate::{NONE, open_to, serve_with, simulate};

/// Begins a write of 1 MiB of another client. Returns the time at which it has ended, once it has.
async fn another_write(world: &SimWorld) -> Rc<Cell<Option<Instant>>> {
    let mut client = Client::open(world, "db").await;
    let ended = Rc::new(Cell::new(None));
    let (clock, at) = (world.clone(), ended.clone());
    world.spawn(async move {
        assert_eq!(client.write(0, &[7; 1 << 20]).await, 0);
        at.set(Some(clock.now()));
        client.leave();
    });
    ended
}

/// A client that reads slowly is served to the end; one that does not read is cut off.
///
/// Method: 12 MiB are read at 128 KiB a second.
#[test]
fn a_slow_reader_is_waited_for_and_a_deaf_one_is_not() {
    const READS: usize = 12;
    const CHUNK: usize = 20 + 8 + (1 << 20);
    simulate(async |world| {
        let (core, _) = serve_with(&world, &open_to(&["0.0.0.0/0"]), CoreOptions::default()).await;
        let mut slow = Client::open(&world, "db").await;
        let deaf = Client::open(&world, "db").await;
        let (flags, command) = (NONE, Command::READ);
        let read = Request { flags, command, cookie: 7, offset: 0, len_bytes: 1 << 20 };
        for client in [&slow, &deaf] {
            client.send(&read.encode(HeaderStyle::Compact).repeat(READS)).await;
        }
        let (begun, mut left) = (world.now(), READS * CHUNK);
        while left > 0 {
            let part = left.min(64 << 10);
            slow.take(part).await.expect("it is waited for");
            left -= part;
            world.sleep_until(world.now() + Duration::from_millis(500)).await;
        }
        assert!(world.now().since(begun) > Duration::from_secs(80), "slow indeed");
        assert_eq!(core.stats().connections, 1, "the other one was cut off");
    });
}

/// PACE-2: clients that send drop by drop keep their memory as long as there is enough for all, and no longer; one that
/// sends steadily keeps it.
///
/// Method: eight hold all memory for 20 s, and then another one has a write.
#[test]
fn a_trickle_keeps_no_memory_that_others_need() {
    const STEP: Duration = Duration::from_millis(500);
    const HELD: u64 = 8;
    simulate(async |world| {
        let options = CoreOptions {
            memory_bytes: HELD << 20,
            window_bytes: 4 << 20,
            ..CoreOptions::default()
        };
        let (core, _) = serve_with(&world, &open_to(&["0.0.0.0/0"]), options).await;
        let (flags, command) = (NONE, Command::WRITE);
        let write = Request { flags, command, cookie: 7, offset: 0, len_bytes: 1 << 20 };
        let mut clients = Vec::new();
        for _ in 0..HELD {
            let client = Client::open(&world, "db").await;
            client.send(&write.encode(HeaderStyle::Compact)).await;
            clients.push(client);
        }
        let drops = async |of_first: usize| {
            for (number, client) in clients.iter().enumerate() {
                client.send(&vec![7; if number == 0 { of_first } else { 4 }]).await;
            }
            world.sleep_until(world.now() + STEP).await;
        };
        for _ in 0..40 {
            drops(4).await;
        }
        assert_eq!(core.stats().memory_used_bytes, HELD << 20, "there is enough");
        let (begun, ended) = (world.now(), another_write(&world).await);
        // 5 KiB a second.
        for _ in 0..20 {
            drops(2560).await;
        }
        let took = ended.get().expect("it was held up").since(begun);
        assert!(took > Duration::from_secs(4), "{took:?}");
        assert_eq!(core.stats().memory_used_bytes, 1 << 20, "that of the first alone");
        assert_eq!(core.stats().connections, 1);
    });
}
