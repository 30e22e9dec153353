//! Reacts to changes of the service around this host.
//!
//! - FOLLOW-1: a device that is another's is served no more from the moment that this is known: no request to
//!   it begins, and its volumes' connections are cut.
//! - FOLLOW-2: discovery here offers the volumes of other hosts that live, and changes when those do. While the
//!   directory is away it stays as it was. A volume that is restricted to interfaces is offered by its own host only: an
//!   interface of the same name is another network here. Clients of NBD that may open such a volume are told where it is, and so
//!   are iSCSI initiators where none has to authenticate: the tokens of other hosts' volumes are not known here.
//! - FOLLOW-3: records of which it is not known whether the directory has them are compared with the device until
//!   it is, so that what a change left behind when its answer was lost (a name, a part of a quota) comes back.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use control::{ChangeRestrictions, DeviceHealth, NbdClients};
use data_core::CoreMessage;
use directory::{
    Event, HostRecord, NbdRecord, Reach, RestrictionsRecord, VolumeRecord, VolumeState,
};
use nvme_wire::log::FailureDomain;
use units::DeviceIndex;
use uuid::Uuid;

use super::access as terms;
use super::allowance;
use super::granting;
use super::offers::{IscsiOffer, NbdOffer, NbdPlace, Offer, Source};
use super::state::State;

/// Interval at which this host checks that its description in the directory is up to date.
const DESCRIBE_EVERY: Duration = Duration::from_secs(10);

/// Changes of the directory in so short a time are looked at together: each look is at all volumes.
const GATHER: Duration = Duration::from_millis(20);

/// Follows all of it for as long as the server runs.
pub(super) fn start(state: &Arc<State>) {
    keep(state, "directory events", events);
    keep(state, "discovery", discovery);
    // A task each: a device that hangs keeps no other waiting.
    for device in state.devices.keys() {
        keep(state, "records of volumes", move |state| doubtful(state, device));
    }
    keep(state, "health of devices", health);
    keep(state, "quotas", allowance::keep);
    keep(state, "shares of quotas", granting::keep);
}

fn keep<F: Future<Output = ()> + Send + 'static>(
    state: &Arc<State>,
    name: &str,
    make: impl Fn(Arc<State>) -> F + Send + 'static,
) {
    let keeping = state.clone();
    state.tasks.keep(name, move || make(keeping.clone()));
}

/// Acts upon events, for as long as the server runs.
async fn events(state: Arc<State>) {
    let directory = state.membership.directory.clone();
    loop {
        match directory.event().await {
            Event::Connected => {
                tracing::info!("the directory is there");
                for device in state.devices.keys() {
                    let state = state.clone();
                    // A task each: a device that hangs keeps no other waiting.
                    tokio::spawn(async move {
                        if let Err(error) = state.reconcile(device).await {
                            let device = state.devices[device].name();
                            tracing::warn!(device, "records are not compared: {error}");
                        }
                    });
                }
            }
            Event::CutOff { reason } => tracing::warn!(
                "the directory is away: {reason}; volumes are served, changes are refused"
            ),
            Event::Held { asked } => state.serve_again(asked).await,
            Event::ClaimLost { device, holder } => state.abandon(device, holder.as_deref()),
        }
    }
}

/// Keeps discovery as the directory says (FOLLOW-2), for as long as the server runs.
async fn discovery(state: Arc<State>) {
    let mut changes = state.membership.directory.changes();
    let mut announced: BTreeMap<Uuid, Elsewhere> = BTreeMap::new();
    loop {
        changes.mark_unchanged();
        if let Some(offers) = offers_elsewhere(&state) {
            for id in announced.keys().filter(|id| !offers.contains_key(id)) {
                state.offer(*id, Source::Elsewhere, None);
            }
            for (id, there) in &offers {
                if announced.get(id) != Some(there) {
                    state.offer(*id, Source::Elsewhere, there.offer(*id));
                }
            }
            announced = offers;
        }
        if changes.changed().await.is_err() {
            return;
        }
        tokio::time::sleep(GATHER).await;
    }
}

/// The volumes of other hosts that can be offered, while the directory is there. The view is not kept: a
/// directory that changes a view that is still held copies all of it.
fn offers_elsewhere(state: &State) -> Option<BTreeMap<Uuid, Elsewhere>> {
    let view = state.view();
    let elsewhere = view.volumes.values().filter(|volume| {
        volume.host != state.membership.id
            && volume.state == VolumeState::Ready
            && view.reach(volume) == Reach::Online
    });
    let offers = elsewhere.filter_map(|volume| {
        let host = view.hosts.get(&volume.host)?;
        Some((volume.id, Elsewhere::of(volume, host)?))
    });
    view.cut_off.is_none().then(|| offers.collect())
}

/// A volume of another host, as the directory says that it can be offered.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Elsewhere {
    name: String,
    addresses: Vec<SocketAddr>,
    restrictions: RestrictionsRecord,
    nbd: NbdRecord,
    iscsi: Vec<SocketAddr>,
}

impl Elsewhere {
    /// The offer of another host's volume, if it may be offered (FOLLOW-2).
    fn of(volume: &VolumeRecord, host: &HostRecord) -> Option<Self> {
        let restrictions = volume.restrictions.clone()?;
        let is_offered = restrictions.interfaces.is_empty();
        let addresses = host.addresses_of(volume.portal);
        let (name, nbd) = (volume.name.clone(), volume.nbd.clone());
        let iscsi = volume.iscsi.map(|portal| host.addresses_of(portal)).unwrap_or_default();
        is_offered.then_some(Self { name, addresses, restrictions, nbd, iscsi })
    }

    /// The same for the cores; `None` if its restrictions cannot be read.
    fn offer(&self, id: Uuid) -> Option<Offer> {
        let change = ChangeRestrictions {
            hosts: Some(self.restrictions.hosts.clone()),
            networks: Some(self.restrictions.networks.clone()),
            interfaces: Some(self.restrictions.interfaces.clone()),
            nbd: None,
        };
        let access = terms::restricted(access::Access::default(), change).inspect_err(|error| {
            tracing::warn!(%id, "of a volume elsewhere it cannot be read who may open it: {error}");
        });
        let access = access.ok()?;
        let (addresses, nbd) = (self.addresses.clone(), self.nbd_offer(id, &access));
        let iscsi = (!self.iscsi.is_empty())
            .then(|| IscsiOffer { addresses: self.iscsi.clone(), access: access.clone() });
        Some(Offer { addresses, restrictions: access.restrictions, nbd, iscsi })
    }

    /// The same for clients of NBD, if any may open it from another host. The socket of its own host is of no use to them.
    fn nbd_offer(&self, id: Uuid, access: &access::Access) -> Option<NbdOffer> {
        let NbdRecord { networks, certificates, uris, unix: _ } = self.nbd.clone();
        let clients = NbdClients { networks, certificates, unix: false };
        let change = ChangeRestrictions { nbd: Some(clients), ..ChangeRestrictions::default() };
        let access = terms::restricted(access.clone(), change).inspect_err(|error| {
            tracing::warn!(%id, "of a volume elsewhere it cannot be read who may open it by NBD: {error}");
        });
        let access = access.ok().filter(|_| !uris.is_empty())?;
        NbdOffer::of(self.name.clone(), NbdPlace::Host(uris), &access)
    }
}

/// Compares doubtful records of a device (FOLLOW-3), for as long as the server runs.
async fn doubtful(state: Arc<State>, number: DeviceIndex) {
    let device = &state.devices[number];
    loop {
        tokio::time::sleep(DESCRIBE_EVERY).await;
        if device.is_doubtful()
            && let Err(error) = state.reconcile(number).await
        {
            tracing::warn!(device = device.name(), "records are not compared: {error}");
        }
    }
}

/// Updates the health of this host's devices in the directory when it has changed, for as long as the server
/// runs.
async fn health(state: Arc<State>) {
    loop {
        tokio::time::sleep(DESCRIBE_EVERY).await;
        let Ok(server) = state.server().await else { continue };
        let before = state.membership.describe(|_| {});
        let host = state.membership.describe(|host| {
            for record in &mut host.devices {
                let mut devices = server.devices.iter();
                let Some(device) = devices.find(|device| device.name == record.name) else {
                    continue;
                };
                let health = match device.health {
                    DeviceHealth::Good => "good",
                    DeviceHealth::Degraded => "degraded",
                    DeviceHealth::Failed => "failed",
                };
                record.health = Some(health.to_owned());
            }
        });
        if host != before {
            state.place_devices();
            // If the directory is away, it is told when the connection is back.
            let _ = state.membership.directory.describe(host).await;
        }
    }
}

impl State {
    /// Tells every core where its devices are, for hosts that ask it of their volumes.
    pub(super) fn place_devices(&self) {
        let host = self.membership.describe(|_| {});
        for core in self.cores.iter() {
            for record in &host.devices {
                let Some(device) = self.membership.number_of(record.id) else {
                    continue;
                };
                let domain = Box::new(FailureDomain {
                    host_id: host.id.into_bytes(),
                    host: host.name.clone(),
                    labels: host.labels.clone(),
                    core: core.cpu,
                    device_id: record.id.into_bytes(),
                    device: record.name.clone(),
                    model: record.model.clone().unwrap_or_default(),
                    serial: record.serial.clone().unwrap_or_default(),
                    health: match record.health.as_deref() {
                        Some("good") => nvme_wire::log::DeviceHealth::Good,
                        Some("degraded") => nvme_wire::log::DeviceHealth::Degraded,
                        Some("failed") => nvme_wire::log::DeviceHealth::Failed,
                        _ => nvme_wire::log::DeviceHealth::Unknown,
                    },
                });
                let _ = core.mailbox.send(CoreMessage::Place { device, domain });
            }
        }
    }

    /// FOLLOW-1.
    fn abandon(&self, id: Uuid, holder: Option<&str>) {
        let Some(device) = self.membership.number_of(id) else {
            return;
        };
        self.membership.devices[device].fence.shut();
        let name = self.devices[device].name();
        match holder {
            Some(holder) => tracing::error!(device = name, %id, holder,
                "the device is served by another host, by an operator's word: its volumes are cut off here"),
            None => tracing::error!(device = name, %id,
                "the device was taken over by another host, by an operator's word, and given back by it: its \
                 volumes are cut off here until this host is started again"),
        }
        self.cut_off(device);
    }

    /// Has nothing of a device that is another's.
    pub(super) fn cut_off(&self, device: DeviceIndex) {
        self.cores.tell(|| CoreMessage::Abandon { device });
        self.tell_of_absence();
        for core in self.cores.keys() {
            let places = self.directory(|directory| directory.places_on(core, device));
            places.into_iter().for_each(|place| self.forget(place.id, device));
        }
    }

    /// Returns true if the device is another host's now.
    pub(super) fn is_abandoned(&self, device: DeviceIndex) -> bool {
        self.membership.devices[device].fence.is_shut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(restrictions: Option<RestrictionsRecord>) -> VolumeRecord {
        VolumeRecord {
            id: Uuid::from_u128(1),
            name: "v".to_owned(),
            owner: None,
            size_bytes: 1 << 20,
            sector_bytes: 4096,
            host: Uuid::from_u128(2),
            device: Uuid::from_u128(3),
            core: 0,
            portal: ([192, 0, 2, 1], 4420).into(),
            state: VolumeState::Ready,
            promise: serde_json::Value::Null,
            nbd: NbdRecord::default(),
            iscsi: None,
            restrictions,
        }
    }

    fn host() -> HostRecord {
        HostRecord {
            id: Uuid::from_u128(2),
            name: "a".to_owned(),
            session: Uuid::from_u128(4),
            boot: String::new(),
            version: "0".to_owned(),
            api: ([192, 0, 2, 1], 7420).into(),
            api_certificate: None,
            discovery: None,
            labels: BTreeMap::new(),
            portals_also: vec![[10, 0, 0, 1].into()],
            fence_after_ms: None,
            cores: Vec::new(),
            devices: Vec::new(),
        }
    }

    /// FOLLOW-2. Method: a volume that is open to clients of NBD of one network, and by certificates and the unix socket.
    #[test]
    fn clients_of_nbd_that_may_open_a_volume_of_another_host_are_told_where() {
        let uris = vec!["nbd://192.0.2.1:10809/v".to_owned()];
        let networks = vec!["192.0.2.0/24".to_owned()];
        let of = |nbd: NbdRecord| {
            let volume = VolumeRecord { nbd, ..volume(Some(RestrictionsRecord::default())) };
            let there = Elsewhere::of(&volume, &host()).expect("offered");
            there.offer(volume.id).expect("readable").nbd
        };
        let by_network = NbdRecord { networks, uris: uris.clone(), ..NbdRecord::default() };
        let offer = of(NbdRecord { unix: true, ..by_network.clone() }).expect("it is open");
        assert_eq!((offer.name.as_str(), offer.place), ("v", NbdPlace::Host(uris.clone())));
        let networks: Vec<String> =
            offer.access.nbd.networks.iter().map(ToString::to_string).collect();
        assert_eq!((networks, offer.access.nbd.unix), (by_network.networks.clone(), false));
        let closed = [
            NbdRecord::default(),
            NbdRecord { unix: true, uris, ..NbdRecord::default() },
            NbdRecord { uris: Vec::new(), ..by_network.clone() },
            NbdRecord { networks: vec!["no network".to_owned()], ..by_network },
        ];
        for nbd in closed {
            assert_eq!(of(nbd.clone()), None, "{nbd:?}");
        }
    }

    /// FOLLOW-2. Method: a volume that is served by iSCSI, and one that is not.
    #[test]
    fn initiators_are_told_of_volumes_of_other_hosts_that_are_served_to_them() {
        let hosts = vec!["IQN.2026-01.com.example:A".to_owned()];
        let restrictions = Some(RestrictionsRecord { hosts, ..RestrictionsRecord::default() });
        let offer_of = |iscsi: Option<SocketAddr>| {
            let volume = VolumeRecord { iscsi, ..volume(restrictions.clone()) };
            let there = Elsewhere::of(&volume, &host()).expect("offered");
            there.offer(volume.id).expect("readable").iscsi
        };
        let offer = offer_of(Some(([192, 0, 2, 1], 3260).into())).expect("it is served");
        let addresses = [[192, 0, 2, 1], [10, 0, 0, 1]].map(|ip| SocketAddr::from((ip, 3260)));
        assert_eq!(offer.addresses, addresses, "in each network of its host");
        let may_open = &offer.access.restrictions.hosts;
        assert!(may_open.len() == 1 && may_open[0].as_str() == "iqn.2026-01.com.example:a");
        assert_eq!(offer_of(None), None);
    }

    /// FOLLOW-2. An interface here that is called like one of the volume's host may be anybody's network.
    #[test]
    fn a_volume_restricted_to_interfaces_of_its_host_is_not_offered_by_another() {
        let hosts = vec!["nqn.2014-08.org.example:one".to_owned()];
        let by_name = RestrictionsRecord { hosts, ..RestrictionsRecord::default() };
        for offered in [RestrictionsRecord::default(), by_name.clone()] {
            let offer = Elsewhere::of(&volume(Some(offered.clone())), &host()).expect("offered");
            assert_eq!(offer.restrictions, offered);
            let addresses = [[192, 0, 2, 1], [10, 0, 0, 1]].map(|ip| SocketAddr::from((ip, 4420)));
            assert_eq!(offer.addresses, addresses, "in each network of its host");
        }
        let interfaces = vec!["vxlan42".to_owned()];
        let by_interface = RestrictionsRecord { interfaces, ..by_name };
        assert_eq!(Elsewhere::of(&volume(Some(by_interface)), &host()), None);
        assert_eq!(
            Elsewhere::of(&volume(None), &host()),
            None,
            "it cannot be read who may find it"
        );
    }
}
