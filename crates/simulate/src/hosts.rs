//! Hosts of volumes: their identity and secrets, and whether they have to be admitted.

use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;

use access::{Access, Network, Restrictions, Token, UnixSeconds};
use auth::Secret;
use client::{Backoff, Client, ConnectError, Credentials, Options, Reconnect};
use io_traits::Clock;
use nvme_frontend::nqn_of;
use nvme_wire::{Nqn, Status};
use sim::SimWorld;
use units::{Duration, SectorSize};

use crate::fused::FusedHost;
use crate::history::Moment;
use crate::model::VolumeModel;
use crate::rig::{Rig, portal};
use crate::run::Run;
use crate::sectors::SectorHost;
use crate::target::Target;

/// Hosts that work on volumes. The one behind them never does.
pub(crate) const HOSTS: usize = 3;
/// Addresses that hosts come from. Those that work on volumes come from the first one.
pub(crate) const ADDRESSES: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
    IpAddr::V4(Ipv4Addr::new(10, 0, 7, 9)),
    IpAddr::V4(Ipv4Addr::new(192, 168, 3, 4)),
];
/// The interface that all connections come by.
pub(crate) const INTERFACE: &str = "sim0";
/// Attempts to connect beside changes of access.
const CONNECT_TRIES: u32 = 4;
/// Time for which a refused host retries. It has an old token, and the harness uses another host by then.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// The 128 bits that identify a host.
#[must_use]
pub(crate) fn host_id(host: usize) -> [u8; 16] {
    [7 + host as u8; 16]
}

/// The name of a host.
#[must_use]
pub(crate) fn host_nqn(host: usize) -> Nqn {
    Nqn::from_uuid(&host_id(host))
}

/// A host that asks for a volume.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    /// Its number.
    pub host: usize,
    /// Source address of the host.
    pub address: IpAddr,
    /// The secret that it knows, and that by which the server has to prove itself, if it asks for that.
    pub secret: Option<(Secret, Option<Secret>)>,
}

/// An interval of the run, by moments and by the time of day.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub from: (Moment, UnixSeconds),
    pub to: (Moment, UnixSeconds),
}

impl Guest {
    /// A host that works on volumes, with the newest token.
    fn with_newest(host: usize, access: &Access) -> Self {
        let secret = access.tokens.first().map(|token| {
            // Every other host asks the controller to authenticate itself.
            let controller = token.controller.clone().filter(|_| host % 2 == 1);
            (token.secret.clone(), controller)
        });
        Self { host, address: ADDRESSES[0], secret }
    }

    /// Returns true if the host may open a volume with this access. The rules are written out here once more: those of the
    /// product are what is tested.
    fn is_admitted(&self, access: &Access, now: UnixSeconds, authenticates: bool) -> bool {
        let Restrictions { hosts, networks, interfaces, .. } = &access.restrictions;
        let own = host_nqn(self.host).into();
        let is_host = hosts.is_empty() || hosts.contains(&own);
        let is_near = |network: &Network| lies_in(self.address, &network.to_string());
        let is_from = networks.is_empty() || networks.iter().any(is_near);
        let is_by =
            interfaces.is_empty() || interfaces.iter().any(|name| name.as_str() == INTERFACE);
        let opens = |secret: &Secret| {
            let same = |token: &&Token| token.secret == *secret;
            access
                .tokens
                .iter()
                .find(same)
                .is_some_and(|token| token.until.is_none_or(|end| end > now))
        };
        let knows = self.secret.as_ref().is_some_and(|(secret, _)| opens(secret));
        is_host && is_from && is_by && (knows || !authenticates)
    }
}

/// Returns true if an address of IPv4 lies in a network, which is given as a person writes it.
fn lies_in(address: IpAddr, network: &str) -> bool {
    let (start, bits) = network.split_once('/').unwrap_or((network, "32"));
    let (IpAddr::V4(address), Ok(start)) = (address, start.parse::<Ipv4Addr>()) else {
        return false;
    };
    let behind = 32 - bits.parse::<u32>().expect("a prefix");
    let kept = |address: Ipv4Addr| u64::from(address.to_bits()) >> behind;
    kept(address) == kept(start)
}

impl Rig {
    /// This instant.
    pub(crate) fn instant(&self, run: &Run) -> (Moment, UnixSeconds) {
        (run.now(), self.time_of_day())
    }

    /// The time of day.
    pub(crate) fn time_of_day(&self) -> UnixSeconds {
        UnixSeconds(self.world().unix_time().as_secs())
    }

    /// Returns whether a host has to be admitted (`true`) or refused (`false`) in `window`; `None` if either will
    /// do. During a change of access no host has to be admitted: the change may cut it.
    pub(crate) fn verdict(
        &self,
        model: &VolumeModel,
        guest: &Guest,
        window: Window,
    ) -> Option<bool> {
        if !model.is_usable() {
            return None;
        }
        let access = model.access.borrow();
        let possible: Vec<&Access> = access.possible(window.from.0, window.to.0).collect();
        let mut verdicts = possible.iter().flat_map(|access| {
            let at = |now| guest.is_admitted(access, now, self.authenticates());
            [at(window.from.1), at(window.to.1)]
        });
        let first = verdicts.next()?;
        let is_certain = verdicts.all(|other| other == first);
        (is_certain && !(first && possible.len() > 1)).then_some(first)
    }

    /// Connects a host to a volume.
    pub(crate) async fn connect(
        &self,
        model: &VolumeModel,
        guest: &Guest,
        (reconnect, queues): (Reconnect, u16),
    ) -> Result<Client<SimWorld>, ConnectError> {
        let credentials = guest.secret.clone().filter(|_| self.authenticates());
        let credentials = credentials
            .map(|(secret, controller_secret)| Credentials { secret, controller_secret });
        let options = Options::for_host(host_id(guest.host));
        // Without a digest, data of writes may stay where it is received.
        let data_digest = guest.host % 2 == 1;
        let options = Options { reconnect, queues, credentials, data_digest, ..options };
        Client::connect(self.world().clone(), portal(), &nqn_of(model.uuid()), options).await
    }

    /// Returns the target of requests of `host` for a volume; `None` if the volume is not there, or not open to the
    /// host.
    pub(crate) async fn target_of(&self, model: &VolumeModel, host: usize) -> Option<Target> {
        let uuid = model.uuid();
        let volume = self.shards()[model.shard].volume(uuid)?;
        if self.core().is_none() {
            return Some(Target::Engine(volume));
        }
        let reconnect = match self.reconnects() {
            true => Reconnect::Backoff(Backoff {
                seed: model.id,
                refused_for: REFUSED_FOR,
                ..Backoff::default()
            }),
            false => Reconnect::Never,
        };
        for _ in 0..CONNECT_TRIES {
            if let Some(target) = self.hosts().borrow().get(&(uuid, host)) {
                return Some(target.clone());
            }
            let before = model.access.borrow().changes();
            let guest = Guest::with_newest(host, model.access.borrow().latest());
            let latest = model.access.borrow().latest().clone();
            // A host that fails too often is rate-limited, and others at its address with it.
            if !guest.is_admitted(&latest, self.time_of_day(), self.authenticates()) {
                return None;
            }
            let fused = || {
                let host = FusedHost::new(self.world(), portal(), nqn_of(uuid), host_id(host));
                host.that_leaves(self.reconnects())
            };
            let target = match (model.sector, self.authenticates()) {
                (SectorSize::Bytes512, _) => {
                    let host = SectorHost::connect(self.world(), fused(), model.sector).await;
                    host.ok().map(|host| Target::Sectors(Rc::new(host)))
                }
                (SectorSize::Bytes4096, authenticates) => {
                    let volume = match self.connect(model, &guest, (reconnect, 2)).await {
                        Ok(client) => client.volume().await.ok(),
                        Err(_) => None,
                    };
                    let fused = (!authenticates).then(|| Rc::new(fused()));
                    volume.map(|volume| Target::Plane(volume, fused))
                }
            };
            // A change meanwhile may have cut it, or refused what opens the volume now.
            if model.access.borrow().changes() != before {
                continue;
            }
            let target = target?;
            self.hosts().borrow_mut().insert((uuid, host), target.clone());
            return Some(target);
        }
        None
    }

    /// Returns a target to read a volume: through a host that may open it, or else past all hosts; `None` if it is
    /// not there.
    pub(crate) async fn target(&self, model: &VolumeModel) -> Option<Target> {
        let volume = self.shards()[model.shard].volume(model.uuid())?;
        // A reservation may exclude any host.
        if self.core().is_none() || self.reserved(model).is_some_and(|it| it.held.is_some()) {
            return Some(Target::Engine(volume));
        }
        let (access, now) = (model.access.borrow().latest().clone(), self.time_of_day());
        let is_admitted = |host: &usize| {
            Guest::with_newest(*host, &access).is_admitted(&access, now, self.authenticates())
        };
        match (0..HOSTS).find(is_admitted) {
            Some(host) => self.target_of(model, host).await,
            None => Some(Target::Engine(volume)),
        }
    }

    /// Returns true if `host`, with the newest token, has to be admitted throughout `from` until now.
    pub(crate) fn must_open(
        &self,
        run: &Run,
        model: &VolumeModel,
        (host, from): (usize, (Moment, UnixSeconds)),
    ) -> bool {
        let guest = Guest::with_newest(host, model.access.borrow().latest());
        let window = Window { from, to: self.instant(run) };
        self.core().is_none() || self.verdict(model, &guest, window) == Some(true)
    }

    /// Has a host ask for a volume, and checks that it is admitted if it has to be, and refused otherwise.
    pub(crate) async fn knock(&self, run: &Run, model: &VolumeModel, guest: &Guest) {
        let from = self.instant(run);
        run.count(|counts| counts.requests += 1);
        let outcome = self.connect(model, guest, (Reconnect::Never, 1)).await.map(drop);
        let window = Window { from, to: self.instant(run) };
        let verdict = self.verdict(model, guest, window);
        let id = model.id;
        run.note(window.to.0, format_args!("volume {id}: {guest:?}: {outcome:?}, {verdict:?}"));
        // Where connections are cut, hosts that come again may have put the address off.
        let may_fail = run.leniency().cuts || run.excuses_refusal(model);
        match (verdict, outcome) {
            (Some(true), Err(error)) if !may_fail => {
                run.fail(format!("volume {id} does not let in {guest:?}: {error}"));
            }
            (Some(false), Ok(())) => run.fail(format!("volume {id} lets in {guest:?}")),
            (Some(false), Err(error)) if !may_fail && !is_refusal(&error) => {
                run.fail(format!("volume {id} does not refuse {guest:?} in order: {error}"));
            }
            _ => {}
        }
    }

    /// The access of the volume was changed: hosts that were cut by that, or no longer may open it, get no answer any more, and all
    /// others do.
    pub(crate) async fn prove_cut(&self, run: &Run, model: &VolumeModel, cut: bool) {
        let (now, access) = (self.instant(run), model.access.borrow().latest().clone());
        let all: Vec<_> = self.hosts().borrow().clone().into_iter().collect();
        for ((uuid, host), target) in all.into_iter().filter(|((uuid, _), _)| *uuid == model.uuid())
        {
            // A host that is connected needs no token.
            let guest = Guest { host, address: ADDRESSES[0], secret: None };
            let stays = !cut && guest.is_admitted(&access, now.1, false);
            if !stays {
                self.hosts().borrow_mut().remove(&(uuid, host));
            }
            let was_usable = model.is_usable();
            let is_lost = target.is_lost().await;
            if !was_usable || !model.is_usable() {
                continue;
            }
            // Where connections are cut, hosts are that come again by themselves.
            if run.leniency().cuts {
                continue;
            }
            if is_lost && stays && !run.excuses_refusal(model) {
                run.fail(format!("volume {}: host {host} is cut", model.id));
            } else if !is_lost && !stays {
                run.fail(format!("volume {}: host {host} is not cut", model.id));
            }
        }
    }

    /// The connection of a host is lost: the next request makes another.
    pub(crate) fn forget_host(&self, model: &VolumeModel, host: usize) {
        self.hosts().borrow_mut().remove(&(model.uuid(), host));
    }

    /// Connections come from `address` from now on.
    pub(crate) fn come_from(&self, address: IpAddr) {
        self.world().come_from(address);
    }
}

/// Returns true if the error refuses a host that may not open the volume.
fn is_refusal(error: &ConnectError) -> bool {
    match error {
        ConnectError::Refused { status, .. } => status.code() == Status::CONNECT_INVALID_PARAMETERS,
        error => error.is_unproven(),
    }
}
