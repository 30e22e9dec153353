//! What a request of the libraries has left behind when it failed: nothing that is carried out later.

#![allow(missing_docs, unreachable_pub, dead_code)]

mod support;

use std::thread;

use farflash_client::{
    Cluster, Data, Error, ErrorKind, NewVolume, OpenOptions, Properties, Request, Volume,
};
use support::proxy::Proxy;
use support::{Server, until};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
/// Round trips in which a call that does not wait for its other parts would have come back.
const ROUND_TRIPS: u32 = 100;

/// A volume of a real server, behind a proxy.
fn behind_proxy(server: &Server) -> (Volume, Proxy) {
    let api = format!("http://{}", server.api.trim_start_matches("http://"));
    let cluster = Cluster::new([api], None).unwrap();
    let created = cluster.create(&NewVolume::new("v", 64 * MIB)).unwrap().volume;
    let proxy = Proxy::start(created.address);
    let place = format!("tcp://{}/{}", proxy.address, created.nqn);
    let options = OpenOptions { digests: false, ..OpenOptions::default() };
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

/// What is written behind a failed write stays: the part of the failed one that was still under way came
/// before.
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
    until("a part failed, and another is held", || proxy.has_failed() && proxy.holds());
    round_trips(&volume);
    let Err(pending) = pending.wait_timeout(std::time::Duration::ZERO) else {
        panic!("it has ended, with a part under way");
    };
    proxy.release();
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
    until("a request failed, and another is held", || proxy.has_failed() && proxy.holds());
    round_trips(&volume);
    proxy.release();
    failed(writing.join().unwrap());
    let mut back = vec![0; len];
    volume.read_at(&mut back, 0).unwrap();
    assert!(back.iter().all(|byte| *byte == 2), "what was written next is written over");
}
