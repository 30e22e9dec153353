//! The entries that a cluster's discovery shows to hosts in several networks, of both kinds.

use std::net::{IpAddr, SocketAddr};

use crate::etcd::EtcdProcesses;
use crate::support::cluster::{membership, text, url};
use crate::support::networks::{Networks, ip, within};
use crate::support::{Outcome, Server, farflash, until};
use serde_json::Value;

const BENCH: [&str; 8] = ["--rw", "randwrite", "--bs", "4KiB", "--qd", "8", "--bytes", "64KiB"];

/// Addresses of a host of the cluster in each of the networks: on the wire and on the VXLAN, by IPv4 and by
/// IPv6.
fn places(host: u8) -> [IpAddr; 4] {
    ["10.77.0.", "10.78.0.", "fd77::", "fd78::"]
        .map(|network| format!("{network}{host}").parse().unwrap())
}

/// A host of the cluster, on all addresses of both kinds.
fn host(networks: &Networks, directory: &str, name: &str, number: u8) -> Server {
    for (place, interface) in places(number).iter().zip(["wire", "vxlan42", "wire", "vxlan42"]) {
        let (len, nodad) = if place.is_ipv4() { (24, "") } else { (64, " nodad") };
        let server = &networks.server;
        ip(&format!("-n {server} address replace {place}/{len} dev {interface}{nodad}"));
    }
    let advertised = places(number).map(|place| place.to_string()).join(",");
    let membership = membership(directory, name);
    let membership: Vec<&str> = membership.iter().map(String::as_str).collect();
    let more = [&membership[..], &["--auth", "off", "--advertise", &advertised]].concat();
    Server::start_on("mem:256MiB", "[::]:0", "127.0.0.1:0", &more)
}

/// Method: two hosts of a cluster with an address in each of four networks. Each is asked in each network by
/// a client in another namespace, which uses there all addresses that it is told.
#[test]
fn a_host_is_told_portals_of_the_network_in_which_it_asks_on_whichever_host_they_are() {
    assert!(rustix::process::geteuid().is_root(), "network namespaces need root");
    let networks = Networks::new();
    networks.enter_server();
    let etcd = EtcdProcesses::start(1);
    let directory = url(etcd.address(0), "test-networks");
    let hosts =
        [("a", 1), ("b", 3)].map(|(name, number)| host(&networks, &directory, name, number));
    let create = |server: &Server, name: &str, more: &[&str]| -> Value {
        server.volume_json(&[&["create", name, "--size", "64MiB"], more].concat())
    };
    let volumes = [create(&hosts[0], "on-a", &[]), create(&hosts[1], "on-b", &[])];
    let private = create(&hosts[0], "private", &["--interface", "vxlan42"]);
    let from_host = |words: &[&str]| -> Outcome {
        within(&networks.host, &farflash(words)).output().unwrap().into()
    };
    let told = |asked: SocketAddr| -> Vec<(String, SocketAddr)> {
        let outcome = from_host(&["discover", &asked.to_string(), "--json"]);
        assert_eq!(outcome.code, Some(0), "{asked}: {outcome:?}");
        let document: Value = serde_json::from_str(&outcome.stdout).unwrap();
        let entry = |entry: &Value| {
            (text(entry, "nqn").to_owned(), text(entry, "address").parse().unwrap())
        };
        let found = document["subsystems"].as_array().unwrap().iter();
        found.filter(|entry| entry["kind"] == "nvm").map(entry).collect()
    };
    let at = |host: usize, network: usize| {
        let number = [1, 3][host];
        SocketAddr::new(places(number)[network], hosts[host].portals[0].port())
    };
    let uses = |nqn: &str, address: SocketAddr| {
        let target = format!("tcp://{address}/{nqn}");
        from_host(&[&["bench", "--target", &target, "--overwrite"], &BENCH[..]].concat())
    };
    let nqn = |volume: &Value| text(volume, "nqn").to_owned();
    for (asked, network) in (0..2).flat_map(|asked| (0..4).map(move |network| (asked, network))) {
        let mut expected: Vec<_> =
            (0..2).map(|host| (nqn(&volumes[host]), at(host, network))).collect();
        // A volume that is restricted to an interface is offered by its own host, to clients that come by
        // that interface.
        if asked == 0 && network % 2 == 1 {
            expected.push((nqn(&private), at(0, network)));
        }
        expected.sort();
        until("all is told", || {
            let mut found = told(at(asked, network));
            found.sort();
            assert!(found.iter().all(|entry| expected.contains(entry)), "{found:?}");
            found == expected
        });
        for (nqn, address) in &expected {
            let outcome = uses(nqn, *address);
            assert_eq!(outcome.code, Some(0), "{address}: {outcome:?}");
        }
    }
    // By the wire, under the address that belongs to the VXLAN: also by IPv6 it is where it came by that counts.
    ip(&format!("-n {} route add fd78::1/128 via fd77::1 dev wire", networks.host));
    let disguised = told(at(0, 3));
    assert!(disguised.iter().all(|(found, _)| *found != nqn(&private)), "{disguised:?}");
    let outcome = uses(&nqn(&private), at(0, 3));
    assert!(outcome.stderr.contains("has no volume"), "{outcome:?}");
}
