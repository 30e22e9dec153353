//! A failed request of the libraries leaves nothing behind that is carried out later.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::proxy::Proxy;
use crate::support::{Server, until};
use farflash_client::{
    Cluster, Data, Error, ErrorKind, NewVolume, OpenOptions, Properties, Reply, Request, Volume,
};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
/// Round trips in which a call that does not wait for its other parts would have come back.
const ROUND_TRIPS: u32 = 100;
/// Time that a server may take to carry out commands from a connection of which it had heard nothing.
const LATE: Duration = Duration::from_secs(1);

/// A volume of a real server, behind a proxy.
fn behind_proxy(server: &Server) -> (Volume, Proxy) {
    let api = format!("http://{}", server.api.trim_start_matches("http://"));
    let cluster = Cluster::new([api], None).unwrap();
    let created = cluster.create(&NewVolume::new("v", 64 * MIB)).unwrap();
    let proxy = Proxy::start(created.volume.address);
    let place = format!("tcp://{}/{}", proxy.address, created.volume.nqn);
    let token = Some(created.tokens.token);
    let options = OpenOptions { digests: false, token, ..OpenOptions::default() };
    (farflash_client::open(&place, &options).unwrap(), proxy)
}

/// The library's thread is done with all that came before this.
fn round_trips(volume: &Volume) {
    (0..ROUND_TRIPS).for_each(|_| volume.flush().unwrap());
}

#[track_caller]
fn failed<T: std::fmt::Debug>(outcome: Result<T, Error>) {
    let error = outcome.expect_err("a part of it failed");
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error:?}");
}

/// Data written after a failed write stays: the part of the failed one that was still under way came before.
fn stays(volume: &Volume, offset: u64, len: usize) {
    volume.write_at(&vec![2; len], offset).unwrap();
    round_trips(volume);
    let mut back = vec![0; len];
    volume.read_at(&mut back, offset).unwrap();
    assert!(back.iter().all(|byte| *byte == 2));
}

/// One request that goes to the server in several commands, of which one fails while another one is still on
/// its way.
#[test]
fn a_failed_request_ends_when_all_its_parts_have() {
    let server = Server::start("mem:256MiB");
    let (volume, proxy) = behind_proxy(&server);
    let Properties { transfer_bytes_max, .. } = volume.properties().unwrap();
    let part = usize::try_from(transfer_bytes_max).unwrap();
    proxy.fail_at(0);
    proxy.hold_at(transfer_bytes_max / BLOCK);
    let data = Data::from(&vec![1; 3 * part][..]);
    let pending = volume.start(Request::Write { offset: 0, data });
    until("a part failed, and another is held", || proxy.has_failed() && proxy.holds() == 1);
    round_trips(&volume);
    let Err(pending) = pending.wait_timeout(Duration::ZERO) else {
        panic!("it has ended, with a part under way");
    };
    assert_eq!(proxy.release(), 1);
    failed(pending.wait());
    stays(&volume, 0, 3 * part);
}

/// A long write, which the library does in several requests, of which one fails while another one is still on its
/// way.
#[test]
fn a_failed_call_returns_when_all_its_requests_have_ended() {
    let server = Server::start("mem:256MiB");
    let (volume, proxy) = behind_proxy(&server);
    // The first and the last command of those that are under way at once: of one request, and of another.
    let (first, second) = (0, 4 * MIB);
    proxy.fail_at(first / BLOCK);
    proxy.hold_at(second / BLOCK);
    let len = 16 * MIB as usize;
    let own = volume.clone();
    let writing = thread::spawn(move || {
        let written = own.write_at(&vec![1; len], 0);
        // Before anybody could release what is held, if this came too early.
        own.write_at(&vec![2; len], 0).unwrap();
        written
    });
    until("a request failed, and another is held", || proxy.has_failed() && proxy.holds() == 1);
    round_trips(&volume);
    assert_eq!(proxy.release(), 1);
    failed(writing.join().unwrap());
    let mut back = vec![0; len];
    volume.read_at(&mut back, 0).unwrap();
    assert!(back.iter().all(|byte| *byte == 2), "what was written next is written over");
}

/// A write is outstanding with a swap on a connection that the network severs, and again on the one that is
/// made then, which cannot be made again for a while. All that was sent on either of them comes too late.
#[test]
fn what_two_severed_connections_left_behind_undoes_nothing() {
    let server = Server::start("mem:256MiB");
    let (volume, proxy) = behind_proxy(&server);
    let block = |stamp: u8| Data::from(&[stamp; BLOCK as usize][..]);
    proxy.hold_at(1);
    let swap = Request::CompareAndSwap { offset: BLOCK, expected: block(0), data: block(9) };
    let swap = volume.start(swap);
    until("the swap is on its way", || proxy.holds() == 1);
    proxy.sever_at(0, 2);
    let write = volume.start(Request::Write { offset: 0, data: block(1) });
    let error = swap.wait().expect_err("its connection is gone");
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error:?}");
    let swapped = volume.start(Request::Read { offset: BLOCK, len: BLOCK as usize });
    assert!(matches!(write.wait(), Ok(Reply::Done)));
    let Ok(Reply::Data(read)) = swapped.wait() else { panic!("it is read") };
    assert_eq!(read.to_vec(), [0; BLOCK as usize]);
    assert_eq!(proxy.holds(), 3);
    volume.write_at(&[2; BLOCK as usize], 0).unwrap();
    proxy.release();
    let released = Instant::now();
    while released.elapsed() < LATE {
        let mut back = [1; 2 * BLOCK as usize];
        volume.read_at(&mut back, 0).unwrap();
        let (written, unchanged) = back.split_at(BLOCK as usize);
        assert!(written.iter().all(|byte| *byte == 2), "an older write undoes it");
        assert!(unchanged.iter().all(|byte| *byte == 0), "swapped behind a read");
        thread::sleep(Duration::from_millis(10));
    }
}
