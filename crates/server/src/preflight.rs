//! Checks and reservations before anything is touched: cores, ports, memory.

use std::net::{IpAddr, SocketAddr, TcpListener};

use data_core::{NbdAddress, Place};
use io_traits::NetworkError;
use process_limits::cgroup;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use units::{ByteLen, CoreIndex};
use user_messages::Failure;

use super::{Discovery, ServeConfig};

/// Left to the rest of the system when memory is served.
const MEMORY_LEFT: ByteLen = ByteLen(64 << 20);

/// Every core is one that this process may use.
pub(super) fn check_cores(cores: &[u32]) -> Result<(), Failure> {
    let allowed = reactor::allowed_cpus();
    let Some(missing) = cores.iter().find(|core| !allowed.contains(&(**core as usize))) else {
        return Ok(());
    };
    let list: Vec<String> = allowed.iter().map(usize::to_string).collect();
    Err(Failure::usage(
        format!("there is no core {missing} for this process"),
        format!("choose from {} with --cores", list.join(",")),
    ))
}

fn core_indexes(config: &ServeConfig) -> impl Iterator<Item = CoreIndex> {
    (0..config.cores.len()).map(CoreIndex)
}

/// The address of a core: the base address, with its index added to the port. Port 0 is any free port, for each core.
fn on_core(base: SocketAddr, core: CoreIndex) -> Option<SocketAddr> {
    let offset = if base.port() == 0 { 0 } else { u16::try_from(core.0).ok()? };
    base.port().checked_add(offset).map(|port| SocketAddr::new(base.ip(), port))
}

/// The portal of each core: the base address, with its index added to the port.
pub(super) fn portals(config: &ServeConfig) -> Result<Vec<SocketAddr>, Failure> {
    let base = config.listen;
    let portals: Option<Vec<_>> = core_indexes(config).map(|core| on_core(base, core)).collect();
    let Some(portals) = portals else {
        let what = format!("port {} plus one a core runs past 65535", base.port());
        return Err(Failure::usage(what, "give --listen a lower port"));
    };
    let taken_twice = |address: SocketAddr| portals.contains(&address) && address.port() != 0;
    if taken_twice(config.api) {
        let what = format!("{} is both a portal and the API's address", config.api);
        return Err(Failure::usage(what, "give --api another port"));
    }
    if let Discovery::At(discovery) = config.discovery
        && (taken_twice(discovery) || (discovery == config.api && discovery.port() != 0))
    {
        let what = format!("{discovery} is given to more than one listener");
        return Err(Failure::usage(what, "give --discovery another port"));
    }
    let told = config.advertise.as_ref().map(|told| told.iter().collect());
    let told: Vec<IpAddr> = told.unwrap_or_else(|| vec![base.ip()]);
    if let Some(anywhere) = told.iter().find(|address| address.is_unspecified()) {
        return Err(Failure::usage(
            format!("hosts cannot be told to connect to {anywhere}"),
            "give the address that they reach with --advertise IP",
        ));
    }
    Ok(portals)
}

fn past_last_port(flag: &str) -> Failure {
    let what = format!("the ports of {flag}, one a core, run past 65535");
    Failure::usage(what, format!("give {flag} a lower port"))
}

/// The places where each core listens for other protocols than NVMe.
pub(super) fn places(config: &ServeConfig) -> Result<Vec<Vec<Place>>, Failure> {
    let places_of = |core| {
        let mut places = Vec::new();
        for base in &config.nbd {
            let place = base.of_core(core).map(Place::Nbd);
            places.push(place.ok_or_else(|| past_last_port("--nbd"))?);
        }
        if let Some(base) = config.iscsi {
            let place = on_core(base, core).map(Place::Iscsi);
            places.push(place.ok_or_else(|| past_last_port("--iscsi"))?);
        }
        Ok(places)
    };
    let places = core_indexes(config).map(places_of).collect::<Result<Vec<_>, Failure>>()?;
    let told = config.nbd.iter().any(|place| match place {
        NbdAddress::Tcp(address) => address.ip().is_unspecified() && config.advertise.is_none(),
        NbdAddress::Unix(_) => false,
    });
    if told {
        let what = "clients of NBD cannot be told to connect to an unspecified address";
        return Err(Failure::usage(what, "give the address that they reach with --advertise IP"));
    }
    Ok(places)
}

/// Bytes of an API answer that the kernel holds for a client which does not read.
const API_SEND_BUFFER_BYTES: usize = 64 << 10;

/// Takes the API's port.
pub(super) fn bind_api(address: SocketAddr) -> Result<TcpListener, Failure> {
    let bound = TcpListener::bind(address).and_then(|listener| {
        // Connections inherit it: what a client does not read stays out of the kernel's memory.
        set_socket_send_buffer_size(&listener, API_SEND_BUFFER_BYTES)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    bound.map_err(|error| {
        use std::io::ErrorKind;
        let error = match error.kind() {
            ErrorKind::AddrInUse => NetworkError::AddressInUse { address },
            ErrorKind::AddrNotAvailable => NetworkError::AddressNotAvailable { address },
            _ => NetworkError::Io { address, errno: error.raw_os_error().unwrap_or(0) },
        };
        data_core::not_bound("the API", "--api", &error)
    })
}

/// Descriptors beside those of host connections: files, rings, the API's connections.
const DESCRIPTORS_BESIDE: u64 = 512;

/// Raises this process's limit on open files to what its connections can need, also those on their way out. Returns the number
/// of connections of a portal for which there are descriptors.
pub(super) fn raise_file_limit(connections_max: u32, portals: usize) -> u32 {
    let of_portal = u64::from(connections_max) + dataplane::CONNECTIONS_LEAVING_MAX as u64;
    let wanted = of_portal * portals as u64 + DESCRIPTORS_BESIDE;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return connections_max;
    }
    let raised = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let set = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), ..limit });
    let limit = if set.is_ok() { raised } else { limit.current.unwrap_or(raised) };
    if limit >= wanted {
        return connections_max;
    }
    let fit = connections_that_fit(limit, portals).min(connections_max);
    tracing::warn!(
        limit,
        wanted,
        connections_max = fit,
        "the limit on open files is too low for so many connections (ulimit -n): each portal takes fewer"
    );
    fit
}

/// Connections of a portal that leave descriptors to the rest of a process that may have `limit`.
fn connections_that_fit(limit: u64, portals: usize) -> u32 {
    let beside = DESCRIPTORS_BESIDE.min(limit / 2);
    let leaving = dataplane::CONNECTIONS_LEAVING_MAX as u64;
    let of_portal = (limit - beside) / portals.max(1) as u64;
    // One at least: what is left is for the kernel to refuse.
    let fit = of_portal.saturating_sub(leaving).max(of_portal / 2).max(1);
    u32::try_from(fit).unwrap_or(u32::MAX)
}

/// There is memory for a device of `size`.
pub(super) fn check_memory(size: ByteLen) -> Result<(), Failure> {
    // Without /proc the kernel decides, when the memory is mapped.
    let Some(available) = available_memory() else { return Ok(()) };
    if size.0 <= available.0.saturating_sub(MEMORY_LEFT.0) {
        return Ok(());
    }
    let fits = ByteLen(available.0.saturating_sub(MEMORY_LEFT.0) >> 20 << 20);
    Err(Failure::runtime(
        format!("a device in memory takes {size} with its overhead; {fits} are available"),
        "give --device mem: a smaller size, or free memory",
    ))
}

/// Memory that the kernel would give without swapping.
fn available_memory() -> Option<ByteLen> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let allowed = cgroup::memory().map_or(u64::MAX, |limit| limit.value);
    Some(ByteLen((kib << 10).min(allowed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_to_the_rest() {
        let leaving = dataplane::CONNECTIONS_LEAVING_MAX as u64;
        for (limit, portals) in [(1, 1), (64, 2), (1024, 1), (1024, 8), (65_536, 4)] {
            let fit = u64::from(connections_that_fit(limit, portals));
            let taken = fit * portals as u64;
            assert!(fit == 1 || taken <= limit - limit.min(1024) / 2, "{limit} {portals}: {fit}");
        }
        assert_eq!(u64::from(connections_that_fit(65_536, 4)), (65_536 - 512) / 4 - leaving);
    }
}
