//! Addresses of host names, for clients in processes that may have no more threads.
//!
//! - RESOLVE-1: an address needs no thread. A name is looked up on a thread of its own, so that the look-up has a
//!   bound; where no thread can be had, on the caller's.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::Builder;
use std::{io, vec};

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;
use ureq::{Error, Timeout};

use crate::connecting::not_begun;

/// Addresses that are tried, at most: as many as the result has room for.
const ADDRESSES_MAX: usize = 16;

/// Looks names up.
#[derive(Debug)]
pub(crate) struct Resolving;

impl Resolver for Resolving {
    fn resolve(
        &self,
        uri: &Uri,
        _config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let (host, port) = place(uri).ok_or(Error::HostNotFound)?;
        let found = match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(address) => vec![SocketAddr::new(address, port)].into_iter(),
            Err(_) => look_up(&(host.to_owned(), port), timeout)?,
        };
        let mut all = self.empty();
        for address in found.take(ADDRESSES_MAX) {
            all.push(address);
        }
        match all.is_empty() {
            true => Err(Error::HostNotFound),
            false => Ok(all),
        }
    }
}

/// The host and port of an address such as `https://flash-1:7420/v1/volumes`.
fn place(uri: &Uri) -> Option<(&str, u16)> {
    let default = match uri.scheme_str()? {
        "https" => 443,
        "http" => 80,
        _ => return None,
    };
    Some((uri.host()?, uri.port_u16().unwrap_or(default)))
}

/// Looks a name up within the time, unless no thread can be had (RESOLVE-1).
fn look_up(
    place: &(String, u16),
    timeout: NextTimeout,
) -> Result<vec::IntoIter<SocketAddr>, Error> {
    let (sender, found) = sync_channel(1);
    let asked = place.clone();
    let thread = Builder::new().name("look-up".to_owned()).spawn(move || {
        // The caller may have given up.
        let _ = sender.send(asked.to_socket_addrs());
    });
    let Ok(_thread) = thread else {
        return addresses(place.to_socket_addrs());
    };
    match found.recv_timeout(*timeout.after) {
        Ok(found) => addresses(found),
        Err(RecvTimeoutError::Timeout) => Err(Error::Timeout(Timeout::Resolve)),
        Err(RecvTimeoutError::Disconnected) => Err(Error::HostNotFound),
    }
}

fn addresses(
    found: io::Result<vec::IntoIter<SocketAddr>>,
) -> Result<vec::IntoIter<SocketAddr>, Error> {
    found.map_err(|error| not_begun(Error::Io(error)))
}
