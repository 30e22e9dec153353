//! The host that has a device, and when the device passes to another.

use super::*;

/// LEFTOVER-3: what is known of a device goes by an operator's word, as a claim does; and a host that had the device, and was
/// only cut off, stops.
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
    let lives = at_b.forget_device(claim(DEVICE), Word::down(["a"])).await;
    assert!(matches!(lives, Err(DirectoryError::HolderLives { .. })), "{lives:?}");
    wire.cut();
    assert!(matches!(next(&at_a).await, Event::CutOff { .. }));
    delete(etcd.address(0), &format!("/farflash/test/hosts/{}", a.id));
    eyes.see(Some(sighting()));
    let seen = at_b.forget_device(claim(DEVICE), Word::down(["a"])).await;
    assert!(matches!(seen, Err(DirectoryError::HolderSeen { .. })), "{seen:?}");
    assert_eq!(at_b.view().volumes.len(), 2);
    eyes.see(None);
    let may = at_b.forget_device(claim(DEVICE), Word::default()).await;
    assert!(matches!(may, Err(DirectoryError::HolderMayServe { .. })), "{may:?}");
    at_b.forget_device(claim(DEVICE), Word::down(["a"])).await.expect("the holder is gone");
    until(&at_b, "it is gone", |at_b| !at_b.view().claims.contains_key(&DEVICE)).await;
    let view = at_b.view();
    assert!(view.named("lost").is_none() && view.named("kept").is_some());
    assert_eq!(view.volumes.len(), 1);
    wire.mend();
    assert_eq!(next(&at_a).await, Event::ClaimLost { device: DEVICE, holder: None });
    assert_eq!(next(&at_a).await, Event::Connected);
    at_a.check(OTHER_DEVICE).await.expect("it was not taken");
}

/// CLAIM-2, attacked at the moment in which a lease ends: others still see the host then.
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

/// CLAIM-1 to CLAIM-4, attacked: a second host with the same device.
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
    let taken = at_b.take_over(claim(DEVICE), Word::down(["a"])).await;
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
    assert_eq!(at_b.take_over(claim(DEVICE), Word::down(["a"])).await, Err(seen));
    assert_eq!(at_b.view().claims[&DEVICE].host, a.id, "nothing was changed");
    eyes.see(None);
    // Nor while it may serve where no host sees it, as it does here, whatever is said of others.
    for word in [Word::default(), Word::down(["b", "A", Word::UNKNOWN_HOST])] {
        let (device, holder) = ("file:/a".to_owned(), "a".to_owned());
        let may = DirectoryError::HolderMayServe { device, holder };
        assert_eq!(at_b.take_over(claim(DEVICE), word).await, Err(may));
    }
    assert_eq!(at_b.view().claims[&DEVICE].host, a.id, "nothing was changed");
    at_b.take_over(claim(DEVICE), Word::down(["a"])).await.expect("the holder is gone");
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

/// CLAIM-1 and CLAIM-5, attacked: the host that has taken over has ended in good order before the former holder comes
/// back, and what it made stays. The former holder does not go on merely because the directory knows of no
/// claim.
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
    at_b.take_over(claim(DEVICE), Word::down(["a"])).await.expect("the holder is gone");
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
    at_a.check(OTHER_DEVICE).await.expect("it was not taken");
    let view = at_a.view();
    assert_eq!(view.named("new").map(|volume| &**volume), Some(&made));
    assert!(view.named("old").is_none() && !view.claims.contains_key(&DEVICE));
    // It is free for all.
    let at_c = join(&etcd, &host("c")).await;
    at_c.claim(claim(DEVICE)).await.expect("given back");
}

/// CLAIM-2: a claim tells where its holder is looked for, and one of a release that did not say it is read. What changes while
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
            // Meanwhile another process changes the claim.
            put(address, &key, &old);
        }
        Box::pin(async { None })
    });
    let at_b = joined_seeing(&[etcd.address(0)], &host("b"), looks).await;
    at_b.take_over(claim(DEVICE), Word::down(["a"])).await.expect("the holder is not seen");
    let found = found.lock().expect("whole");
    let [now, before] = &found[..] else { panic!("looked {} times", found.len()) };
    assert_eq!((now.api, now.boot.as_str()), (Some(a.api), "this"));
    assert_eq!(now.portals, [portal(4420), portal(4421)]);
    assert_eq!(now.api_certificate, certificate);
    assert_eq!((before.host, before.api, before.portals.len()), (a.id, None, 0));
    assert!(written.contains("192.0.2.1:4421"), "{written}");
}

/// CLAIM-4 without a cut: the process before hears of the claim of the next at once.
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
    let refused = Etcd::join(options(&[etcd.address(0)]), elsewhere, sees_none()).await.err();
    assert!(matches!(refused, Some(DirectoryError::HostLives { .. })), "{refused:?}");
    let namesake = Etcd::join(options(&[etcd.address(0)]), host("a"), sees_none()).await.err();
    assert!(matches!(namesake, Some(DirectoryError::HostLives { .. })), "{namesake:?}");
}

/// CLAIM-2, attacked: another machine has the same id and name. To etcd it is the host after a reboot.
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
    assert_eq!(
        at_twin.take_over(claim(DEVICE), Word::down(["a"])).await,
        Err(seen),
        "nor by anybody's word"
    );
    eyes.see(None);
    at_twin.claim(claim(DEVICE)).await.expect("it may have been restarted");

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

/// CLAIM-1, attacked: a claim is made, and lost with the session before its answer comes. No event tells of it then: so it was
/// not made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_is_answered_when_its_session_has_ended_is_none() {
    let etcd = EtcdProcesses::start(1);
    let wire = Wire::new(etcd.address(0));
    let (a, b) = (host("a"), host("b"));
    // Answers have as much time as they ever have.
    let patient = EtcdOptions { lease: PATIENCE, ..options(&[wire.address()]) };
    let at_a = Arc::new(Etcd::join(patient, a.clone(), sees_none()).await.expect("free"));
    assert_eq!(next(&at_a).await, Event::Connected);
    at_a.claim(claim(OTHER_DEVICE)).await.expect("free");
    let at_b = join(&etcd, &b).await;
    // Of what a claim asks only its last transaction names that.
    wire.delay_answer(&format!("/farflash/test/hosts/{}", a.id));
    let claiming = at_a.clone();
    let claimed = tokio::spawn(async move { claiming.claim(claim(DEVICE)).await });
    until(&at_b, "it is made", |at_b| at_b.view().claims.contains_key(&DEVICE)).await;
    delete(etcd.address(0), &format!("/farflash/test/hosts/{}", a.id));
    at_b.take_over(claim(DEVICE), Word::down(["a"])).await.expect("the holder is gone");
    at_b.take_over(claim(OTHER_DEVICE), Word::down(["a"])).await.expect("the holder is gone");
    lost(&at_a, OTHER_DEVICE).await;
    assert!(matches!(next(&at_a).await, Event::CutOff { .. }));
    assert_eq!(next(&at_a).await, Event::Connected);
    wire.deliver();
    let claimed = claimed.await.expect("it ends");
    assert!(matches!(claimed, Err(DirectoryError::Unreachable { .. })), "{claimed:?}");
    let again = at_a.claim(claim(DEVICE)).await;
    assert!(matches!(again, Err(DirectoryError::HolderLives { .. })), "{again:?}");
}

/// CLAIM-4: a host that finds its claim to be another's by a change is told to stop, also when no event tells it.
#[tokio::test]
async fn a_change_that_finds_the_claim_gone_tells_of_it() {
    let etcd = EtcdProcesses::start(1);
    let wire = Wire::new(etcd.address(0));
    let (a, b) = (host("a"), host("b"));
    // Long enough that no session ends because the machine is busy.
    let patient = EtcdOptions { lease: PATIENCE, ..options(&[wire.address()]) };
    let at_a = Etcd::join(patient, a.clone(), sees_none()).await.expect("free");
    assert_eq!(next(&at_a).await, Event::Connected);
    at_a.claim(claim(DEVICE)).await.expect("free");
    wire.hold();
    put(etcd.address(0), &format!("/farflash/test/devices/{DEVICE}"), &old_claim(&b));
    let refused = at_a.reserve(volume(&a, DEVICE, "v")).await;
    assert_eq!(refused, Err(DirectoryError::Fenced { holder: "b".to_owned() }));
    let told = Event::ClaimLost { device: DEVICE, holder: Some("b".to_owned()) };
    assert_eq!(next(&at_a).await, told);
}
