//! Which host this is.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use sha2::{Digest, Sha256};
use uuid::{Builder, Uuid};

use crate::DirectoryError;

/// What tells a host from all others, and one of its processes from the others.
///
/// - I1: the id follows from the machine (`/etc/machine-id`), the cluster and the host's name, so that a
///   host that was killed is the same when it is started again, and a copy of its device elsewhere is not.
/// - I2: on one machine a host has one process at most: it holds a name that the kernel gives out once,
///   and takes back when the process ends in whatever way.
#[derive(Debug)]
pub struct Identity {
    /// The host's id.
    pub id: Uuid,
    /// The process's id.
    pub session: Uuid,
    /// The id of the running kernel: I2 says nothing about a process under another.
    pub boot: String,
    _alone: UnixListener,
}

impl Identity {
    /// This process as the host `name` of `cluster`.
    ///
    /// # Errors
    /// Another process of this machine is that host.
    pub fn take(cluster: &str, name: &str) -> Result<Self, DirectoryError> {
        let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
        if machine.trim().is_empty() {
            tracing::warn!("there is no /etc/machine-id: hosts are told apart by their names only");
        }
        let hash = Sha256::new()
            .chain_update(machine.trim())
            .chain_update([0])
            .chain_update(cluster)
            .chain_update([0])
            .chain_update(name)
            .finalize();
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash[..16]);
        let id = Builder::from_custom_bytes(bytes).into_uuid();
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let alone = SocketAddr::from_abstract_name(format!("farflash-host-{id}"))
            .and_then(|address| UnixListener::bind_addr(&address))
            .map_err(|error| in_the_way(name, &error))?;
        let (session, boot) = (Uuid::new_v4(), boot.trim().to_owned());
        Ok(Self { id, session, boot, _alone: alone })
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
