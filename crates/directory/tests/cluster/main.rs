//! Hosts that share etcd: the promises of the crate, held against real etcd. What all tests of that begin with.
//!
//! - `records.rs`: volumes, names and quotas.
//! - `claims.rs`: which host a device is of.
//! - `restored.rs`: an etcd that has forgotten what was.
//! - `sessions.rs`: hosts that come, go, and lose etcd for a while.

mod claims;
mod records;
mod restored;
mod sessions;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use directory::{
    Admit, Alone, Claim, ClaimRecord, Conflict, CoreRecord, Directory, DirectoryError, Etcd,
    EtcdAddress, EtcdCredentials, EtcdOptions, Event, GrantRecord, GrantsRecord, HostRecord, Mark,
    NbdRecord, Reach, Regrant, RestrictionsRecord, Seek, Sighting, Tenure, VolumeRecord,
    VolumeState, Word,
};
use rustix::process::Signal;
use test_support::etcd::{EtcdProcesses, Wire, delete, get, is_there, put, put_for};
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
        sector_bytes: 4096,
        host: host.id,
        device,
        core: 0,
        portal: PORTAL.parse().expect("an address"),
        state: VolumeState::Ready,
        promise: serde_json::Value::Null,
        nbd: NbdRecord::default(),
        iscsi: None,
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
    joined_seeing(members, host, sees_none()).await
}

async fn joined_seeing(members: &[SocketAddr], host: &HostRecord, seek: Seek) -> Etcd {
    let directory = Etcd::join(options(members), host.clone(), seek).await.expect("free");
    assert_eq!(directory.event().await, Event::Connected);
    directory
}

fn claim(device: Uuid) -> Claim {
    Claim { device, name: "file:/a".to_owned(), ..Claim::default() }
}

/// A look for holders that sees none.
fn sees_none() -> Seek {
    Eyes::default().seek()
}

/// The result of a look for holders, and the number of looks.
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

/// The claim of a host to a device as it was written before claims had addresses.
fn old_claim(host: &HostRecord) -> String {
    format!(
        r#"{{"host":"{}","host_name":"{}","session":"{}","device_name":"file:/a"}}"#,
        host.id, host.name, host.session
    )
}
