//! The records that hosts write for each other: volumes, their names, and what tenants may have of
//! them.

use super::*;

/// The promises of every directory about the volumes of one host.
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
    // VOLUME-RECORD-3: it keeps its record and its name, whatever is done with the other of its id.
    let elsewhere = VolumeRecord { device: OTHER_DEVICE, size_bytes: 8192, ..found.clone() };
    directory.update(elsewhere.clone()).await.expect("ours");
    directory.forget(elsewhere).await.expect("ours");
    assert_eq!(directory.view().named("found").map(|volume| &**volume), Some(&found));
    assert!(directory.view().volumes.contains_key(&double.id), "it is reached by its id");
    directory.reconcile(DEVICE, Vec::new()).await.expect("ours");
    assert_eq!(directory.reconcile(OTHER_DEVICE, vec![double.clone()]).await, Ok(Vec::new()));
    assert_eq!(directory.view().named("found").map(|volume| volume.id), Some(double.id));
    // A name that becomes free by this goes to the volume that is there.
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

/// A quota is divided again only by a host that knows the present division, and not while a host lives that
/// must be gone.
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
    assert_eq!(regrant(&[], &[2], &[]).await, Ok(false), "another host was quicker");
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

/// VOLUME-RECORD-2, attacked: a proxy before etcd has every transaction carried out twice, and the host gets the second answer. A
/// host that does not recognise its own transaction takes a name for another's, and a quota for one that another host has
/// divided.
#[tokio::test]
async fn a_directory_behind_what_repeats_requests_is_the_same() {
    let etcd = EtcdProcesses::start(1);
    let wire = Wire::new(etcd.address(0));
    wire.repeat();
    let a = host("a");
    let members = [wire.address()];
    let joining = tokio::time::timeout(PATIENCE, joined(&members, &a));
    let at_a = joining.await.expect("it knows its own registration");
    keeps_volumes(&at_a, &a).await;
    keeps_grants(&at_a, &a).await;
    let own = VolumeRecord { owner: Some("acme".to_owned()), ..volume(&a, DEVICE, "own") };
    let all: Admit = Arc::new(|_| Ok(()));
    at_a.reserve_if(own.clone(), Some(all.clone())).await.expect("free");
    let larger = VolumeRecord { size_bytes: 8192, ..own };
    at_a.update_if(larger.clone(), Some(all)).await.expect("admitted");
    assert_eq!(at_a.view().named("own").map(|own| &**own), Some(&larger));
    at_a.check(DEVICE).await.expect("ours");
    at_a.leave().await.expect("there");
    assert!(!is_there(etcd.address(0), &format!("/farflash/test/devices/{DEVICE}")));
}

/// VOLUME-RECORD-1, attacked: a change of a record comes twice, and the second time late, when the record is another one already
/// or gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_comes_again_overwrites_nothing_newer() {
    let etcd = EtcdProcesses::start(1);
    let wire = Wire::new(etcd.address(0));
    let a = host("a");
    let at_a = joined(&[wire.address()], &a).await;
    at_a.claim(claim(DEVICE)).await.expect("free");
    let first = VolumeRecord { owner: Some("acme".to_owned()), ..volume(&a, DEVICE, "first") };
    at_a.reserve(first.clone()).await.expect("free");
    // The tenant's key is named by the transaction only.
    wire.copy("/farflash/test/tenants/acme");
    at_a.update(VolumeRecord { size_bytes: 8192, ..first.clone() }).await.expect("ours");
    let newer = VolumeRecord { size_bytes: 12_288, ..first.clone() };
    at_a.update(newer.clone()).await.expect("ours");
    wire.repeat_late();
    at_a.catch_up("acme").await.expect("seen");
    assert_eq!(*at_a.view().volumes[&first.id], newer);
    wire.copy("/farflash/test/tenants/acme");
    at_a.update(first.clone()).await.expect("ours");
    at_a.forget(first.clone()).await.expect("ours");
    wire.repeat_late();
    assert!(!is_there(etcd.address(0), &format!("/farflash/test/volumes/{}", first.id)));
}

/// VOLUME-RECORD-4, attacked: a transaction that makes a record and takes a name comes once more when both were given up. No host
/// would delete what it makes of a volume that is not there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_transaction_makes_nothing_again_that_was_given_up() {
    let etcd = EtcdProcesses::start(1);
    let wire = Wire::new(etcd.address(0));
    let (a, b) = (host("a"), host("b"));
    let at_a = joined(&[wire.address()], &a).await;
    at_a.claim(claim(DEVICE)).await.expect("free");
    let once = VolumeRecord { owner: Some("acme".to_owned()), ..volume(&a, DEVICE, "once") };
    let is_left = || {
        let keys = [format!("names/{}", once.name), format!("volumes/{}", once.id)];
        keys.map(|key| is_there(etcd.address(0), &format!("/farflash/test/{key}")))
    };
    for reserves in [true, false] {
        wire.copy("/farflash/test/names/once");
        match reserves {
            true => at_a.reserve(once.clone()).await.expect("free"),
            false => {
                let held = at_a.reconcile(DEVICE, vec![once.clone()]).await;
                assert_eq!(held, Ok(Vec::new()));
            }
        }
        assert_eq!(is_left(), [true; 2]);
        at_a.forget(once.clone()).await.expect("ours");
        wire.repeat_late();
        assert_eq!(is_left(), [false; 2], "reserves: {reserves}");
    }
    // A record may be lost while its volume is there.
    wire.copy("/farflash/test/tenants/acme");
    at_a.update(once.clone()).await.expect("ours");
    at_a.forget(once.clone()).await.expect("ours");
    wire.repeat_late();
    assert_eq!(is_left(), [false; 2], "updates");
    let at_b = join(&etcd, &b).await;
    at_b.claim(claim(OTHER_DEVICE)).await.expect("free");
    at_b.reserve(volume(&b, OTHER_DEVICE, "once")).await.expect("free");
}

/// VOLUME-RECORD-4: changes of one device that are made at once are all made.
#[tokio::test]
async fn changes_of_one_device_may_be_made_at_once() {
    let etcd = EtcdProcesses::start(1);
    let a = host("a");
    let at_a = join(&etcd, &a).await;
    at_a.claim(claim(DEVICE)).await.expect("free");
    let all: Vec<_> = (0..4).map(|n| volume(&a, DEVICE, &format!("v{n}"))).collect();
    let [one, two, three, four] = [0, 1, 2, 3].map(|n| at_a.reserve(all[n].clone()));
    let made = tokio::join!(one, two, three, four);
    assert_eq!(made, (Ok(()), Ok(()), Ok(()), Ok(())));
    assert_eq!(at_a.view().volumes.len(), 4);
}

/// VOLUME-RECORD-3: of two volumes of one id, on devices of which one was copied, say, the one that has the record keeps it, and
/// its name, whatever is done with the other.
#[tokio::test]
async fn what_is_done_with_a_volume_leaves_the_record_of_its_double_alone() {
    let etcd = EtcdProcesses::start(1);
    let (a, b) = (host("a"), host("b"));
    let (at_a, at_b) = (join(&etcd, &a).await, join(&etcd, &b).await);
    at_a.claim(claim(DEVICE)).await.expect("free");
    at_b.claim(claim(OTHER_DEVICE)).await.expect("free");
    let kept = volume(&a, DEVICE, "kept");
    at_a.reserve(kept.clone()).await.expect("free");
    let double = VolumeRecord { host: b.id, device: OTHER_DEVICE, ..kept.clone() };
    let conflict = Conflict::Volume { id: kept.id, device: DEVICE };
    let conflicts = at_b.reconcile(OTHER_DEVICE, vec![double.clone()]).await;
    assert_eq!(conflicts, Ok(vec![conflict]));
    at_b.update(VolumeRecord { size_bytes: 8192, ..double.clone() }).await.expect("ours");
    let all: Admit = Arc::new(|_| Ok(()));
    let refused = at_b.update_if(double.clone(), Some(all)).await;
    assert!(matches!(refused, Err(DirectoryError::NotAdmitted { .. })), "{refused:?}");
    at_b.forget(double).await.expect("ours");
    let at_c = join(&etcd, &host("c")).await;
    assert_eq!(at_c.view().named("kept").map(|volume| &**volume), Some(&kept));
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

/// QUOTA-1 and QUOTA-2, attacked: two hosts admit volumes of one tenant all at once, and each alone would admit more.
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
    at_a.reserve(volume(&a, DEVICE, "other")).await.expect("it is not counted");
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

/// QUOTA-1, attacked: a change that is not judged, such as an operator's, comes between the judgement of a
/// tenant's change and its transaction. The latter is judged again, by what then holds.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_is_not_judged_counts_for_the_next_that_is() {
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

/// A host that catches up has then seen what others were given, however late the news is.
#[tokio::test]
async fn a_host_that_catches_up_has_seen_what_a_tenant_was_given_elsewhere() {
    let etcd = EtcdProcesses::start(1);
    let wire = Wire::new(etcd.address(0));
    let (a, b) = (host("a"), host("b"));
    // Long enough that no session ends because the machine is busy.
    let patient = EtcdOptions { lease: PATIENCE, ..options(&[wire.address()]) };
    let at_a = Etcd::join(patient, a, sees_none()).await.expect("free");
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
            at_a.catch_up("another").await.expect("nothing was given");
            wire.release();
        });
        caught_up.expect("it comes");
        assert!(at_a.view().named(&name).is_some());
    }
}

/// LEFTOVER-1 and LEFTOVER-2: records of a device in memory go when its host leaves, or is back after it was killed, but not
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
