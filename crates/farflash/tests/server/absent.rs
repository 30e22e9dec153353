//! Devices that are absent when a live server starts, and come later.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::file_system::FileSystem;
use crate::support::foreign::{iscsi_login, nbd_go, places};
use crate::support::gate::Gate;
use crate::support::host::{connect, filled, on_core};
use crate::support::loop_device::LoopDevice;
use crate::support::skipped::skipped;
use crate::support::{Files, PATIENCE, Server, own_host, refused, run, succeed, tokens, until};
use client::{Client, ConnectError};
use farflash_client::{Cluster, NewVolume, OpenOptions, Reply, Request};
use serde_json::Value;
use units::Lba;

const SERVE: [&str; 5] = ["serve", "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"];

/// In seconds: what hangs is given up soon, and what is well answers within that also on a busy disk.
const DEVICE_TIMEOUT: &str = "5";

fn serve(devices: &[&str], more: &[&str]) -> Vec<String> {
    let devices = devices.iter().flat_map(|device| ["--device", device]);
    SERVE.into_iter().chain(devices).chain(more.iter().copied()).map(str::to_owned).collect()
}

/// A server that must not start.
fn must_not_serve(devices: &[&str], more: &[&str], code: i32, what: &str, remedy: &str) {
    let words = serve(devices, more);
    refused(&words.iter().map(String::as_str).collect::<Vec<_>>(), code, what, remedy);
}

fn start(devices: &[&str], more: &[&str]) -> Server {
    let others: Vec<&str> = devices[1..].iter().flat_map(|device| ["--device", device]).collect();
    let cores = crate::support::cores(2).or_else(|| crate::support::cores(1)).unwrap();
    Server::start_with(devices[0], &[&others[..], &["--cores", &cores], more].concat())
}

fn format(files: &Files, name: &str) -> String {
    let device = files.device(name);
    succeed(&["format", "--device", &format!("{device},size=128MiB")]);
    device
}

fn create(server: &Server, name: &str, device: &str) -> Value {
    server.volume_json(&["create", name, "--size", "1GiB", "--device", device])
}

fn nqn_and_address(volume: &Value) -> (nvme_wire::Nqn, std::net::SocketAddr) {
    let nqn = nvme_wire::Nqn::new(volume["nqn"].as_str().unwrap()).unwrap();
    (nqn, volume["address"].as_str().unwrap().parse().unwrap())
}

fn write(volume: &Value, value: u64) {
    let (nqn, address) = nqn_and_address(volume);
    on_core(|handle| async move {
        let volume = connect(&handle, address, &nqn).await;
        volume.write(Lba(3), filled(value)).await.unwrap();
    });
}

fn read(volume: &Value) -> u64 {
    let (nqn, address) = nqn_and_address(volume);
    on_core(|handle| async move {
        let volume = connect(&handle, address, &nqn).await;
        let block = volume.read(Lba(3), 1).await.unwrap();
        u64::from_le_bytes(block.as_bytes()[..8].try_into().unwrap())
    })
}

/// Returns true if a host is let in at the first portal, or any other.
fn is_found(server: &Server, volume: &Value) -> bool {
    let (nqn, _) = nqn_and_address(volume);
    server.portals.iter().any(|portal| {
        let (nqn, portal) = (nqn, *portal);
        on_core(|handle| async move {
            let options = tokens::options(&nqn, 7);
            Client::connect(handle.clone(), portal, &nqn, options).await.is_ok()
        })
    })
}

/// Returns true if a host that asks for a volume which is not here is told to retry.
fn is_to_come_again(server: &Server, volume: &Value) -> bool {
    let (nqn, _) = nqn_and_address(volume);
    let portal = server.portals[0];
    on_core(|handle| async move {
        let options = tokens::options(&nqn, 7);
        let refused = Client::connect(handle.clone(), portal, &nqn, options).await.map(drop);
        match refused.unwrap_err() {
            ConnectError::Refused { status, .. }
            | ConnectError::Command(client::Error::Target { status, .. }) => !status.dnr(),
            ConnectError::Authentication(_) => false,
            error => panic!("{error}"),
        }
    })
}

fn device(server: &Server, number: usize) -> Value {
    let shown = control::ApiClient::new(&server.api).unwrap().server().unwrap();
    serde_json::to_value(&shown.devices[number]).unwrap()
}

fn names(server: &Server) -> Vec<String> {
    let list = server.volume_json(&["list"]);
    let volumes = list["volumes"].as_array().unwrap().iter();
    volumes.map(|volume| volume["name"].as_str().unwrap().to_owned()).collect()
}

/// The server says why it does without its second device.
fn says(server: &Server, why: &str) {
    until(why, || device(server, 1)["trouble"].as_str().is_some_and(|it| it.contains(why)));
    assert_eq!(device(server, 1)["health"], "failed");
}

fn is_well(server: &Server) {
    until("the device is served", || {
        let shown = device(server, 1);
        shown["trouble"].is_null() && shown["health"] == "good"
    });
}

/// Method: serve two devices, end the server, take the file of one away, and serve them again. The other one is
/// served with what is on it; whatever needs the absent one is refused, and says so. Then the file comes back.
#[test]
fn a_device_that_is_missing_at_the_start_is_served_when_it_comes() {
    let files = Files::new();
    let (a, b) = (format(&files, "a"), format(&files, "b"));
    let server = start(&[&a, &b], &[]);
    let near = create(&server, "near", &a);
    // As many as to have one on each core.
    let far: Vec<Value> = (0..4).map(|n| create(&server, &format!("far-{n}"), &b)).collect();
    write(&near, 1);
    far.iter().zip(10..).for_each(|(volume, value)| write(volume, value));
    server.signal("KILL");
    server.wait();
    fs::rename(files.path("b"), files.path("gone")).unwrap();

    let server = start(&[&a, &b], &[]);
    says(&server, "b does not exist (see that it is plugged in");
    let status = run(&["status", "--api", &server.api]);
    assert!(status.code == Some(1) && status.stderr.contains("b does not exist"), "{status:?}");
    assert!(succeed(&["device", "list", "--api", &server.api]).contains("failed"));
    assert_eq!(names(&server), ["near"]);
    let near = server.volume_json(&["show", "near"]);
    assert_eq!(read(&near), 1);
    write(&near, 2);
    let is_refused = |words: &[&str], what: &str| {
        let outcome = server.volume(words);
        assert!(outcome.code == Some(1) && outcome.stderr.contains(what), "{words:?}: {outcome:?}");
    };
    let id = far[0]["id"].as_str().unwrap();
    is_refused(&["show", "far-0"], "`far-0` is not here, unless on file:");
    is_refused(&["delete", "--lose-data", id], "is not here, unless on file:");
    let create_new = ["create", "new", "--size", "1GiB"];
    is_refused(&create_new, "which names are taken on file:");
    is_refused(&["create", "far-0", "--size", "1GiB", "--device", &a], "which names are taken");
    let scrub = run(&["scrub", &b, "--api", &server.api]);
    assert!(scrub.code == Some(1) && scrub.stderr.contains("is away: "), "{scrub:?}");
    assert!(!is_found(&server, &far[0]) && is_found(&server, &near));
    let stranger = serde_json::json!({
        "nqn": "nqn.2014-08.org.nvmexpress:uuid:6c7a9f2e-0b1d-4f60-8f3e-2b8a51c0d9aa",
        "address": near["address"],
        // Some token: whose volume is not here cannot be told from one that has another.
        "token": tokens::of(near["nqn"].as_str().unwrap()).unwrap(),
    });
    tokens::keep(&stranger);
    assert!(is_to_come_again(&server, &far[0]) && is_to_come_again(&server, &stranger));
    server.volume_json(&["resize", "near", "--size", "2GiB"]);

    fs::rename(files.path("gone"), files.path("b")).unwrap();
    server.wait_for_log("is there");
    is_well(&server);
    for (volume, value) in far.iter().zip(10..) {
        let shown = server.volume_json(&["show", volume["name"].as_str().unwrap()]);
        assert_eq!((&shown["id"], &shown["device"]), (&volume["id"], &volume["device"]));
        assert_eq!(read(&shown), value);
        write(&shown, value + 10);
    }
    assert_eq!(read(&near), 2);
    assert!(!is_to_come_again(&server, &stranger), "nothing more can come");
    is_refused(&["create", "far-0", "--size", "1GiB", "--device", &a], "exists already");
    create(&server, "new", &b);
    succeed(&["scrub", &b, "--api", &server.api]);
    succeed(&["status", "--api", &server.api]);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));

    let server = start(&[&b, &a], &[]);
    assert_eq!(names(&server), ["far-0", "far-1", "far-2", "far-3", "near", "new"]);
    let shown = server.volume_json(&["show", "far-3"]);
    assert_eq!(read(&shown), 23);
}

/// Method: as for NVMe hosts: a volume of the absent device, and one that there is nowhere, at every core.
#[test]
fn initiators_and_nbd_clients_of_an_absent_device_are_told_to_come_again() {
    const LATER: ([u8; 2], u32) = ([3, 1], 0x8000_0007);
    let files = Files::new();
    let (a, b) = (format(&files, "a"), format(&files, "b"));
    let more = ["--iscsi", "127.0.0.1:0", "--nbd", "127.0.0.1:0"];
    let server = start(&[&a, &b], &more);
    create(&server, "near", &a);
    let far = create(&server, "far", &b);
    server.volume_json(&["restrict", "far", "--nbd-network", "127.0.0.0/8"]);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    fs::rename(files.path("b"), files.path("gone")).unwrap();

    let server = start(&[&a, &b], &more);
    let (portals, doors) = (places(&server, "iSCSI portal open"), places(&server, "NBD open"));
    assert_eq!((portals.len(), doors.len()), (server.portals.len(), server.portals.len()));
    let stranger = "6c7a9f2e-0b1d-4f60-8f3e-2b8a51c0d9aa";
    let is_told = |volume: &str, (login, reply): ([u8; 2], u32)| {
        portals.iter().for_each(|portal| assert_eq!(iscsi_login(*portal, volume), login));
        doors.iter().for_each(|door| assert_eq!(nbd_go(*door, volume), reply));
    };
    let far = far["id"].as_str().unwrap();
    is_told(far, LATER);
    is_told(stranger, LATER);

    fs::rename(files.path("gone"), files.path("b")).unwrap();
    server.wait_for_log("is there");
    is_well(&server);
    is_told(stranger, ([2, 1], 0x8000_0006));
    let found = doors.iter().filter(|door| nbd_go(**door, far) == 3).count();
    assert_eq!(found, 1, "the core of the volume has it");
}

/// A device that comes late, in the place of another, is served only if it could have been at the start; it
/// is left as it is.
#[test]
fn what_comes_late_is_checked_as_at_the_start() {
    let files = Files::new();
    let (a, b) = (format(&files, "a"), format(&files, "b"));
    let server = start(&[&b], &[]);
    create(&server, "one", &b);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    fs::rename(files.path("b"), files.path("gone")).unwrap();
    let server = start(&[&a, &b], &["--format-if-blank", "--create"]);
    let comes = |content: &dyn Fn(PathBuf), why: &str| {
        content(files.path("other"));
        let before = fs::read(files.path("other")).unwrap();
        fs::rename(files.path("other"), files.path("b")).unwrap();
        says(&server, why);
        assert!(fs::read(files.path("b")).unwrap() == before, "{why}");
        fs::remove_file(files.path("b")).unwrap();
        says(&server, "does not exist");
    };
    let blank = |at: PathBuf| fs::File::create(at).unwrap().set_len(128 << 20).unwrap();
    comes(&blank, "is not formatted");
    comes(&|at| fs::write(at, [0xA5; 1 << 20]).unwrap(), "holds something else");
    let copy = |at: PathBuf| assert!(fs::copy(files.path("a"), at).unwrap() > 0);
    comes(&copy, "are one device and its copy");
    let other = Server::start(&files.device("gone"));
    let link = || std::os::unix::fs::symlink(files.path("gone"), files.path("b")).unwrap();
    link();
    says(&server, "is in use");
    other.signal("TERM");
    assert_eq!(other.wait(), Some(0));
    server.wait_for_log("is there");
    is_well(&server);
    assert_eq!(names(&server), ["one"]);
}

/// A name that both devices have leads to one of the volumes, and each is reached by its id.
#[test]
fn two_volumes_of_one_name_are_both_served_when_the_second_comes_late() {
    let files = Files::new();
    let (a, b) = (format(&files, "a"), format(&files, "b"));
    let made = [&a, &b].map(|device| {
        let server = start(&[device], &[]);
        let made = create(&server, "twin", device);
        write(&made, if device == &a { 1 } else { 2 });
        server.signal("TERM");
        assert_eq!(server.wait(), Some(0));
        made
    });
    fs::rename(files.path("b"), files.path("gone")).unwrap();
    let server = start(&[&a, &b], &[]);
    fs::rename(files.path("gone"), files.path("b")).unwrap();
    server.wait_for_log("two volumes have one name");
    is_well(&server);
    for (volume, value) in made.iter().zip([1, 2]) {
        let shown = server.volume_json(&["show", volume["id"].as_str().unwrap()]);
        assert_eq!(read(&shown), value);
    }
}

/// A device that cannot be read is absent, not refused. Method: a loop device whose file has become shorter.
#[test]
fn a_device_that_cannot_be_read_is_served_when_it_can() {
    let files = Files::new();
    let (a, b) = (format(&files, "a"), files.device("b"));
    let drives = ["whole", "sick"].map(|name| LoopDevice::new(&files, name, 128 << 20));
    let [Some(whole), Some(sick)] = drives else {
        return skipped("no loop device can be made here");
    };
    // At once: a server that looks in between must not find a part.
    let point_at = |drive: &LoopDevice| {
        std::os::unix::fs::symlink(drive.path(), files.path("next")).unwrap();
        fs::rename(files.path("next"), files.path("b")).unwrap();
    };
    point_at(&whole);
    succeed(&["format", "--device", &b]);
    let server = start(&[&a, &b], &[]);
    create(&server, "near", &a);
    let far = create(&server, "far", &b);
    write(&far, 7);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    fs::OpenOptions::new().write(true).open(&sick.image).unwrap().set_len(0).unwrap();
    sick.forget_what_was_read();
    point_at(&sick);

    let server = start(&[&a, &b], &[]);
    says(&server, "cannot be read");
    assert_eq!(names(&server), ["near"]);
    must_not_serve(&[&b], &[], 1, "cannot be read", "dmesg");
    point_at(&whole);
    server.wait_for_log("is there");
    is_well(&server);
    assert_eq!(read(&server.volume_json(&["show", "far"])), 7);
}

/// A device that hangs when it is opened holds up neither the start nor the other one. Method: another
/// process has a lease on the file, and does not give it back for as long as the kernel lets it.
#[test]
fn a_device_that_hangs_when_it_is_opened_is_served_when_it_answers() {
    let files = Files::new();
    let (a, b) = (format(&files, "a"), format(&files, "b"));
    let server = start(&[&a, &b], &[]);
    create(&server, "near", &a);
    write(&create(&server, "far", &b), 7);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    // F_SETLEASE and F_WRLCK.
    let script = "$SIG{IO} = 'IGNORE'; open(my $file, '+<', $ARGV[0]) or die; \
                  fcntl($file, 1024, 1) or die $!; $| = 1; print \"held\\n\"; sleep";
    let mut command = Command::new("perl");
    let holder = command.args(["-e", script]).arg(files.path("b")).stdout(Stdio::piped());
    let mut holder = Killed(holder.spawn().unwrap());
    let mut said = String::new();
    BufReader::new(holder.0.stdout.take().unwrap()).read_line(&mut said).unwrap();
    if said != "held\n" {
        eprintln!("no file can be leased here");
        return;
    }
    let server = start(&[&a, &b], &["--device-timeout", DEVICE_TIMEOUT]);
    says(&server, "b does not answer");
    assert_eq!(names(&server), ["near"]);
    drop(holder);
    server.wait_for_log("is there");
    is_well(&server);
    assert_eq!(read(&server.volume_json(&["show", "far"])), 7);
}

/// A device that can be read and hangs when it is written keeps the other from nothing, and is served when it answers.
#[test]
fn a_device_that_hangs_at_the_start_is_served_when_it_answers() {
    let files = Files::new();
    let Some(file_system) = FileSystem::new(&files.path("")) else {
        return skipped("no file system can be mounted here");
    };
    let (a, b) = (format(&files, "a"), format(&files, "mount/b"));
    let server = start(&[&a, &b], &[]);
    create(&server, "near", &a);
    write(&create(&server, "far", &b), 7);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let hanging = file_system.hang();
    let _limit = file_system.hang_at_most(PATIENCE);
    let server = start(&[&a, &b], &["--device-timeout", DEVICE_TIMEOUT]);
    let shown = device(&server, 1);
    let trouble = shown["trouble"].as_str().unwrap();
    // What was asked of it is still under way.
    let whys = ["does not answer", "no longer answers", "is in use"];
    assert!(whys.iter().any(|why| trouble.contains(why)), "{shown}");
    assert_eq!((&shown["health"], names(&server)), (&"failed".into(), vec!["near".to_owned()]));
    let near = server.volume_json(&["show", "near"]);
    write(&near, 1);
    drop(hanging);
    server.wait_for_log("is there");
    is_well(&server);
    assert_eq!((read(&near), read(&server.volume_json(&["show", "far"]))), (1, 7));
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
}

/// A mistake is still refused beside a device that is absent, and nothing is touched.
#[test]
fn a_mistake_is_refused_also_beside_a_device_that_is_absent() {
    let files = Files::new();
    let a = format(&files, "a");
    let (lost, deep) = (files.device("lost"), files.device("no/such/lost"));
    fs::write(files.path("junk"), [0xA5; 1 << 20]).unwrap();
    fs::File::create(files.path("blank")).unwrap().set_len(128 << 20).unwrap();
    let (junk, blank) = (files.device("junk"), files.device("blank"));
    let before = fs::read(files.path("a")).unwrap();
    must_not_serve(&[&a, &lost, &junk], &[], 1, "junk holds something else", "How to give up");
    must_not_serve(&[&a, &lost, &blank], &[], 1, "is not formatted", "farflash format");
    must_not_serve(&[&a, &deep, &deep], &[], 2, "is given twice", "--device once");
    // Where nothing else is, or something is set up for the first time, it is missing.
    must_not_serve(&[&lost, &deep], &[], 1, "lost does not exist", "farflash format");
    let format = ["--format-if-blank", "--create"];
    must_not_serve(&[&a, &lost, &blank], &format, 1, "lost does not exist", "farflash format");
    assert!(fs::read(files.path("blank")).unwrap().iter().all(|byte| *byte == 0));
    assert!(fs::read(files.path("a")).unwrap() == before);
    let held = Server::start(&a);
    let c = self::format(&files, "c");
    must_not_serve(&[&a, &c, &lost], &[], 1, "is in use", "stop the other server");
    drop(held);
}

/// A process that ends with this.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// With authentication a volume of an absent device is refused as a wrong token is. A host that has it open
/// goes on looking, and so seldom that this host is not rate-limited: its other volumes are opened as ever.
#[test]
fn an_open_volume_is_sought_while_its_device_is_absent() {
    let files = Files::new();
    let (a, b) = (format(&files, "a"), format(&files, "b"));
    let more = ["--device", b.as_str(), "--auth", "on"];
    let anywhere = format!("{}:0", own_host());
    let server = Server::start_on(&a, &anywhere, &anywhere, &more);
    let (portal, api) = (server.portals[0].to_string(), server.api.trim_start_matches("http://"));
    let (api, gate) = (api.to_owned(), Gate::start(api));
    let cluster = Cluster::new([&gate.url], None).unwrap();
    let open = |name: &str, device: &str| {
        let new = NewVolume { device: Some(device.to_owned()), ..NewVolume::new(name, 16 << 20) };
        let token = Some(cluster.create(&new).unwrap().tokens.token);
        let options = OpenOptions { token, ..OpenOptions::default() };
        (cluster.open(name, &options).unwrap(), options)
    };
    let (near, options) = open("near", &a);
    let (far, _) = open("far", &b);
    far.write_at(&[7; 4096], 0).unwrap();
    server.signal("KILL");
    server.wait();
    let mut waiting = Some(far.start(Request::Read { offset: 0, len: 4096 }));
    fs::rename(files.path("b"), files.path("gone")).unwrap();
    let _server = Server::start_on(&a, &portal, &api, &more);
    let asked = gate.passed();
    until("it is asked for longer than a wrong token is tried", || {
        let waited = waiting.take().unwrap().wait_timeout(Duration::ZERO);
        waiting = Some(waited.expect_err("it is not given up"));
        gate.passed() > asked + 12
    });
    cluster.open("near", &options).unwrap().close().unwrap();
    near.write_at(&[7; 4096], 0).unwrap();
    fs::rename(files.path("gone"), files.path("b")).unwrap();
    let read = waiting.unwrap().wait_timeout(PATIENCE).ok().expect("an outcome in time");
    let Ok(Reply::Data(data)) = read else { panic!("{read:?}") };
    assert_eq!(data.to_vec(), [7; 4096]);
}
