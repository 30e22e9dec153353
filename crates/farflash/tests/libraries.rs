//! The Rust library for ordinary threads, against a real server.

#![allow(missing_docs, unreachable_pub, dead_code)]

mod support;

use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use farflash_client::{
    BlockData, Blocks, BlocksMut, ChangeAuth, ChangeRestrictions, Cluster, ClusterOptions,
    CreatedVolume, Data, DeviceHealth, Error, ErrorKind, Landing, NewVolume, OpenOptions, Reply,
    Request, SENDS_MAX, Slo, Swap, Volume, VolumeFile,
};
use support::gate::Gate;
use support::proxy::Proxy;
use support::{Files, Server};

const BLOCK: usize = 4096;
const MIB: u64 = 1 << 20;

fn api(server: &Server) -> String {
    format!("http://{}", server.api.trim_start_matches("http://"))
}

fn cluster(server: &Server) -> Cluster {
    Cluster::new([api(server)], None).unwrap()
}

fn with_token(token: &str) -> OpenOptions {
    OpenOptions { token: Some(token.to_owned()), ..OpenOptions::default() }
}

/// An open volume of a server without authentication.
fn opened(cluster: &Cluster, name: &str, size: u64) -> Volume {
    cluster.create(&NewVolume::new(name, size)).unwrap();
    cluster.open(name, &OpenOptions::default()).unwrap()
}

/// An open volume whose blocks have metadata.
fn opened_with_metadata(cluster: &Cluster, name: &str, size: u64, metadata_size: u32) -> Volume {
    cluster.create(&NewVolume { metadata_size, ..NewVolume::new(name, size) }).unwrap();
    cluster.open(name, &OpenOptions::default()).unwrap()
}

/// Data and metadata of `count` blocks, all different.
fn filled(count: usize, metadata_size: u32, stamp: u8) -> (Vec<u8>, Vec<u8>) {
    let byte = |at: usize| ((at * 31) >> 7) as u8 ^ stamp;
    let metadata = (0..count * metadata_size as usize).map(|at| byte(at * 67).wrapping_add(1));
    ((0..count * BLOCK).map(byte).collect(), metadata.collect())
}

fn blocks((data, metadata): &(Vec<u8>, Vec<u8>)) -> Blocks<'_> {
    Blocks { data, metadata }
}

#[track_caller]
fn holds(volume: &Volume, offset: u64, expected: &(Vec<u8>, Vec<u8>)) {
    // What is not read is not what was expected.
    let (mut data, mut metadata) = (vec![0x5a; expected.0.len()], vec![0x5a; expected.1.len()]);
    volume.read_ex(BlocksMut { data: &mut data, metadata: &mut metadata }, offset).unwrap();
    assert!(data == expected.0 && metadata == expected.1);
}

#[track_caller]
fn fails<T: std::fmt::Debug>(outcome: Result<T, Error>, kind: ErrorKind, says: &str) {
    let error = outcome.expect_err("a refusal");
    assert_eq!(error.kind(), kind, "{error:?}");
    assert!(error.to_string().contains(says), "{error}");
}

#[test]
fn a_volume_lives_through_everything_that_the_interface_has() {
    let server = Server::start_with("mem:256MiB", &["--auth", "on"]);
    let cluster = cluster(&server);
    let created = cluster.create(&NewVolume::new("db", 64 * MIB)).unwrap();
    assert_eq!(cluster.list().unwrap().len(), 1);
    let token = created.tokens.token.as_str();
    let id = created.volume.id.to_string();
    let options = OpenOptions {
        controller_token: Some(created.tokens.controller_token.clone()),
        ..with_token(token)
    };
    let volume = cluster.open(&id, &options).unwrap();
    let properties = volume.properties().unwrap();
    assert_eq!(properties.size_bytes, 64 * MIB);
    assert_eq!(properties.uuid(), Some(created.volume.id));
    assert_eq!(properties.address, created.volume.address);
    assert!(properties.atomic_write_bytes >= MIB && properties.block_size == 4096);

    // Longer than one request, so that it is cut into several.
    let data: Vec<u8> = (0..9 * MIB + 8192).map(|at| ((at * 31) >> 7) as u8).collect();
    volume.write_at(&data, 4096).unwrap();
    let mut back = vec![0; data.len()];
    volume.read_at(&mut back, 4096).unwrap();
    assert!(back == data);
    assert!(volume.compare(&data, 4096).unwrap());
    assert!(!volume.compare(&data[..BLOCK], 0).unwrap());

    let (old, mut other) = (&data[..2 * BLOCK], data[..2 * BLOCK].to_vec());
    assert_eq!(volume.compare_and_swap(4096, old, &vec![7; 2 * BLOCK]).unwrap(), Swap::Done);
    other.fill(7);
    other[5000] = 8;
    let swapped = volume.compare_and_swap(4096, &other, old).unwrap();
    assert_eq!(swapped, Swap::Differs { offset_bytes: 5000 });

    volume.write_zeroes(4096, BLOCK as u64).unwrap();
    volume.deallocate(8192, BLOCK as u64).unwrap();
    volume.flush().unwrap();
    volume.read_at(&mut back[..2 * BLOCK], 4096).unwrap();
    assert!(back[..2 * BLOCK].iter().all(|byte| *byte == 0));

    for size in [96, 100, 112, 128].map(|mib| mib * MIB) {
        cluster.resize("db", size).unwrap();
        volume.write_at(&[1; BLOCK], size - 4096).expect("it has grown");
        fails(volume.write_at(&[1; BLOCK], size), ErrorKind::InvalidArgument, "not all within");
    }

    let tokens = cluster.change_auth("db", &ChangeAuth::default()).unwrap();
    fails(cluster.open("db", &options), ErrorKind::PermissionDenied, "check the volume's token");
    assert!(volume.flush().is_ok(), "open ones stay open");
    let other_host = ChangeRestrictions {
        networks: Some(vec!["192.0.2.0/24".to_owned()]),
        ..ChangeRestrictions::default()
    };
    volume.close().unwrap();
    fails(volume.flush(), ErrorKind::Closed, "closed");
    cluster.restrict("db", &other_host).unwrap();
    let options = with_token(&tokens.token);
    assert!(cluster.open("db", &options).is_err());
    let all = ChangeRestrictions { networks: Some(Vec::new()), ..ChangeRestrictions::default() };
    cluster.restrict("db", &all).unwrap();
    let place = format!("tcp://{}/{}", created.volume.address, created.volume.nqn);
    farflash_client::open(&place, &options).unwrap().close().unwrap();
    cluster.delete("db").unwrap();
    fails(cluster.show("db"), ErrorKind::NotFound, "no volume `db`");
}

/// What the API says of a volume's place its target says, too, and what is not known of a drive neither.
#[test]
fn a_volume_says_with_what_it_may_fail() {
    let labels = ["--host-name", "flash-1", "--label", "rack=r1", "--label", "row=7"];
    let server = Server::start_with("mem:256MiB", &labels);
    let cluster = cluster(&server);
    let volume = opened(&cluster, "v", MIB);
    let record = cluster.show("v").unwrap();
    let said = volume.failure_domain().unwrap().expect("a farflash server says it");
    assert_eq!((said.host.as_str(), said.labels["rack"].as_str()), ("flash-1", "r1"));
    assert_eq!((&said.labels, &said.host), (&record.labels, &record.host));
    assert_eq!((said.core, &said.device), (record.portal.core, &record.device));
    assert_eq!(said.device_id, *record.drive.id.as_bytes());
    assert!(!record.drive.id.is_nil() && said.host_id != [0; 16]);
    assert_eq!((said.model.as_str(), said.serial.as_str()), ("", ""), "memory is no drive");
    assert_eq!((record.drive.model, record.drive.serial), (None, None));
    assert_eq!(said.health, DeviceHealth::Good);
    assert_eq!(record.drive.health.as_deref(), Some("good"));
    let shown = server.volume(&["show", "v"]).stdout;
    assert!(shown.contains("drive      good\n") && shown.contains("rack=r1"), "{shown}");
}

/// Where a new volume goes, what it is promised and whose it is, by all that there is to say about it.
#[test]
fn a_volume_goes_where_it_was_told() {
    let labels = ["--host-name", "flash-1", "--label", "rack=r1"];
    let smaller = "mem:128MiB,reads-per-second=10000,writes-per-second=5000";
    let server = Server::start_with("mem:256MiB", &[&labels[..], &["--device", smaller]].concat());
    let cluster = cluster(&server);
    let new = |name: &str, on: &str, device: &str| NewVolume {
        on: Some(on.to_owned()),
        device: Some(device.to_owned()),
        ..NewVolume::new(name, MIB)
    };
    let invalid = ErrorKind::InvalidArgument;
    fails(cluster.create(&new("v", "rack=r2", "mem:256MiB")), invalid, "rack=r2");
    fails(cluster.create(&new("v", "rack=r1", "mem:1MiB")), invalid, "mem:1MiB");
    for (name, on, device) in [("a", "rack=r1", "mem:256MiB"), ("b", "flash-1", "mem:128MiB")] {
        cluster.create(&new(name, on, device)).unwrap();
        let volume = cluster.open(name, &OpenOptions::default()).unwrap();
        let said = volume.failure_domain().unwrap().expect("a farflash server says it");
        assert_eq!((said.host.as_str(), said.device.as_str()), ("flash-1", device));
    }
    let slo = Slo::Rate { reads_per_second: 6000, writes_per_second: 10 };
    let promised = NewVolume { slo: Some(slo), ..new("c", "flash-1", "mem:128MiB") };
    assert_eq!(cluster.create(&promised).unwrap().volume.slo, slo);
    assert_eq!(cluster.set_slo("c", Slo::Share(7)).unwrap().slo, Slo::Share(7));
}

/// What an example prints, which cargo builds with the tests of all crates; it ends well.
fn said_by_example(
    (package, name): (&str, &str),
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> String {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_farflash"))
        .with_file_name(format!("examples/{name}"));
    let mut command = std::process::Command::new(&program);
    let output = command.args(arguments).envs(environment.iter().copied()).output();
    let outcome = support::Outcome::from(output.unwrap_or_else(|error| {
        let hint = format!("build it with `cargo build -p {package} --example {name}`");
        panic!("{}: {error}; {hint}", program.display())
    }));
    assert_eq!(outcome.code, Some(0), "{arguments:?}: {outcome:?}");
    outcome.stdout
}

#[test]
fn the_asynchronous_example_does_what_it_says() {
    let server = Server::start("mem:256MiB");
    let volume = cluster(&server).create(&NewVolume::new("v", MIB)).unwrap().volume;
    let (address, nqn) = (volume.address.to_string(), volume.nqn.to_string());
    let said = |arguments: &[&str]| said_by_example(("client", "volume"), arguments, &[]);
    let offered = said(&[&address]);
    assert!(offered.contains(&format!("{address}  {nqn}\n")), "{offered}");
    let tour = said(&[&address, &nqn]);
    assert!(tour.starts_with("256 blocks of 4096 bytes; "), "{tour}");
    assert!(tour.contains(" commands in ") && tour.ends_with(" chunks\n"), "{tour}");
}

/// What an example of the library for ordinary threads says of a new volume, named `v`: by name and token, both from the
/// environment.
fn said_of_a_volume(example: &str) -> (Server, Cluster, CreatedVolume, String) {
    let server = Server::start_with("mem:256MiB", &["--auth", "on"]);
    let cluster = cluster(&server);
    let created = cluster.create(&NewVolume::new("v", MIB)).unwrap();
    let (api, token) = (api(&server), created.tokens.token.as_str());
    let environment = [("FARFLASH_API", api.as_str()), ("FARFLASH_TOKEN", token)];
    let said = said_by_example(("farflash-client", example), &["v"], &environment);
    (server, cluster, created, said)
}

/// What it leaves on the volume is what it said.
#[test]
fn the_example_for_ordinary_threads_does_what_it_says() {
    let (_server, cluster, created, said) = said_of_a_volume("counter");
    let lines = [
        format!("v: 1048576 bytes at {}", created.volume.address),
        "reads what was written: true".to_owned(),
        "4 threads counted to 64".to_owned(),
    ];
    assert_eq!(said, lines.join("\n") + "\n");
    let mut blocks = vec![0xff; 2 * BLOCK];
    cluster.open("v", &with_token(&created.tokens.token)).unwrap().read_at(&mut blocks, 0).unwrap();
    let mut left = vec![0; 2 * BLOCK];
    (left[0], left[BLOCK]) = (b'v', 64);
    assert!(blocks == left);
}

/// By the certificate that it has made. One that is not believed is told nothing, and the next one asked.
#[test]
fn a_server_is_believed_by_its_certificate() {
    let files = Files::new();
    let start = |name: &str| {
        let tls = files.path(name);
        Server::start_with("mem:256MiB", &["--api-tls", tls.to_str().unwrap()])
    };
    let (server, other) = (start("own"), start("other"));
    assert!(server.api.starts_with("https://") && other.api.starts_with("https://"));
    let trusting = |servers: &[&Server], ca: &str| {
        let urls = servers.iter().map(|server| server.api.clone()).collect();
        let api_ca = Some(files.path(ca));
        Cluster::with(&ClusterOptions { urls, api_ca, ..ClusterOptions::default() })
    };
    let foreign = trusting(&[&server], "other/certificate.pem").unwrap();
    let says = "not trusted by its certificate: invalid peer certificate";
    fails(foreign.create(&NewVolume::new("v", MIB)), ErrorKind::Untrusted, says);
    fails(foreign.open("v", &OpenOptions::default()), ErrorKind::Untrusted, says);
    fails(Cluster::new([&server.api], None).unwrap().list(), ErrorKind::Untrusted, says);
    let invalid = ErrorKind::InvalidArgument;
    fails(trusting(&[&server], "nowhere.pem"), invalid, "nowhere.pem");
    fails(trusting(&[&server], "own/key.pem"), invalid, "no certificate in PEM");

    let cluster = trusting(&[&other, &server], "own/certificate.pem").unwrap();
    assert!(cluster.list().unwrap().is_empty());
    let volume = opened(&cluster, "v", MIB);
    volume.write_at(&[7; BLOCK], 0).unwrap();
    assert!(volume.compare(&[7; BLOCK], 0).unwrap());
    cluster.delete("v").unwrap();
    assert!(trusting(&[&other], "other/certificate.pem").unwrap().list().unwrap().is_empty());
}

/// Up to the atomic write size, which the refusal names; of a longer one nothing is written, not even of one that a
/// plain write does in several requests.
#[test]
fn a_transactional_write_is_whole_or_refused() {
    let server = Server::start("mem:256MiB");
    let cluster = cluster(&server);
    let volume = opened(&cluster, "v", 64 * MIB);
    let limit = volume.opened().atomic_write_bytes;
    let data: Vec<u8> = (0..limit).map(|at| ((at * 31) >> 7) as u8).collect();
    volume.write_tx(&data, 4096).unwrap();
    assert!(volume.compare(&data, 4096).unwrap());
    let invalid = ErrorKind::InvalidArgument;
    for len in [limit + 4096, 4 * MIB + 4096, 16 * MIB] {
        let long = vec![7; usize::try_from(len).unwrap()];
        let refused = volume.write_tx(&long, 4096).expect_err("a refusal");
        let Error::TooLarge { len: given, limit: named } = refused else { panic!("{refused}") };
        assert_eq!((given, named), (len, limit));
        let asked = Request::WriteTx { offset: 4096, data: Data::lent(long) };
        let says = format!("{len} bytes at once are more than the limit of {limit}, the volume's");
        fails(volume.start(asked).wait(), invalid, &says);
    }
    let mut behind = vec![7; data.len() + BLOCK];
    volume.read_at(&mut behind, 4096).unwrap();
    assert!(behind[..data.len()] == data && behind[data.len()..] == [0; BLOCK]);
    let lent = Request::WriteTx { offset: 0, data: Data::lent(vec![8; BLOCK]) };
    assert!(matches!(volume.start(lent).wait().unwrap(), Reply::Done));
    assert!(volume.compare(&[8; BLOCK], 0).unwrap());

    volume.write_tx(&[], 0).unwrap();
    fails(volume.write_tx(&[0; 5], 0), invalid, "5 bytes at offset 0 are not whole blocks");
    fails(volume.write_tx(&[0; BLOCK], 64 * MIB), invalid, "not all within the volume");
    let with = opened_with_metadata(&cluster, "with", MIB, 8);
    fails(with.write_tx(&[0; BLOCK], 0), invalid, "8 bytes of metadata each");
}

/// The same for the one that awaits.
#[test]
fn the_example_that_awaits_does_what_it_says() {
    let (_server, cluster, created, said) = said_of_a_volume("awaited");
    let lines = [
        format!("v: 1048576 bytes at {}", created.volume.address),
        "64 of 64 blocks read what was written".to_owned(),
    ];
    assert_eq!(said, lines.join("\n") + "\n");
    let mut block = [0; BLOCK];
    let volume = cluster.open("v", &with_token(&created.tokens.token)).unwrap();
    volume.read_at(&mut block, 63 * BLOCK as u64).unwrap();
    assert_eq!(block, [63; BLOCK]);
}

#[test]
fn each_mistake_has_its_error() {
    let server = Server::start("mem:256MiB");
    let cluster = cluster(&server);
    let volume = opened(&cluster, "v", MIB);
    let invalid = ErrorKind::InvalidArgument;
    fails(cluster.create(&NewVolume::new("V", MIB)), invalid, "a volume name");
    fails(cluster.create(&NewVolume::new("w", 5)), invalid, "multiple of 4096");
    fails(cluster.create(&NewVolume::new("v", MIB)), ErrorKind::AlreadyExists, "");
    fails(cluster.open("w", &OpenOptions::default()), ErrorKind::NotFound, "no volume `w`");
    fails(cluster.open("v", &with_token("x")), invalid, "no token");
    fails(Cluster::new(["ftp://x"], None), invalid, "no API address");
    let nowhere = Cluster::new(["http://127.0.0.1:1"], None).unwrap();
    fails(nowhere.show("v"), ErrorKind::Unreachable, "cannot be reached");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in silent.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 4096]);
        }
    });
    let silent = Cluster::new([format!("http://{address}")], None).unwrap();
    fails(silent.show("v"), ErrorKind::Unreachable, "cannot be reached");
    let (unknown, says) = (ErrorKind::OutcomeUnknown, "whether the change was made is not known");
    fails(silent.create(&NewVolume::new("w", MIB)), unknown, says);
    fails(silent.delete("v"), unknown, says);
    fails(nowhere.delete("v"), ErrorKind::Unreachable, "cannot be reached");
    let nobody = Cluster::new(Vec::<String>::new(), None).unwrap();
    fails(nobody.show("v"), invalid, "no API address is given");
    fails(farflash_client::open("udp://x", &OpenOptions::default()), invalid, "no volume");
    fails(volume.read_at(&mut [0; 5], 0), invalid, "5 bytes at offset 0 are not whole blocks");
    fails(volume.write_at(&[0; BLOCK], 1), invalid, "offset 1");
    fails(volume.write_at(&[0; BLOCK], MIB), invalid, "not all within the volume");
    fails(volume.read_at(&mut [0; BLOCK], u64::MAX - 4095), invalid, "not all within");
    fails(volume.deallocate(0, 2 * MIB), invalid, "not all within");
    fails(volume.compare_and_swap(0, &[0; BLOCK], &[]), invalid, "4096 bytes cannot be replaced");
    let large = vec![0; 2 * usize::try_from(volume.opened().atomic_write_bytes).unwrap()];
    let larger = opened(&cluster, "larger", 4 * large.len() as u64);
    fails(larger.compare_and_swap(0, &large, &large), invalid, "more than the limit");
    volume.read_at(&mut [], 0).unwrap();

    // A callback runs on the thread that carries requests out: it must not wait for itself.
    let (sender, receiver) = mpsc::channel();
    let own = volume.clone();
    volume.submit(Request::Flush, move |_| sender.send(own.flush()).unwrap());
    fails(receiver.recv().unwrap(), invalid, "a callback cannot wait");
    let (sender, receiver) = mpsc::channel();
    let (own, id) = (cluster.clone(), volume.opened().uuid().unwrap().to_string());
    volume.submit(Request::Flush, move |_| {
        let mut tries = vec![
            own.open("v", &OpenOptions::default()).map(drop),
            own.create(&NewVolume::new("within", MIB)).map(drop),
            own.resize("v", 2 * MIB).map(drop),
            own.change_auth("v", &ChangeAuth::default()).map(drop),
            own.restrict("v", &ChangeRestrictions::default()).map(drop),
            own.delete("v"),
        ];
        tries.push(own.show(&id).map(drop));
        sender.send(tries).unwrap();
    });
    for tried in receiver.recv().unwrap() {
        fails(tried, invalid, "a callback cannot wait");
    }
    let left: Vec<_> = cluster.list().unwrap().into_iter().map(|left| left.name).collect();
    assert_eq!(left, ["larger", "v"], "nothing was done");
    cluster.delete("v").unwrap();
    fails(volume.flush(), ErrorKind::NotFound, "no volume");
}

/// One block, more than goes to the server at once, and more than is done at once; compared and swapped up to
/// the limit; made zeroes.
#[test]
fn blocks_and_their_metadata_are_one() {
    let server = Server::start("mem:256MiB");
    let cluster = cluster(&server);
    for size in [8, 16, 64] {
        let volume = opened_with_metadata(&cluster, &format!("v{size}"), 16 * MIB, size);
        let properties = volume.properties().unwrap();
        assert_eq!((properties.metadata_size, volume.metadata_size()), (size, size));
        assert_eq!(cluster.show(&format!("v{size}")).unwrap().metadata_bytes, size);
        assert!(properties.transfer_bytes_max < 4 * MIB, "else nothing is cut");
        for (block, count) in [(0, 1), (1, 300), (301, 2051)] {
            let (written, offset) = (filled(count, size, count as u8), block * BLOCK as u64);
            volume.write_ex(blocks(&written), offset).unwrap();
            holds(&volume, offset, &written);
            assert!(volume.compare_ex(blocks(&written), offset).unwrap());
            let mut other = written.clone();
            *other.1.last_mut().unwrap() ^= 1;
            assert!(!volume.compare_ex(blocks(&other), offset).unwrap());
        }

        let most = usize::try_from(properties.atomic_write_bytes).unwrap() / BLOCK;
        let (old, new) = (filled(most, size, 1), filled(most, size, 2));
        volume.write_ex(blocks(&old), 4096).unwrap();
        let mut other = old.clone();
        other.1[2 * size as usize + 5] ^= 1;
        let swapped = volume.compare_and_swap_ex(4096, blocks(&other), blocks(&new)).unwrap();
        let offset_bytes = 2 * (4096 + u64::from(size)) + 4096 + 5;
        assert_eq!(swapped, Swap::Differs { offset_bytes });
        holds(&volume, 4096, &old);
        let swapped = volume.compare_and_swap_ex(4096, blocks(&old), blocks(&new)).unwrap();
        assert_eq!(swapped, Swap::Done);
        holds(&volume, 4096, &new);
        let larger = filled(most + 1, size, 3);
        let swapped = volume.compare_and_swap_ex(4096, blocks(&larger), blocks(&larger));
        fails(swapped, ErrorKind::InvalidArgument, "more than the limit");

        volume.write_zeroes(4096, 2 * BLOCK as u64).unwrap();
        volume.deallocate(3 * 4096, BLOCK as u64).unwrap();
        volume.flush().unwrap();
        holds(&volume, 4096, &(vec![0; 3 * BLOCK], vec![0; 3 * size as usize]));
    }
}

/// As `a_transactional_write_is_whole_or_refused`, of blocks with their metadata.
#[test]
fn a_transactional_write_of_blocks_is_whole_or_refused() {
    let server = Server::start("mem:256MiB");
    let cluster = cluster(&server);
    let invalid = ErrorKind::InvalidArgument;
    for size in [8, 16, 64] {
        let volume = opened_with_metadata(&cluster, &format!("v{size}"), 16 * MIB, size);
        let limit = volume.opened().atomic_write_bytes;
        let most = usize::try_from(limit).unwrap() / BLOCK;
        let written = filled(most, size, 1);
        volume.write_tx_ex(blocks(&written), 4096).unwrap();
        for count in [most + 1, 2 * most + 1] {
            let long = filled(count, size, 2);
            let len = (count * BLOCK) as u64;
            let refused = volume.write_tx_ex(blocks(&long), 4096).expect_err("a refusal");
            let Error::TooLarge { len: given, limit: named } = refused else { panic!("{refused}") };
            assert_eq!((given, named), (len, limit));
            let asked = Request::WriteTxEx { offset: 4096, blocks: blocks(&long).into() };
            let says = format!("{len} bytes at once are more than the limit of {limit}");
            fails(volume.start(asked).wait(), invalid, &says);
        }
        holds(&volume, 4096, &written);
        let behind = 4096 + limit;
        holds(&volume, behind, &(vec![0; BLOCK], vec![0; size as usize]));
        let one = filled(1, size, 3);
        let asked = Request::WriteTxEx { offset: 0, blocks: blocks(&one).into() };
        assert!(matches!(volume.start(asked).wait().unwrap(), Reply::Done));
        holds(&volume, 0, &one);

        let nothing = Blocks { data: &[], metadata: &[] };
        volume.write_tx_ex(nothing, 0).unwrap();
        let short = Blocks { metadata: &one.1[1..], ..blocks(&one) };
        fails(volume.write_tx_ex(short, 0), invalid, "bytes of metadata were given");
        fails(volume.write_tx_ex(blocks(&one), 1), invalid, "offset 1");
        fails(volume.write_tx_ex(blocks(&one), 16 * MIB), invalid, "not all within");
    }
    let without = opened(&cluster, "without", MIB);
    fails(without.write_tx_ex(blocks(&filled(1, 8, 1)), 0), invalid, "have no metadata");
    without.write_tx_ex(Blocks { data: &[1; BLOCK], metadata: &[] }, 0).unwrap();
    holds(&without, 0, &(vec![1; BLOCK], Vec::new()));
}

/// On blocks with metadata nothing is done without it, and it has its length; blocks without have none.
#[test]
fn each_mistake_about_metadata_has_its_error() {
    let server = Server::start("mem:256MiB");
    let cluster = cluster(&server);
    let volume = opened_with_metadata(&cluster, "with", MIB, 8);
    let (invalid, one) = (ErrorKind::InvalidArgument, [1; BLOCK]);
    let left_out = "8 bytes of metadata each";
    fails(volume.read_at(&mut [0; BLOCK], 0), invalid, left_out);
    fails(volume.read_at(&mut [], 0), invalid, left_out);
    fails(volume.write_at(&one, 0), invalid, left_out);
    fails(volume.compare(&one, 0), invalid, left_out);
    fails(volume.compare_and_swap(0, &one, &one), invalid, left_out);
    fails(volume.start(Request::Read { offset: 0, len: BLOCK }).wait(), invalid, left_out);
    let mut file = VolumeFile::new(volume.clone());
    assert!(file.write(b"x").unwrap_err().to_string().contains(left_out));

    let short = Blocks { data: &one, metadata: &[0; 7] };
    let says = "7 bytes of metadata were given, but the blocks of 4096 bytes of data have 8";
    fails(volume.write_ex(short, 0), invalid, says);
    fails(volume.compare_ex(short, 0), invalid, says);
    let whole = Blocks { data: &one, metadata: &[0; 8] };
    fails(volume.compare_and_swap_ex(0, short, whole), invalid, says);
    fails(volume.compare_and_swap_ex(0, whole, short), invalid, says);
    let short_room = BlocksMut { data: &mut [0; BLOCK], metadata: &mut [0; 7] };
    fails(volume.read_ex(short_room, 0), invalid, says);
    let nothing = Blocks { data: &[], metadata: &[] };
    fails(volume.compare_and_swap_ex(0, nothing, whole), invalid, "0 bytes cannot be replaced");
    fails(volume.write_ex(Blocks { data: &one[..5], ..nothing }, 0), invalid, "not whole blocks");
    fails(volume.write_ex(whole, 1), invalid, "offset 1");
    fails(volume.write_ex(whole, MIB), invalid, "not all within");
    volume.write_ex(nothing, 0).unwrap();
    holds(&volume, 0, &(vec![0; BLOCK], vec![0; 8]));

    let without = opened(&cluster, "without", MIB);
    assert_eq!(without.metadata_size(), 0);
    fails(without.write_ex(whole, 0), invalid, "have no metadata");
    without.write_ex(Blocks { data: &one, metadata: &[] }, 0).unwrap();
    holds(&without, 0, &(one.to_vec(), Vec::new()));
    let twelve = NewVolume { metadata_size: 12, ..NewVolume::new("v", MIB) };
    fails(cluster.create(&twelve), invalid, "8, 16 or 64 bytes");
}

/// What was sent to a server that is killed is sent again, except for a swap, of which nobody knows.
#[test]
fn blocks_with_metadata_are_written_again_and_swapped_once() {
    let files = Files::new();
    let device = files.device("image");
    support::succeed(&["format", "--device", &format!("{device},size=256MiB")]);
    let server = Server::start(&device);
    let api_address = server.api.trim_start_matches("http://").to_owned();
    let volume = opened_with_metadata(&cluster(&server), "v", MIB, 16);
    let (old, new) = (filled(2, 16, 1), filled(2, 16, 2));
    volume.write_ex(blocks(&old), 0).unwrap();

    server.pause();
    let copy = |from: &(Vec<u8>, Vec<u8>)| BlockData::from(blocks(from));
    let swap = Request::CompareAndSwapEx { offset: 0, expected: copy(&old), blocks: copy(&new) };
    let swap = volume.start(swap);
    let write = volume.start(Request::WriteEx { offset: 8192, blocks: copy(&new) });
    let read = volume.start(Request::ReadEx { offset: 0, len: 2 * BLOCK });
    // Answered by the thread that sends, after it has sent.
    volume.properties().unwrap();
    server.signal("KILL");
    server.wait();
    fails(swap.wait(), ErrorKind::OutcomeUnknown, "not known");
    let _server = Server::start_on(&device, "127.0.0.1:0", &api_address, &[]);
    assert!(matches!(write.wait().unwrap(), Reply::Done));
    let Reply::Blocks(read) = read.wait().unwrap() else { panic!("blocks are read") };
    assert_eq!((read.data.to_vec(), read.metadata), old);
    holds(&volume, 0, &old);
    holds(&volume, 8192, &new);
}

#[test]
fn a_thousand_requests_of_many_threads_are_outstanding_at_once() {
    let server = Server::start("mem:256MiB");
    let cluster = cluster(&server);
    let volume = opened(&cluster, "v", 64 * MIB);
    let block_of = |thread: u64, index: u64| (thread * 1000 + index) * BLOCK as u64;
    thread::scope(|scope| {
        for thread in 0..8 {
            let volume = &volume;
            scope.spawn(move || {
                let write = |index| {
                    let data = Data::from(&[(thread + index) as u8; BLOCK][..]);
                    volume.start(Request::Write { offset: block_of(thread, index), data })
                };
                let pending: Vec<_> = (0..1000).map(write).collect();
                pending.into_iter().for_each(|write| drop(write.wait().unwrap()));
                for index in (0..1000).step_by(97) {
                    let mut back = [0; BLOCK];
                    volume.read_at(&mut back, block_of(thread, index)).unwrap();
                    assert_eq!(back, [(thread + index) as u8; BLOCK]);
                }
            });
        }
    });
    // Every outcome comes, also of what is cut off by closing.
    let (sender, receiver) = mpsc::channel();
    for index in 0..2000 {
        let sender = sender.clone();
        let read = Request::Read { offset: index * BLOCK as u64, len: BLOCK };
        volume.submit(read, move |outcome| sender.send(outcome).unwrap());
    }
    volume.close().unwrap();
    drop(sender);
    let outcomes: Vec<_> = receiver.iter().collect();
    assert_eq!(outcomes.len(), 2000);
    for outcome in outcomes {
        match outcome {
            Ok(Reply::Data(data)) => assert_eq!(data.len(), BLOCK),
            Err(Error::Closed) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Threads write numbers that go up, each into blocks of its own; the server is killed and comes back
/// at other addresses. No acknowledged write is lost, and no request fails.
#[test]
fn a_killed_server_is_found_again_at_its_new_address() {
    const THREADS: u64 = 4;
    let files = Files::new();
    let device = files.device("image");
    support::succeed(&["format", "--device", &format!("{device},size=256MiB")]);
    let mut server = Some(Server::start_with(&device, &["--auth", "on"]));
    let api_address = server.as_ref().unwrap().api.trim_start_matches("http://").to_owned();
    // One API that is not there, to be passed over.
    let urls = ["http://127.0.0.1:1".to_owned(), format!("http://{api_address}")];
    let cluster = Cluster::new(urls, None).unwrap();
    let created = cluster.create(&NewVolume::new("v", 16 * MIB)).unwrap();
    let volume = cluster.open("v", &with_token(&created.tokens.token)).unwrap();
    let acknowledged: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
    let done = AtomicBool::new(false);
    /// Sets the flag when it goes, also by a failed assertion: the scope waits for its threads.
    struct SetAtEnd<'a>(&'a AtomicBool);
    impl Drop for SetAtEnd<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let at = |thread: u64, number: u64| (thread * 64 + number % 64) * BLOCK as u64;
    thread::scope(|scope| {
        let end = SetAtEnd(&done);
        for thread in 0..THREADS {
            let (volume, acknowledged, done) = (&volume, &acknowledged, &done);
            scope.spawn(move || {
                for number in 1_u64.. {
                    let data = number.to_le_bytes().repeat(BLOCK / 8);
                    volume.write_at(&data, at(thread, number)).unwrap();
                    acknowledged[thread as usize].store(number, Ordering::Release);
                    if done.load(Ordering::Acquire) {
                        return;
                    }
                }
            });
        }
        let progress = |more: u64| {
            let goal: Vec<u64> =
                acknowledged.iter().map(|now| now.load(Ordering::Acquire) + more).collect();
            let reached = || {
                let mut all = acknowledged.iter().zip(&goal);
                all.all(|(now, goal)| now.load(Ordering::Acquire) >= *goal)
            };
            support::until("writes go on", reached);
        };
        for _ in 0..3 {
            progress(20);
            let killed = server.take().unwrap();
            killed.signal("KILL");
            assert_eq!(killed.wait(), None);
            let auth = ["--auth", "on"];
            server = Some(Server::start_on(&device, "127.0.0.1:0", &api_address, &auth));
        }
        progress(20);
        drop(end);
    });
    for (thread, last) in (0..).zip(&acknowledged) {
        let last = last.load(Ordering::Acquire);
        for number in last.saturating_sub(63).max(1)..=last {
            let mut back = [0; BLOCK];
            volume.read_at(&mut back, at(thread, number)).unwrap();
            assert_eq!(back[..8], number.to_le_bytes(), "thread {thread}");
        }
    }
    let properties = volume.properties().unwrap();
    assert!(properties.reconnects >= 3 && properties.address == server.unwrap().portals[0]);
}

/// A server that stays away makes requests fail in the time that was agreed on; a later one succeeds.
#[test]
fn requests_fail_when_a_server_stays_away_and_work_when_it_is_back() {
    let files = Files::new();
    let device = files.device("image");
    support::succeed(&["format", "--device", &format!("{device},size=256MiB")]);
    let server = Server::start(&device);
    let api_address = server.api.trim_start_matches("http://").to_owned();
    let cluster = cluster(&server);
    cluster.create(&NewVolume::new("v", MIB)).unwrap();
    let recovery_timeout = Duration::from_millis(200);
    let options = OpenOptions { recovery_timeout, ..OpenOptions::default() };
    let volume = cluster.open("v", &options).unwrap();
    server.signal("KILL");
    server.wait();
    fails(volume.read_at(&mut [0; BLOCK], 0), ErrorKind::Unreachable, "cannot be reached for");
    let _server = Server::start_on(&device, "127.0.0.1:0", &api_address, &[]);
    volume.read_at(&mut [0; BLOCK], 0).unwrap();
}

/// Neither of two APIs answers any more, and neither hangs up. The volume is found at its old place long
/// before they are given up.
#[test]
fn an_api_that_hangs_does_not_keep_a_volume_from_being_found() {
    let files = Files::new();
    let device = files.device("image");
    support::succeed(&["format", "--device", &format!("{device},size=256MiB")]);
    let server = Server::start(&device);
    let api_address = server.api.trim_start_matches("http://").to_owned();
    let gate = Gate::start(&api_address);
    let portal = server.portals[0].to_string();
    let cluster = Cluster::new([&gate.url, &gate.url], None).unwrap();
    let volume = opened(&cluster, "v", MIB);
    volume.write_at(&[5; BLOCK], 0).unwrap();
    gate.hang();
    server.signal("KILL");
    server.wait();
    let pending = volume.start(Request::Read { offset: 0, len: BLOCK });
    support::until("the cluster is asked", || gate.held() > 0);
    let _server = Server::start_on(&device, &portal, &api_address, &[]);
    let outcome = pending.wait_timeout(support::PATIENCE).ok().expect("an outcome in time");
    let Reply::Data(data) = outcome.unwrap() else { panic!("a read gives data") };
    assert_eq!(data.len(), BLOCK);
}

/// A request on which every connection ends, such as one that kills the server, fails after a few, whether
/// the connection is made again at once or the volume has to be found anew. The others succeed.
#[test]
fn a_request_that_ends_every_connection_does_not_do_so_for_ever() {
    let server = Server::start("mem:256MiB");
    let created = cluster(&server).create(&NewVolume::new("v", MIB)).unwrap();
    let proxy = Proxy::start(created.volume.address);
    let place = format!("tcp://{}/{}", proxy.address, created.volume.nqn);
    let volume = farflash_client::open(&place, &OpenOptions::default()).unwrap();
    proxy.end_at(7);
    let read = |lba: u64| {
        let request = Request::Read { offset: lba * BLOCK as u64, len: BLOCK };
        (lba, volume.start(request))
    };
    for (lba, pending) in (0..16).map(read).collect::<Vec<_>>() {
        let outcome = pending.wait_timeout(support::PATIENCE).ok().expect("an outcome");
        if lba == 7 {
            fails(outcome, ErrorKind::Unreachable, "sent on 6 connections");
        } else {
            outcome.unwrap();
        }
    }
    assert_eq!(proxy.ended(), u32::from(SENDS_MAX));
    volume.read_at(&mut [0; BLOCK], 0).unwrap();
    assert_eq!(proxy.ended(), u32::from(SENDS_MAX));
}

/// Memory that is read into until it is taken back.
#[derive(Debug)]
struct Own(Mutex<Option<Vec<u8>>>, usize);

impl Landing for Own {
    fn len_bytes(&self) -> usize {
        self.1
    }

    fn with(&self, each: &mut dyn FnMut(&mut [u8])) -> bool {
        self.0.lock().unwrap().as_deref_mut().map(each).is_some()
    }
}

/// Memory of the caller's, written from and read into, in more than one command; and such memory that was taken
/// back before anything came.
#[test]
fn what_is_lent_is_written_and_read_where_it_is() {
    const LEN: usize = 3 * MIB as usize + BLOCK;
    let server = Server::start("mem:256MiB");
    let volume = opened(&cluster(&server), "v", 16 * MIB);
    let written = filled(LEN / BLOCK, 0, 1).0;
    let write = Request::Write { offset: 4096, data: Data::lent(written.clone()) };
    assert!(matches!(volume.start(write).wait(), Ok(Reply::Done)));
    let compare = Request::Compare { offset: 4096, data: Data::lent(written.clone()) };
    assert!(matches!(volume.start(compare).wait(), Ok(Reply::Equal(true))));
    let landing = Arc::new(Own(Mutex::new(Some(vec![0; LEN])), LEN));
    let read = || Request::ReadTo { offset: 4096, landing: landing.clone() };
    assert!(matches!(volume.start(read()).wait(), Ok(Reply::Done)));
    assert!(landing.0.lock().unwrap().take().unwrap() == written);
    assert!(matches!(volume.start(read()).wait(), Ok(Reply::Done)), "it goes nowhere");
    let beyond = Request::ReadTo { offset: 16 * MIB, landing: landing.clone() };
    fails(volume.start(beyond).wait(), ErrorKind::InvalidArgument, "not all within");
    assert_eq!(volume.properties().unwrap().reconnects, 0);
}

#[test]
fn a_volume_is_a_file_of_bytes() {
    let server = Server::start("mem:256MiB");
    let cluster = cluster(&server);
    let volume = opened(&cluster, "v", MIB);
    let mut file = VolumeFile::new(volume.clone());
    let mut model = vec![0_u8; 1 << 20];
    let mut random = 1_u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % below
    };
    for round in 0..200 {
        let (offset, len) = (next(MIB) as usize, next(20_000) as usize);
        let end = (offset + len).min(model.len());
        file.seek(SeekFrom::Start(offset as u64)).unwrap();
        let data = vec![round as u8; len];
        assert_eq!(file.write(&data).unwrap(), end - offset, "round {round}");
        model[offset..end].fill(round as u8);
        let (offset, len) = (next(MIB) as usize, next(20_000) as usize);
        file.seek(SeekFrom::Start(offset as u64)).unwrap();
        let mut back = vec![0; len];
        let read = file.read(&mut back).unwrap();
        assert_eq!(back[..read], model[offset..(offset + len).min(model.len())], "round {round}");
    }
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), MIB);
    assert_eq!(file.read(&mut [0; 10]).unwrap(), 0);
    assert_eq!(file.write(&[1]).unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    assert!(file.seek(SeekFrom::Current(-2 << 20)).is_err());

    // Writers of different bytes of one block do not undo each other's writes.
    thread::scope(|scope| {
        for thread in 0..8 {
            let mut file = VolumeFile::new(volume.clone());
            scope.spawn(move || {
                for index in 0..8 {
                    file.seek(SeekFrom::Start(index * 8 + thread)).unwrap();
                    file.write_all(&[b'a' + thread as u8]).unwrap();
                }
            });
        }
    });
    let mut text = String::new();
    file.rewind().unwrap();
    Read::take(&mut file, 64).read_to_string(&mut text).unwrap();
    assert_eq!(text, "abcdefgh".repeat(8));

    let mut writer = BufWriter::new(VolumeFile::new(volume.clone()));
    (0..1000).for_each(|line| writeln!(writer, "line {line}").unwrap());
    writer.flush().unwrap();
    let lines = std::io::BufRead::lines(BufReader::new(VolumeFile::new(volume)));
    let last = lines.map(Result::unwrap).take(1000).last();
    assert_eq!(last.as_deref(), Some("line 999"));
}
