//! The identity of this host.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use sha2::{Digest, Sha256};
use uuid::{Builder, Uuid};

use crate::DirectoryError;

/// The file with the machine's id; see machine-id(5).
const MACHINE_ID: &str = "/etc/machine-id";
/// The file with the id of the running kernel's boot; see random(4).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The file that identifies a thread's network namespace among all that exist; see namespaces(7).
const NETWORK_NAMESPACE: &str = "/proc/thread-self/ns/net";
/// The content of the file in an image that has not been booted yet.
const UNINITIALIZED: &str = "uninitialized";

/// The identity of a host, and of one of its processes.
///
/// - IDENTITY-1: the id follows from the machine (`/etc/machine-id`), the cluster and the host's name, so that a
///   host that was killed is the same when it is started again, and a copy of its device elsewhere is not. Without a
///   machine's id there is none.
/// - IDENTITY-2: under one kernel, and in one network namespace, a host has one process at most: it holds a name that the kernel
///   gives out once in each, and releases when the process ends in whatever way. A namespace has its number for as long as a
///   process is in it, so that a host that finds a former process of its own in its namespace, or in one that had its number,
///   finds it dead.
#[derive(Debug)]
pub struct Identity {
    /// The host's id.
    pub id: Uuid,
    /// The process's id.
    pub session: Uuid,
    /// Identifies the scope in which IDENTITY-2 holds: the running kernel, and the network namespace. It says nothing about a
    /// process under another kernel, which may be this machine's before it was restarted, or another machine's that has the same
    /// id; nor about one in another namespace, which may be a container's.
    pub boot: String,
    _alone: UnixListener,
}

impl Identity {
    /// This process as the host `name` of `cluster`.
    ///
    /// # Errors
    /// Another process of this machine is that host; or the machine has no id.
    pub fn take(cluster: &str, name: &str) -> Result<Self, DirectoryError> {
        let machine = std::fs::read_to_string(MACHINE_ID).unwrap_or_default();
        let id = id_of(&machine, cluster, name).ok_or(DirectoryError::NoMachineId)?;
        let alone = SocketAddr::from_abstract_name(format!("farflash-host-{id}"))
            .and_then(|address| UnixListener::bind_addr(&address))
            .map_err(|error| in_the_way(name, &error))?;
        Ok(Self { id, session: Uuid::new_v4(), boot: place(), _alone: alone })
    }
}

/// IDENTITY-1, where `machine` is what the file says.
fn id_of(machine: &str, cluster: &str, name: &str) -> Option<Uuid> {
    let machine = Some(machine.trim()).filter(|id| !id.is_empty() && *id != UNINITIALIZED)?;
    let hash = Sha256::new()
        .chain_update(machine)
        .chain_update([0])
        .chain_update(cluster)
        .chain_update([0])
        .chain_update(name)
        .finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash[..16]);
    Some(Builder::from_custom_bytes(bytes).into_uuid())
}

/// Within what IDENTITY-2 holds for this thread. Where that cannot be read it is a place of its own, which no other process was
/// in.
fn place() -> String {
    match (std::fs::read_to_string(BOOT_ID), std::fs::read_link(NETWORK_NAMESPACE)) {
        (Ok(boot), Ok(network)) => format!("{} {}", boot.trim(), network.display()),
        (Err(_), _) | (_, Err(_)) => Uuid::new_v4().to_string(),
    }
}

fn in_the_way(name: &str, error: &io::Error) -> DirectoryError {
    let what = match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("another server on this machine is the host `{name}`")
        }
        _ => format!("the name of the host `{name}` cannot be held: {error}"),
    };
    DirectoryError::HostLives { what }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IDENTITY-1. The id itself stays what it was: claims name it.
    #[test]
    fn a_machine_without_an_id_is_no_host() {
        for nothing in ["", "\n", " \n", "uninitialized\n"] {
            assert_eq!(id_of(nothing, "test", "a"), None, "{nothing:?}");
        }
        let id = |machine: &str| id_of(machine, "test", "a").expect("an id").to_string();
        assert_eq!(
            id("3d1219c7c4c5404aaa1f6d2a48adfda4\n"),
            "19ef7378-d3a4-834a-8074-78cc7ab82a09"
        );
        assert_ne!(
            id("3d1219c7c4c5404aaa1f6d2a48adfda5\n"),
            id("3d1219c7c4c5404aaa1f6d2a48adfda4")
        );
    }

    /// IDENTITY-2, attacked: in a container with a network of its own the kernel gives out the host's name once more. The process
    /// there is seen not to be the host that was killed. Method: this test runs itself there.
    #[test]
    fn a_process_in_another_network_is_elsewhere() {
        const FIRST: &str = "FARFLASH_TEST_FIRST_PLACE";
        let own = Identity::take("test", "identity-test-network").expect("free");
        if let Ok(first) = std::env::var(FIRST) {
            return assert_ne!(own.boot, first);
        }
        let unshare = |program: &std::ffi::OsStr| {
            let mut command = std::process::Command::new("unshare");
            command.args(["--map-root-user", "--net"]).arg(program);
            command
        };
        if !unshare("true".as_ref()).status().is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: this kernel makes no network namespace here");
            return;
        }
        let mut there = unshare(std::env::current_exe().expect("this").as_os_str());
        let name = "identity::tests::a_process_in_another_network_is_elsewhere";
        let there = there.env(FIRST, &own.boot).args(["--exact", name]).status().expect("runs");
        assert!(there.success(), "there it is taken for the same");
        assert_eq!(own.boot, place(), "here it is the same");
    }

    #[test]
    fn a_host_has_one_process_and_keeps_its_id() {
        let first = Identity::take("test", "identity-test").expect("free");
        let error = Identity::take("test", "identity-test").expect_err("taken");
        assert!(error.to_string().contains("another server on this machine"), "{error}");
        let other = Identity::take("test", "identity-test-2").expect("another name");
        assert_ne!(first.id, other.id);
        let (id, session) = (first.id, first.session);
        drop(first);
        // A process that another test begins has all that this one has until it executes its program.
        let again = (0..1000).find_map(|_| {
            // tidy: allow(thread) the kernel gives no notice of it
            std::thread::sleep(std::time::Duration::from_millis(10));
            Identity::take("test", "identity-test").ok()
        });
        let again = again.expect("free again");
        assert_eq!(again.id, id);
        assert_ne!(again.session, session);
    }
}
