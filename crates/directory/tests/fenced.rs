//! Hosts that stop by themselves when they are cut off from etcd, and the hosts that may have their
//! devices then.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use directory::{
    BootClock as _, BootTime, Claim, Directory, DirectoryError, Etcd, EtcdAddress, EtcdCredentials,
    EtcdOptions, Event, HostRecord, Seek, Tenure, Term, Word,
};
use test_support::etcd::{EtcdProcesses, Wire, delete, fill, is_there};
use uuid::Uuid;

/// After this a host that is gone counts as such.
const LEASE: Duration = Duration::from_secs(3);
/// A fence well after that: a host that takes the lease's end for the other host's is detected.
const FENCE: Duration = Duration::from_secs(8);
/// Longest wait for what has to come. Reached only when something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);
const DEVICE: Uuid = Uuid::from_u128(0xd1);

/// A host, and whether it may serve.
struct Fenced {
    record: HostRecord,
    directory: Arc<Etcd>,
    tenure: Tenure,
}

impl Fenced {
    async fn join(member: SocketAddr, name: &str, tenure: Tenure) -> Self {
        let fence_after_ms = tenure.term().map(|term| term.ends_after().as_millis() as u64);
        let record = HostRecord {
            id: Uuid::new_v4(),
            name: name.to_owned(),
            session: Uuid::new_v4(),
            boot: "this".to_owned(),
            version: "0".to_owned(),
            api: ([192, 0, 2, 1], 7420).into(),
            api_certificate: None,
            portals_also: Vec::new(),
            fence_after_ms,
            discovery: None,
            labels: [].into(),
            cores: Vec::new(),
            devices: Vec::new(),
        };
        let address = EtcdAddress {
            tls: false,
            members: vec![member.to_string()],
            cluster: "test".to_owned(),
        };
        let credentials = EtcdCredentials::default();
        let options = EtcdOptions { address, credentials, lease: LEASE, tenure: tenure.clone() };
        let sees_none: Seek = Arc::new(|_, _, _| Box::pin(async { None }));
        let directory = Etcd::join(options, record.clone(), sees_none).await.expect("free");
        let fenced = Self { record, directory: Arc::new(directory), tenure };
        assert_eq!(fenced.next().await, Event::Connected);
        fenced
    }

    async fn next(&self) -> Event {
        tokio::time::timeout(PATIENCE, self.directory.event()).await.expect("an event comes")
    }

    /// Waits until it is told what it holds; what it was told before.
    async fn held(&self) -> (Vec<Event>, BootTime) {
        let mut before = Vec::new();
        loop {
            match self.next().await {
                Event::Held { asked } => return (before, asked),
                other => before.push(other),
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.tenure.has_ended(BootTime::now)
    }
}

fn limited() -> Tenure {
    Tenure::limited(Term::new(FENCE))
}

fn claim() -> Claim {
    let name = "file:/a".to_owned();
    Claim { device: DEVICE, name, ..Claim::default() }
}

/// Waits until the host's registration is gone.
async fn unregistered(etcd: &EtcdProcesses, host: &Fenced) {
    let key = format!("/farflash/test/hosts/{}", host.record.id);
    while is_there(etcd.address(0), &key) {
        tokio::task::yield_now().await;
    }
}

/// A host with a device, and the wire by which it reaches etcd.
async fn holder(etcd: &EtcdProcesses) -> (Fenced, Wire) {
    let wire = Wire::new(etcd.address(0));
    let a = Fenced::join(wire.address(), "a", limited()).await;
    a.held().await;
    a.directory.claim(claim()).await.expect("free");
    assert!(!a.has_ended() && !a.tenure.is_over(BootTime::now));
    (a, wire)
}

/// CLAIM-7, TENURE-1 to TENURE-3: a take-over waits until the holder has stopped, and the word is still needed. TENURE-4: when
/// the holder is back it knows what it lost before anything is confirmed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fenced_host_is_taken_from_when_it_has_stopped() {
    let etcd = EtcdProcesses::start(1);
    let (a, wire) = holder(&etcd).await;
    let b = Fenced::join(etcd.address(0), "b", Tenure::endless()).await;
    wire.cut();
    unregistered(&etcd, &a).await;
    let (device, holder) = ("file:/a".to_owned(), "a".to_owned());
    let lost = DirectoryError::HolderLost { device, holder, is_fenced: true };
    assert_eq!(b.directory.claim(claim()).await, Err(lost));
    assert!(!a.has_ended(), "its fence is longer than its lease");
    b.directory.take_over(claim(), Word::default()).await.expect("the holder has stopped");
    assert!(a.has_ended() && a.tenure.is_over(BootTime::now));

    wire.mend();
    let (before, asked) = a.held().await;
    let told = Event::ClaimLost { device: DEVICE, holder: Some("b".to_owned()) };
    assert!(matches!(&before[..], [Event::CutOff { .. }, lost, Event::Connected] if *lost == told));
    assert!(a.has_ended(), "no task has acted upon what it lost");
    assert!(a.tenure.renew(asked, BootTime::now()));
    assert!(!a.has_ended() && !a.tenure.is_over(BootTime::now));
}

/// CLAIM-7: while a take-over waits the holder comes back, and keeps its device.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fenced_host_that_comes_back_in_time_is_not_taken_from() {
    let etcd = EtcdProcesses::start(1);
    let (a, wire) = holder(&etcd).await;
    let b = Fenced::join(etcd.address(0), "b", Tenure::endless()).await;
    wire.cut();
    unregistered(&etcd, &a).await;
    let at_b = b.directory.clone();
    let taking = tokio::spawn(async move { at_b.take_over(claim(), Word::default()).await });
    wire.mend();
    let (device, holder) = ("file:/a".to_owned(), "a".to_owned());
    let lives = DirectoryError::HolderLives { device, holder };
    assert_eq!(taking.await.expect("it ends"), Err(lives));
    let (before, asked) = a.held().await;
    assert!(matches!(&before[..], [Event::CutOff { .. }, Event::Connected]), "{before:?}");
    assert!(a.tenure.renew(asked, BootTime::now()) && !a.has_ended());
    a.directory.check(DEVICE).await.expect("its own");
}

/// CLAIM-7, attacked: it comes back and goes again while the other waits and does not hear of it. What it was confirmed by then
/// is not what the other has waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fenced_host_that_was_back_unseen_is_waited_for_again() {
    let etcd = EtcdProcesses::start(1);
    let (a, wire) = holder(&etcd).await;
    let to_b = Wire::new(etcd.address(0));
    let b = Fenced::join(to_b.address(), "b", Tenure::endless()).await;
    wire.cut();
    unregistered(&etcd, &a).await;
    let at_b = b.directory.clone();
    let mut taking = tokio::spawn(async move { at_b.take_over(claim(), Word::default()).await });
    // It has seen the registration gone, and waits.
    let soon = tokio::time::timeout(Duration::from_secs(3), &mut taking).await;
    assert!(soon.is_err(), "{soon:?}");
    to_b.forget_watches();
    wire.mend();
    let (_, asked) = a.held().await;
    assert!(a.tenure.renew(asked, BootTime::now()));
    wire.cut();
    delete(etcd.address(0), &format!("/farflash/test/hosts/{}", a.record.id));
    taking.await.expect("it ends").expect("the holder has stopped");
    assert!(a.has_ended(), "it serves still");
}

/// A change that etcd denies ends no session: one that has no room left takes no new registration, and the host would stop for no
/// other reason. Method: the lease, which the session keeps, would end in the time in which nothing is heard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_without_room_stops_no_host() {
    let etcd = EtcdProcesses::start_with(1, &["--quota-backend-bytes=400000"]);
    let (a, _wire) = holder(&etcd).await;
    fill(etcd.address(0));
    let other = Claim { device: Uuid::from_u128(0xd2), ..claim() };
    let refused = a.directory.claim(other).await;
    assert!(matches!(refused, Err(DirectoryError::Unreachable { .. })), "{refused:?}");
    let heard = tokio::time::timeout(2 * LEASE, a.directory.event()).await;
    assert!(heard.is_err(), "{heard:?}");
    a.directory.check(DEVICE).await.expect("ours");
    assert!(!a.has_ended() && !a.tenure.is_over(BootTime::now));
}
