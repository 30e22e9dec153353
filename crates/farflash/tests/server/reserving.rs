//! Reservations of hosts at the real server, and its death under them.

use client::{Client, Error, Options, Reconnect, Volume};
use iscsi_wire::Cdb;
use iscsi_wire::cdb::{opcode, reserve_in, reserve_out};
use nvme_wire::reservation::{
    CPTPL_CLEAR, CPTPL_KEEP, CPTPL_SET, RACQA_ACQUIRE, RACQA_PREEMPT, RREGA_REGISTER,
    ReservationCommand,
};
use nvme_wire::{IoOpcode, Nqn, Status};
use reactor::Handle;
use units::Lba;

use crate::support::foreign::places;
use crate::support::host::{filled, on_core};
use crate::support::initiator::{Initiator, Names};
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

/// Sends a PERSISTENT RESERVE OUT with keys and the bit that has it outlive a restart. It is to succeed.
fn send_reserve_out(initiator: &mut Initiator, [action, kind]: [u8; 2], keys: [u64; 2]) {
    let mut cdb = Cdb([0; 16]);
    cdb.0[..3].copy_from_slice(&[opcode::PERSISTENT_RESERVE_OUT, action, kind]);
    cdb.0[8] = 24;
    let mut parameters = [0; 24];
    parameters[..8].copy_from_slice(&keys[0].to_be_bytes());
    parameters[8..16].copy_from_slice(&keys[1].to_be_bytes());
    parameters[20] = 1;
    initiator.send(cdb, &parameters);
}

/// The names of all registrants.
fn full_status(initiator: &mut Initiator) -> Vec<u8> {
    let mut cdb = Cdb([0; 16]);
    cdb.0[..2].copy_from_slice(&[opcode::PERSISTENT_RESERVE_IN, reserve_in::READ_FULL_STATUS]);
    cdb.0[7] = 8;
    initiator.receive(cdb, 8 << 8)
}

/// Names beyond ASCII, and identifiers that are no text, are kept as they are. A name that a terminal would show as another one is
/// refused before anything is written of it.
///
/// Method: an initiator and an NVMe host register, the server is killed behind the answer, and both are looked for by either
/// protocol.
#[test]
fn hosts_of_any_bytes_outlive_kill_9_and_names_that_deceive_are_refused() {
    const NAME: &str = "iqn.2026-11.example:ärzte-日本-𐐨";
    const ID: [u8; 16] = *b"\x1b[2J\x1b]0;xy\x07\0\xFF\"\\\n";
    let files = Files::new();
    let device = files.device("a");
    succeed(&["format", "--device", &format!("{device},size=1GiB")]);
    let mut known = None;
    for life in 0..2 {
        let server = Server::start_with(&device, &["--auth", "off", "--iscsi", "127.0.0.1:0"]);
        let (nqn, target) = known.get_or_insert_with(|| {
            let made = server.volume_json(&["create", "a", "--size", "64MiB"]);
            let target = format!("iqn.2026-01.io.farflash:{}", made["id"].as_str().unwrap());
            (made["nqn"].as_str().unwrap().parse::<Nqn>().unwrap(), target)
        });
        let (nqn, target) = (*nqn, target.as_str());
        let portals = [server.portals[0], places(&server, "iSCSI portal open")[0]];
        let log_in = |initiator: &str| {
            Initiator::log_in(portals[1], Names { initiator, target: Some(target) }, None)
        };
        for deceiving in
            ["\u{1b}[2J", "\u{9b}2J", "a\u{202e}b", "a\u{200b}", "\u{feff}a", "\u{e0041}"]
        {
            let name = format!("iqn.2026-11.example:{deceiving}");
            assert_eq!(log_in(&name).err(), Some([2, 0]), "{name:?}");
        }
        let mut initiator = log_in(NAME).unwrap();
        initiator.become_ready();
        if life == 0 {
            send_reserve_out(&mut initiator, [reserve_out::REGISTER_AND_IGNORE, 0], [0, 7]);
            send_reserve_out(&mut initiator, [reserve_out::RESERVE, WRITE_EXCLUSIVE], [7, 0]);
        }
        on_core(move |handle| async move {
            let options = Options { reconnect: Reconnect::Never, ..Options::for_host(ID) };
            let client = Client::connect(handle.clone(), portals[0], &nqn, options).await.unwrap();
            let volume = client.volume().await.unwrap();
            if life == 0 {
                register(&volume, 9, CPTPL_KEEP).await;
            }
            assert!(is_excluded(&volume).await);
            let state = volume.reservations().await.unwrap();
            assert!(state.persists);
            let all: Vec<_> =
                state.registrants.iter().map(|it| (it.rkey.get(), it.host_id == ID)).collect();
            assert_eq!(all, [(9, true), (7, false)]);
        });
        // The name with the initiator's part of the session, and the other host as one would call it.
        let told = full_status(&mut initiator);
        let has = |text: &str| told.windows(text.len()).any(|part| part == text.as_bytes());
        assert!(has(&format!("{NAME},i,0x800000010000\0")), "{told:?}");
        assert!(
            has("nqn.2014-08.org.nvmexpress:uuid:1b5b324a-1b5d-303b-7879-0700ff225c0a"),
            "{told:?}"
        );
        let lines = server.log_until(|line| line["message"] == "iSCSI session");
        assert_eq!(lines.last().unwrap()["initiator"], NAME);
        let log = serde_json::to_string(&lines).unwrap();
        assert!(!log.contains(['\u{1b}', '\u{9b}', '\u{202e}', '\u{200b}', '\u{feff}']), "{log}");
        server.signal("KILL");
        server.wait();
    }
}
