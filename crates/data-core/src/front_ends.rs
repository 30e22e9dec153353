//! The protocols of a server: the front ends before each core, and the places where it listens for each.
//!
//! A protocol is a front end of [`FrontEnds`], and a kind of [`Place`]: a core listens at all places that it is given, and each
//! connection goes to the front end of its place. NVMe's portal and its discovery are bound by themselves, as they were
//! there first and have rules of their own.

use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::rc::Rc;

use dataplane::Frontend;
use io_traits::{Device, Listener};
use iscsi_frontend::{IscsiCore, IscsiOptions, TargetRecord};
use nbd_frontend::{ExportRecord, NbdFrontend, NbdOptions, NbdTls, Way};
use nvme_frontend::{DiscoveryRecord, NvmeCore};
use reactor::{Handle, TcpListener};
use user_messages::Failure;
use uuid::Uuid;

use crate::listening::{listen_patiently, not_bound};
use crate::nbd_address::NbdAddress;

/// A place where a core listens for clients of a protocol.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Place {
    /// For NBD.
    Nbd(NbdAddress),
    /// For iSCSI.
    Iscsi(SocketAddr),
}

/// Bounds of all protocols of a core.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Memory for data.
    pub(super) memory_bytes: u64,
    /// True if hosts have to authenticate themselves.
    pub(super) authenticates: bool,
}

/// A volume as each protocol's clients find it; `None` where they do not.
#[derive(Debug)]
pub struct Announcement {
    /// By NVMe.
    pub record: DiscoveryRecord,
    /// By NBD.
    pub export: Option<ExportRecord>,
    /// By iSCSI.
    pub target: Option<TargetRecord>,
}

/// The front ends of a core, one for each protocol.
pub(super) struct FrontEnds<D: Device> {
    pub(super) nvme: NvmeCore<Handle, D>,
    pub(super) nbd: NbdFrontend,
    pub(super) iscsi: IscsiCore<Handle, D>,
}

impl<D: Device> FrontEnds<D> {
    /// Puts the other front ends before a core of NVMe.
    pub(super) fn before(nvme: NvmeCore<Handle, D>, bounds: Bounds, tls: Option<NbdTls>) -> Self {
        let options = NbdOptions { limits: nbd_limits(bounds.memory_bytes), tls };
        let nbd = NbdFrontend::before(&nvme, options);
        let options =
            IscsiOptions { authenticates: bounds.authenticates, ..IscsiOptions::default() };
        let iscsi = IscsiCore::before((*nvme).clone(), options);
        Self { nvme, nbd, iscsi }
    }

    /// Lets clients of all protocols find a volume.
    pub(super) fn announce(&self, Announcement { record, export, target }: Announcement) {
        let uuid = record.uuid;
        self.nvme.announce(record);
        match export {
            Some(export) => self.nbd.announce(export),
            None => self.nbd.withdraw(uuid),
        }
        match target {
            Some(target) => self.iscsi.announce(target),
            None => self.iscsi.withdraw(uuid),
        }
    }

    /// Lets no client find it any more.
    pub(super) fn withdraw(&self, uuid: Uuid) {
        self.nvme.withdraw(uuid);
        self.nbd.withdraw(uuid);
        self.iscsi.withdraw(uuid);
    }

    /// The front end of the connections that come at `place`.
    pub(super) fn at(&self, place: &Place) -> Rc<dyn Frontend<Handle, D>> {
        match place {
            Place::Nbd(NbdAddress::Tcp(_)) => self.nbd.at(Way::Network),
            Place::Nbd(NbdAddress::Unix(_)) => self.nbd.at(Way::Unix),
            Place::Iscsi(_) => self.iscsi.frontend(),
        }
    }
}

/// Bounds for clients of NBD on a core with so much memory for data: a write that is no whole blocks takes twice its length.
fn nbd_limits(memory_bytes: u64) -> nbd_server::Limits {
    let limits = nbd_server::Limits::default();
    let fits = u32::try_from(memory_bytes / 4).unwrap_or(u32::MAX);
    let fits = 1 << fits.max(1).ilog2();
    nbd_server::Limits { payload_bytes_max: limits.payload_bytes_max.min(fits), ..limits }
}

/// Listens at a place. Returns the place with the port that was found, if any was asked for.
pub(super) async fn listen(handle: &Handle, place: Place) -> Result<(Place, TcpListener), Failure> {
    match place {
        Place::Nbd(NbdAddress::Tcp(address)) => {
            let listener = listen_patiently(handle, address)
                .await
                .map_err(|error| not_bound("NBD", "--nbd", &error))?;
            Ok((Place::Nbd(NbdAddress::Tcp(listener.local())), listener))
        }
        Place::Iscsi(address) => {
            let listener = listen_patiently(handle, address)
                .await
                .map_err(|error| not_bound("iSCSI", "--iscsi", &error))?;
            Ok((Place::Iscsi(listener.local()), listener))
        }
        Place::Nbd(NbdAddress::Unix(ref path)) => {
            remove_stale(path)?;
            let listener = handle.listen_unix(path).map_err(|error| {
                let what = format!("NBD cannot listen on {}: {error}", path.display());
                Failure::runtime(
                    what,
                    "give a path in a directory of the server's with --nbd unix:/PATH",
                )
            })?;
            Ok((place, listener))
        }
    }
}

/// Removes the socket of a server that is gone.
fn remove_stale(path: &Path) -> Result<(), Failure> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    let is_live =
        !found.file_type().is_socket() || std::os::unix::net::UnixStream::connect(path).is_ok();
    if is_live {
        let what = format!("NBD cannot listen on {}: something is there", path.display());
        return Err(Failure::runtime(
            what,
            "stop the program that has it, or give another path with --nbd",
        ));
    }
    // If that fails, so does what comes next, and says why.
    let _ = std::fs::remove_file(path);
    Ok(())
}

/// Removes the sockets that were listened on.
pub fn forget(places: &[Place]) {
    for place in places {
        match place {
            Place::Nbd(NbdAddress::Unix(path)) => drop(std::fs::remove_file(path)),
            Place::Nbd(NbdAddress::Tcp(_)) | Place::Iscsi(_) => {}
        }
    }
}
