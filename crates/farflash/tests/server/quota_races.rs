//! A tenant that changes its volumes through several hosts at once, of real servers that share real etcd.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::etcd::EtcdProcesses;
use crate::support::cluster::{client, code, format, host_with, url};
use crate::support::users::{self, User};
use crate::support::{Files, until};
use control::{ApiClient, ApiError, ChangeVolume, CreateVolume, ProblemCode, Volume, VolumeSize};

const MIB: u64 = 1 << 20;
/// The tenant's quota.
const VOLUMES_MAX: usize = 6;
const PROVISIONED_MAX_BYTES: u64 = 384 * MIB;
/// Each has one volume at a time: together they want more than the quota, by number and by size.
const TASKS: usize = 8;
const ROUNDS: usize = 12;

/// The least that the tenant has: a volume from the answer that it is made until its deletion is asked for,
/// each as small as it may be just then. More than the quota is a mistake of the servers, in whichever order
/// the requests came.
#[derive(Default)]
struct Held(Mutex<BTreeMap<String, u64>>);

impl Held {
    fn set(&self, name: &str, size_bytes: u64) {
        let mut held = self.0.lock().unwrap();
        held.insert(name.to_owned(), size_bytes);
        let provisioned: u64 = held.values().sum();
        assert!(held.len() <= VOLUMES_MAX && provisioned <= PROVISIONED_MAX_BYTES, "{held:?}");
    }

    fn remove(&self, name: &str) {
        self.0.lock().unwrap().remove(name);
    }
}

/// Counts of volumes that were made or grown, and of requests that the quota refused.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    created: usize,
    grown: usize,
    refused: usize,
}

impl Counts {
    fn add(self, more: Self) -> Self {
        Self {
            created: self.created + more.created,
            grown: self.grown + more.grown,
            refused: self.refused + more.refused,
        }
    }
}

/// Returns true if the quota admitted the request.
fn is_admitted<T>(outcome: Result<T, ApiError>) -> bool {
    if outcome.is_ok() {
        return true;
    }
    assert_eq!(code(outcome), ProblemCode::QuotaExceeded);
    false
}

fn create(api: &ApiClient, name: &str, size_bytes: u64) -> bool {
    let size = VolumeSize::try_from(size_bytes).unwrap();
    is_admitted(api.create(&CreateVolume::new(name.parse().unwrap(), size)))
}

fn resize(api: &ApiClient, name: &str, size_bytes: u64) -> Result<Volume, ApiError> {
    let size_bytes = Some(VolumeSize::try_from(size_bytes).unwrap());
    api.change(name, &ChangeVolume { size_bytes, lose_data: true, ..Default::default() })
}

/// Makes a volume by one host's API, has it grow, shrink and grow by either, and deletes it; again and again.
fn change_all_the_time(apis: &[ApiClient; 2], held: &Held, task: usize) -> Counts {
    let mut counts = Counts::default();
    for round in 0..ROUNDS {
        let name = format!("v{task}-{round}");
        let (here, there) = (&apis[(task + round) % 2], &apis[(task + round + 1) % 2]);
        let small = (8 + 8 * (round % 4) as u64) * MIB;
        if !create(here, &name, small) {
            counts.refused += 1;
            continue;
        }
        held.set(&name, small);
        counts.created += 1;
        until("it is seen by the other host", || there.show(&name).is_ok());
        for (api, size_bytes) in [(here, 72 * MIB), (there, 104 * MIB), (here, 136 * MIB)] {
            match is_admitted(resize(api, &name, size_bytes)) {
                true => {
                    held.set(&name, size_bytes);
                    counts.grown += 1;
                }
                false => counts.refused += 1,
            }
            held.set(&name, small);
            resize(there, &name, small).unwrap();
        }
        held.remove(&name);
        there.delete_with_data(&name).unwrap();
    }
    counts
}

/// A tenant never has more than its quota, whichever hosts it asks for changes at once; and what it gave back it can
/// have again, no more and no less.
///
/// Method: tasks create, resize and delete through two hosts, and note what the tenant has at least. When all is deleted the
/// quota is filled to its last volume and byte.
#[test]
fn changes_through_two_hosts_at_once_stay_within_the_quota() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let directory = url(etcd.address(0), "test-quota-races");
    let acme = User::tenant("acme");
    let quota = format!("volumes = {VOLUMES_MAX}\nprovisioned = \"{PROVISIONED_MAX_BYTES}B\"");
    let users = users::list(&files, &[acme.bounded(&quota)]);
    let start = |name| host_with(&directory, name, &format(&files, name), &["--api-users", &users]);
    let hosts = [start("a"), start("b")];
    let apis = hosts.each_ref().map(|host| client(host).with_token(&acme.token));

    let held = Held::default();
    let counts = std::thread::scope(|scope| {
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let (apis, held) = (&apis, &held);
                scope.spawn(move || change_all_the_time(apis, held, task))
            })
            .collect();
        let counts = tasks.into_iter().map(|task| task.join().unwrap());
        counts.fold(Counts::default(), Counts::add)
    });
    let Counts { created, grown, refused } = counts;
    assert!(created > 0 && grown > 0 && refused > 0, "{counts:?}");

    let used = |api: &ApiClient| {
        let quota = &api.quotas().unwrap().quotas[0];
        (quota.volumes.used, quota.provisioned_bytes.used)
    };
    for api in &apis {
        until("all deletions are seen", || used(api) == (0, 0));
    }
    let full = |n: usize| format!("full-{n}");
    for n in 0..VOLUMES_MAX {
        let size_bytes = PROVISIONED_MAX_BYTES / VOLUMES_MAX as u64;
        assert!(create(&apis[n % 2], &full(n), size_bytes), "{n} leave room for another one");
    }
    for (n, api) in apis.iter().enumerate() {
        until("the other host's volumes are seen", || {
            used(api) == (VOLUMES_MAX as u64, PROVISIONED_MAX_BYTES)
        });
        let more = PROVISIONED_MAX_BYTES / VOLUMES_MAX as u64 + 4096;
        assert!(!is_admitted(resize(api, &full(n), more)), "not a block more");
        assert!(!create(api, "one-more", 4096), "not a volume more");
    }
}
