//! The Rust library for asynchronous programs, against a real server: awaited under two executors that know nothing of it. A third
//! one, of no known runtime, is in the example that `libraries.rs` runs.

use std::future::Future;
use std::net::TcpListener;
use std::sync::mpsc;
use std::time::Duration;

use crate::support::{Server, until};
use farflash_client::{
    ChangeAuth, ChangeRestrictions, Cluster, Data, Error, ErrorKind, NewVolume, OpenOptions, Reply,
    Request, Slo, Swap,
};

const BLOCK: usize = 4096;
const MIB: u64 = 1 << 20;

/// Runs a future on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn cluster(server: &Server) -> Cluster {
    Cluster::new([&server.api], None).unwrap()
}

fn with_token(token: &str) -> OpenOptions {
    OpenOptions { token: Some(token.to_owned()), ..OpenOptions::default() }
}

fn kind<T: std::fmt::Debug>(outcome: Result<T, Error>) -> ErrorKind {
    outcome.expect_err("a refusal").kind()
}

/// Every function of the paper's figures 2 and 6 that does not need metadata, by name through the API.
async fn life_of_a_volume(cluster: Cluster, name: &str) {
    let created = cluster.start_create(&NewVolume::new(name, MIB)).await.unwrap();
    let (id, token) = (created.volume.id.to_string(), created.tokens.token.as_str());
    assert_eq!(cluster.start_show(name).await.unwrap().id, created.volume.id);
    let named = |list: Vec<farflash_client::VolumeRecord>| list.iter().any(|v| v.name == name);
    assert!(named(cluster.start_list().await.unwrap()));
    let anybody = cluster.start_open(name, &OpenOptions::default()).await;
    assert_eq!(kind(anybody), ErrorKind::PermissionDenied);
    let volume = cluster.start_open(name, &with_token(token)).await.unwrap();
    assert_eq!(volume.opened().uuid(), Some(created.volume.id));

    let data = |byte| Data::lent(vec![byte; BLOCK]);
    let write = |index: u8| {
        volume.start(Request::Write { offset: u64::from(index) * 4096, data: data(index) })
    };
    let writes: Vec<_> = (0..100).map(write).collect();
    for write in writes {
        assert!(matches!(write.await.unwrap(), Reply::Done));
    }
    volume.start(Request::WriteTx { offset: 4096, data: data(200) }).await.unwrap();
    let read = volume.start(Request::Read { offset: 0, len: 100 * BLOCK }).await.unwrap();
    let Reply::Data(read) = read else { panic!("a read gives data") };
    let expected = (0..100).flat_map(|index| [if index == 1 { 200 } else { index }; BLOCK]);
    assert!(read.to_vec().into_iter().eq(expected));
    let swap = Request::CompareAndSwap { offset: 0, expected: data(0), data: data(9) };
    assert!(matches!(volume.start(swap).await.unwrap(), Reply::Swap(Swap::Done)));
    volume.start(Request::Deallocate { offset: 0, len: MIB }).await.unwrap();
    let beyond = volume.start(Request::Read { offset: MIB, len: BLOCK }).await;
    assert_eq!(kind(beyond), ErrorKind::InvalidArgument);
    let domain = volume.start_failure_domain().await.unwrap().expect("a farflash server says it");
    assert_eq!(domain.device, created.volume.device);

    assert_eq!(cluster.start_resize(name, 2 * MIB).await.unwrap().size_bytes, 2 * MIB);
    assert_eq!(cluster.start_set_slo(name, Slo::Share(7)).await.unwrap().slo, Slo::Share(7));
    let tokens = cluster.start_change_auth(&id, &ChangeAuth::default()).await.unwrap();
    let stale = cluster.start_open(&id, &with_token(token)).await;
    assert_eq!(kind(stale), ErrorKind::PermissionDenied);
    let networks = |networks: &[&str]| ChangeRestrictions {
        networks: Some(networks.iter().map(|&network| network.to_owned()).collect()),
        ..ChangeRestrictions::default()
    };
    cluster.start_restrict(name, &networks(&["192.0.2.0/24"])).await.unwrap();
    assert!(cluster.start_open(name, &with_token(&tokens.token)).await.is_err());
    cluster.start_restrict(name, &networks(&[])).await.unwrap();
    let place = format!("tcp://{}/{}", created.volume.address, created.volume.nqn);
    let again = farflash_client::start_open(&place, &with_token(&tokens.token)).await.unwrap();
    again.start_close().await.unwrap();
    volume.start_close().await.unwrap();
    assert_eq!(kind(volume.start(Request::Flush).await), ErrorKind::Closed);
    cluster.start_delete_with_data(name).await.unwrap();
    assert_eq!(kind(cluster.start_show(name).await), ErrorKind::NotFound);
    let gone = cluster.start_open(name, &OpenOptions::default()).await;
    assert_eq!(kind(gone), ErrorKind::NotFound);
}

#[test]
fn a_volume_is_awaited_from_its_making_to_its_end() {
    let server = Server::start_with("mem:256MiB", &["--auth", "on"]);
    block_on(life_of_a_volume(cluster(&server), "parked"));
    let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    executor.block_on(async {
        let names = ["a", "b", "c"];
        let own = || cluster(&server);
        let lives = names.map(|name| tokio::spawn(life_of_a_volume(own(), name)));
        for life in lives {
            life.await.unwrap();
        }
    });
}

#[test]
fn each_mistake_is_awaited_too() {
    let options = OpenOptions::default();
    block_on(async {
        let nowhere = Cluster::new(["http://127.0.0.1:1"], None).unwrap();
        assert_eq!(kind(nowhere.start_list().await), ErrorKind::Unreachable);
        assert_eq!(kind(nowhere.start_open("v", &options).await), ErrorKind::Unreachable);
        let invalid = ErrorKind::InvalidArgument;
        assert_eq!(kind(nowhere.start_open("v", &with_token("x")).await), invalid);
        assert_eq!(kind(nowhere.start_create(&NewVolume::new("V", MIB)).await), invalid);
        assert_eq!(kind(farflash_client::start_open("udp://x", &options).await), invalid);
    });
}

/// More than are under way at a time. The first ones are not waited for.
#[test]
fn many_are_begun_at_once_and_end_though_no_task_takes_them() {
    let server = Server::start_with("mem:256MiB", &["--auth", "off"]);
    let cluster = cluster(&server);
    let create = |n: u32| cluster.start_create(&NewVolume::new(format!("v{n:02}"), MIB));
    let (left, awaited): (Vec<_>, Vec<_>) =
        ((0..20).map(create).collect(), (20..40).map(create).collect());
    drop(left);
    block_on(async {
        for created in awaited {
            created.await.unwrap();
        }
    });
    until("all are made", || cluster.list().unwrap().len() == 40);

    let api = control::ApiClient::new(&server.api).unwrap();
    let connections =
        || api.server().unwrap().cores.iter().map(|core| core.connections).sum::<u64>();
    let kept = cluster.open("v00", &OpenOptions::default()).unwrap();
    let with_one = connections();
    let opened: Vec<_> =
        (0..40).map(|n| cluster.start_open(&format!("v{n:02}"), &OpenOptions::default())).collect();
    drop(opened);
    // It comes behind them.
    let last = block_on(cluster.start_open("v39", &OpenOptions::default())).unwrap();
    last.close().unwrap();
    until("those that no task took are closed", || connections() == with_one);
    kept.close().unwrap();
}

/// Nor by APIs that do not answer: as many questions are under way there as may be.
#[test]
fn a_task_that_waits_for_a_volume_is_not_held_up_by_abandoned_openings() {
    let server = Server::start("mem:256MiB");
    let cluster = cluster(&server);
    let token = cluster.create(&NewVolume::new("v", MIB)).unwrap().tokens.token;
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = Cluster::new([format!("http://{}", deaf.local_addr().unwrap())], None).unwrap();
    let asked: Vec<_> = (0..32).map(|_| silent.start_list()).collect();
    cluster.open("v", &with_token(&token)).unwrap().close().unwrap();
    for question in asked {
        assert!(question.wait_timeout(Duration::ZERO).is_err(), "it has no answer yet");
    }
}

/// A callback must not wait, but can begin.
#[test]
fn a_callback_begins_what_others_await() {
    let server = Server::start("mem:256MiB");
    let cluster = cluster(&server);
    let token = cluster.create(&NewVolume::new("v", MIB)).unwrap().tokens.token;
    let volume = cluster.open("v", &with_token(&token)).unwrap();
    let (sender, begun) = mpsc::channel();
    let own = cluster.clone();
    volume.submit(Request::Flush, move |_| {
        let opening = own.start_open("v", &with_token(&token));
        sender.send((opening, own.start_resize("v", 2 * MIB))).unwrap();
    });
    let (opening, resizing) = begun.recv().unwrap();
    assert_eq!(block_on(resizing).unwrap().size_bytes, 2 * MIB);
    block_on(opening).unwrap().close().unwrap();
}
