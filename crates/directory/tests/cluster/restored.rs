//! An etcd that was restored from a backup, or has lost what it held, and hosts and devices that know better (CLAIM-8, CLAIM-9).

use super::*;

const THIRD_DEVICE: Uuid = Uuid::from_u128(0xd3);

fn key(kind: &str, device: Uuid) -> String {
    format!("/farflash/test/{kind}/{device}")
}

/// Two hosts of which the second has taken three devices into use since a backup was made of etcd: by that one is the first host's, one
/// was given back by a third host, and one is unknown. Then etcd is restored, and the second host has noticed nothing yet.
async fn forgotten(etcd: &mut EtcdProcesses, seek: Seek) -> (HostRecord, Etcd) {
    let (a, b, c) = (host("a"), host("b"), host("c"));
    let at_c = join(etcd, &c).await;
    at_c.claim(claim(OTHER_DEVICE)).await.expect("free");
    at_c.leave().await.expect("there");
    drop(at_c);
    let at_a = join(etcd, &a).await;
    at_a.claim(claim(DEVICE)).await.expect("free");
    etcd.back_up();
    until(&at_a, "it is back", |at_a| at_a.view().cut_off.is_none()).await;
    at_a.check(DEVICE).await.expect("ours");
    at_a.leave().await.expect("there");
    drop(at_a);
    let at_b = joined_seeing(&[etcd.address(0)], &b, seek).await;
    for device in [DEVICE, OTHER_DEVICE, THIRD_DEVICE] {
        at_b.claim(claim(device)).await.expect("free");
        let name = format!("v-{device}");
        at_b.reserve(volume(&b, device, &name)).await.expect("a free name");
    }
    etcd.restore();
    (b, at_b)
}

/// Nothing was taken from a host that runs: it serves on, and what it has is recorded again.
#[tokio::test]
async fn a_host_that_runs_keeps_what_a_restored_etcd_has_forgotten() {
    let mut etcd = EtcdProcesses::start(1);
    let (b, at_b) = forgotten(&mut etcd, sees_none()).await;
    etcd.restart(0);
    assert!(matches!(next(&at_b).await, Event::CutOff { .. }));
    assert_eq!(next(&at_b).await, Event::Connected, "nothing is lost");
    for device in [DEVICE, OTHER_DEVICE, THIRD_DEVICE] {
        let held = volume(&b, device, &format!("v-{device}"));
        assert_eq!(at_b.reconcile(device, vec![held]).await, Ok(Vec::new()));
        assert!(get(etcd.address(0), &key("devices", device)).contains(&b.session.to_string()));
    }
    assert_eq!(at_b.view().names.len(), 3);
}

/// A host that goes on by what a restored etcd says, and is seen, keeps the device: the one that had it by then
/// stops.
#[tokio::test]
async fn a_host_stops_where_another_is_seen_to_serve_since_etcd_was_restored() {
    let mut etcd = EtcdProcesses::start(1);
    let eyes = Eyes::default();
    let (_, at_b) = forgotten(&mut etcd, eyes.seek()).await;
    eyes.see(Some(sighting()));
    etcd.restart(0);
    assert!(matches!(next(&at_b).await, Event::CutOff { .. }));
    let told = Event::ClaimLost { device: DEVICE, holder: Some("a".to_owned()) };
    assert_eq!(next(&at_b).await, told);
    assert_eq!(next(&at_b).await, Event::Connected);
    at_b.check(THIRD_DEVICE).await.expect("no other host was told to have it");
}

/// A device of the cluster was claimed before, whatever etcd knows of it. A host that comes with it gets it by an operator's word
/// only; one that was given back, and one that is new, as ever.
#[tokio::test]
async fn a_device_that_etcd_has_forgotten_is_had_by_word_only() {
    let etcd = EtcdProcesses::start(1);
    let address = etcd.address(0);
    let at_a = join(&etcd, &host("a")).await;
    at_a.claim(claim(DEVICE)).await.expect("it is new");
    at_a.leave().await.expect("there");
    let at_b = join(&etcd, &host("b")).await;
    let belonging = Claim { belongs: true, ..claim(DEVICE) };
    at_b.claim(belonging.clone()).await.expect("it was given back");
    at_b.leave().await.expect("there");
    delete(address, &key("claimed", DEVICE));
    let at_c = join(&etcd, &host("c")).await;
    let forgotten = DirectoryError::Forgotten { device: "file:/a".to_owned() };
    assert_eq!(at_c.claim(belonging.clone()).await, Err(forgotten));
    assert!(!is_there(address, &key("devices", DEVICE)));
    let (device, holder) = ("file:/a".to_owned(), Word::UNKNOWN_HOST.to_owned());
    let may = DirectoryError::HolderMayServe { device, holder };
    let known = at_c.take_over(belonging.clone(), Word::down(["a", "b"])).await;
    assert_eq!(known, Err(may), "of all others nothing was said");
    at_c.take_over(belonging, Word::down([Word::UNKNOWN_HOST]))
        .await
        .expect("an operator confirms that no host has it");
    at_c.check(DEVICE).await.expect("ours");
}

/// A claim that this host does not understand is not its own.
#[tokio::test]
async fn a_claim_that_is_not_understood_is_anothers() {
    let etcd = EtcdProcesses::start(1);
    let at_a = join(&etcd, &host("a")).await;
    at_a.claim(claim(DEVICE)).await.expect("free");
    put(etcd.address(0), &key("devices", DEVICE), "[]");
    let told = Event::ClaimLost { device: DEVICE, holder: Some("unknown".to_owned()) };
    assert_eq!(next(&at_a).await, told);
}

/// The mark of a device that host `name` has claimed as the `number`th.
fn carrying(host: &HostRecord, number: u64) -> Claim {
    let mark = Mark { number, host: host.id, host_name: host.name.clone() };
    Claim { belongs: true, mark: Some(mark), ..claim(DEVICE) }
}

/// CLAIM-9: claims of a device count up, through whomever they are and also when they are given back in between, and from what
/// the device carries if that is higher.
#[tokio::test]
async fn claims_of_a_device_are_counted() {
    let etcd = EtcdProcesses::start(1);
    let (a, b) = (host("a"), host("b"));
    let at_a = join(&etcd, &a).await;
    let made = at_a.claim(claim(DEVICE)).await.expect("free");
    assert_eq!(made, Mark { number: 1, host: a.id, host_name: "a".to_owned() });
    at_a.leave().await.expect("there");
    let at_b = join(&etcd, &b).await;
    assert_eq!(at_b.claim(carrying(&a, 1)).await.map(|mark| mark.number), Ok(2));
    assert_eq!(at_b.claim(carrying(&b, 7)).await.map(|mark| mark.number), Ok(8), "its own");
}

/// CLAIM-9, attacked: the host that gave a device away after a backup was made starts first on the etcd that is restored from it,
/// while the host that serves the device is cut off. It is refused but by a wrong word, and then the other one stops, though it
/// sees no other host.
#[tokio::test]
async fn a_device_that_was_claimed_later_than_etcd_knows_is_had_by_word_only() {
    let mut etcd = EtcdProcesses::start(1);
    let (a, b) = (host("a"), host("b"));
    let at_a = join(&etcd, &a).await;
    at_a.claim(claim(DEVICE)).await.expect("free");
    etcd.back_up();
    until(&at_a, "it is back", |at_a| at_a.view().cut_off.is_none()).await;
    at_a.leave().await.expect("there");
    drop(at_a);
    let wire = Wire::new(etcd.address(0));
    let at_b = joined(&[wire.address()], &b).await;
    assert_eq!(at_b.claim(carrying(&a, 1)).await.map(|mark| mark.number), Ok(2));
    wire.cut();
    assert!(matches!(next(&at_b).await, Event::CutOff { .. }));
    etcd.restore();
    etcd.restart(0);
    etcd.wait(0);

    let at_a = join(&etcd, &a).await;
    let (device, holder) = ("file:/a".to_owned(), "b".to_owned());
    let later = DirectoryError::ClaimedLater { device: device.clone(), holder: holder.clone() };
    assert_eq!(at_a.claim(carrying(&b, 2)).await, Err(later.clone()));
    assert_eq!(at_a.claim(carrying(&b, 1)).await, Err(later), "of the same number");
    put(etcd.address(0), &format!("/farflash/test/hosts/{}", b.id), "{}");
    let lives = DirectoryError::HolderLives { device, holder };
    assert_eq!(
        at_a.take_over(carrying(&b, 2), Word::down(["b"])).await,
        Err(lives),
        "it is registered"
    );
    delete(etcd.address(0), &format!("/farflash/test/hosts/{}", b.id));
    let (device, holder) = ("file:/a".to_owned(), "b".to_owned());
    let may = DirectoryError::HolderMayServe { device, holder };
    assert_eq!(at_a.take_over(carrying(&b, 2), Word::down(["a"])).await, Err(may));
    assert_eq!(
        at_a.take_over(carrying(&b, 2), Word::down(["b"])).await.map(|mark| mark.number),
        Ok(3)
    );
    wire.mend();
    let told = Event::ClaimLost { device: DEVICE, holder: Some("a".to_owned()) };
    assert_eq!(next(&at_b).await, told);
    at_a.check(DEVICE).await.expect("ours");
}

/// CLAIM-9: what a host finds on its device counts as what it finds in etcd; not for a claim that it has no more.
#[tokio::test]
async fn a_claim_is_lost_by_what_the_device_says() {
    let etcd = EtcdProcesses::start(1);
    let at_a = join(&etcd, &host("a")).await;
    let former = at_a.claim(claim(DEVICE)).await.expect("free");
    let own = at_a.claim(claim(DEVICE)).await.expect("ours");
    at_a.lost(DEVICE, &former, "b".to_owned());
    at_a.check(DEVICE).await.expect("of a claim before");
    at_a.lost(DEVICE, &own, "b".to_owned());
    let told = Event::ClaimLost { device: DEVICE, holder: Some("b".to_owned()) };
    assert_eq!(next(&at_a).await, told);
    assert!(matches!(at_a.check(DEVICE).await, Err(DirectoryError::Fenced { .. })));
}
