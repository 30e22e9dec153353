//! Acknowledged writes survive the death of the server at any moment.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::mpsc;

use crate::support::host::{connect, filled, on_core};
use crate::support::{Files, Server, run, succeed};
use client::Volume;
use io_traits::{BufferSlice, Spawn};
use nvme_wire::Nqn;
use reactor::Handle;
use units::{Lba, LbaRange};

/// Blocks that are written to: few, so that most are overwritten.
const BLOCKS: u64 = 2_000;
const CHECKED_AT_ONCE: u32 = 200;
const WRITERS: u64 = 16;
/// Writes acknowledged before the signal in each round.
const ROUNDS: [(u64, &str); 5] =
    [(1, "KILL"), (300, "KILL"), (1_000, "TERM"), (2_000, "KILL"), (5_000, "KILL")];
/// One in so many requests deallocates instead of writing.
const UNMAP_EVERY: u64 = 7;

/// The possible contents of a block: each write puts a number into all of its words, and 0 is deallocated.
#[derive(Clone, Copy, Default)]
struct Expected {
    acknowledged: u64,
    /// Sent, and not answered before the server died.
    in_flight: Option<u64>,
}

type Model = BTreeMap<u64, Expected>;

#[test]
fn kill_9_under_load_loses_nothing_acknowledged() {
    lose_nothing_acknowledged("4096");
}

/// Eight logical blocks of eight writers lie in each block: none of them takes back what another wrote.
#[test]
fn kill_9_under_load_loses_nothing_acknowledged_of_small_sectors() {
    lose_nothing_acknowledged("512");
}

/// Method: sixteen writers, each on blocks of its own, write and deallocate at random until the server
/// is killed, or told to end, under them. The next server must hold, for each block, what was acknowledged last, or
/// what was under way at the kill.
fn lose_nothing_acknowledged(sector: &str) {
    let files = Files::new();
    let device = files.device("a");
    succeed(&["format", "--device", &format!("{device},size=1GiB")]);
    let mut model = Model::new();
    let mut nqn = None;
    for (round, (acknowledged, signal)) in ROUNDS.into_iter().enumerate() {
        let server = Server::start(&device);
        let nqn = nqn.get_or_insert_with(|| {
            let made = server.volume_json(&["create", "a", "--size", "64MiB", "--sector", sector]);
            made["nqn"].as_str().unwrap().parse::<Nqn>().unwrap()
        });
        let (kill, killed) = mpsc::channel();
        let target = (server.portals[0], *nqn);
        let killer = std::thread::spawn(move || {
            killed.recv().unwrap();
            server.signal(signal);
            server.wait()
        });
        let before = std::mem::take(&mut model);
        let seed = round as u64 + 1;
        let before_that = round.checked_sub(1).map(|before| ROUNDS[before]);
        model = on_core(move |handle| async move {
            let volume = connect(&handle, target.0, &target.1).await;
            let smart = volume.client().smart_health().await.unwrap();
            assert_eq!(smart.power_cycles.get(), u128::from(seed), "one more with every start");
            // Of a longer life the last change may have been in a checkpoint by chance.
            match before_that {
                Some((1, "KILL")) => assert_eq!(smart.unsafe_shutdowns.get(), 1),
                None | Some((_, "TERM")) => assert_eq!(smart.unsafe_shutdowns.get(), 0),
                Some(_) => {}
            }
            check(&volume, &before).await;
            write_until_killed(&handle, &volume, before, seed, acknowledged, kill).await
        });
        let code = killer.join().unwrap();
        assert_eq!(code, (signal == "TERM").then_some(0), "round {round}: {signal}");
    }
    let server = Server::start(&device);
    let target = (server.portals[0], nqn.unwrap());
    on_core(move |handle| async move {
        check(&connect(&handle, target.0, &target.1).await, &model).await;
    });
}

/// A server that is killed while its device grows: the next one finds the old size or the new one, and all that was
/// acknowledged.
///
/// Method: as above. Under the writers the file is made larger and `device grow` is called; the server is killed so many
/// milliseconds later, in the last round when the growth is done.
#[test]
fn kill_9_while_a_device_grows_loses_nothing_acknowledged() {
    let files = Files::new();
    let device = files.device("a");
    succeed(&["format", "--device", &format!("{device},size=256MiB")]);
    let mut model = Model::new();
    let mut nqn = None;
    let delays = [0, 20, 60, 100, 150, 200, 300, 450, 700, 1000, 3000];
    for (round, delay_ms) in delays.into_iter().enumerate() {
        let server = Server::start_with(&device, &["--cores", "0,1", "--auth", "off"]);
        let nqn = nqn.get_or_insert_with(|| {
            let made = server.volume_json(&["create", "a", "--size", "64MiB"]);
            made["nqn"].as_str().unwrap().parse::<Nqn>().unwrap()
        });
        let shown = server.volume_json(&["show", "a"]);
        let (kill, killed) = mpsc::channel();
        let target = (shown["address"].as_str().unwrap().parse().unwrap(), *nqn);
        let file = std::fs::File::options().write(true).open(files.path("a")).unwrap();
        let growing = device.clone();
        let killer = std::thread::spawn(move || {
            killed.recv().unwrap();
            file.set_len((256 + 64 * (round as u64 + 1)) << 20).unwrap();
            let words = ["device", "grow", &growing, "--api", &server.api];
            let mut caller = crate::support::farflash(&words).spawn().unwrap();
            std::thread::sleep(std::time::Duration::from_millis(delay_ms));
            server.signal("KILL");
            server.wait();
            caller.wait().unwrap().success()
        });
        let (before, seed) = (std::mem::take(&mut model), round as u64 + 1);
        model = on_core(move |handle| async move {
            let volume = connect(&handle, target.0, &target.1).await;
            check(&volume, &before).await;
            write_until_killed(&handle, &volume, before, seed, 300, kill).await
        });
        let has_grown = killer.join().unwrap();
        let checked = run(&["fsck", "--device", &device]);
        assert_eq!(checked.code, Some(0), "{delay_ms} ms: {checked:?}");
        assert!(has_grown || round + 1 < delays.len(), "it had the time");
    }
    let server = Server::start_with(&device, &["--cores", "0,1", "--auth", "off"]);
    let shown = server.volume_json(&["show", "a"]);
    let target = (shown["address"].as_str().unwrap().parse().unwrap(), nqn.unwrap());
    on_core(move |handle| async move {
        check(&connect(&handle, target.0, &target.1).await, &model).await;
    });
}

/// Every block holds what it may hold.
async fn check(volume: &Volume<Handle>, model: &Model) {
    let mut read = Vec::new();
    for first in (0..BLOCKS).step_by(CHECKED_AT_ONCE as usize) {
        read.extend_from_slice(volume.read(Lba(first), CHECKED_AT_ONCE).await.unwrap().as_bytes());
    }
    for (block, bytes) in (0..BLOCKS).zip(read.chunks_exact(volume.block_size() as usize)) {
        let expected = model.get(&block).copied().unwrap_or_default();
        let words = bytes.chunks_exact(8);
        let mut words = words.map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        let first = words.next().unwrap();
        assert!(words.all(|word| word == first), "block {block} is torn");
        let allowed = first == expected.acknowledged || Some(first) == expected.in_flight;
        assert!(
            allowed,
            "block {block} holds {first}; acknowledged was {}, under way {:?}",
            expected.acknowledged, expected.in_flight
        );
    }
}

/// A logical block full of `value`.
fn data(volume: &Volume<Handle>, value: u64) -> BufferSlice {
    filled(value).slice(0..volume.block_size() as usize)
}

/// State shared by the writers of one round.
struct Round {
    volume: Volume<Handle>,
    model: RefCell<Model>,
    acknowledged: Cell<u64>,
    kill_after: u64,
    kill: mpsc::Sender<()>,
    ended: Cell<u64>,
    all_ended: local_sync::Notify,
}

async fn write_until_killed(
    handle: &Handle,
    volume: &Volume<Handle>,
    before: Model,
    seed: u64,
    kill_after: u64,
    kill: mpsc::Sender<()>,
) -> Model {
    // The requests under way at the last kill are settled now, one way or the other, but which way is known
    // only by reading: writing all of it again is simpler.
    let mut model = before;
    for (block, expected) in model.iter_mut().filter(|(_, it)| it.in_flight.is_some()) {
        volume.write(Lba(*block), data(volume, expected.acknowledged)).await.unwrap();
        expected.in_flight = None;
    }
    let round = Rc::new(Round {
        volume: volume.clone(),
        model: RefCell::new(model),
        acknowledged: Cell::new(0),
        kill_after,
        kill,
        ended: Cell::new(0),
        all_ended: local_sync::Notify::new(),
    });
    let all_ended = round.all_ended.notified();
    for writer in 0..WRITERS {
        let round = round.clone();
        handle.spawn(async move {
            round.write(writer, seed).await;
            round.ended.set(round.ended.get() + 1);
            if round.ended.get() == WRITERS {
                round.all_ended.notify_all();
            }
        });
    }
    all_ended.await;
    round.model.take()
}

impl Round {
    /// Writes and deallocates this writer's blocks until the connection is gone.
    async fn write(&self, writer: u64, seed: u64) {
        let mut random = seed << 32 | writer;
        for request in 1.. {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let block = (random >> 33) % (BLOCKS / WRITERS) * WRITERS + writer;
            let unmap = request % UNMAP_EVERY == 0;
            let value = if unmap { 0 } else { seed << 48 | writer << 40 | request };
            self.model.borrow_mut().entry(block).or_default().in_flight = Some(value);
            let done = if unmap {
                self.volume.write_zeroes(LbaRange::new(Lba(block), 1)).await
            } else {
                self.volume.write(Lba(block), data(&self.volume, value)).await
            };
            if done.is_err() {
                return;
            }
            let settled = Expected { acknowledged: value, in_flight: None };
            self.model.borrow_mut().insert(block, settled);
            self.acknowledged.set(self.acknowledged.get() + 1);
            if self.acknowledged.get() == self.kill_after {
                self.kill.send(()).unwrap();
            }
        }
    }
}
