//! Reservations of hosts at the real server, and its death under them.

use client::{Client, Error, Options, Reconnect, Volume};
use nvme_wire::reservation::{
    CPTPL_CLEAR, CPTPL_KEEP, CPTPL_SET, RACQA_ACQUIRE, RACQA_PREEMPT, RREGA_REGISTER,
    ReservationCommand,
};
use nvme_wire::{IoOpcode, Nqn, Status};
use reactor::Handle;
use units::Lba;

use crate::support::host::{filled, on_core};
use crate::support::{Files, Server, succeed, tokens};

const WRITE_EXCLUSIVE: u8 = 1;

fn command(action: u8, rtype: u8, cptpl: u8) -> ReservationCommand {
    ReservationCommand { action, ignore_key: false, rtype, cptpl }
}

async fn host(
    handle: &Handle,
    server: std::net::SocketAddr,
    nqn: &Nqn,
    host: u8,
) -> Volume<Handle> {
    let options = Options { reconnect: Reconnect::Never, ..tokens::options(nqn, host) };
    let client = Client::connect(handle.clone(), server, nqn, options).await.unwrap();
    client.volume().await.unwrap()
}

async fn register(host: &Volume<Handle>, key: u64, cptpl: u8) {
    let command = command(RREGA_REGISTER, 0, cptpl);
    host.reserve(IoOpcode::RESERVATION_REGISTER, command, [0, key]).await.unwrap();
}

async fn acquire(host: &Volume<Handle>, action: u8, keys: [u64; 2]) {
    let command = command(action, WRITE_EXCLUSIVE, 0);
    host.reserve(IoOpcode::RESERVATION_ACQUIRE, command, keys).await.unwrap();
}

async fn is_excluded(host: &Volume<Handle>) -> bool {
    match host.write(Lba(1), filled(1)).await {
        Ok(()) => false,
        Err(Error::Target { status, .. }) if status.code() == Status::RESERVATION_CONFLICT => true,
        Err(error) => panic!("{error}"),
    }
}

/// Method: two hosts, three lives of the server, each ended by SIGKILL right behind an answer. The first life leaves a
/// reservation that is to outlive it, the second hands it over, and the third says that the next is not to have it.
#[test]
fn a_reservation_outlives_kill_9_for_as_long_as_hosts_want_that() {
    let files = Files::new();
    let device = files.device("a");
    succeed(&["format", "--device", &format!("{device},size=1GiB")]);
    let mut known = None;
    for life in 0..4 {
        let server = Server::start(&device);
        let nqn = *known.get_or_insert_with(|| {
            let made = server.volume_json(&["create", "a", "--size", "64MiB"]);
            made["nqn"].as_str().unwrap().parse::<Nqn>().unwrap()
        });
        let portal = server.portals[0];
        on_core(move |handle| async move {
            let first = host(&handle, portal, &nqn, 1).await;
            let second = host(&handle, portal, &nqn, 2).await;
            let state = second.reservations().await.unwrap();
            let keys: Vec<_> = state.registrants.iter().map(|it| it.rkey.get()).collect();
            match life {
                0 => {
                    assert_eq!((keys, state.persists), (vec![], false));
                    register(&first, 10, CPTPL_KEEP).await;
                    register(&second, 20, CPTPL_SET).await;
                    acquire(&first, RACQA_ACQUIRE, [10, 0]).await;
                    assert!(!is_excluded(&first).await && is_excluded(&second).await);
                }
                1 => {
                    assert_eq!((keys, state.persists), (vec![10, 20], true));
                    assert!(!is_excluded(&first).await && is_excluded(&second).await);
                    acquire(&second, RACQA_PREEMPT, [20, 10]).await;
                }
                2 => {
                    assert_eq!((keys, state.persists), (vec![20], true));
                    assert!(is_excluded(&first).await && !is_excluded(&second).await);
                    register(&first, 11, CPTPL_CLEAR).await;
                    assert!(is_excluded(&first).await);
                }
                _ => {
                    assert_eq!((keys, state.persists), (vec![], false));
                    assert!(!is_excluded(&first).await && !is_excluded(&second).await);
                }
            }
        });
        server.signal("KILL");
        server.wait();
    }
}
