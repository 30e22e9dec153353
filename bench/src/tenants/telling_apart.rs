//! Tests whether an unauthenticated host can tell, by the time of answers, a volume that it may not open from one
//! that does not exist.
//!
//! - TELL-APART-1: it asks for each in turn, in an order drawn for each round, all from one address: changes with
//!   time, with the number of attempts, or with the address affect all alike.
//! - TELL-APART-2: each round comes from another address, as an address with many failures is rate-limited.
//! - TELL-APART-3: two names that do not exist are told apart, too. What comes out there is noise.

use std::iter::repeat_with;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use auth::Parties;
use control::{ApiClient, CreateVolume, Restrictions, VolumeSize};
use nvme_wire::Nqn;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::Serialize;

use super::discovered;
use super::stranger::{ANSWERS, Stranger};
use super::two_samples::{Comparison, chance_error};
use crate::cpus;
use crate::null::pin;
use crate::process::{Doors, Server};

/// Volumes that are there besides.
pub(super) const OTHER_VOLUMES: u32 = 100;
/// The first address of the unauthenticated host.
pub(super) const SOURCES: Ipv4Addr = Ipv4Addr::new(127, 64, 0, 0);
/// Standard errors that a chance may lie above 50 %. Of some thirty chances, noise alone lifts one above that in one
/// measurement of 500.
const ERRORS_MAX: f64 = 4.0;
/// Label for all answers of an exchange together.
const ALL_ANSWERS: &str = "all of these";
/// The answer to an unauthenticated host where hosts need not authenticate.
const REFUSAL: &str = "Connect refused";

/// The subsystem that the host asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Asked {
    /// A volume that neither its name nor its address may open.
    Forbidden,
    /// A volume that any host may open that knows its token.
    WithoutToken,
    /// It does not exist.
    Missing,
    /// Something else that does not exist.
    OtherMissing,
}

/// All of them, each where its number says.
const ALL_ASKED: [Asked; 4] =
    [Asked::Forbidden, Asked::WithoutToken, Asked::Missing, Asked::OtherMissing];

/// Two that are asked for, and when their answers come.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Pair {
    pub(super) what: &'static str,
    /// `--auth` of the server, and its `--auth-hashes` if it has any.
    pub(super) auth: &'static str,
    /// TELL-APART-3.
    pub(super) is_control: bool,
    pub(super) answers: Vec<(&'static str, Comparison)>,
}

impl Pair {
    /// The answer that tells most.
    pub(super) fn worst(&self) -> Option<&Comparison> {
        let comparisons = self.answers.iter().map(|(_, comparison)| comparison);
        comparisons.max_by(|one, other| one.chance().value.total_cmp(&other.chance().value))
    }
}

/// The measurements.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TellingApart {
    /// Attempts for each of a pair.
    pub(super) attempts: usize,
    pub(super) pairs: Vec<Pair>,
}

impl TellingApart {
    /// The highest chance that noise allows.
    pub(super) fn chance_max(&self) -> f64 {
        0.5 + ERRORS_MAX * chance_error(self.attempts)
    }
}

/// Times of answers in ns, by what was asked for and by answer.
type Times = Vec<Vec<Vec<f64>>>;

pub(super) fn measure(farflash: &Path, out: &Path, attempts: usize) -> Result<TellingApart> {
    let mut pairs = Vec::new();
    let guarded = [
        ("forbidden, or none", Asked::Forbidden),
        ("there without its token, or none", Asked::WithoutToken),
        ("none, or another that is none", Asked::OtherMissing),
    ];
    let answers = [&ANSWERS[..], &[ALL_ANSWERS]].concat();
    for (auth, doors) in [("on", Doors::Guarded), ("on, SHA-512", Doors::GuardedBySha512)] {
        let times = ask(farflash, out, doors, attempts)?;
        compare(&mut pairs, auth, &guarded, &answers, &times)?;
    }
    let times = ask(farflash, out, Doors::Open, attempts)?;
    compare(&mut pairs, "off", &[guarded[0], guarded[2]], &[REFUSAL], &times)?;
    pairs.push(discovered::measure(farflash, out, attempts)?);
    Ok(TellingApart { attempts, pairs })
}

fn compare(
    pairs: &mut Vec<Pair>,
    auth: &'static str,
    kinds: &[(&'static str, Asked)],
    answers: &[&'static str],
    times: &Times,
) -> Result<()> {
    for (what, asked) in kinds {
        let [first, second] = [*asked, Asked::Missing].map(|asked| &times[asked as usize]);
        let compared = answers.iter().enumerate().map(|(index, answer)| {
            let comparison = Comparison::of(&first[index], &second[index]);
            Ok((*answer, comparison.context("too few attempts")?))
        });
        let (is_control, answers) =
            (*asked == Asked::OtherMissing, compared.collect::<Result<_>>()?);
        pairs.push(Pair { what, auth, is_control, answers });
    }
    Ok(())
}

/// Asks a server for everything, `attempts` times.
fn ask(farflash: &Path, out: &Path, doors: Doors, attempts: usize) -> Result<Times> {
    let log = out.join("telling-apart.log");
    let server = Server::start_with(farflash, "mem:1GiB", doors, cpus::server(), &log)?;
    let names = names(&server)?;
    let portal = server.portal;
    let asking = std::thread::spawn(move || -> Result<Times> {
        pin(cpus::client())?;
        ask_by_turns(portal, doors, &names, attempts)
    });
    let times = asking.join().map_err(|_| anyhow!("the thread of the stranger panicked"))??;
    server.program.terminate()?;
    Ok(times)
}

/// Returns the names of the volumes, in the order of [`ALL_ASKED`].
fn names(server: &Server) -> Result<[Nqn; 4]> {
    let api = ApiClient::new(&format!("http://{}", server.api))?;
    let create = |name: String, restrictions| -> Result<Nqn> {
        let size = VolumeSize::try_from(1 << 20)?;
        let request = CreateVolume { restrictions, ..CreateVolume::new(name.parse()?, size) };
        Ok(api.create(&request)?.volume.nqn.parse()?)
    };
    for number in 0..OTHER_VOLUMES {
        create(format!("other-{number}"), None)?;
    }
    let restrictions = Restrictions {
        hosts: vec![Nqn::from_uuid(&[0xA5; 16]).to_string()],
        networks: vec!["192.0.2.0/24".to_owned()],
        interfaces: Vec::new(),
    };
    let forbidden = create("forbidden".to_owned(), Some(restrictions))?;
    let without_token = create("without-token".to_owned(), None)?;
    Ok([forbidden, without_token, Nqn::from_uuid(&random()?), Nqn::from_uuid(&random()?)])
}

pub(super) fn random() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(bytes)
}

/// TELL-APART-1 and TELL-APART-2.
fn ask_by_turns(
    portal: SocketAddr,
    doors: Doors,
    names: &[Nqn; 4],
    attempts: usize,
) -> Result<Times> {
    let host = Nqn::from_uuid(&[0x5A; 16]);
    let mut times: Times = repeat_with(|| vec![Vec::new(); ANSWERS.len() + 1]).take(4).collect();
    for round in 0..u32::try_from(attempts)? {
        let source = Ipv4Addr::from_bits(SOURCES.to_bits() + round);
        for asked in shuffled(random()?) {
            // There every host may open it.
            if matches!(doors, Doors::Open) && asked == Asked::WithoutToken {
                continue;
            }
            let stranger = Stranger::from(source, portal)?;
            let parties = Parties { host, subsystem: names[asked as usize] };
            let times = &mut times[asked as usize];
            match doors {
                Doors::Guarded | Doors::GuardedBySha512 => {
                    let took = stranger.fails_to_authenticate(parties)?;
                    let all = took.iter().sum();
                    times
                        .iter_mut()
                        .zip(took.into_iter().chain([all]))
                        .for_each(|(to, ns)| to.push(ns));
                }
                Doors::Open => times[0].push(stranger.meets_refusal(&parties)?),
            }
        }
    }
    Ok(times)
}

/// All of them in an order that depends on `random`.
fn shuffled(random: [u8; 16]) -> [Asked; 4] {
    let mut all = ALL_ASKED;
    for left in (2..=all.len()).rev() {
        all.swap(left - 1, usize::from(random[left]) % left);
    }
    all
}
