//! Hosts that share etcd: the promises of the crate, held against real etcd.

mod support;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use directory::{
    Admit, Alone, Claim, ClaimRecord, Conflict, CoreRecord, Directory, DirectoryError, Etcd,
    EtcdAddress, EtcdCredentials, EtcdOptions, Event, GrantRecord, GrantsRecord, HostRecord, Reach,
    Regrant, RestrictionsRecord, Seek, Sighting, Tenure, VolumeRecord, VolumeState,
};
use rustix::process::Signal;
use support::{EtcdProcesses, Wire, delete, get, is_there, put, put_for};
use uuid::Uuid;

/// After this a host that is gone counts as such.
const LEASE: Duration = Duration::from_secs(3);
/// Longest wait for what has to come. Reached only when something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);
const DEVICE: Uuid = Uuid::from_u128(0xd1);
const OTHER_DEVICE: Uuid = Uuid::from_u128(0xd2);
const PORTAL: &str = "192.0.2.1:4420";

fn host(name: &str) -> HostRecord {
    HostRecord {
        id: Uuid::new_v4(),
        name: name.to_owned(),
        session: Uuid::new_v4(),
        boot: "this".to_owned(),
        version: "0".to_owned(),
        api: PORTAL.parse().expect("an address"),
        api_certificate: None,
        portals_also: Vec::new(),
        fence_after_ms: None,
        discovery: None,
        labels: [("rack".to_owned(), format!("rack-of-{name}"))].into(),
        cores: Vec::new(),
        devices: Vec::new(),
    }
}

fn volume(host: &HostRecord, device: Uuid, name: &str) -> VolumeRecord {
    VolumeRecord {
        id: Uuid::new_v4(),
        name: name.to_owned(),
        owner: None,
        size_bytes: 4096,
        host: host.id,
        device,
        core: 0,
        portal: PORTAL.parse().expect("an address"),
        state: VolumeState::Ready,
        promise: serde_json::Value::Null,
        restrictions: None,
    }
}

fn options(members: &[SocketAddr]) -> EtcdOptions {
    let members = members.iter().map(SocketAddr::to_string).collect();
    let address = EtcdAddress { tls: false, members, cluster: "test".to_owned() };
    EtcdOptions {
        address,
        credentials: EtcdCredentials::default(),
        lease: LEASE,
        tenure: Tenure::endless(),
    }
}

async fn join(etcd: &EtcdProcesses, host: &HostRecord) -> Etcd {
    joined(&[etcd.address(0)], host).await
}

async fn joined(members: &[SocketAddr], host: &HostRecord) -> Etcd {
    joined_seeing(members, host, nobody()).await
}

async fn joined_seeing(members: &[SocketAddr], host: &HostRecord, seek: Seek) -> Etcd {
    let directory = Etcd::join(options(members), host.clone(), seek).await.expect("free");
    assert_eq!(directory.event().await, Event::Connected);
    directory
}

fn claim(device: Uuid) -> Claim {
    Claim { device, name: "file:/a".to_owned(), volatile: false, model: None, serial: None }
}

/// One who looks for holders and sees none.
fn nobody() -> Seek {
    Eyes::default().seek()
}

/// What one who looks for holders sees, and how often that was asked for.
#[derive(Clone, Default)]
struct Eyes(Arc<(Mutex<Option<Sighting>>, AtomicUsize)>);

impl Eyes {
    fn see(&self, what: Option<Sighting>) {
        *self.0.0.lock().expect("whole") = what;
    }

    fn asked(&self) -> usize {
        self.0.1.load(Ordering::SeqCst)
    }

    fn seek(&self) -> Seek {
        let eyes = self.0.clone();
        Arc::new(move |_, _, _| {
            eyes.1.fetch_add(1, Ordering::SeqCst);
            let seen = *eyes.0.lock().expect("whole");
            Box::pin(async move { seen })
        })
    }
}

fn sighting() -> Sighting {
    Sighting { address: PORTAL.parse().expect("an address"), answers: true }
}

/// Waits until a device is lost to another process.
async fn lost(directory: &Etcd, device: Uuid) {
    loop {
        match next(directory).await {
            Event::ClaimLost { device: lost, .. } => break assert_eq!(lost, device),
            other => assert_ne!(other, Event::Connected, "{other:?}"),
        }
    }
}

/// Waits until the view is as it has to become.
async fn until(directory: &dyn Directory, what: &str, holds: impl Fn(&dyn Directory) -> bool) {
    let mut changes = directory.changes();
    let waited = changes.wait_for(|_| holds(directory));
    tokio::time::timeout(PATIENCE, waited).await.expect(what).expect("the directory lives");
}

async fn next(directory: &Etcd) -> Event {
    tokio::time::timeout(PATIENCE, directory.event()).await.expect("an event comes")
}

/// What every directory promises about the volumes of one host.
async fn keeps_volumes(directory: &dyn Directory, host: &HostRecord) {
    let first = volume(host, DEVICE, "first");
    assert!(matches!(directory.reserve(first.clone()).await, Err(DirectoryError::Fenced { .. })));
    directory.claim(claim(DEVICE)).await.expect("free");
    directory.check(DEVICE).await.expect("ours");
    directory.reserve(first.clone()).await.expect("a free name");
    let same_name = volume(host, DEVICE, "first");
    let taken = DirectoryError::NameTaken { name: "first".to_owned() };
    assert_eq!(directory.reserve(same_name.clone()).await, Err(taken));
    let larger = VolumeRecord { size_bytes: 8192, ..first.clone() };
    directory.update(larger.clone()).await.expect("ours");
    let view = directory.view();
    assert_eq!(view.named("first").map(|volume| &**volume), Some(&larger));
    assert_eq!(view.volumes.len(), 1, "what was refused left nothing");
    directory.forget(larger).await.expect("ours");
    assert!(directory.view().volumes.is_empty() && directory.view().names.is_empty());
    directory.reserve(same_name.clone()).await.expect("free again");

    // The device is right: what it does not hold goes, what it holds comes.
    let found = volume(host, DEVICE, "found");
    let held = vec![found.clone()];
    assert_eq!(directory.reconcile(DEVICE, held).await, Ok(Vec::new()));
    let view = directory.view();
    assert_eq!(view.named("found").map(|volume| volume.id), Some(found.id));
    assert!(view.named("first").is_none() && view.volumes.len() == 1);
    directory.claim(claim(OTHER_DEVICE)).await.expect("free");
    let double = volume(host, OTHER_DEVICE, "found");
    let conflicts = directory.reconcile(OTHER_DEVICE, vec![double.clone(), found.clone()]).await;
    let name = Conflict::Name { id: double.id, name: "found".to_owned(), holder: found.id };
    let same = Conflict::Volume { id: found.id, device: DEVICE };
    assert_eq!(conflicts, Ok(vec![name, same]));
    assert!(directory.view().volumes.contains_key(&double.id), "it is reached by its id");
    directory.reconcile(DEVICE, Vec::new()).await.expect("ours");
    assert_eq!(directory.reconcile(OTHER_DEVICE, vec![double.clone()]).await, Ok(Vec::new()));
    assert_eq!(directory.view().named("found").map(|volume| volume.id), Some(double.id));
    // A name that becomes free by this is had by who is there.
    let heir = volume(host, OTHER_DEVICE, "found");
    assert_eq!(directory.reconcile(OTHER_DEVICE, vec![heir.clone()]).await, Ok(Vec::new()));
    assert_eq!(directory.view().named("found").map(|volume| volume.id), Some(heir.id));
}

/// A record or a name that is not understood, of a newer release, say, keeps no device from having its own compared.
#[tokio::test]
async fn what_is_not_understood_is_left_as_it_is_by_who_compares() {
    let etcd = EtcdProcesses::start(1);
    let a = host("a");
    let at_a = join(&etcd, &a).await;
    at_a.claim(claim(DEVICE)).await.expect("free");
    let strange = format!("/farflash/test/volumes/{}", Uuid::from_u128(0xF));
    put(etcd.address(0), &strange, "{\"state\":\"unheard-of\"}");
    put(etcd.address(0), "/farflash/test/names/strange", "[]");
    let held = ["mine", "strange"].map(|name| volume(&a, DEVICE, name));
    let id = held[1].id;
    let conflict = Conflict::Name { id, name: "strange".to_owned(), holder: Uuid::nil() };
    assert_eq!(at_a.reconcile(DEVICE, held.to_vec()).await, Ok(vec![conflict]));
    let view = at_a.view();
    assert_eq!(view.named("mine").map(|volume| volume.id), Some(held[0].id));
    assert!(view.volumes.contains_key(&id), "it is reached by its id");
    assert!(is_there(etcd.address(0), &strange));
}

/// A quota is divided anew by whoever knows how it is divided, and not while a host lives that must be gone.
async fn keeps_grants(directory: &dyn Directory, host: &HostRecord) {
    let granted = |blocks: &[u64]| {
        let grants = blocks.iter().zip(1..).map(|(blocks, id)| {
            let grant = GrantRecord { blocks: *blocks, session: host.session, is_short: false };
            (Uuid::from_u128(id), grant)
        });
        GrantsRecord { hosts: grants.collect() }
    };
    let regrant = async |before: &[u64], after: &[u64], gone: &[Uuid]| {
        let (before, after) = (granted(before), granted(after));
        let owner = "acme".to_owned();
        directory.regrant(Regrant { owner, before, after, gone: gone.to_vec() }).await
    };
    let recorded = || directory.view().grants.get("acme").map(|grants| GrantsRecord::clone(grants));
    assert_eq!(regrant(&[1], &[2], &[]).await, Ok(false), "nothing was granted yet");
    assert_eq!((regrant(&[], &[1], &[]).await, recorded()), (Ok(true), Some(granted(&[1]))));
    assert_eq!(regrant(&[], &[2], &[]).await, Ok(false), "somebody was quicker");
    assert_eq!(regrant(&[1], &[1, 2], &[host.id]).await, Ok(false), "it lives");
    assert_eq!(recorded(), Some(granted(&[1])));
    assert_eq!(regrant(&[1], &[1, 2], &[Uuid::from_u128(1)]).await, Ok(true));
    assert_eq!(recorded(), Some(granted(&[1, 2])));
}

#[tokio::test]
async fn both_directories_divide_quotas_alike() {
    let alone = host("alone");
    keeps_grants(&Alone::new(alone.clone()), &alone).await;
    let etcd = EtcdProcesses::start(1);
    let many = host("many");
    keeps_grants(&join(&etcd, &many).await, &many).await;
}

#[tokio::test]
async fn both_directories_keep_volumes_alike() {
    let alone = host("alone");
    keeps_volumes(&Alone::new(alone.clone()), &alone).await;
    let etcd = EtcdProcesses::start(1);
    let many = host("many");
    keeps_volumes(&join(&etcd, &many).await, &many).await;
}

#[tokio::test]
async fn a_name_goes_to_one_of_those_who_ask_at_once() {
    let etcd = EtcdProcesses::start(1);
    let (a, b) = (host("a"), host("b"));
    let (at_a, at_b) = (join(&etcd, &a).await, join(&etcd, &b).await);
    at_a.claim(claim(DEVICE)).await.expect("free");
    at_b.claim(claim(OTHER_DEVICE)).await.expect("free");
    for round in 0..20 {
        let name = format!("v{round}");
        let (one, other) = (volume(&a, DEVICE, &name), volume(&b, OTHER_DEVICE, &name));
        let (one, other) = tokio::join!(at_a.reserve(one), at_b.reserve(other));
        assert_eq!([one.is_ok(), other.is_ok()].iter().filter(|ok| **ok).count(), 1, "{name}");
        let taken = DirectoryError::NameTaken { name };
        assert_eq!(one.err().or(other.err()), Some(taken));
    }
    until(&at_a, "all are seen", |directory| directory.view().volumes.len() == 20).await;
    let many = (0..500).map(|n| volume(&a, DEVICE, &format!("many-{n}"))).collect();
    at_a.reconcile(DEVICE, many).await.expect("more than a transaction takes");
    until(&at_b, "all are seen", |directory| directory.view().volumes.len() >= 500).await;
}

/// D1 and D2, attacked: two hosts admit volumes of one tenant all at once, and each alone would admit more.
#[tokio::test]
async fn what_is_admitted_at_once_on_two_hosts_is_counted_together() {
    const MOST: usize = 7;
    let etcd = EtcdProcesses::start(1);
    let (a, b) = (host("a"), host("b"));
    let (at_a, at_b) = (join(&etcd, &a).await, join(&etcd, &b).await);
    at_a.claim(claim(DEVICE)).await.expect("free");
    at_b.claim(claim(OTHER_DEVICE)).await.expect("free");
    let owned = |view: &directory::View| {
        view.volumes.values().filter(|volume| volume.owner.as_deref() == Some("acme")).count()
    };
    let admit: Admit =
        Arc::new(
            move |view| {
                if owned(view) < MOST { Ok(()) } else { Err("it has enough".to_owned()) }
            },
        );
    let (mut made, mut last) = (0, Vec::new());
    for round in 0..MOST {
        let of_acme = |host: &HostRecord, device| VolumeRecord {
            owner: Some("acme".to_owned()),
            ..volume(host, device, &format!("{}-{round}", host.name))
        };
        let (one, other) = (of_acme(&a, DEVICE), of_acme(&b, OTHER_DEVICE));
        let (one, other) = tokio::join!(
            at_a.reserve_if(one, Some(admit.clone())),
            at_b.reserve_if(other, Some(admit.clone()))
        );
        made += usize::from(one.is_ok()) + usize::from(other.is_ok());
        last = vec![one, other];
    }
    assert_eq!(made, MOST);
    let refused = DirectoryError::NotAdmitted { detail: "it has enough".to_owned() };
    assert_eq!(last, vec![Err(refused.clone()); 2]);
    until(&at_a, "all are seen", |directory| owned(&directory.view()) == MOST).await;
    let first = at_a.view().volumes.values().find(|volume| volume.host == a.id).cloned();
    let larger = VolumeRecord { size_bytes: 8192, ..VolumeRecord::clone(&first.expect("one")) };
    assert_eq!(at_a.update_if(larger.clone(), Some(admit.clone())).await, Err(refused));
    // Others are not held up, and a name that is taken is said to be.
    at_a.reserve(volume(&a, DEVICE, "other")).await.expect("nobody counts it");
    let all: Admit = Arc::new(|_| Ok(()));
    let same = VolumeRecord { id: Uuid::new_v4(), ..larger.clone() };
    let taken = DirectoryError::NameTaken { name: same.name.clone() };
    assert_eq!(at_a.reserve_if(same, Some(all.clone())).await, Err(taken));
    at_a.update_if(larger.clone(), Some(all)).await.expect("admitted");
    assert_eq!(at_a.view().volumes[&larger.id].size_bytes, 8192);
}

/// Has a change of acme's judged by `directory`, and `meanwhile` made between the first judgement and its
/// transaction. How often it was judged.
async fn judged(
    directory: &Etcd,
    host: &HostRecord,
    meanwhile: impl Future<Output = Result<(), DirectoryError>> + Send + 'static,
) -> usize {
    let times = Arc::new(AtomicUsize::new(0));
    let (counted, meanwhile) = (times.clone(), Mutex::new(Some(Box::pin(meanwhile))));
    let admit: Admit = Arc::new(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        let meanwhile = meanwhile.lock().expect("whole").take();
        if let Some(change) = meanwhile {
            let make = || tokio::runtime::Handle::current().block_on(change);
            tokio::task::block_in_place(make).expect("made");
        }
        Ok(())
    });
    let name = format!("judged-{}", Uuid::new_v4());
    let owner = Some("acme".to_owned());
    let volume = VolumeRecord { owner, ..volume(host, OTHER_DEVICE, &name) };
    directory.reserve_if(volume, Some(admit)).await.expect("admitted");
    times.load(Ordering::SeqCst)
}

/// D1, attacked: what nobody judges, such as an operator's change, comes between the judgement of a tenant's
/// change and its transaction. The latter is judged again, by what then holds.
#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_judges_is_counted_by_whoever_is_judged() {
    let etcd = EtcdProcesses::start(1);
    let (a, b) = (host("a"), host("b"));
    let (at_a, at_b) = (Arc::new(join(&etcd, &a).await), join(&etcd, &b).await);
    at_a.claim(claim(DEVICE)).await.expect("free");
    at_b.claim(claim(OTHER_DEVICE)).await.expect("free");
    let made = VolumeRecord { owner: Some("acme".to_owned()), ..volume(&a, DEVICE, "made") };
    let of = |size_bytes| (at_a.clone(), VolumeRecord { size_bytes, ..made.clone() });
    let (at, new) = of(4096);
    let creation = async move { at.reserve(new).await };
    assert_eq!(judged(&at_b, &b, creation).await, 2, "a creation");
    let (at, larger) = of(8192);
    let growth = async move { at.update_if(larger, None).await };
    assert_eq!(judged(&at_b, &b, growth).await, 2, "growth");
    let (at, smaller) = of(4096);
    let shrinking = async move { at.update(smaller).await };
    assert_eq!(judged(&at_b, &b, shrinking).await, 2, "shrinking");
    let (at, same) = of(4096);
    let restricted = VolumeRecord { restrictions: Some(RestrictionsRecord::default()), ..same };
    let restriction = async move { at.update(restricted).await };
    assert_eq!(judged(&at_b, &b, restriction).await, 1, "a restriction counts nothing");
    let (at, found) = of(12_288);
    let finding = async move { at.reconcile(DEVICE, vec![found]).await.map(drop) };
    assert_eq!(judged(&at_b, &b, finding).await, 2, "what a device turns out to hold");
    let (at, gone) = of(12_288);
    let deletion = async move { at.forget(gone).await };
    assert_eq!(judged(&at_b, &b, deletion).await, 2, "a deletion");
    // Many of one tenant fit in as many transactions as they take: each changes its key once.
    let of_acme = |n| VolumeRecord {
        owner: Some("acme".to_owned()),
        ..volume(&a, DEVICE, &format!("many-{n}"))
    };
    let many = (0..300).map(of_acme).collect();
    at_a.reconcile(DEVICE, many).await.expect("more than a transaction takes");
}

/// Whoever catches up has then seen what others were given, however late the news is.
#[tokio::test]
async fn who_catches_up_has_seen_what_a_tenant_was_given_elsewhere() {
    let etcd = EtcdProcesses::start(1);
    let wire = Wire::new(etcd.address(0));
    let (a, b) = (host("a"), host("b"));
    // Long enough that no session ends because the machine is busy.
    let patient = EtcdOptions { lease: PATIENCE, ..options(&[wire.address()]) };
    let at_a = Etcd::join(patient, a, nobody()).await.expect("free");
    let at_b = join(&etcd, &b).await;
    at_b.claim(claim(OTHER_DEVICE)).await.expect("free");
    for round in 0..3 {
        wire.hold();
        let name = format!("v{round}");
        let owner = Some("acme".to_owned());
        let given = VolumeRecord { owner, ..volume(&b, OTHER_DEVICE, &name) };
        at_b.reserve(given).await.expect("free");
        assert!(at_a.view().named(&name).is_none(), "it is not told");
        let (caught_up, ()) = tokio::join!(at_a.catch_up("acme"), async {
            at_a.catch_up("somebody").await.expect("nothing was given");
            wire.release();
        });
        caught_up.expect("it comes");
        assert!(at_a.view().named(&name).is_some());
    }
}

/// L1 and L2: records of a device in memory go when its host leaves, or is back after it was killed, but not
/// while it may only be cut off.
#[tokio::test]
async fn records_of_a_device_that_is_gone_go_when_its_host_is_back() {
    let etcd = EtcdProcesses::start(1);
    let (a, b) = (host("a"), host("b"));
    let memory = |device| Claim { volatile: true, ..claim(device) };
    let at_a = join(&etcd, &a).await;
    at_a.claim(memory(DEVICE)).await.expect("free");
    at_a.reserve(volume(&a, DEVICE, "gone")).await.expect("a free name");
    at_a.claim(claim(OTHER_DEVICE)).await.expect("free");
    at_a.reserve(volume(&a, OTHER_DEVICE, "kept")).await.expect("a free name");
    // Killed: its lease ends without a word.
    drop(at_a);
    delete(etcd.address(0), &format!("/farflash/test/hosts/{}", a.id));
    let at_b = join(&etcd, &b).await;
    let view = at_b.view();
    assert!(view.named("gone").is_some() && view.claims.contains_key(&DEVICE), "it may live");
    assert_eq!(view.reach(view.named("gone").expect("there")), Reach::HostLost);
    drop(at_b);
    delete(etcd.address(0), &format!("/farflash/test/hosts/{}", b.id));
    let again = join(&etcd, &HostRecord { session: Uuid::new_v4(), ..a.clone() }).await;
    until(&again, "they go", |directory| directory.view().named("gone").is_none()).await;
    until(&again, "so does the claim", |directory| !directory.view().claims.contains_key(&DEVICE))
        .await;
    let view = again.view();
    assert!(view.named("kept").is_some() && view.claims.contains_key(&OTHER_DEVICE));
    // In good order they go at once; what lies on a drive stays.
    let third = Uuid::from_u128(0xd3);
    again.claim(memory(third)).await.expect("free");
    again.claim(claim(OTHER_DEVICE)).await.expect("its own");
    again.reserve(volume(&a, third, "gone")).await.expect("free again");
    again.leave().await.expect("it leaves");
    let at_b = join(&etcd, &b).await;
    let view = at_b.view();
    assert!(view.named("gone").is_none() && view.named("kept").is_some());
    assert!(view.claims.is_empty(), "{:?}", view.claims);
}

/// What is known of a host that is not understood, of a newer release, say, keeps no other from the cluster, nor from coming back to
/// it.
#[tokio::test]
async fn a_host_that_is_not_understood_keeps_no_other_away() {
    let etcd = EtcdProcesses::start(1);
    put(etcd.address(0), &format!("/farflash/test/hosts/{}", Uuid::from_u128(0xF)), "[]");
    let wire = Wire::new(etcd.address(0));
    let directory = joined(&[wire.address()], &host("a")).await;
    directory.claim(claim(DEVICE)).await.expect("free");
    wire.cut();
    assert!(matches!(next(&directory).await, Event::CutOff { .. }));
    wire.mend();
    assert_eq!(next(&directory).await, Event::Connected);
    directory.check(DEVICE).await.expect("it is held");
}

/// L3: what is known of a device goes by an operator's word, as a claim does; and whoever had the device, and was only cut off, stops.
#[tokio::test]
async fn a_device_that_is_gone_for_good_is_forgotten() {
    let etcd = EtcdProcesses::start(1);
    let wire = Wire::new(etcd.address(0));
    let a = host("a");
    let at_a = joined(&[wire.address()], &a).await;
    at_a.claim(claim(DEVICE)).await.expect("free");
    at_a.reserve(volume(&a, DEVICE, "lost")).await.expect("a free name");
    at_a.claim(claim(OTHER_DEVICE)).await.expect("free");
    at_a.reserve(volume(&a, OTHER_DEVICE, "kept")).await.expect("a free name");
    let eyes = Eyes::default();
    let at_b = joined_seeing(&[etcd.address(0)], &host("b"), eyes.seek()).await;
    let lives = at_b.forget_device(claim(DEVICE)).await;
    assert!(matches!(lives, Err(DirectoryError::HolderLives { .. })), "{lives:?}");
    wire.cut();
    assert!(matches!(next(&at_a).await, Event::CutOff { .. }));
    delete(etcd.address(0), &format!("/farflash/test/hosts/{}", a.id));
    eyes.see(Some(sighting()));
    let seen = at_b.forget_device(claim(DEVICE)).await;
    assert!(matches!(seen, Err(DirectoryError::HolderSeen { .. })), "{seen:?}");
    assert_eq!(at_b.view().volumes.len(), 2);
    eyes.see(None);
    at_b.forget_device(claim(DEVICE)).await.expect("the holder is gone");
    until(&at_b, "it is gone", |at_b| !at_b.view().claims.contains_key(&DEVICE)).await;
    let view = at_b.view();
    assert!(view.named("lost").is_none() && view.named("kept").is_some());
    assert_eq!(view.volumes.len(), 1);
    wire.mend();
    assert_eq!(next(&at_a).await, Event::ClaimLost { device: DEVICE, holder: None });
    assert_eq!(next(&at_a).await, Event::Connected);
    at_a.check(OTHER_DEVICE).await.expect("nobody took that");
}

/// F2, attacked at the moment in which a lease ends: others still see the host then.
#[tokio::test]
async fn a_host_whose_lease_just_ended_is_not_taken_from() {
    let etcd = EtcdProcesses::start(1);
    let b = host("b");
    let at_b = join(&etcd, &b).await;
    for round in 0..20 {
        let a = host(&format!("a{round}"));
        let at_a = join(&etcd, &a).await;
        let device = Uuid::new_v4();
        at_a.claim(claim(device)).await.expect("free");
        until(&at_b, "it is seen", |at_b| at_b.view().claims.contains_key(&device)).await;
        drop(at_a);
        delete(etcd.address(0), &format!("/farflash/test/hosts/{}", a.id));
        let taken = at_b.claim(claim(device)).await;
        let lost = DirectoryError::HolderLost {
            device: "file:/a".to_owned(),
            holder: a.name,
            is_fenced: false,
        };
        assert_eq!(taken, Err(lost), "round {round}");
    }
}

/// F1 to F4, attacked: a second host with the same device.
#[tokio::test]
async fn a_device_is_served_by_one_host() {
    let etcd = EtcdProcesses::start(1);
    let wire = Wire::new(etcd.address(0));
    let (a, b) = (host("a"), host("b"));
    let at_a = joined(&[wire.address()], &a).await;
    at_a.claim(claim(DEVICE)).await.expect("free");
    let kept = volume(&a, DEVICE, "kept");
    at_a.reserve(kept.clone()).await.expect("a free name");
    let eyes = Eyes::default();
    let at_b = joined_seeing(&[etcd.address(0)], &b, eyes.seek()).await;
    let lives =
        DirectoryError::HolderLives { device: "file:/a".to_owned(), holder: "a".to_owned() };
    assert_eq!(at_b.claim(claim(DEVICE)).await, Err(lives.clone()));
    let taken = at_b.take_over(claim(DEVICE)).await;
    assert_eq!((taken, eyes.asked()), (Err(lives), 0), "not while its host lives");
    assert!(matches!(at_b.check(DEVICE).await, Err(DirectoryError::Fenced { .. })));

    // Cut off, it counts as gone after a while, and is taken from only by an operator's word.
    wire.cut();
    assert!(matches!(next(&at_a).await, Event::CutOff { .. }));
    until(&at_b, "the lease ends", |directory| {
        let view = directory.view();
        view.reach(&view.volumes[&kept.id]) == Reach::HostLost
    })
    .await;
    let place = at_b.view();
    let (name, labels) = place.whereabouts(a.id).expect("its claim tells");
    assert_eq!((name, labels["rack"].as_str()), ("a", "rack-of-a"));
    let (device, holder) = ("file:/a".to_owned(), "a".to_owned());
    let lost = DirectoryError::HolderLost { device, holder, is_fenced: false };
    assert_eq!(at_b.claim(claim(DEVICE)).await, Err(lost));
    assert!(at_a.view().volumes.contains_key(&kept.id), "the last state stays");
    assert!(matches!(at_a.check(DEVICE).await, Err(DirectoryError::Unreachable { .. })));
    // Nor by that while the holder is seen.
    let (device, holder) = ("file:/a".to_owned(), "a".to_owned());
    let seen = DirectoryError::HolderSeen { device, holder, sighting: sighting() };
    eyes.see(Some(sighting()));
    assert_eq!(at_b.take_over(claim(DEVICE)).await, Err(seen));
    assert_eq!(at_b.view().claims[&DEVICE].host, a.id, "nothing was changed");
    eyes.see(None);
    at_b.take_over(claim(DEVICE)).await.expect("the holder is gone");
    let moved = VolumeRecord { host: b.id, ..kept.clone() };
    at_b.reconcile(DEVICE, vec![moved.clone()]).await.expect("ours");

    // The former holder learns of it before all else.
    wire.mend();
    let told = Event::ClaimLost { device: DEVICE, holder: Some("b".to_owned()) };
    assert_eq!(next(&at_a).await, told);
    assert_eq!(next(&at_a).await, Event::Connected);
    let fenced = DirectoryError::Fenced { holder: "b".to_owned() };
    assert_eq!(at_a.update(kept.clone()).await, Err(fenced.clone()));
    assert_eq!(at_a.forget(kept.clone()).await, Err(fenced.clone()));
    assert_eq!(at_a.reserve(volume(&a, DEVICE, "new")).await, Err(fenced.clone()));
    assert_eq!(at_a.reconcile(DEVICE, Vec::new()).await, Err(fenced));
    assert_eq!(*at_b.view().volumes[&kept.id], moved);
    drop(at_a);

    // Nor does it get in again by a restart; but after the new holder gave it back.
    let restarted = HostRecord { session: Uuid::new_v4(), ..a.clone() };
    let at_a = join(&etcd, &restarted).await;
    assert!(matches!(at_a.claim(claim(DEVICE)).await, Err(DirectoryError::HolderLives { .. })));
    at_b.leave().await.expect("there");
    at_a.claim(claim(DEVICE)).await.expect("given back");
}

/// F1 and F5, attacked: who has taken over has ended in good order before the former holder comes back, and what
/// it made stays. That the directory knows of no claim then is no reason to go on.
#[tokio::test]
async fn a_claim_that_was_taken_and_given_back_is_lost() {
    let etcd = EtcdProcesses::start(1);
    let wire = Wire::new(etcd.address(0));
    let (a, b) = (host("a"), host("b"));
    let at_a = joined(&[wire.address()], &a).await;
    at_a.claim(claim(DEVICE)).await.expect("free");
    at_a.claim(claim(OTHER_DEVICE)).await.expect("free");
    let (third, forgotten) = (Uuid::from_u128(0xd3), Uuid::from_u128(0xd4));
    at_a.claim(claim(third)).await.expect("free");
    at_a.claim(claim(forgotten)).await.expect("free");
    at_a.reserve(volume(&a, DEVICE, "old")).await.expect("a free name");
    wire.cut();
    assert!(matches!(next(&at_a).await, Event::CutOff { .. }));
    delete(etcd.address(0), &format!("/farflash/test/hosts/{}", a.id));
    let at_b = join(&etcd, &b).await;
    at_b.take_over(claim(DEVICE)).await.expect("the holder is gone");
    let made = volume(&b, DEVICE, "new");
    at_b.reconcile(DEVICE, vec![made.clone()]).await.expect("ours");
    at_b.leave().await.expect("there");
    drop(at_b);
    // The same by a host of a release that notes nothing; and an etcd that knows nothing of a device at all.
    let key = |kind: &str, device: Uuid| format!("/farflash/test/{kind}/{device}");
    put(etcd.address(0), &key("devices", third), &old_claim(&b));
    delete(etcd.address(0), &key("devices", third));
    delete(etcd.address(0), &key("devices", forgotten));
    delete(etcd.address(0), &key("claimed", forgotten));

    wire.mend();
    let told = |device| Event::ClaimLost { device, holder: None };
    assert_eq!(next(&at_a).await, told(DEVICE));
    assert_eq!(next(&at_a).await, told(third));
    assert_eq!(next(&at_a).await, Event::Connected);
    at_a.check(forgotten).await.expect("it is claimed again");
    let fenced = at_a.reconcile(DEVICE, vec![volume(&a, DEVICE, "old")]).await;
    assert!(matches!(fenced, Err(DirectoryError::Fenced { .. })), "{fenced:?}");
    at_a.check(OTHER_DEVICE).await.expect("nobody took that");
    let view = at_a.view();
    assert_eq!(view.named("new").map(|volume| &**volume), Some(&made));
    assert!(view.named("old").is_none() && !view.claims.contains_key(&DEVICE));
    // It is free for all.
    let at_c = join(&etcd, &host("c")).await;
    at_c.claim(claim(DEVICE)).await.expect("given back");
}

/// F2: a claim tells where its holder is looked for, and one of a release that did not say it is read. What changes while
/// the holder is looked for is looked at again.
#[tokio::test]
async fn a_holder_is_looked_for_where_its_claim_says() {
    let etcd = EtcdProcesses::start(1);
    let key = format!("/farflash/test/devices/{DEVICE}");
    let portal = |port| SocketAddr::from(([192, 0, 2, 1], port));
    let cores = [4420, 4421].map(|port| CoreRecord { core: port.into(), portal: portal(port) });
    let certificate = Some("eA==".to_owned());
    let a = HostRecord { cores: cores.to_vec(), api_certificate: certificate.clone(), ..host("a") };
    let at_a = join(&etcd, &a).await;
    at_a.claim(claim(DEVICE)).await.expect("free");
    drop(at_a);
    delete(etcd.address(0), &format!("/farflash/test/hosts/{}", a.id));

    let found: Arc<Mutex<Vec<ClaimRecord>>> = Arc::default();
    let (seen, address) = (found.clone(), etcd.address(0));
    let (written, old) = (get(address, &key), old_claim(&a));
    let looks: Seek = Arc::new(move |device, claim, _| {
        assert_eq!(device, DEVICE);
        let mut seen = seen.lock().expect("whole");
        seen.push(claim.clone());
        if seen.len() == 1 {
            // Meanwhile somebody changes the claim.
            put(address, &key, &old);
        }
        Box::pin(async { None })
    });
    let at_b = joined_seeing(&[etcd.address(0)], &host("b"), looks).await;
    at_b.take_over(claim(DEVICE)).await.expect("nobody is seen");
    let found = found.lock().expect("whole");
    let [now, before] = &found[..] else { panic!("looked {} times", found.len()) };
    assert_eq!((now.api, now.boot.as_str()), (Some(a.api), "this"));
    assert_eq!(now.portals, [portal(4420), portal(4421)]);
    assert_eq!(now.api_certificate, certificate);
    assert_eq!((before.host, before.api, before.portals.len()), (a.id, None, 0));
    assert!(written.contains("192.0.2.1:4421"), "{written}");
}

/// The claim of a host to a device as it was written before claims had addresses.
fn old_claim(host: &HostRecord) -> String {
    format!(
        r#"{{"host":"{}","host_name":"{}","session":"{}","device_name":"file:/a"}}"#,
        host.id, host.name, host.session
    )
}

/// F4 without a cut: the process before hears of the claim of the next at once.
#[tokio::test]
async fn a_host_that_was_killed_gets_its_own_device_again() {
    let etcd = EtcdProcesses::start(1);
    let a = host("a");
    let first = join(&etcd, &a).await;
    first.claim(claim(DEVICE)).await.expect("free");
    let second = HostRecord { session: Uuid::new_v4(), ..a.clone() };
    let again = join(&etcd, &second).await;
    again.claim(claim(DEVICE)).await.expect("the same host");
    // A process that should be gone is stopped by the claim of the next.
    lost(&first, DEVICE).await;
    assert!(matches!(first.check(DEVICE).await, Err(DirectoryError::Fenced { .. })));
    again.check(DEVICE).await.expect("ours");
    let elsewhere = HostRecord { boot: "other".to_owned(), session: Uuid::new_v4(), ..a.clone() };
    let refused = Etcd::join(options(&[etcd.address(0)]), elsewhere, nobody()).await.err();
    assert!(matches!(refused, Some(DirectoryError::HostLives { .. })), "{refused:?}");
    let namesake = Etcd::join(options(&[etcd.address(0)]), host("a"), nobody()).await.err();
    assert!(matches!(namesake, Some(DirectoryError::HostLives { .. })), "{namesake:?}");
}

/// F2, attacked: another machine has the same id and name. To etcd it is the host after a reboot.
#[tokio::test]
async fn a_host_that_runs_elsewhere_is_looked_for_and_learns_that_it_was_taken_from() {
    let etcd = EtcdProcesses::start(1);
    let wire = Wire::new(etcd.address(0));
    let a = host("a");
    let at_a = joined(&[wire.address()], &a).await;
    at_a.claim(claim(DEVICE)).await.expect("free");
    let memory = Claim { volatile: true, ..claim(OTHER_DEVICE) };
    at_a.claim(memory).await.expect("free");
    at_a.reserve(volume(&a, OTHER_DEVICE, "in-memory")).await.expect("a free name");
    wire.cut();
    assert!(matches!(next(&at_a).await, Event::CutOff { .. }));
    delete(etcd.address(0), &format!("/farflash/test/hosts/{}", a.id));

    let twin = HostRecord { boot: "other".to_owned(), session: Uuid::new_v4(), ..a.clone() };
    let eyes = Eyes::default();
    eyes.see(Some(sighting()));
    let at_twin = joined_seeing(&[etcd.address(0)], &twin, eyes.seek()).await;
    assert!(at_twin.view().named("in-memory").is_some(), "it may be served");
    let (device, holder) = ("file:/a".to_owned(), "a".to_owned());
    let seen = DirectoryError::HolderSeen { device, holder, sighting: sighting() };
    assert_eq!(at_twin.claim(claim(DEVICE)).await, Err(seen.clone()));
    assert_eq!(at_twin.take_over(claim(DEVICE)).await, Err(seen), "nor by anybody's word");
    eyes.see(None);
    at_twin.claim(claim(DEVICE)).await.expect("it may have been started anew");

    // Its name is taken while the other lives; all the same it learns what it has lost.
    wire.mend();
    lost(&at_a, DEVICE).await;
    assert!(matches!(at_a.check(DEVICE).await, Err(DirectoryError::Unreachable { .. })));
    at_twin.check(DEVICE).await.expect("ours");
    // Under one kernel the former process is dead.
    let asked = eyes.asked();
    at_twin.claim(claim(DEVICE)).await.expect("ours");
    assert_eq!(eyes.asked(), asked);
}

/// E4: a host whose control side does something else for longer than its lease is not lost.
///
/// Method: this thread, which is the host's, waits for a lease to end that began when the host's was kept last and is
/// twice as long.
#[tokio::test]
async fn a_busy_host_is_not_lost() {
    const SECONDS: u64 = 2;
    let etcd = EtcdProcesses::start(1);
    let address = etcd.address(0);
    let a = host("a");
    let lease = Duration::from_secs(SECONDS);
    let short = EtcdOptions { lease, ..options(&[address]) };
    let at_a = Etcd::join(short, a.clone(), nobody()).await.expect("free");
    at_a.claim(claim(DEVICE)).await.expect("free");
    put_for(address, "/elsewhere", 2 * SECONDS);
    let deadline = Instant::now() + PATIENCE;
    while is_there(address, "/elsewhere") {
        assert!(Instant::now() < deadline, "its lease ends");
        std::thread::park_timeout(Duration::from_millis(50));
    }
    assert!(is_there(address, &format!("/farflash/test/hosts/{}", a.id)));
    at_a.check(DEVICE).await.expect("ours");
}

#[tokio::test]
async fn etcd_may_hang_or_restart() {
    let mut etcd = EtcdProcesses::start(1);
    let a = host("a");
    let directory = join(&etcd, &a).await;
    directory.claim(claim(DEVICE)).await.expect("free");
    let kept = volume(&a, DEVICE, "kept");
    directory.reserve(kept.clone()).await.expect("free");
    etcd.signal(0, Signal::STOP);
    let refused = directory.reserve(volume(&a, DEVICE, "refused")).await;
    assert!(matches!(refused, Err(DirectoryError::Unreachable { .. })), "{refused:?}");
    assert!(matches!(next(&directory).await, Event::CutOff { .. }));
    assert!(directory.view().cut_off.is_some());
    assert_eq!(*directory.view().volumes[&kept.id], kept);
    etcd.signal(0, Signal::CONT);
    assert_eq!(next(&directory).await, Event::Connected);
    // The one refused may have been made: the device tells.
    directory.reconcile(DEVICE, vec![kept.clone()]).await.expect("ours");
    assert_eq!(directory.view().volumes.len(), 1);
    directory.reserve(volume(&a, DEVICE, "refused")).await.expect("free");
    etcd.kill(0);
    assert!(matches!(next(&directory).await, Event::CutOff { .. }));
    let away = directory.check(DEVICE).await.expect_err("it is away");
    assert!(matches!(away, DirectoryError::Unreachable { .. }), "{away:?}");
    let said = away.to_string().matches("directory cannot be reached").count();
    assert_eq!(said, 1, "once is enough: {away}");
    etcd.restart(0);
    assert_eq!(next(&directory).await, Event::Connected);
    directory.check(DEVICE).await.expect("still ours");
    assert_eq!(directory.view().volumes.len(), 2);
}

/// E5, attacked: etcd, or what lies before it, carries out what was asked of it when the host has given that up and made its
/// records those of its devices. What came late has no effect: neither a name and a record of a volume that is not there, nor
/// the record of one that was deleted meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_was_given_up_is_not_made_later() {
    let etcd = EtcdProcesses::start(1);
    let wire = Wire::new(etcd.address(0));
    let a = host("a");
    let directory = joined(&[wire.address()], &a).await;
    directory.claim(claim(DEVICE)).await.expect("free");
    let key = |kind: &str, name: &dyn std::fmt::Display| format!("/farflash/test/{kind}/{name}");
    let kept = volume(&a, DEVICE, "kept");
    directory.reserve(kept.clone()).await.expect("free");

    wire.delay(&key("names", &"new"));
    let new = volume(&a, DEVICE, "new");
    let given_up = directory.reserve(new.clone()).await;
    assert!(matches!(given_up, Err(DirectoryError::Unreachable { .. })), "{given_up:?}");
    reconciled_anew(&directory, vec![kept.clone()]).await;
    wire.deliver();
    assert!(!is_there(etcd.address(0), &key("names", &"new")), "nobody would give it up");
    assert!(!is_there(etcd.address(0), &key("volumes", &new.id)), "there is none");

    wire.delay(&key("volumes", &kept.id));
    let given_up = directory.update(VolumeRecord { size_bytes: 8192, ..kept.clone() }).await;
    assert!(matches!(given_up, Err(DirectoryError::Unreachable { .. })), "{given_up:?}");
    reconciled_anew(&directory, vec![kept.clone()]).await;
    directory.forget(kept.clone()).await.expect("ours");
    wire.deliver();
    assert!(!is_there(etcd.address(0), &key("volumes", &kept.id)), "it was deleted");
    directory.reserve(new).await.expect("free");
}

/// F1, attacked: a claim is made, and lost with the session before its answer comes. Nobody tells of it then: so it was not made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_is_answered_when_its_session_has_ended_is_none() {
    let etcd = EtcdProcesses::start(1);
    let wire = Wire::new(etcd.address(0));
    let (a, b) = (host("a"), host("b"));
    // Answers have as much time as they ever have.
    let patient = EtcdOptions { lease: PATIENCE, ..options(&[wire.address()]) };
    let at_a = Arc::new(Etcd::join(patient, a.clone(), nobody()).await.expect("free"));
    assert_eq!(next(&at_a).await, Event::Connected);
    at_a.claim(claim(OTHER_DEVICE)).await.expect("free");
    let at_b = join(&etcd, &b).await;
    wire.delay_answer(&format!("/farflash/test/claimed/{DEVICE}"));
    let claiming = at_a.clone();
    let claimed = tokio::spawn(async move { claiming.claim(claim(DEVICE)).await });
    until(&at_b, "it is made", |at_b| at_b.view().claims.contains_key(&DEVICE)).await;
    delete(etcd.address(0), &format!("/farflash/test/hosts/{}", a.id));
    at_b.take_over(claim(DEVICE)).await.expect("the holder is gone");
    at_b.take_over(claim(OTHER_DEVICE)).await.expect("the holder is gone");
    lost(&at_a, OTHER_DEVICE).await;
    assert!(matches!(next(&at_a).await, Event::CutOff { .. }));
    assert_eq!(next(&at_a).await, Event::Connected);
    wire.deliver();
    let claimed = claimed.await.expect("it ends");
    assert!(matches!(claimed, Err(DirectoryError::Unreachable { .. })), "{claimed:?}");
    let again = at_a.claim(claim(DEVICE)).await;
    assert!(matches!(again, Err(DirectoryError::HolderLives { .. })), "{again:?}");
}

/// F4: whoever finds his claim to be another's by a change is told to stop, also when nobody else tells him.
#[tokio::test]
async fn a_change_that_finds_the_claim_gone_tells_of_it() {
    let etcd = EtcdProcesses::start(1);
    let wire = Wire::new(etcd.address(0));
    let (a, b) = (host("a"), host("b"));
    // Long enough that no session ends because the machine is busy.
    let patient = EtcdOptions { lease: PATIENCE, ..options(&[wire.address()]) };
    let at_a = Etcd::join(patient, a.clone(), nobody()).await.expect("free");
    assert_eq!(next(&at_a).await, Event::Connected);
    at_a.claim(claim(DEVICE)).await.expect("free");
    wire.hold();
    put(etcd.address(0), &format!("/farflash/test/devices/{DEVICE}"), &old_claim(&b));
    let refused = at_a.reserve(volume(&a, DEVICE, "v")).await;
    assert_eq!(refused, Err(DirectoryError::Fenced { holder: "b".to_owned() }));
    let told = Event::ClaimLost { device: DEVICE, holder: Some("b".to_owned()) };
    assert_eq!(next(&at_a).await, told);
}

/// What a host says of itself while its session begins is said, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_host_says_of_itself_while_it_connects_is_known() {
    let etcd = EtcdProcesses::start(1);
    let wire = Wire::new(etcd.address(0));
    let a = host("a");
    let patient = EtcdOptions { lease: PATIENCE, ..options(&[wire.address()]) };
    let at_a = Etcd::join(patient, a.clone(), nobody()).await.expect("free");
    let at_b = join(&etcd, &host("b")).await;
    // It is registered, and reads all there is.
    wire.delay("/farflash/test/");
    wire.cut();
    wire.mend();
    while !wire.is_late() {
        tokio::task::yield_now().await;
    }
    let labels = [("rack".to_owned(), "another".to_owned())];
    at_a.describe(HostRecord { labels: labels.into(), ..a.clone() }).await.expect("noted");
    wire.deliver();
    until(&at_b, "it is known", |at_b| at_b.view().hosts[&a.id].labels["rack"] == "another").await;
}

/// Waits until the host has etcd again, and makes the records of its device those of what that holds.
async fn reconciled_anew(directory: &Etcd, held: Vec<VolumeRecord>) {
    assert!(matches!(next(directory).await, Event::CutOff { .. }));
    assert_eq!(next(directory).await, Event::Connected);
    directory.reconcile(DEVICE, held).await.expect("ours");
}

#[tokio::test]
async fn a_member_may_die_and_a_quorum_come_back() {
    let mut etcd = EtcdProcesses::start(3);
    let members: Vec<SocketAddr> = (0..3).map(|member| etcd.address(member)).collect();
    let a = host("a");
    let directory = joined(&members, &a).await;
    directory.claim(claim(DEVICE)).await.expect("free");
    etcd.kill(0);
    assert!(matches!(next(&directory).await, Event::CutOff { .. }));
    assert_eq!(next(&directory).await, Event::Connected);
    directory.reserve(volume(&a, DEVICE, "first")).await.expect("two are a quorum");
    etcd.kill(1);
    assert!(matches!(next(&directory).await, Event::CutOff { .. }));
    let refused = directory.reserve(volume(&a, DEVICE, "second")).await;
    assert!(matches!(refused, Err(DirectoryError::Unreachable { .. })), "{refused:?}");
    etcd.restart(1);
    assert_eq!(next(&directory).await, Event::Connected);
    directory.reserve(volume(&a, DEVICE, "second")).await.expect("two are a quorum");
}

/// F6: a cluster has one identity, whoever asks first and whoever asks later; another prefix is another cluster, and a
/// host without a directory is of none.
#[tokio::test]
async fn a_cluster_has_one_identity() {
    let etcd = EtcdProcesses::start(1);
    let hosts = ["a", "b", "c"].map(host);
    let [a, b, c] = &hosts;
    let (at_a, at_b) = tokio::join!(join(&etcd, a), join(&etcd, b));
    let ours = at_a.cluster().expect("known since it joined");
    assert_eq!(at_b.cluster(), Some(ours));
    drop((at_a, at_b));
    assert_eq!(join(&etcd, c).await.cluster(), Some(ours), "it outlives its hosts");

    let mut elsewhere = options(&[etcd.address(0)]);
    elsewhere.address.cluster = "elsewhere".to_owned();
    let elsewhere = Etcd::join(elsewhere, host("a"), nobody()).await.expect("free");
    assert!(elsewhere.cluster().is_some_and(|theirs| theirs != ours && !theirs.is_nil()));
    assert_eq!(Alone::new(host("a")).cluster(), None);
}

/// F6: an etcd that has forgotten which cluster it is for is told by a host that knows; one that is for another by now is
/// asked for nothing, also by a host that was there before.
#[tokio::test]
async fn a_host_stays_of_the_cluster_that_it_joined() {
    const KEY: &str = "/farflash/test/cluster";
    let etcd = EtcdProcesses::start(1);
    let (address, a) = (etcd.address(0), host("a"));
    let at_a = join(&etcd, &a).await;
    let ours = get(address, KEY);
    let own_key = format!("/farflash/test/hosts/{}", a.id);
    delete(address, KEY);
    delete(address, &own_key);
    assert!(matches!(next(&at_a).await, Event::CutOff { .. }));
    assert_eq!(next(&at_a).await, Event::Connected);
    assert_eq!(get(address, KEY), ours);

    put(address, KEY, &format!("\"{}\"", Uuid::from_u128(0xE)));
    delete(address, &own_key);
    assert!(matches!(next(&at_a).await, Event::CutOff { .. }));
    until(&at_a, "it is seen", |at_a| {
        at_a.view().cut_off.as_ref().is_some_and(|why| why.contains("is of the cluster"))
    })
    .await;
    assert!(!is_there(address, &own_key), "it takes no part there");
    assert!(matches!(at_a.claim(claim(DEVICE)).await, Err(DirectoryError::Unreachable { .. })));
    put(address, KEY, &ours);
    assert_eq!(next(&at_a).await, Event::Connected);
}
