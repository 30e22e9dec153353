//! A device that belongs to a cluster is served by hosts of that cluster only (CLAIM-6).

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::etcd::EtcdProcesses;
use crate::support::cluster::{
    client, format, host, host_with, listed, refused as not_started, row, url,
};
use crate::support::{Files, Server, refused, run, succeed, until};
use serde_json::Value;
use uuid::Uuid;
use volume::Superblock;

const SUPERBLOCKS: [u64; 2] = [0, (256 << 20) - 4096];

fn serve<'a>(device: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let serve = ["serve", "--device", device, "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"];
    [&serve[..], more].concat()
}

fn block(path: &Path, place: u64) -> Vec<u8> {
    let mut block = vec![0; 4096];
    File::open(path).unwrap().read_exact_at(&mut block, place).unwrap();
    block
}

fn put(path: &Path, place: u64, block: &[u8]) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(block, place).unwrap();
}

/// The cluster in both copies of a file's superblock.
fn clusters(path: &Path) -> [Option<Uuid>; 2] {
    SUPERBLOCKS.map(|place| Superblock::decode(&block(path, place)).unwrap().cluster)
}

fn identity(etcd: &EtcdProcesses, cluster: &str) -> Uuid {
    let key = format!("/farflash/{cluster}/cluster");
    serde_json::from_str(&crate::etcd::get(etcd.address(0), &key)).unwrap()
}

fn stop(server: Server) {
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
}

/// Method: a copy stands for the second way to a drive with two ports, which would be one file to the lock of this kernel.
#[test]
fn a_device_is_refused_outside_its_cluster_until_it_has_left() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let [prod, other] = ["prod", "other"].map(|cluster| url(etcd.address(0), cluster));
    let a = host(&prod, "a", &format(&files, "a"));
    a.volume_json(&["create", "v", "--size", "64MiB"]);
    // So that the other cluster is known, too.
    drop(host(&other, "c", &format(&files, "c")));
    let [ours, theirs] = ["prod", "other"].map(|cluster| identity(&etcd, cluster));
    assert_eq!(clusters(&files.path("a")), [Some(ours); 2]);
    let (device, path) = (files.device("b"), files.path("b"));
    std::fs::copy(files.path("a"), &path).unwrap();
    let (before, belongs) =
        (std::fs::read(&path).unwrap(), format!("belongs to the cluster {ours}"));

    // Nothing is touched, also of what is new beside it, and no word of an operator about a host helps.
    let leave = format!("farflash leave-cluster --device {device}");
    refused(&serve(&device, &[]), 1, &belongs, &leave);
    refused(&serve(&device, &[]), 1, &belongs, "give the --directory of its own cluster");
    let new = format!("{},size=256MiB", files.device("new"));
    let beside = ["--device", &new, "--format-if-blank", "--create"];
    refused(&serve(&device, &beside), 1, &belongs, &leave);
    assert!(!files.path("new").exists());
    for more in [&[][..], &["--take-over"], &beside] {
        let outcome = not_started(&other, "b", &device, more);
        let says = [&belongs, &format!("the one of --directory is {theirs}"), &leave];
        assert!(says.iter().all(|what| outcome.stderr.contains(*what)), "{outcome:?}");
    }
    refused(&["format", "--device", &device], 1, &belongs, "How to give it up");
    assert!(succeed(&["fsck", "--device", &device]).contains(&belongs));
    assert!(std::fs::read(&path).unwrap() == before, "nothing was written");

    // Its own cluster says which host has it, as ever.
    let alive = not_started(&prod, "b", &device, &[]);
    assert!(alive.stderr.contains("served by host a, which is alive"), "{alive:?}");
    stop(a);
    let b = host(&prod, "b", &device);
    assert_eq!(listed(&b), [row("v", "b", "online")]);
    refused(&["leave-cluster", "--device", &device], 1, "is in use", "stop the other server");
    stop(b);

    let audit = files.path("audit.jsonl");
    let recorded = ["--audit-log", audit.to_str().unwrap()];
    let nowhere = ["leave-cluster", "--device", &device, "--audit-log", "/dev/full"];
    refused(&nowhere, 1, "cannot be recorded", "--audit-log");
    assert_eq!(clusters(&path), [Some(ours); 2], "without a record it is not done");
    let leaving = [&["leave-cluster", "--device", &device, "--json"], &recorded[..]].concat();
    let left = succeed(&leaving);
    let deeds = crate::support::audit::deeds(&audit);
    assert_eq!((deeds.len(), &deeds[0]["method"]), (2, &"LEAVE-CLUSTER".into()), "{deeds:?}");
    assert_eq!(
        (&deeds[0]["path"], &deeds[1]["outcome"]),
        (&device.as_str().into(), &"done".into())
    );
    let left: Value = serde_json::from_str(&left).unwrap();
    assert_eq!(left["left"].as_str(), Some(ours.to_string().as_str()));
    assert_eq!(clusters(&path), [None; 2]);
    let alone = Server::start(&device);
    assert_eq!(listed(&alone)[0].0, "v");
    stop(alone);
    assert_eq!(clusters(&path), [None; 2], "of no cluster");
    let again = succeed(&["leave-cluster", "--device", &device]);
    assert!(again.contains("belongs to no cluster"), "{again}");
    let c = host(&other, "b", &device);
    assert_eq!(listed(&c)[0].0, "v");
    stop(c);
    assert_eq!(clusters(&path), [Some(theirs); 2]);
    let belongs = format!("belongs to the cluster {theirs}");
    let outcome = not_started(&prod, "b", &device, &[]);
    assert!(outcome.stderr.contains(&belongs), "{outcome:?}");
    refused(&serve(&device, &[]), 1, &belongs, &leave);
}

/// Method: bring a device into the state between the two writes that join it to its cluster, in both orders.
#[test]
fn a_device_that_has_half_joined_is_had_by_its_cluster_only() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let [prod, other] = ["half-prod", "half-other"].map(|cluster| url(etcd.address(0), cluster));
    let (device, path) = (format(&files, "a"), files.path("a"));
    let unmarked = block(&path, 0);
    stop(host(&prod, "a", &device));
    let ours = identity(&etcd, "half-prod");
    let belongs = format!("belongs to the cluster {ours}");
    for place in SUPERBLOCKS {
        put(&path, place, &unmarked);
        refused(&serve(&device, &[]), 1, &belongs, "farflash leave-cluster");
        let outcome = not_started(&other, "b", &device, &[]);
        assert!(outcome.stderr.contains(&belongs), "{outcome:?}");
        let fsck = run(&["fsck", "--device", &device]);
        assert!(fsck.code == Some(1) && fsck.stdout.contains(&belongs), "{fsck:?}");
        stop(host(&prod, "a", &device));
        assert_eq!(clusters(&path), [Some(ours); 2], "it has joined");

        // Nor does the loss of one copy make it anybody's.
        let mut damaged = block(&path, place);
        damaged[70] ^= 1;
        put(&path, place, &damaged);
        refused(&serve(&device, &[]), 1, &belongs, "farflash leave-cluster");
        succeed(&["fsck", "--repair", "--device", &device]);
    }
}

/// A device that comes late is asked for its cluster, and records it from then on, as at the start.
#[test]
fn a_device_that_comes_late_belongs_to_one_cluster() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let [prod, other] = ["late-prod", "late-other"].map(|cluster| url(etcd.address(0), cluster));
    let (one, late) = (format(&files, "one"), files.device("late"));
    let new = format(&files, "new");
    stop(host(&other, "b", &format(&files, "theirs")));
    let theirs = clusters(&files.path("theirs"))[0].unwrap();
    let trouble = |server: &Server| {
        let shown = client(server).server().unwrap().devices.swap_remove(1);
        shown.trouble.unwrap_or_default()
    };
    let a = host_with(&prod, "a", &one, &["--device", &late]);
    // At once: of a part of it could not be told whose it is.
    std::fs::copy(files.path("theirs"), files.path("copy")).unwrap();
    std::fs::rename(files.path("copy"), files.path("late")).unwrap();
    let belongs = format!("belongs to the cluster {theirs}");
    until("it is refused", || trouble(&a).contains(&belongs));
    std::fs::remove_file(files.path("late")).unwrap();
    std::fs::rename(new.trim_start_matches("file:"), files.path("late")).unwrap();
    a.wait_for_log("is there");
    until("all is well", || trouble(&a).is_empty());
    assert_eq!(clusters(&files.path("late")), [Some(identity(&etcd, "late-prod")); 2]);
    stop(a);

    // So it is at a host without a directory.
    std::fs::rename(files.path("late"), files.path("ours")).unwrap();
    let alone = Server::start_with(&format(&files, "two"), &["--device", &late]);
    std::fs::rename(files.path("ours"), files.path("late")).unwrap();
    until("it is refused", || trouble(&alone).contains("belongs to the cluster"));
}

/// CLAIM-8: a directory that was restored has forgotten the host of a device of its cluster. A host that runs
/// records it again; one that starts needs an operator's confirmation.
#[test]
fn a_device_that_a_restored_directory_has_forgotten_is_had_by_word_only() {
    let (mut etcd, files) = (EtcdProcesses::start(1), Files::new());
    let prod = url(etcd.address(0), "restored");
    stop(host(&prod, "b", &format(&files, "b")));
    etcd.back_up();
    let device = format(&files, "a");
    let a = host(&prod, "a", &device);
    a.volume_json(&["create", "v", "--size", "64MiB"]);
    etcd.restore();
    etcd.restart(0);
    a.wait_for_log("the directory had forgotten that the device is this host's");
    let all = [row("v", "a", "online")];
    until("its volume has a record", || {
        crate::etcd::is_there(etcd.address(0), "/farflash/restored/names/v") && listed(&a) == all
    });
    a.signal("KILL");
    a.wait();
    etcd.restore();
    etcd.restart(0);
    etcd.wait(0);
    let forgotten = not_started(&prod, "a", &device, &[]);
    let says = ["has forgotten which host had it", "add --take-over --confirm-down '*'"];
    assert!(says.iter().all(|what| forgotten.stderr.contains(what)), "{forgotten:?}");
    let unsaid = not_started(&prod, "a", &device, &["--take-over", "--confirm-down", "a"]);
    assert!(unsaid.stderr.contains("add --confirm-down '*'"), "{unsaid:?}");
    let word = ["--take-over", "--confirm-down", "*"];
    assert_eq!(listed(&host_with(&prod, "a", &device, &word)), all);
}
