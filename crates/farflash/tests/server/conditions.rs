//! A file that changes under a live server: deleted, replaced, cut off, made larger.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::file_system::InMemory;
use crate::support::host::{connect, filled, on_core};
use crate::support::skipped::skipped;
use crate::support::{Files, Server, device, run, succeed, until};
use units::Lba;

/// A device is looked at each second; the rest is for a machine with ten times as much to do.
const NOTICED_WITHIN: Duration = Duration::from_secs(20);

fn start(files: &Files) -> (Server, Value) {
    let device = files.device("a");
    succeed(&["format", "--device", &format!("{device},size=128MiB")]);
    let server = Server::start(&device);
    let volume = server.volume_json(&["create", "v", "--size", "64MiB"]);
    (server, volume)
}

fn write(volume: &Value, value: u64) {
    let nqn = nvme_wire::Nqn::new(volume["nqn"].as_str().unwrap()).unwrap();
    let address = volume["address"].as_str().unwrap().parse().unwrap();
    on_core(|handle| async move {
        let volume = connect(&handle, address, &nqn).await;
        volume.write(Lba(3), filled(value)).await.expect("it is served");
        let found = volume.read(Lba(3), 1).await.expect("it is served");
        assert!(found.as_bytes() == filled(value).as_bytes());
    });
}

/// Waits until the status has this notice, which comes soon, and is in the log and in a metric, too; what it says.
fn notice(server: &Server, kind: &str) -> String {
    let (mut text, begun) = (String::new(), Instant::now());
    until(kind, || {
        let shown = control::ApiClient::new(&server.api).unwrap().server().unwrap();
        let shown = serde_json::to_value(&shown.devices[0]).unwrap();
        let notices = shown["notices"].as_array().cloned().unwrap_or_default();
        let found = notices.iter().find(|notice| notice["kind"] == kind);
        text = found.map(|notice| notice["text"].as_str().unwrap().to_owned()).unwrap_or_default();
        found.is_some()
    });
    assert!(begun.elapsed() < NOTICED_WITHIN, "noticed after {:?}", begun.elapsed());
    server.log_until(|line| line["message"] == text.as_str());
    let metrics = crate::observing::metrics(server);
    assert!(metrics.contains(&format!("kind=\"{kind}\"}} 1")), "{metrics}");
    text
}

/// Waits until the log says that the condition is over; the metric says it, too.
fn is_over(server: &Server, kind: &str) {
    server.log_until(|line| line["message"] == "is over" && line["kind"] == kind);
    let metrics = crate::observing::metrics(server);
    assert!(metrics.contains(&format!("kind=\"{kind}\"}} 0")), "{metrics}");
}

/// The words of the command in backquotes.
fn command_in(text: &str) -> Vec<&str> {
    text.split('`').nth(1).unwrap().split(' ').collect()
}

/// A file that was deleted, or replaced, is served on; the status says so, what it advises saves the data, and the end of the
/// server is no success.
fn is_told_and_can_be_saved(kind: &str, change: impl FnOnce(&Files)) {
    let files = Files::new();
    let (server, volume) = start(&files);
    write(&volume, 1);
    change(&files);
    let text = notice(&server, kind);
    let status = run(&["status", "--api", &server.api]);
    assert!(
        status.code == Some(1) && status.stderr.contains("gone when this server ends"),
        "{status:?}"
    );
    write(&volume, 2);

    let copy = files.path("copy");
    let mut words = command_in(&text);
    assert_eq!((words[0], words.pop()), ("cp", Some("COPY")), "{text}");
    let copied = std::process::Command::new(words[0]).args(&words[1..]).arg(&copy).status();
    assert!(copied.unwrap().success());
    server.signal("TERM");
    assert_eq!(server.wait(), Some(1), "what was written is lost");
    let server = Server::start(&files.device("copy"));
    let volume = server.volume_json(&["show", "v"]);
    let nqn = nvme_wire::Nqn::new(volume["nqn"].as_str().unwrap()).unwrap();
    let address = volume["address"].as_str().unwrap().parse().unwrap();
    on_core(|handle| async move {
        let found = connect(&handle, address, &nqn).await.read(Lba(3), 1).await.expect("saved");
        assert!(found.as_bytes() == filled(2).as_bytes());
    });
}

#[test]
fn a_file_that_is_deleted_while_it_is_served_is_told_and_can_be_saved() {
    is_told_and_can_be_saved("file_gone", |files| {
        std::fs::remove_file(files.path("a")).unwrap();
    });
}

#[test]
fn a_file_that_is_replaced_while_it_is_served_is_told_and_can_be_saved() {
    is_told_and_can_be_saved("file_replaced", |files| {
        std::fs::copy(files.path("a"), files.path("b")).unwrap();
        std::fs::rename(files.path("b"), files.path("a")).unwrap();
    });
}

/// A file that is moved away and back is well again.
#[test]
fn a_file_that_is_moved_away_is_told_until_it_is_back() {
    let files = Files::new();
    let (server, volume) = start(&files);
    std::fs::rename(files.path("a"), files.path("b")).unwrap();
    let text = notice(&server, "file_gone");
    assert!(text.contains("move the file back; it is ") && text.contains("/b now"), "{text}");
    std::fs::rename(files.path("b"), files.path("a")).unwrap();
    until("it is well", || run(&["status", "--api", &server.api]).code == Some(0));
    is_over(&server, "file_gone");
    write(&volume, 1);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
}

/// A file that was renamed, and whose place another one has, is not gone: the status says where it is, and what is written to it
/// is there when it is back.
#[test]
fn a_file_that_is_replaced_and_kept_under_another_name_is_told_from_one_that_is_gone() {
    let files = Files::new();
    let (server, volume) = start(&files);
    let [path, kept] = ["a", "b"].map(|name| files.path(name));
    write(&volume, 1);
    std::fs::rename(&path, &kept).unwrap();
    std::fs::copy(&kept, &path).unwrap();
    let text = notice(&server, "file_replaced");
    let is_at = format!("it is {} now;", kept.canonicalize().unwrap().display());
    assert!(text.contains(&is_at) && text.contains("the next start would serve"), "{text}");
    assert!(!text.contains("is gone when"), "{text}");
    write(&volume, 2);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(1), "its path does not reach what was written");
    std::fs::rename(&kept, &path).unwrap();
    let server = Server::start(&files.device("a"));
    let volume = server.volume_json(&["show", "v"]);
    let nqn = nvme_wire::Nqn::new(volume["nqn"].as_str().unwrap()).unwrap();
    let address = volume["address"].as_str().unwrap().parse().unwrap();
    on_core(|handle| async move {
        let found = connect(&handle, address, &nqn).await.read(Lba(3), 1).await.expect("kept");
        assert!(found.as_bytes() == filled(2).as_bytes());
    });
}

/// The kernel does not tell the other name of a hard link; the command in the status finds it.
#[test]
fn a_file_that_is_replaced_and_has_a_hard_link_is_found_by_the_command_that_is_told() {
    let files = Files::new();
    std::fs::create_dir(files.path("mount")).unwrap();
    let Some(_mounted) = InMemory::at(&files.path("mount"), "300m") else {
        return skipped("nothing can be mounted");
    };
    let [path, kept, copy] = ["a", "b", "c"].map(|name| files.path("mount").join(name));
    let sized = |path| format!("{},size=128MiB", device(path));
    succeed(&["format", "--device", &sized(&path)]);
    let server = Server::start(&device(&path));
    std::fs::hard_link(&path, &kept).unwrap();
    succeed(&["format", "--device", &sized(&copy)]);
    std::fs::rename(&copy, &path).unwrap();
    let text = notice(&server, "file_replaced");
    let words = command_in(&text);
    assert_eq!(words[0], "find", "{text}");
    let found = std::process::Command::new(words[0]).args(&words[1..]).output().unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    assert_eq!(found.trim(), kept.canonicalize().unwrap().to_str().unwrap(), "{text}");
}

#[test]
fn a_file_that_is_cut_off_or_made_larger_is_told_before_anything_reads_it() {
    let files = Files::new();
    let (server, volume) = start(&files);
    let file = std::fs::File::options().write(true).open(files.path("a")).unwrap();
    file.set_len(192 << 20).unwrap();
    assert!(notice(&server, "unused_space").contains("64 MiB"));
    let status = run(&["status", "--api", &server.api]);
    assert!(status.code == Some(0) && status.stdout.contains("unused"), "{status:?}");
    file.set_len(64 << 20).unwrap();
    let text = notice(&server, "shortened");
    assert!(text.contains("was cut off by 64 MiB") && text.contains("farflash fsck"), "{text}");
    let status = run(&["status", "--api", &server.api]);
    assert!(status.code == Some(1) && status.stderr.contains(&text), "{status:?}");
    write(&volume, 1);
}
