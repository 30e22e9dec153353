//! A file system without space.

use std::path::Path;
use std::process::Command;

use super::support::{Server, command, skipped};

/// A small file system on a loop device, unmounted when it is dropped.
struct SmallDisk {
    directory: tempfile::TempDir,
}

impl SmallDisk {
    fn mount() -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory");
        let image = directory.path().join("image");
        std::fs::File::create(&image).and_then(|file| file.set_len(64 << 20)).expect("an image");
        std::fs::create_dir(directory.path().join("mnt")).expect("a directory");
        let disk = Self { directory };
        let made = run(Command::new("mkfs.ext4").args(["-q", "-O", "^has_journal"]).arg(&image));
        let mounted =
            made && run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(disk.path()));
        mounted.then_some(disk)
    }

    fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("mnt")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.path()).output();
    }
}

fn run(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// Fills the file system with a file, and leaves nothing.
fn fill(path: &Path) {
    let _ = Command::new("dd")
        .args(["if=/dev/zero", "bs=1M", "status=none"])
        .arg(format!("of={}", path.display()))
        .output();
}

/// Writes to a full file system are refused with a clear error, reads go on, and with space writes go on, too.
#[test]
fn a_full_disk_refuses_writes_and_serves_reads() {
    let Some(disk) = SmallDisk::mount() else {
        return skipped(
            "a full disk below the datastore, which needs root, mkfs.ext4 and loop devices",
        );
    };
    let data = disk.path().join("data");
    let server = Server::start(&data, &["--compression", "none", "--value-max", "1MiB"]);
    let mut client = server.client();
    assert_eq!(client.text("SET kept 1"), "OK");
    fill(&disk.path().join("ballast"));

    let value = "x".repeat(100_000);
    let mut refused = String::new();
    for n in 0..2000 {
        let reply = client.text(&format!("SET key-{} {value}", n % 100));
        if reply != "OK" {
            refused = reply;
            break;
        }
    }
    assert_eq!(
        refused,
        "-NOSPACE the file system of the data has no space left; free some, and writes go on by themselves"
    );
    assert_eq!(client.text("GET kept"), "1", "reads go on");
    assert!(client.info("errors_total") >= 1.0);
    let output = command(&data, &[]).output().expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("bytes left"), "a server does not start there: {stderr}");

    std::fs::remove_file(disk.path().join("ballast")).expect("the ballast is there");
    let resumed = (0..600).any(|_| {
        let done = client.text("SET after 1") == "OK";
        if !done {
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        done
    });
    assert!(resumed, "writes go on with space");
    server.kill();
    let server = Server::start(&data, &[]);
    assert_eq!(server.client().text("MGET kept after"), "[1 1]");
    drop(server);
}

/// A limit on the size of files refuses writes beyond it, with the name of the limit, and ends nothing.
#[test]
fn a_limit_on_the_size_of_files_refuses_writes_and_serves_reads() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = Server::start(directory.path(), &["--compression", "none", "--value-max", "1MiB"]);
    let mut client = server.client();
    assert_eq!(client.text("SET kept 1"), "OK");
    let pid = server.pid().to_string();
    assert!(run(Command::new("prlimit").args(["--pid", &pid, "--fsize=1048576:1048576"])));
    let value = "x".repeat(100_000);
    let replies = (0..100).map(|n| client.text(&format!("SET key-{n} {value}")));
    let refused = replies.into_iter().find(|reply| reply != "OK").expect("one is refused");
    assert!(refused.starts_with("-IOERR ") && refused.contains("LimitFSIZE="), "{refused}");
    assert_eq!(client.text("GET kept"), "1", "reads go on");
    server.kill();
    let server = Server::start(directory.path(), &["--value-max", "1MiB"]);
    assert_eq!(server.client().text("GET kept"), "1");
    assert_eq!(server.client().text(&format!("SET key {value}")), "OK");
}
