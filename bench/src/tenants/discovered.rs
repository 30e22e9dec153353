//! Tests whether an unauthenticated host can tell by the time of the discovery log that there is a volume that it
//! may not open.
//!
//! - DISCOVERED-1: the volume is made or deleted before each look, in an order drawn for each round. Another one is made
//!   and deleted after that, so that the server's last work is the same.
//! - DISCOVERED-2: each look is that of another host, by its name, so that the log is made for it, from all volumes that
//!   are there.

use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use control::{ApiClient, CreateVolume, Restrictions, VolumeSize};
use nvme_wire::Nqn;

use super::stranger::Stranger;
use super::telling_apart::{OTHER_VOLUMES, Pair, SOURCES, random};
use super::two_samples::Comparison;
use crate::cpus;
use crate::null::pin;
use crate::process::{Doors, Server};

/// The answer that is timed.
const ANSWER: &str = "discovery log";
/// Until what a change has others do is done.
const REST: Duration = Duration::from_millis(2);

/// Looks `attempts` times while there is a forbidden volume, and as often while there is none.
pub(super) fn measure(farflash: &Path, out: &Path, attempts: usize) -> Result<Pair> {
    eprintln!("discovery");
    let log = out.join("discovered.log");
    let doors = Doors::Guarded;
    let server = Server::start_with(farflash, "mem:1GiB", doors, cpus::server(), &log)?;
    let api = ApiClient::new(&format!("http://{}", server.api))?;
    let volumes = Volumes { api };
    for number in 0..OTHER_VOLUMES {
        volumes.create(&format!("other-{number}"))?;
    }
    let portal = server.portal;
    let looking = thread::spawn(move || -> Result<_> {
        pin(cpus::client())?;
        look_by_turns(portal, &volumes, attempts)
    });
    let times = looking.join().map_err(|_| anyhow!("the thread of the stranger panicked"))??;
    server.program.terminate()?;
    let compared = Comparison::of(&times[1], &times[0]).context("too few attempts")?;
    let answers = vec![(ANSWER, compared)];
    Ok(Pair { what: "discovery: forbidden, or none", auth: "on", is_control: false, answers })
}

/// Those of a server, none of which an unauthenticated host may open.
struct Volumes {
    api: ApiClient,
}

impl Volumes {
    fn create(&self, name: &str) -> Result<()> {
        let restrictions = Some(Restrictions {
            hosts: vec![Nqn::from_uuid(&[0xA5; 16]).to_string()],
            networks: Vec::new(),
            interfaces: Vec::new(),
        });
        let size = VolumeSize::try_from(1 << 20)?;
        self.api
            .create(&CreateVolume { restrictions, ..CreateVolume::new(name.parse()?, size) })?;
        Ok(())
    }

    fn delete(&self, name: &str) -> Result<()> {
        Ok(self.api.delete(name)?)
    }
}

/// DISCOVERED-1 and DISCOVERED-2: times in ns without the volume, and with it.
fn look_by_turns(portal: SocketAddr, volumes: &Volumes, attempts: usize) -> Result<[Vec<f64>; 2]> {
    let mut times = [Vec::new(), Vec::new()];
    let mut is_there = false;
    for _ in 0..attempts {
        let first = random()?[0] % 2 == 0;
        for wanted in [first, !first] {
            match (is_there, wanted) {
                (false, true) => volumes.create("forbidden")?,
                (true, false) => volumes.delete("forbidden")?,
                (true, true) | (false, false) => {}
            }
            is_there = wanted;
            volumes.create("between")?;
            volumes.delete("between")?;
            thread::sleep(REST);
            let host = Nqn::from_uuid(&random()?);
            let took = Stranger::from(SOURCES, portal)?.looks_at_discovery(host)?;
            times[usize::from(wanted)].push(took);
        }
    }
    Ok(times)
}
