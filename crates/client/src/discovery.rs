//! Discovery: which subsystems a target offers to this host.

use std::net::SocketAddr;
use std::rc::Rc;

use io_traits::World;
use nvme_wire::Nqn;
use nvme_wire::discovery::{DiscoveryLogEntry, DiscoveryLogHeader, SUBTYPE_NVM};
use nvme_wire::log::Lid;
use units::Duration;
use zerocopy::FromBytes;

use crate::client::Inner;
use crate::{ConnectError, Error, Options, link};

/// Most entries that are read: a bound against a target that makes them up.
const ENTRIES_MAX: u64 = 16_384;
/// Times that the log is read before one that changes all the time is taken as it is.
const READS_MAX: usize = 4;
/// Length of the header and of each entry.
const ENTRY_LEN: u64 = 1024;

/// One way to one subsystem.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Discovered {
    /// The subsystem's name.
    pub nqn: Nqn,
    /// Address of the subsystem.
    pub address: SocketAddr,
    /// True for an NVM subsystem, false for a discovery service.
    pub is_nvm: bool,
}

/// Asks the discovery service at `address` for what it offers over TCP, within
/// [`Options::discovery_timeout`](field@Options::discovery_timeout).
pub async fn discover<W: World>(
    world: W,
    address: SocketAddr,
    options: Options,
) -> Result<Vec<Discovered>, ConnectError> {
    let limit = options.discovery_timeout;
    let options = Options { keep_alive: Duration::ZERO, ..options };
    let inner = Rc::new(Inner::new(world, address, &Nqn::DISCOVERY, options, 0));
    // A server that answers each command just in time could hold the caller for days.
    let log = link::within(&inner.world, limit, Box::pin(connect_and_read(&inner))).await;
    log.unwrap_or(Err(ConnectError::DiscoveryTimeout { address, limit }))
}

async fn connect_and_read<W: World>(inner: &Inner<W>) -> Result<Vec<Discovered>, ConnectError> {
    let association = inner.bring_up_admin().await?;
    let log = read_log(inner).await;
    drop(association);
    Ok(log?)
}

async fn read_log<W: World>(inner: &Inner<W>) -> Result<Vec<Discovered>, Error> {
    let mut entries = Vec::new();
    for _ in 0..READS_MAX {
        let header = read_header(inner).await?;
        let count = header.numrec.get().min(ENTRIES_MAX);
        let bytes = inner.log_page(Lid::DISCOVERY, 0, ENTRY_LEN * (count + 1)).await?;
        entries = bytes
            .chunks_exact(usize::try_from(ENTRY_LEN).expect("1024"))
            .skip(1)
            .filter_map(|entry| decode(DiscoveryLogEntry::ref_from_bytes(entry).ok()?))
            .collect();
        if read_header(inner).await?.genctr == header.genctr {
            break;
        }
    }
    Ok(entries)
}

async fn read_header<W: World>(inner: &Inner<W>) -> Result<DiscoveryLogHeader, Error> {
    let bytes = inner.log_page(Lid::DISCOVERY, 0, ENTRY_LEN).await?;
    Ok(DiscoveryLogHeader::read_from_bytes(&bytes).expect("as many bytes as asked for"))
}

fn decode(entry: &DiscoveryLogEntry) -> Option<Discovered> {
    let (nqn, address) = (entry.subsystem().ok()?, entry.address()?);
    Some(Discovered { nqn, address, is_nvm: entry.subtype == SUBTYPE_NVM })
}
