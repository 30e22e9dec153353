//! Hosts that come, go, and lose etcd for a while.

use super::*;

/// A record of a host that is not understood, of a newer release, say, keeps no other host from the cluster, nor from coming back
/// to it.
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

/// SESSION-6: of two hosts of one name that register in the same moment one is refused. Method: the registration of the one rests
/// on the way when it has seen no host of its name, and the other comes meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_hosts_of_one_name_that_come_at_once_one_is_refused() {
    let etcd = EtcdProcesses::start(1);
    let wire = Wire::new(etcd.address(0));
    let (a, namesake) = (host("a"), host("a"));
    let own_key = |host: &HostRecord| format!("/farflash/test/hosts/{}", host.id);
    wire.delay(&own_key(&a));
    // The answer has as much time as it ever has.
    let patient = EtcdOptions { lease: PATIENCE, ..options(&[wire.address()]) };
    let joining = tokio::spawn(Etcd::join(patient, a.clone(), sees_none()));
    while !wire.is_late() {
        tokio::task::yield_now().await;
    }
    let other = join(&etcd, &namesake).await;
    wire.deliver();
    assert!(!is_there(etcd.address(0), &own_key(&a)), "there are two of one name");
    other.claim(claim(DEVICE)).await.expect("it is there");
    other.leave().await.expect("there");
    joining.await.expect("it ends").expect("the name is free again");
    assert!(is_there(etcd.address(0), &own_key(&a)));
}

/// SESSION-4: a host whose control side does something else for longer than its lease is not lost.
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
    let at_a = Etcd::join(short, a.clone(), sees_none()).await.expect("free");
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

/// SESSION-5, attacked: etcd, or what lies before it, carries out what was asked of it when the host has given that up and made
/// its records those of its devices. What came late has no effect: neither a name and a record of a volume that is not there, nor
/// the record of one that was deleted meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_was_given_up_is_not_made_later() {
    let etcd = EtcdProcesses::start(1);
    let wire = Wire::new(etcd.address(0));
    let a = host("a");
    let directory = joined(&[wire.address()], &a).await;
    directory.claim(claim(DEVICE)).await.expect("free");
    let key = |kind: &str, name: &dyn std::fmt::Display| format!("/farflash/test/{kind}/{name}");
    let kept = VolumeRecord { owner: Some("acme".to_owned()), ..volume(&a, DEVICE, "kept") };
    directory.reserve(kept.clone()).await.expect("free");

    wire.delay(&key("names", &"new"));
    let new = volume(&a, DEVICE, "new");
    let given_up = directory.reserve(new.clone()).await;
    assert!(matches!(given_up, Err(DirectoryError::Unreachable { .. })), "{given_up:?}");
    reconciled_again(&directory, vec![kept.clone()]).await;
    wire.deliver();
    assert!(!is_there(etcd.address(0), &key("names", &"new")), "no host would give it up");
    assert!(!is_there(etcd.address(0), &key("volumes", &new.id)), "there is none");

    // Only the change names it, which the look before it does not.
    wire.delay(&key("tenants", &"acme"));
    let given_up = directory.update(VolumeRecord { size_bytes: 8192, ..kept.clone() }).await;
    assert!(matches!(given_up, Err(DirectoryError::Unreachable { .. })), "{given_up:?}");
    reconciled_again(&directory, vec![kept.clone()]).await;
    directory.forget(kept.clone()).await.expect("ours");
    wire.deliver();
    assert!(!is_there(etcd.address(0), &key("volumes", &kept.id)), "it was deleted");
    directory.reserve(new).await.expect("free");
}

/// A record that a host writes of itself while its session begins is published, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_host_says_of_itself_while_it_connects_is_known() {
    let etcd = EtcdProcesses::start(1);
    let wire = Wire::new(etcd.address(0));
    let a = host("a");
    let patient = EtcdOptions { lease: PATIENCE, ..options(&[wire.address()]) };
    let at_a = Etcd::join(patient, a.clone(), sees_none()).await.expect("free");
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
async fn reconciled_again(directory: &Etcd, held: Vec<VolumeRecord>) {
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

/// CLAIM-6: a cluster has one identity, for the first host that asks and for each later one; another prefix is another
/// cluster, and a host without a directory is of none.
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
    let elsewhere = Etcd::join(elsewhere, host("a"), sees_none()).await.expect("free");
    assert!(elsewhere.cluster().is_some_and(|theirs| theirs != ours && !theirs.is_nil()));
    assert_eq!(Alone::new(host("a")).cluster(), None);
}

/// CLAIM-6: an etcd that has forgotten which cluster it is for is told by a host that knows; one that is for another by now is
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

/// SESSION-7: a watch that a proxy has forgotten, without ending its connection, is noticed by what it does not tell: that a key
/// was made or changed, or that one is gone. Other clusters' changes and one's own that were told are no reason to doubt it.
#[tokio::test]
async fn a_watch_that_is_silent_is_noticed() {
    let etcd = EtcdProcesses::start(1);
    let (a, b) = (host("a"), host("b"));
    let wire = Wire::new(etcd.address(0));
    let at_a = joined(&[wire.address()], &a).await;
    let at_b = join(&etcd, &b).await;
    at_b.claim(claim(OTHER_DEVICE)).await.expect("free");
    let made = volume(&b, OTHER_DEVICE, "v");
    let noticed = async || {
        let reason = "its watch has told nothing of what has changed".to_owned();
        assert_eq!(next(&at_a).await, Event::CutOff { reason });
        assert_eq!(next(&at_a).await, Event::Connected);
    };
    until(&at_a, "it is told", |at_a| !at_a.view().claims.is_empty()).await;

    wire.forget_watches();
    at_b.reserve(made.clone()).await.expect("a free name");
    noticed().await;
    assert_eq!(at_a.view().volumes.get(&made.id).map(|record| record.size_bytes), Some(4096));
    wire.forget_watches();
    at_b.update(VolumeRecord { size_bytes: 8192, ..made.clone() }).await.expect("ours");
    noticed().await;
    assert_eq!(at_a.view().volumes.get(&made.id).map(|record| record.size_bytes), Some(8192));
    wire.forget_watches();
    at_b.forget(made.clone()).await.expect("ours");
    noticed().await;
    assert!(!at_a.view().volumes.contains_key(&made.id));

    // Longer than it takes to notice a silent one.
    let quiet = Instant::now() + LEASE * 4;
    while Instant::now() < quiet {
        put(etcd.address(0), "/farflash/other/names/v", "1");
        let waited = tokio::time::timeout(LEASE / 6, at_a.event()).await;
        assert!(waited.is_err(), "{waited:?}");
    }
}
