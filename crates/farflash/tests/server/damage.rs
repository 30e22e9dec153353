//! Damage on the device costs the block that is damaged, and is seen.

use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::support::host::{connect, filled, on_core};
use crate::support::loop_device::LoopDevice;
use crate::support::skipped::skipped;
use crate::support::{Files, Outcome, Server, refused, run, succeed};
use nvme_wire::Nqn;
use serde_json::Value;
use units::{BLOCK_SIZE, Lba};

const BLOCKS: u64 = 16;
const DAMAGED: u64 = 5;
/// The number with which block `n` is filled, so that it can be found on the device.
const MARK: u64 = 0x5EED_0000_0000_0000;

/// Formats and serves the device, and writes marked blocks to a volume of it.
fn with_marked_volume(device: &str, name: &str) -> (Server, Nqn) {
    succeed(&["format", "--device", &format!("{device},size=256MiB")]);
    let server = Server::start(device);
    let made = server.volume_json(&["create", name, "--size", "64MiB"]);
    let nqn: Nqn = made["nqn"].as_str().unwrap().parse().unwrap();
    let portal = server.portals[0];
    on_core(move |handle| async move {
        let volume = connect(&handle, portal, &nqn).await;
        for block in 0..BLOCKS {
            volume.write(Lba(block), filled(MARK + block)).await.unwrap();
        }
    });
    (server, nqn)
}

/// Method: write marked blocks, end the server, flip one bit of one of them in the file, and read
/// all through the next server.
#[test]
fn a_flipped_bit_is_an_error_for_its_block_only() {
    let files = Files::new();
    let device = files.device("a");
    let (server, nqn) = with_marked_volume(&device, "a");
    assert_eq!(health(&server), "good");
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));

    flip_a_bit_of(&files.path("a"), MARK + DAMAGED);

    let server = Server::start(&device);
    let portal = server.portals[0];
    on_core(move |handle| async move {
        let volume = connect(&handle, portal, &nqn).await;
        for block in 0..BLOCKS {
            let read = volume.read(Lba(block), 1).await;
            if block == DAMAGED {
                let error = read.unwrap_err().to_string();
                assert!(error.contains("Unrecovered Read Error"), "{error}");
            } else {
                assert_eq!(read.unwrap().as_bytes(), filled(MARK + block).as_bytes());
            }
        }
        // Written again, the block is whole.
        volume.write(Lba(DAMAGED), filled(MARK)).await.unwrap();
        let mended = volume.read(Lba(DAMAGED), 1).await.unwrap();
        assert_eq!(mended.as_bytes(), filled(MARK).as_bytes());
    });
    assert_eq!(health(&server), "degraded");
    // The volume's own figures show that it was hit.
    let stats = control::ApiClient::new(&server.api).unwrap().stats().unwrap();
    assert_eq!(stats.volumes[0].media_errors, 1);
}

/// Method: damage a block of data, both superblocks in turn and a root, and ask fsck each time.
#[test]
fn fsck_names_what_is_damaged_and_mends_copies() {
    let files = Files::new();
    let (device, path) = (files.device("a"), files.path("a"));
    let (server, _) = with_marked_volume(&device, "db-1");
    refused(&["fsck", "--device", &device], 1, "in use", "stop the other server");
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));

    let image = std::fs::read(&path).unwrap();
    assert!(succeed(&["fsck", "--device", &device]).contains("nothing is wrong"));
    let last = image.len() - BLOCK_SIZE;
    for at in [0, last, BLOCK_SIZE] {
        flip(&path, at + 20);
        let outcome = run(&["fsck", "--device", &device, "--json"]);
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
        let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!(report["faults"][0]["at_byte"], at as u64, "{report}");
        assert_eq!(report["faults"].as_array().unwrap().len(), 1, "{report}");
        let outcome = run(&["fsck", "--device", &device, "--repair"]);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let said = |what| outcome.stderr.contains("repairing: ") && outcome.stderr.contains(what);
        assert!(said(": will rewrite the "), "{outcome:?}");
        assert!(std::fs::read(&path).unwrap() == image, "as it was, at {at}");
    }

    flip_a_bit_of(&path, MARK + DAMAGED);
    let damaged = std::fs::read(&path).unwrap();
    let outcome = run(&["fsck", "--device", &device, "--json", "--repair"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let left = |what| {
        outcome.stderr.contains("leaving: shard 0: volume db-1 ") && outcome.stderr.contains(what)
    };
    assert!(left("it has no repair of its own") && left("has 1 fault\n"), "{outcome:?}");
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let fault = &report["faults"][0];
    assert_eq!(fault["volume_name"], "db-1", "{report}");
    assert_eq!(fault["volume_byte"], DAMAGED * BLOCK_SIZE as u64);
    assert!(succeed(&["fsck", "--device", &device, "--no-data"]).contains("nothing is wrong"));
    assert!(std::fs::read(&path).unwrap() == damaged, "there is nothing to mend it from");
}

/// The action of a repair for each fault is printed before it, with the volume's name; actions that are not
/// allowed, too.
///
/// Method: of two volumes flip a bit in the map of one, in a block of data of the other and in a superblock; repair without
/// consent, which mends the superblock only, then with consent, and compare what is told on the way with what the reports
/// say of faults and what is left of them.
#[test]
fn a_repair_names_each_fault_and_what_it_will_do_about_it() {
    let files = Files::new();
    let (device, path) = (files.device("a"), files.path("a"));
    let (server, _) = with_marked_volume(&device, "db-1");
    let made = server.volume_json(&["create", "db-2", "--size", "64MiB"]);
    let nqn: Nqn = made["nqn"].as_str().unwrap().parse().unwrap();
    let portal = server.portals[0];
    on_core(move |handle| async move {
        let volume = connect(&handle, portal, &nqn).await;
        volume.write(Lba(3), filled(MARK + BLOCKS)).await.unwrap();
    });
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));

    let image = std::fs::read(&path).unwrap();
    let (_, nodes) = structures(&image).into_iter().find(|(what, _)| *what == "node").unwrap();
    nodes.iter().for_each(|at| flip(&path, at + 100));
    flip_a_bit_of(&path, MARK + BLOCKS);
    flip(&path, 20);
    let told = |outcome: &Outcome| -> Vec<String> {
        let lines = outcome.stderr.lines();
        let plan = lines.filter(|l| l.starts_with("repairing: ") || l.starts_with("leaving: "));
        plan.map(str::to_owned).collect()
    };
    let count = |outcome: &Outcome, what: &str| {
        let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
        report[what].as_array().unwrap().len()
    };

    let outcome = run(&["fsck", "--device", &device, "--json", "--repair"]);
    assert_eq!((outcome.code, count(&outcome, "faults")), (Some(1), 4), "{outcome:?}");
    let plan = told(&outcome);
    assert_eq!((plan.len(), count(&outcome, "left")), (4, 3), "{outcome:?}");
    let has = |plan: &[String], words: [&str; 3]| {
        plan.iter().any(|line| words.iter().all(|word| line.contains(word)))
    };
    assert!(
        has(&plan, ["repairing: superblock", "PBA 0x0", "will rewrite the superblock"]),
        "{plan:?}"
    );
    let would = "--accept-data-loss would take the unreadable node out";
    assert!(has(&plan, ["leaving: shard 0", "volume db-1 (", would]), "{plan:?}");
    assert!(has(&plan, ["leaving: shard 0", "volume db-2 (", "it has no repair"]), "{plan:?}");

    let outcome = run(&["fsck", "--device", &device, "--json", "--repair", "--accept-data-loss"]);
    assert_eq!((outcome.code, count(&outcome, "left")), (Some(1), 1), "{outcome:?}");
    let plan = told(&outcome);
    assert_eq!((plan.len(), count(&outcome, "faults")), (3, 3), "{outcome:?}");
    let will = "will take the unreadable node out of the map";
    assert!(has(&plan, ["repairing: shard 0", "volume db-1 (", will]), "{plan:?}");
    assert!(has(&plan, ["leaving: shard 0", "volume db-2 (", "it has no repair"]), "{plan:?}");
}

fn flip(path: &Path, at: usize) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at as u64).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at as u64).unwrap();
}

/// One whole superblock is enough to serve a device; that the other one is damaged is told, and a scrub mends it.
///
/// Method: flip a bit of the first byte of the first superblock, or fill either with garbage. Then serve, scrub, and serve again.
#[test]
fn a_damaged_superblock_costs_nothing_and_is_rewritten() {
    let garbage = [0xA5; BLOCK_SIZE];
    let tail = (256 << 20) - BLOCK_SIZE as u64;
    let first_byte = [b'f' ^ 0x10];
    for (at, bytes) in [(0, &first_byte[..]), (0, &garbage), (tail, &garbage)] {
        let files = Files::new();
        let (device, path) = (files.device("a"), files.path("a"));
        let (server, nqn) = with_marked_volume(&device, "a");
        server.signal("TERM");
        assert_eq!(server.wait(), Some(0));
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(bytes, at).unwrap();
        serves_and_mends(&format!("{} bytes at {at}", bytes.len()), &device, nqn);
    }
}

/// Method: take the last block away below a loop device.
#[test]
fn a_superblock_that_cannot_be_read_costs_nothing_and_is_rewritten() {
    let files = Files::new();
    let (device, path) = (files.device("a"), files.path("a"));
    let (server, nqn) = with_marked_volume(&device, "a");
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let Some(drive) = LoopDevice::on(&path) else {
        return skipped("no loop device can be made here");
    };
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len((256 << 20) - BLOCK_SIZE as u64).unwrap();
    drive.forget_what_was_read();
    let last = std::fs::File::open(drive.path()).unwrap();
    assert!(last.read_exact_at(&mut [0; 512], (256 << 20) - 512).is_err());
    serves_and_mends("the last one", &format!("file:{}", drive.path()), nqn);
}

/// A device of which one superblock is damaged is served with all that is on it, says so, and is whole after a scrub.
fn serves_and_mends(what: &str, device: &str, nqn: Nqn) {
    let server = Server::start(device);
    // It may be said before the server is ready, or behind that.
    let is_said = |line: &&Value| line["message"] == "damaged block";
    let said = server.starting.iter().map(|line| &line["fields"]).find(is_said).cloned();
    let said = said.unwrap_or_else(|| server.log_until(|line| is_said(&line)).pop().unwrap());
    assert_eq!(said["what"], "superblock", "{what}");
    assert_eq!(health(&server), "degraded", "{what}");
    assert_eq!(media_errors(&server, &nqn), 1, "{what}");
    let read_all = |server: &Server| {
        let portal = server.portals[0];
        on_core(move |handle| async move {
            let volume = connect(&handle, portal, &nqn).await;
            for block in 0..BLOCKS {
                let read = volume.read(Lba(block), 1).await.unwrap();
                assert_eq!(read.as_bytes(), filled(MARK + block).as_bytes());
            }
        });
    };
    read_all(&server);
    assert_eq!(run(&["scrub", "--api", &server.api]).code, Some(1), "{what}: it was damaged");
    assert_eq!(run(&["scrub", "--api", &server.api]).code, Some(0), "{what}: and is no more");
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    assert!(succeed(&["fsck", "--device", device]).contains("nothing is wrong"), "{what}");
    let server = Server::start(device);
    assert_eq!(health(&server), "good", "{what}");
    read_all(&server);
}

/// A file system was made on a device that was ours: the device is neither served nor written to, and the
/// advice given loses nothing of either. An operator that knows that the file system may go has the device
/// back.
#[test]
fn a_device_whose_start_is_someone_elses_is_left_alone_unless_told() {
    let files = Files::new();
    let (device, path) = (files.device("a"), files.path("a"));
    let (server, _) = with_marked_volume(&device, "a");
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let whole = std::fs::read(&path).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let mut start = [0; BLOCK_SIZE];
    start[..4].copy_from_slice(b"XFSB");
    file.write_all_at(&start, 0).unwrap();

    let before = std::fs::read(&path).unwrap();
    let serve = ["serve", "--auth", "off", "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"];
    let holds = "holds something else (XFS file system), and before that held the farflash device";
    let remedy = format!("`farflash fsck --device {device} --force`");
    for more in [&[][..], &["--format-if-blank"]] {
        refused(&[&serve, &["--device", &device][..], more].concat(), 1, holds, &remedy);
    }
    refused(&["fsck", "--device", &device, "--repair"], 1, holds, &remedy);
    refused(&["leave-cluster", "--device", &device], 1, holds, &remedy);
    let looked = run(&["fsck", "--device", &device, "--force"]);
    assert!(looked.code == Some(1) && looked.stdout.contains("superblock"), "{looked:?}");
    assert!(std::fs::read(&path).unwrap() == before, "it is as it was");

    succeed(&["fsck", "--device", &device, "--force", "--repair"]);
    assert!(std::fs::read(&path).unwrap() == whole, "all of it is there again");
    assert_eq!(health(&Server::start(&device)), "good");
}

/// Method: write, damage a block under a running server, and have it scrubbed.
#[test]
fn a_scrub_finds_damage_while_the_server_runs() {
    let files = Files::new();
    let device = files.device("a");
    let (server, _) = with_marked_volume(&device, "db-1");
    let scrub = |more: &[&str]| run(&[&["scrub", "--api", &server.api], more].concat());
    assert!(scrub(&["--status"]).stdout.contains("none since"));
    let outcome = scrub(&[]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stdout.starts_with("done: "), "{outcome:?}");
    assert_eq!(health(&server), "good");

    flip_a_bit_of(&files.path("a"), MARK + DAMAGED);
    let outcome = scrub(&["--json"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!((&report["state"], &report["damaged"]), (&"done".into(), &1.into()), "{report}");
    let place = &report["places"][0];
    assert_eq!((&place["what"], &place["volume_name"]), (&"data".into(), &"db-1".into()));
    assert_eq!(place["volume_byte"], DAMAGED * BLOCK_SIZE as u64);
    assert_eq!(health(&server), "degraded");
    let told = scrub(&["--status"]);
    assert!(told.stdout.contains(" read, 1 damaged block\n"), "{told:?}");
    let outcome = scrub(&["--rate", "4KiB", "--detach"]);
    assert!(outcome.stdout.starts_with("running: "), "{outcome:?}");
    let scrubs = || {
        let client = control::ApiClient::new(&server.api).unwrap();
        let mut scrubs = client.stats().unwrap().devices.remove(0).scrubs;
        scrubs.damaged.retain(|_, count| *count > 0);
        scrubs
    };
    let mut counted = control::ScrubStats { running: 1, done: 2, ..Default::default() };
    counted.damaged.insert("data".to_owned(), 1);
    assert_eq!(scrubs(), counted);
    assert!(scrub(&["--stop"]).stdout.starts_with("stopped: "));
    assert_eq!(scrubs(), control::ScrubStats { running: 0, stopped: 1, ..counted });
    let outcome = scrub(&["file:/other", "--status"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
}

/// Method: ask for a scrub every second, and wait for the end of one.
#[test]
fn scrubs_come_by_themselves_if_wanted() {
    let files = Files::new();
    let device = files.device("a");
    succeed(&["format", "--device", &format!("{device},size=256MiB")]);
    let server = Server::start_with(&device, &["--scrub-every", "1s"]);
    server.wait_for_log("scrub ended");
    let outcome = run(&["scrub", "--status", "--json", "--api", &server.api]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(report["every_seconds"], 1, "{report}");
    assert!(report["next_in_seconds"].as_u64().unwrap() <= 1, "{report}");
    assert_ne!(report["state"], "idle", "{report}");
    let outcome = run(&["serve", "--device", "mem:1GiB", "--scrub-every", "soon"]);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert!(outcome.stderr.contains("no length of time; write 30m"), "{outcome:?}");
}

/// Method: under a running server flip a bit of each kind of structure in turn, have it scrubbed, and ask the
/// API, a host's SMART log and the server's own. Then damage the bitmaps while no server has the device: the
/// next start rebuilds them, and logs that.
#[test]
fn damage_of_any_structure_shows_in_health() {
    let files = Files::new();
    let (device, path) = (files.device("a"), files.path("a"));
    let (server, nqn) = with_marked_volume(&device, "db-1");
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));

    let server = Server::start(&device);
    assert_eq!((media_errors(&server, &nqn), health(&server).as_str()), (0, "good"));
    let mut known = 0;
    for (what, places) in structures(&std::fs::read(&path).unwrap()) {
        assert!(!places.is_empty(), "no {what} on the device");
        places.iter().for_each(|at| flip(&path, at + 100));
        run(&["scrub", "--api", &server.api]);
        let found = media_errors(&server, &nqn);
        assert!(found > known, "{what}: {found}");
        assert_eq!(health(&server), "degraded", "{what}");
        run(&["scrub", "--api", &server.api]);
        assert_eq!(media_errors(&server, &nqn), found, "{what}: each place once");
        places.iter().for_each(|at| flip(&path, at + 100));
        known = found;
    }
    server.signal("TERM");
    // In the log, too: each place by its name and where it lies.
    let lines = server.log_until(|line| line["message"] == "drained");
    let named = lines.iter().filter(|line| line["message"] == "damaged block");
    let named: Vec<_> = named.map(|line| (line["what"].clone(), line["at"].clone())).collect();
    assert_eq!(named.len() as u64, known, "{named:?}");
    for (at, place) in named.iter().enumerate() {
        assert!(place.1.is_string() && !named[..at].contains(place), "{named:?}");
    }
    for what in ["superblock", "root", "table", "bitmap", "node", "data"] {
        assert!(named.iter().any(|place| place.0 == what), "{what}: {named:?}");
    }
    assert_eq!(server.wait(), Some(0));

    let structures = structures(&std::fs::read(&path).unwrap());
    let (_, bitmaps) = structures.iter().find(|(what, _)| *what == "bitmap").unwrap();
    bitmaps.iter().for_each(|at| flip(&path, at + 100));
    let server = Server::start(&device);
    assert_ne!(media_errors(&server, &nqn), 0);
    assert_eq!(health(&server), "degraded");
}

/// Places of the structures of each kind, including superseded ones: one shard, one volume.
fn structures(image: &[u8]) -> Vec<(&'static str, Vec<usize>)> {
    let superblock = volume::Superblock::decode(&image[..BLOCK_SIZE]).unwrap();
    let at = |pba: units::Pba| usize::try_from(pba.0).unwrap() * BLOCK_SIZE;
    let starting = |wanted: &[u8], tree: u32| {
        let blocks = (0..image.len()).step_by(BLOCK_SIZE);
        let fitting = blocks.filter(|at| {
            image[*at..].starts_with(wanted) && image[at + 8..].starts_with(&tree.to_le_bytes())
        });
        fitting.collect::<Vec<_>>()
    };
    let extents = (0..superblock.extent_count()).map(|index| at(superblock.extent(index).start));
    vec![
        ("superblock", vec![0]),
        ("root", superblock.root_places(0, 0).map(at).to_vec()),
        ("extent table", starting(b"FMN1", u32::MAX)),
        ("volume table", starting(b"FMN1", u32::MAX - 1)),
        ("bitmap", extents.flat_map(|slot| [slot, slot + BLOCK_SIZE]).collect()),
        ("node", starting(b"FMN1", 1)),
        ("data", vec![marked(image, MARK + DAMAGED)[0]]),
    ]
}

/// Damaged places and failures as the API tells them, which a host's SMART log and the metrics must confirm.
fn media_errors(server: &Server, nqn: &Nqn) -> u64 {
    let client = control::ApiClient::new(&server.api).unwrap();
    let told = client.stats().unwrap().devices[0].media_errors;
    let (portal, nqn) = (server.portals[0], *nqn);
    let smart = on_core(move |handle| async move {
        connect(&handle, portal, &nqn).await.client().smart_health().await.unwrap()
    });
    assert_eq!(smart.media_errors.get(), u128::from(told), "there is one volume");
    told
}

/// Method: have a damaged block read many times, then scrubbed twice, and read the log.
#[test]
fn the_log_names_a_damaged_place_once() {
    let files = Files::new();
    let device = files.device("a");
    succeed(&["format", "--device", &format!("{device},size=256MiB")]);
    let server = Server::start(&device);
    let made = server.volume_json(&["create", "db-1", "--size", "64MiB"]);
    let nqn: Nqn = made["nqn"].as_str().unwrap().parse().unwrap();
    let portal = server.portals[0];
    let read_all = move |rounds: u64| {
        on_core(move |handle| async move {
            let volume = connect(&handle, portal, &nqn).await;
            for block in 0..rounds * BLOCKS {
                let _ = volume.read(Lba(block % BLOCKS), 1).await;
            }
        });
    };
    on_core(move |handle| async move {
        let volume = connect(&handle, portal, &nqn).await;
        for block in 0..BLOCKS {
            volume.write(Lba(block), filled(MARK + block)).await.unwrap();
        }
    });
    flip_a_bit_of(&files.path("a"), MARK + DAMAGED);
    read_all(20);
    assert_eq!(run(&["scrub", "--api", &server.api]).code, Some(1));
    flip_a_bit_of(&files.path("a"), MARK + DAMAGED + 1);
    assert_eq!(run(&["scrub", "--api", &server.api]).code, Some(1));
    read_all(20);
    server.signal("TERM");
    let lines = server.log_until(|line| line["message"] == "drained");
    let named = lines.iter().filter(|line| line["message"] == "damaged block");
    let blocks: Vec<_> = named.map(|line| line["block"].as_u64().unwrap()).collect();
    assert_eq!(blocks, [DAMAGED, DAMAGED + 1]);
    assert!(!lines.iter().any(|line| line["message"] == "block lost"));
}

fn health(server: &Server) -> String {
    let client = control::ApiClient::new(&server.api).unwrap();
    let document = serde_json::to_value(client.server().unwrap()).unwrap();
    document["devices"][0]["health"].as_str().unwrap().to_owned()
}

/// Flips one bit in each block of the file that is full of `value`; there is at least one.
fn flip_a_bit_of(path: &Path, value: u64) {
    let image = std::fs::read(path).unwrap();
    let found = marked(&image, value);
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    for at in found {
        let byte = at + 1_234;
        file.write_all_at(&[image[byte] ^ 0x10], byte as u64).unwrap();
    }
}

/// Places of the blocks that are full of `value`; there is at least one.
fn marked(image: &[u8], value: u64) -> Vec<usize> {
    let wanted = value.to_le_bytes().repeat(BLOCK_SIZE / 8);
    let found = (0..image.len()).step_by(BLOCK_SIZE).filter(|at| image[*at..].starts_with(&wanted));
    let found: Vec<usize> = found.collect();
    assert!(!found.is_empty(), "the block is nowhere on the device");
    found
}
