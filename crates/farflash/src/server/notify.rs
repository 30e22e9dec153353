//! Notifications to a service manager, if one listens (`sd_notify(3)`).

use std::borrow::Cow;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::time::{ClockId, clock_gettime};

/// The state of the server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum State {
    /// It answers.
    Ready,
    /// It answers, and reads again what it can. `Ready` follows.
    Reloading,
    /// It ends, and finishes what is in flight.
    Stopping,
}

/// Tells the service manager, if one waits to hear. That it does not hear is no reason not to serve.
pub(super) fn notify(state: State) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = tell(name.as_encoded_bytes(), state) {
        tracing::warn!(%error, "the service manager cannot be told how the server is");
    }
}

fn tell(name: &[u8], state: State) -> io::Result<()> {
    let text = state.text();
    let address = match name.split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
        _ => {
            let path: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(name);
            SocketAddr::from_pathname(path)?
        }
    };
    UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address)?;
    Ok(())
}

impl State {
    fn text(self) -> Cow<'static, str> {
        match self {
            Self::Ready => "READY=1".into(),
            Self::Reloading => {
                // So that a manager tells this reload from an earlier one.
                let now = clock_gettime(ClockId::Monotonic);
                let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
                format!("RELOADING=1\nMONOTONIC_USEC={micros}").into()
            }
            Self::Stopping => "STOPPING=1".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(listener: &UnixDatagram) -> Vec<u8> {
        let mut bytes = [0; 64];
        let length = listener.recv(&mut bytes).expect("a message");
        bytes[..length].to_vec()
    }

    #[test]
    fn both_kinds_of_sockets_are_told() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("notify");
        let listener = UnixDatagram::bind(&path).expect("bound");
        tell(path.as_os_str().as_encoded_bytes(), State::Ready).expect("told");
        assert_eq!(heard(&listener), b"READY=1");
        let name = format!("farflash-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let listener = UnixDatagram::bind_addr(&address).expect("bound");
        tell(format!("@{name}").as_bytes(), State::Stopping).expect("told");
        assert_eq!(heard(&listener), b"STOPPING=1");
        tell(b"/no/such/socket", State::Ready).expect_err("no process listens");
    }
}
