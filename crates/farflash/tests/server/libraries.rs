//! The Rust library for ordinary threads, against a real server: what an open volume does.

use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::library::{
    BLOCK, MIB, cluster, fails, filled, opened, opened_with_metadata, with_token,
};
use crate::support::{Outcome, Server, farflash};
use farflash_client::{
    Blocks, BlocksMut, ChangeAuth, ChangeRestrictions, Cluster, ClusterOptions, Data, Error,
    ErrorKind, Landing, NewVolume, OpenOptions, Reply, Request, ResizeOptions, Swap, VolumeFile,
};

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
    let doubtful =
        OpenOptions { controller_token: Some(tokens.token.clone()), ..with_token(&tokens.token) };
    let unproven = ErrorKind::Unproven;
    fails(cluster.open("db", &doubtful), unproven, "does not know the controller token: check");
    let neither = OpenOptions { token: options.token.clone(), ..doubtful };
    fails(cluster.open("db", &neither), ErrorKind::PermissionDenied, "check the volume's token");
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
    cluster.delete_with_data("db").unwrap();
    fails(cluster.show("db"), ErrorKind::NotFound, "no volume `db`");
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

/// A wrong request is refused as a whole, also where a call makes several requests: its first part is neither
/// written nor handed out.
#[test]
fn nothing_is_done_of_a_long_call_that_ends_beyond_the_volume() {
    let server = Server::start("mem:256MiB");
    let cluster = cluster(&server);
    let volume = opened(&cluster, "v", 8 * MIB);
    let (invalid, long) = (ErrorKind::InvalidArgument, vec![7; 8 * MIB as usize + BLOCK]);
    fails(volume.write_at(&long, 0), invalid, "not all within the volume");
    let filled = volume.write_with(0, long.len(), |at, _| panic!("asked for byte {at}"));
    fails(filled, invalid, "not all within the volume");
    let read = volume.read_with(0, long.len(), |at, _| panic!("told byte {at}"));
    fails(read, invalid, "not all within the volume");
    assert!(volume.compare(&vec![0; 8 * MIB as usize], 0).unwrap());
    let with = opened_with_metadata(&cluster, "with", 8 * MIB, 8);
    let blocks = Blocks { data: &long, metadata: &vec![7; long.len() / BLOCK * 8] };
    fails(with.write_ex(blocks, 0), invalid, "not all within the volume");
    let (mut data, mut metadata) = ([1; BLOCK], [1; 8]);
    with.read_ex(BlocksMut { data: &mut data, metadata: &mut metadata }, 0).unwrap();
    assert_eq!((data, metadata), ([0; BLOCK], [0; 8]));

    // What it has by now is written, though it had not when it was opened.
    cluster.resize("v", 12 * MIB).unwrap();
    volume.write_at(&long, 0).unwrap();
    assert!(volume.compare(&long, 0).unwrap());
}

/// A volume that holds data, or is open, is deleted or made smaller only if the call says so, and another size can depend on
/// the one that it has.
#[test]
fn a_volume_in_use_is_lost_only_if_that_is_said() {
    let server = Server::start("mem:256MiB");
    let cluster = cluster(&server);
    let volume = opened(&cluster, "v", 4 * MIB);
    let (in_use, other_size) = (ErrorKind::InUse, ErrorKind::Changed);
    let if_size = |size| ResizeOptions { if_size_bytes: Some(size), ..ResizeOptions::default() };
    fails(cluster.delete("v"), in_use, "is open on");
    fails(cluster.resize("v", 2 * MIB), in_use, "is open on");
    volume.write_at(&[7; BLOCK], 3 * MIB).unwrap();
    volume.close().unwrap();
    fails(cluster.delete("v"), in_use, "holds 4 KiB");
    fails(cluster.resize("v", 2 * MIB), in_use, "holds 4 KiB");
    let careless = if_size(4 * MIB);
    fails(cluster.resize_with("v", 2 * MIB, &careless), in_use, "holds 4 KiB");
    // Of two that saw the same size, one changes it.
    assert_eq!(cluster.resize_with("v", 8 * MIB, &careless).unwrap().size_bytes, 8 * MIB);
    let says = "has 8388608 bytes";
    fails(cluster.resize_with("v", 6 * MIB, &careless), other_size, says);
    let careful = ResizeOptions { lose_data: true, ..careless };
    fails(cluster.resize_with("v", 2 * MIB, &careful), other_size, says);
    let careful = ResizeOptions { lose_data: true, ..if_size(8 * MIB) };
    let cut_off = cluster.resize_with("v", 2 * MIB, &careful).unwrap().cut_off.unwrap();
    assert_eq!((cut_off.bytes, cut_off.at_least), (BLOCK as u64, false));
    cluster.delete("v").expect("nothing is left that could be lost");
}

/// One of the programs that change a volume's size at once, having seen the same one, does so, and each other is told.
#[test]
fn resizes_at_once_undo_no_other() {
    const PROGRAMS: u64 = 8;
    let server = Server::start("mem:256MiB");
    let cluster = cluster(&server);
    cluster.create(&NewVolume::new("v", MIB)).unwrap();
    let mut seen = MIB;
    for round in 0..10 {
        let size = move |program: u64| (2 + round * PROGRAMS + program) * MIB;
        let options = ResizeOptions { if_size_bytes: Some(seen), ..ResizeOptions::default() };
        let all: Vec<_> = (0..PROGRAMS)
            .map(|program| {
                let cluster = cluster.clone();
                thread::spawn(move || cluster.resize_with("v", size(program), &options))
            })
            .collect();
        let all: Vec<_> = all.into_iter().map(|one| one.join().unwrap()).collect();
        let (done, told): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_ok);
        assert_eq!(done.len(), 1, "{done:?}");
        let is_told = |told: &Error| {
            told.kind() == ErrorKind::Changed && told.to_string().contains("bytes, not ")
        };
        assert!(told.into_iter().all(|told| is_told(&told.unwrap_err())));
        seen = cluster.show("v").unwrap().size_bytes;
        assert_eq!(done.into_iter().next().unwrap().unwrap().size_bytes, seen);
    }
}

/// A server that takes connections and answers nothing holds up neither questions nor changes for long, where there is another.
#[test]
fn a_server_that_hangs_is_passed_over() {
    let server = Server::start("mem:256MiB");
    let hung = TcpListener::bind("127.0.0.1:0").unwrap();
    let hung = format!("http://{}", hung.local_addr().unwrap());
    let urls = [hung.as_str(), &server.api];
    let begin = Instant::now();
    let cluster = Cluster::new(urls, None).unwrap();
    cluster.create(&NewVolume::new("v", MIB)).unwrap();
    assert_eq!(Cluster::new(urls, None).unwrap().show("v").unwrap().size_bytes, MIB);
    let listed = farflash(&["volume", "list"]).env("FARFLASH_API", urls.join(",")).output();
    let listed = Outcome::from(listed.unwrap());
    assert!(listed.code == Some(0) && listed.stdout.contains("v"), "{listed:?}");
    // Three seconds each, and none waits for the minute that an answer may take.
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(40), "{took:?}");
}

/// A token is told from a mark and comments beside it, as in files that people edit, and a list of addresses is one as a whole.
#[test]
fn texts_of_people_are_read_as_the_commands_read_them() {
    let server = Server::start_with("mem:256MiB", &["--auth", "on"]);
    let with = |token: &str| Cluster::new([server.api.as_str()], Some(token)).map(drop);
    with("\u{feff}# of acme\nffk_1\n").unwrap();
    fails(with("a\nb"), ErrorKind::InvalidArgument, "more than one line");
    fails(with("a b"), ErrorKind::InvalidArgument, "a space");
    assert!(ClusterOptions::urls_of(" ").is_empty());
    for list in [format!("{},", server.api), format!(",{}", server.api)] {
        let urls = ClusterOptions::urls_of(&list);
        fails(Cluster::new(urls, None).map(drop), ErrorKind::InvalidArgument, "it is empty");
    }
    let cluster = cluster(&server);
    let created = cluster.create(&NewVolume::new("v", MIB)).unwrap();
    let text = format!("\u{feff}# of v\n{}\n", created.tokens.token);
    cluster.open("v", &with_token(&text)).expect("its token");
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
    let none = Cluster::new(Vec::<String>::new(), None).unwrap();
    fails(none.show("v"), invalid, "no API address is given");
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
    volume.submit(Request::Flush, move |_| {
        let tries =
            [own.flush(), own.write_at(&[9; BLOCK], 0), own.write_tx(&[9; BLOCK], 0), own.close()];
        sender.send(tries).unwrap();
    });
    for tried in receiver.recv().unwrap() {
        fails(tried, invalid, "a callback cannot wait");
    }
    assert!(volume.compare(&[0; BLOCK], 0).unwrap(), "nothing was done, and the volume is open");
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
    cluster.delete_with_data("v").unwrap();
    fails(volume.flush(), ErrorKind::NotFound, "no volume");
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
