//! A live server whose device lies in a file system that fills up.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::support::file_system::FileSystem;
use crate::support::host::{connect, on_core};
use crate::support::skipped::skipped;
use crate::support::{Files, Server, library, run, succeed, tokens, until};
use farflash_client::ErrorKind;
use io_traits::Buffer;
use serde_json::Value;
use units::{BLOCK_SIZE, Lba};
use volume::{OwnerMark, Superblock};

/// Blocks of a write: what a journal takes of them is little.
const BLOCKS: usize = 64;
/// Free space that is left of the file system.
const LEFT_BYTES: u64 = 48 << 20;
/// The longest that a host may wait for an answer, which Linux gives up after 30 s.
const ANSWER_MAX: Duration = Duration::from_secs(20);

fn data(number: u64) -> io_traits::BufferSlice {
    let mut buffer = Buffer::new(BLOCKS);
    buffer.as_mut_bytes().chunks_exact_mut(8).for_each(|word| {
        word.copy_from_slice(&(number + 1).to_le_bytes());
    });
    buffer.into_slice()
}

fn place(volume: &Value) -> (std::net::SocketAddr, nvme_wire::Nqn) {
    let nqn = volume["nqn"].as_str().unwrap().parse().unwrap();
    (volume["address"].as_str().unwrap().parse().unwrap(), nqn)
}

/// Writes pieces from number `first` on until `patience` is over or `many` are; the numbers of those that were
/// acknowledged. Each has been answered in time.
fn write(volume: &Value, first: u64, many: u64, patience: Duration) -> Vec<u64> {
    let (address, nqn) = place(volume);
    on_core(|handle| async move {
        let volume = connect(&handle, address, &nqn).await;
        let (begin, mut acknowledged) = (Instant::now(), Vec::new());
        for number in first..first + many {
            let asked = Instant::now();
            if volume.write(Lba(number * BLOCKS as u64), data(number)).await.is_ok() {
                acknowledged.push(number);
            }
            assert!(asked.elapsed() < ANSWER_MAX, "answered after {:?}", asked.elapsed());
            if begin.elapsed() > patience {
                break;
            }
        }
        acknowledged
    })
}

fn expect(volume: &Value, numbers: &[u64]) {
    let ((address, nqn), numbers) = (place(volume), numbers.to_vec());
    on_core(|handle| async move {
        let volume = connect(&handle, address, &nqn).await;
        for number in numbers {
            let found = volume.read(Lba(number * BLOCKS as u64), BLOCKS as u32).await.unwrap();
            assert!(found.as_bytes() == data(number).as_bytes(), "piece {number}");
        }
    });
}

/// Room for [`LEFT_BYTES`], by a file that takes all else.
fn fill_up(files: &Files) -> std::path::PathBuf {
    let mount = files.path("mount");
    let free = rustix::fs::statvfs(&mount).unwrap();
    let path = mount.join("ballast");
    let bytes = free.f_bavail * free.f_frsize - LEFT_BYTES;
    let ballast = File::create(&path).unwrap();
    rustix::fs::fallocate(&ballast, rustix::fs::FallocateFlags::empty(), 0, bytes).unwrap();
    path
}

/// No room, not even of what root has for itself: the file of [`fill_up`] takes that, too.
fn fill_up_wholly(ballast: &std::path::Path) {
    let file = File::options().write(true).open(ballast).unwrap();
    let (mut end, mut step) = (file.metadata().unwrap().len(), LEFT_BYTES);
    while step >= BLOCK_SIZE as u64 {
        match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), end, step) {
            Ok(()) => end += step,
            Err(_) => step /= 2,
        }
    }
}

/// Writes that find no room are errors, in time; the device beside goes on; what was acknowledged is there, and when there is
/// room again the server goes on by itself.
#[test]
fn a_full_file_system_is_an_error_until_it_has_room_and_costs_nothing() {
    let files = Files::new();
    let Some(_file_system) = FileSystem::new(&files.path("")) else {
        return skipped("no file system can be mounted here");
    };
    let (other, sparse) = (files.device("other"), files.device("mount/sparse"));
    succeed(&["format", "--device", &format!("{other},size=128MiB")]);
    succeed(&["format", "--device", &format!("{sparse},size=8GiB")]);
    let server = Server::start_with(&sparse, &["--device", &other]);
    let on =
        |device, name| server.volume_json(&["create", name, "--size", "4GiB", "--device", device]);
    let (full, good) = (on(sparse.as_str(), "full"), on(other.as_str(), "good"));
    let ballast = fill_up(&files);

    let pieces = LEFT_BYTES / (BLOCKS * BLOCK_SIZE) as u64;
    let mut acknowledged = write(&full, 0, 2 * pieces, Duration::from_secs(60));
    assert!(acknowledged.len() as u64 > pieces / 2, "{}", acknowledged.len());
    assert!((acknowledged.len() as u64) < 2 * pieces, "there is no room for all of it");
    acknowledged.extend(write(&full, 4 * pieces, pieces, Duration::from_secs(12)));
    expect(&full, &acknowledged);
    assert_eq!(write(&good, 0, 10, ANSWER_MAX).len(), 10, "the other device has room");

    std::fs::remove_file(ballast).unwrap();
    let again = 8 * pieces;
    until("it takes writes again", || !write(&full, again, 1, ANSWER_MAX).is_empty());
    acknowledged.extend(write(&full, again, 10, ANSWER_MAX));
    expect(&full, &acknowledged);

    server.signal("KILL");
    server.wait();
    let server = Server::start_with(&sparse, &["--device", &other]);
    expect(&server.volume_json(&["show", "full"]), &acknowledged);
    expect(&server.volume_json(&["show", "good"]), &(0..10).collect::<Vec<_>>());
}

/// A server that is started when the file system is full serves what is there, says what is wrong and what to do, and takes writes
/// without a restart when there is room.
#[test]
fn a_server_that_starts_on_a_full_file_system_serves_reads_until_it_has_room() {
    starts_without_room(true);
}

/// The same where nothing was left of what is held back for deallocating.
#[test]
fn a_server_that_starts_without_its_reserve_serves_reads_until_it_has_room() {
    starts_without_room(false);
}

fn starts_without_room(has_reserve: bool) {
    let files = Files::new();
    let Some(_file_system) = FileSystem::new(&files.path("")) else {
        return skipped("no file system can be mounted here");
    };
    let sparse = files.device("mount/sparse");
    succeed(&["format", "--device", &format!("{sparse},size=8GiB")]);
    let server = Server::start(&sparse);
    let volume = server.volume_json(&["create", "full", "--size", "4GiB"]);
    let acknowledged = write(&volume, 0, 20, ANSWER_MAX);
    assert_eq!(acknowledged.len(), 20);
    server.signal("KILL");
    server.wait();
    let image = files.path("mount/sparse");
    if !has_reserve {
        // It lies behind the end of the file.
        File::options().write(true).open(&image).unwrap().set_len(8 << 30).unwrap();
    }
    // As where the server before had no space for its mark either.
    let mark_at = Superblock::OWNER_MARK.0 * BLOCK_SIZE as u64;
    let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    let file = File::options().write(true).open(&image).unwrap();
    rustix::fs::fallocate(&file, hole, mark_at, BLOCK_SIZE as u64).unwrap();
    let ballast = fill_up(&files);
    fill_up_wholly(&ballast);

    let server = Server::start(&sparse);
    let told = "no space left in the file system that it lies in";
    let is_told = |line: &Value| {
        line["fields"]["message"].as_str().is_some_and(|text| text.starts_with(told))
    };
    assert_eq!(server.starting.iter().any(is_told), !has_reserve, "{:?}", server.starting);
    let volume = server.volume_json(&["show", "full"]);
    expect(&volume, &acknowledged);
    assert!(write(&volume, 100, 1, ANSWER_MAX).is_empty(), "there is no room");
    let status = || run(&["status", "--api", &server.api]);
    let mount = files.path("mount").canonicalize().unwrap();
    until("it says which file system is full", || {
        let said = status();
        let what = format!("no space in the file system at {}: writes are", mount.display());
        said.code == Some(1) && said.stderr.contains(&what) && said.stderr.contains("make room")
    });
    server.log_until(|line| {
        line["message"].as_str().is_some_and(|text| text.starts_with("the mark that keeps other"))
    });

    std::fs::remove_file(ballast).unwrap();
    until("it takes writes", || !write(&volume, 100, 1, ANSWER_MAX).is_empty());
    expect(&volume, &acknowledged);
    expect(&volume, &[100]);
    let shown = status().stdout;
    assert!(!shown.contains("failed"), "{shown}");
    until("it is marked", || {
        let mut block = [0; BLOCK_SIZE];
        File::open(&image).unwrap().read_exact_at(&mut block, mark_at).unwrap();
        OwnerMark::decode(&block).is_ok_and(|mark| mark.pid == u64::from(server.pid()))
    });
    until("that is told", || !status().stderr.contains("the mark that keeps other"));
}

/// Bytes that the file takes of its file system.
fn taken(path: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).unwrap().blocks() * 512
}

/// On a file system without any room, hosts are told that there is no space, reads go on, and deallocating and deleting give
/// space back, after which writes succeed again without anything else.
#[test]
fn what_is_deallocated_or_deleted_on_a_full_file_system_gives_space_back() {
    let files = Files::new();
    let Some(_file_system) = FileSystem::new(&files.path("")) else {
        return skipped("no file system can be mounted here");
    };
    let sparse = files.device("mount/sparse");
    succeed(&["format", "--device", &format!("{sparse},size=8GiB")]);
    let server = Server::start(&sparse);
    let create = |name| server.volume_json(&["create", name, "--size", "4GiB"]);
    let (kept, gone) = (create("kept"), create("gone"));
    assert_eq!(write(&kept, 0, 120, Duration::from_secs(60)).len(), 120);
    assert_eq!(write(&gone, 0, 120, Duration::from_secs(60)).len(), 120);
    fill_up_wholly(&fill_up(&files));

    let (address, nqn) = place(&kept);
    let said = on_core(|handle| async move {
        let volume = connect(&handle, address, &nqn).await;
        let mut said = Vec::new();
        for number in 200..400 {
            if let Err(error) = volume.write(Lba(number * BLOCKS as u64), data(number)).await {
                said.push(format!("{error:?}"));
            }
        }
        said
    });
    assert!(said.len() > 100, "there is no room: {said:?}");
    assert!(said.iter().all(|it| it.to_lowercase().contains("capacity")), "{said:?}");
    let health = || {
        let shown = control::ApiClient::new(&server.api).unwrap().server().unwrap();
        serde_json::to_value(&shown.devices[0]).unwrap()
    };
    until("the state is told", || health()["notices"][0]["kind"] == "no_space_below");
    assert_ne!(health()["health"], "failed", "{}", health());
    let metrics = crate::observing::metrics(&server);
    assert!(metrics.contains("kind=\"no_space_below\"} 1"), "{metrics}");

    // Programs are told what a person is told.
    let cluster = library::cluster(&server);
    let token = tokens::of(kept["nqn"].as_str().unwrap()).unwrap();
    let opened = cluster.open("kept", &library::with_token(&token)).unwrap();
    let elsewhere = 450 * (BLOCKS * BLOCK_SIZE) as u64;
    library::fails(opened.write_at(&[7; BLOCK_SIZE], elsewhere), ErrorKind::NoSpace, "apacity");
    opened.close().unwrap();

    expect(&kept, &(0..120).collect::<Vec<_>>());
    let before = taken(&files.path("mount/sparse"));
    let (address, nqn) = place(&kept);
    on_core(|handle| async move {
        let volume = connect(&handle, address, &nqn).await;
        for number in 0..60 {
            let piece = units::LbaRange::new(Lba(number * BLOCKS as u64), BLOCKS as u64);
            volume.deallocate(&[piece]).await.expect("it gives space back");
        }
    });
    until("deallocated space is free", || taken(&files.path("mount/sparse")) + (10 << 20) < before);
    until("it takes writes again", || write(&kept, 500, 1, ANSWER_MAX).len() == 1);

    let ballast = File::options().write(true).open(files.path("mount/ballast")).unwrap();
    let end = ballast.metadata().unwrap().len();
    let more = rustix::fs::statvfs(files.path("mount")).unwrap();
    let more = more.f_bfree * more.f_frsize;
    let _ = rustix::fs::fallocate(&ballast, rustix::fs::FallocateFlags::empty(), end, more);
    fill_up_wholly(&files.path("mount/ballast"));
    let before = taken(&files.path("mount/sparse"));
    let refused = write(&kept, 600, 300, Duration::from_secs(30));
    assert!(refused.len() < 300, "it is full again");
    let outcome = server.volume(&["delete", "--lose-data", "gone"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    until("deleted space is free", || taken(&files.path("mount/sparse")) + (10 << 20) < before);
    until("it takes writes once more", || write(&kept, 501, 1, ANSWER_MAX).len() == 1);
    expect(&kept, &(60..120).chain([500, 501]).collect::<Vec<_>>());
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let server = Server::start(&sparse);
    expect(
        &server.volume_json(&["show", "kept"]),
        &(60..120).chain([500, 501]).collect::<Vec<_>>(),
    );
}
