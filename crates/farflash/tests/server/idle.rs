//! The cost of a server that has connections and no requests. `make bench` holds it to the promised figures;
//! here the bounds are wide, so that they hold on any machine and for any build.

use std::time::Duration;

use crate::support::host::on_core;
use crate::support::{Server, tokens};
use client::{Client, Options};
use io_traits::Clock;
use nvme_wire::Nqn;

const QUEUES: u16 = 100;
/// Time for which the server is left alone, and the part of a core that it may use meanwhile: one that spins
/// uses all.
const ALONE: Duration = Duration::from_secs(2);
const CPU_SHARE_MAX: f64 = 0.05;
/// Spells of which one has to be quiet: the machine may be busy with something that it puts down to us.
const SPELLS: usize = 5;
const RESIDENT_BYTES_MAX: u64 = 128 << 20;

#[test]
fn a_server_with_a_hundred_idle_queues_sleeps() {
    let server = Server::start("mem:256MiB");
    let made = server.volume_json(&["create", "a", "--size", "1TiB"]);
    let (portal, nqn) = (server.portals[0], made["nqn"].as_str().unwrap().parse::<Nqn>().unwrap());
    on_core(move |handle| async move {
        let options = Options { queues: QUEUES, depth: 1, ..tokens::options(&nqn, 9) };
        let client = Client::connect(handle.clone(), portal, &nqn, options).await.unwrap();
        assert_eq!(client.queues(), QUEUES);
        let mut shares = Vec::new();
        while shares.iter().all(|share| *share > CPU_SHARE_MAX) {
            assert!(shares.len() < SPELLS, "of a core, with nothing to do: {shares:?}");
            let before = server.cpu_time();
            handle.sleep_until(handle.now() + ALONE).await;
            let used = server.cpu_time() - before;
            shares.push(used.as_secs_f64() / ALONE.as_secs_f64());
        }
        let resident = server.resident_bytes();
        assert!(resident < RESIDENT_BYTES_MAX, "{resident} bytes are resident");
        assert_eq!(client.counters().reconnects, 0);
        client.close().await;
    });
}
