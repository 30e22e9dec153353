//! Which host this is.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use sha2::{Digest, Sha256};
use uuid::{Builder, Uuid};

use crate::DirectoryError;

/// Where a machine's id lies; see machine-id(5).
const MACHINE_ID: &str = "/etc/machine-id";
/// What stands there in an image that was not booted yet.
const UNINITIALIZED: &str = "uninitialized";

/// What tells a host from all others, and one of its processes from the others.
///
/// - I1: the id follows from the machine (`/etc/machine-id`), the cluster and the host's name, so that a
///   host that was killed is the same when it is started again, and a copy of its device elsewhere is not. Without a
///   machine's id there is none.
/// - I2: on one machine a host has one process at most: it holds a name that the kernel gives out once,
///   and takes back when the process ends in whatever way.
#[derive(Debug)]
pub struct Identity {
    /// The host's id.
    pub id: Uuid,
    /// The process's id.
    pub session: Uuid,
    /// The id of the running kernel: I2 says nothing about a process under another. That may be this machine's before it was
    /// started anew, or one of another machine that has the same id.
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
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let alone = SocketAddr::from_abstract_name(format!("farflash-host-{id}"))
            .and_then(|address| UnixListener::bind_addr(&address))
            .map_err(|error| in_the_way(name, &error))?;
        let (session, boot) = (Uuid::new_v4(), boot.trim().to_owned());
        Ok(Self { id, session, boot, _alone: alone })
    }
}

/// I1, where `machine` is what the file says.
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

    /// I1. The id itself stays what it was: claims name it.
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

    #[test]
    fn a_host_has_one_process_and_keeps_its_id() {
        let first = Identity::take("test", "identity-test").expect("free");
        let error = Identity::take("test", "identity-test").expect_err("taken");
        assert!(error.to_string().contains("another server on this machine"), "{error}");
        let other = Identity::take("test", "identity-test-2").expect("another name");
        assert_ne!(first.id, other.id);
        let (id, session) = (first.id, first.session);
        drop(first);
        let again = Identity::take("test", "identity-test").expect("free again");
        assert_eq!(again.id, id);
        assert_ne!(again.session, session);
    }
}
