//! A drive that is unplugged and plugged in again under a live server.
//!
//! Method: the drive is a file on a small ext4 of its own. Unplugged means that the file system is shut down, after
//! which what is open on it fails for ever (EIO), and unmounted; plugged in again, that a copy of its image is mounted
//! at the same place. This takes root; where nothing can be mounted, the test says so and ends, or fails where nothing may be left out.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::support::host::{connect, filled, on_core};
use crate::support::skipped::skipped;
use crate::support::{Files, Server, run, succeed, until};
use io_traits::Clock;
use serde_json::Value;
use units::Lba;

fn done(command: &str, words: &[&dyn AsRef<std::ffi::OsStr>]) -> bool {
    let outcome = Command::new(command).args(words.iter().map(|word| word.as_ref())).output();
    outcome.is_ok_and(|outcome| outcome.status.success())
}

/// The directory into which drives are plugged; nothing is left behind.
struct Slot(PathBuf);

impl Slot {
    fn new(files: &Files) -> Self {
        Self::at(files.path("slot"))
    }

    fn at(mount: PathBuf) -> Self {
        std::fs::create_dir(&mount).unwrap();
        Self(mount)
    }

    /// An image with an empty file system.
    fn make(files: &Files, name: &str) -> PathBuf {
        let image = files.path(name);
        std::fs::File::create(&image).unwrap().set_len(300 << 20).unwrap();
        assert!(done("mkfs.ext4", &[&"-q", &image]));
        image
    }

    fn plug_in(&self, image: &Path) -> bool {
        done("mount", &[&"-o", &"loop", &image, &self.0])
    }

    /// All that is open there fails from now on, and no drive is there.
    fn unplug(&self) {
        // EXT4_IOC_SHUTDOWN, with all written before.
        let script = "open(my $d, '<', $ARGV[0]) or die; my $flags = pack('L', 0); \
                      ioctl($d, 0x8004587d, $flags) or die $!";
        assert!(done("perl", &[&"-e", &script, &self.0.join("b")]));
        self.pull();
    }

    fn pull(&self) {
        assert!(done("umount", &[&"--lazy", &self.0]));
    }

    fn is_in_use(image: &Path) -> bool {
        let outcome = Command::new("losetup").arg("--associated").arg(image).output().unwrap();
        !outcome.stdout.is_empty()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let _ = done("umount", &[&"--lazy", &self.0]);
    }
}

/// A host that stays connected: what it is told to write, or `None` to read; what came of it.
struct Host {
    asks: mpsc::Sender<Option<u64>>,
    outcomes: mpsc::Receiver<Result<u64, String>>,
}

impl Host {
    fn of(volume: &Value) -> Self {
        let nqn = nvme_wire::Nqn::new(volume["nqn"].as_str().unwrap()).unwrap();
        let address = volume["address"].as_str().unwrap().parse().unwrap();
        let (asks, asked) = mpsc::channel();
        let (told, outcomes) = mpsc::channel();
        thread::spawn(move || {
            on_core(|handle| async move {
                let volume = connect(&handle, address, &nqn).await;
                loop {
                    let outcome = match asked.try_recv() {
                        // So that the connection is kept alive meanwhile.
                        Err(mpsc::TryRecvError::Empty) => {
                            handle.sleep_until(handle.now() + Duration::from_millis(5)).await;
                            continue;
                        }
                        Err(mpsc::TryRecvError::Disconnected) => return,
                        Ok(Some(value)) => {
                            volume.write(Lba(3), filled(value)).await.map(|()| value)
                        }
                        Ok(None) => volume.read(Lba(3), 1).await.map(|block| {
                            u64::from_le_bytes(block.as_bytes()[..8].try_into().unwrap())
                        }),
                    };
                    told.send(outcome.map_err(|error| error.to_string())).unwrap();
                }
            });
        });
        Self { asks, outcomes }
    }

    fn write(&self, value: u64) -> Result<u64, String> {
        self.asks.send(Some(value)).unwrap();
        self.outcomes.recv().expect("the host stays connected")
    }

    fn read(&self) -> Result<u64, String> {
        self.asks.send(None).unwrap();
        self.outcomes.recv().expect("the host stays connected")
    }
}

fn device(server: &Server, number: usize) -> Value {
    let shown = control::ApiClient::new(&server.api).unwrap().server().unwrap();
    serde_json::to_value(&shown.devices[number]).unwrap()
}

/// Plugs a drive out, another one in, and the first one again; `writes`: the server notices by a write.
fn replug(writes: bool) {
    let files = Files::new();
    let (slot, first) = (Slot::new(&files), Slot::make(&files, "first"));
    if !slot.plug_in(&first) {
        return skipped("no file system can be mounted here");
    }
    let (a, b) = (files.device("a"), files.device("slot/b"));
    for (device, size) in [(&a, "128MiB"), (&b, "128MiB")] {
        succeed(&["format", "--device", &format!("{device},size={size}")]);
    }
    let server = Server::start_with(&a, &["--device", &b]);
    let make =
        |device, name| server.volume_json(&["create", name, "--size", "1GiB", "--device", device]);
    let (near, far) = (Host::of(&make(&a, "near")), Host::of(&make(&b, "far")));
    assert_eq!((near.write(1), far.write(2)), (Ok(1), Ok(2)));

    slot.unplug();
    let failed = if writes { far.write(3) } else { far.read() };
    assert!(failed.is_err(), "{failed:?}");
    let says = |what: &str| {
        until(what, || device(&server, 1)["trouble"].as_str().is_some_and(|it| it.contains(what)));
    };
    says("is not there (plug the drive in again");
    assert_eq!(device(&server, 1)["health"], "failed");
    let status = run(&["status", "--api", &server.api]);
    assert!(status.code == Some(1) && status.stderr.contains("is not there"), "{status:?}");
    assert_eq!((near.write(4), near.read()), (Ok(4), Ok(4)));

    // Another one, which is left as it is.
    let other = Slot::make(&files, "other");
    assert!(slot.plug_in(&other));
    succeed(&["format", "--device", &format!("{b},size=128MiB")]);
    let before = std::fs::read(files.path("slot/b")).unwrap();
    says("is another device");
    assert!(far.read().is_err() && far.write(5).is_err());
    assert!(std::fs::read(files.path("slot/b")).unwrap() == before);
    slot.pull();

    // The one that was there, which has been put to another use meanwhile.
    let taken = files.path("taken");
    assert!(done("cp", &[&"--sparse=always", &first, &taken]));
    let elsewhere = Slot::at(files.path("elsewhere"));
    assert!(elsewhere.plug_in(&taken));
    let start = [&b"XFSB"[..], &[0; 4092]].concat();
    std::fs::File::options()
        .write(true)
        .open(elsewhere.0.join("b"))
        .unwrap()
        .write_all(&start)
        .unwrap();
    elsewhere.pull();
    assert!(slot.plug_in(&taken));
    says("something else (XFS");
    assert!(far.read().is_err() && far.write(5).is_err());
    assert!(std::fs::read(files.path("slot/b")).unwrap().starts_with(&start));
    slot.pull();

    let again = files.path("again");
    assert!(done("cp", &[&"--sparse=always", &first, &again]));
    assert!(slot.plug_in(&again));
    server.wait_for_log("is back");
    until("the host reads again", || far.read().is_ok());
    // A write that failed may be there as a whole.
    let found = far.read().unwrap();
    assert!(found == 2 || (writes && found == 3), "{found}");
    until("the host writes again", || far.write(6).is_ok());
    assert_eq!((far.read(), near.read()), (Ok(6), Ok(4)));
    until("the device is well", || {
        let shown = device(&server, 1);
        shown["trouble"].is_null() && shown["health"] != "failed"
    });
    // What was open of the old one is closed.
    until("no process uses the old one", || !Slot::is_in_use(&first));
    drop((near, far));
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn a_drive_that_fails_a_write_comes_back_by_its_path() {
    replug(true);
}

#[test]
fn a_drive_that_fails_a_read_comes_back_by_its_path() {
    replug(false);
}
