<<<<<<< HEAD
//! Messages to a service manager, where one listens (`sd_notify(3)`).
=======
//! Notifications to a service manager, if one listens (`sd_notify(3)`).
>>>>>>> 8c05d84587a8b07b15bc451649fa1f2611d60209

use std::io;

use sd_notify::NotifyState;

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

/// Tells the service manager, if there is one. The server goes on where that fails.
pub(super) fn notify(state: State) {
    if let Err(error) = tell(state) {
        tracing::warn!(%error, "the service manager cannot be told the state of the server");
    }
}

fn tell(state: State) -> io::Result<()> {
    match state {
        State::Ready => sd_notify::notify(&[NotifyState::Ready]),
        // With the time, so that a manager tells this reload from an earlier one.
        State::Reloading => {
            sd_notify::notify(&[NotifyState::Reloading, NotifyState::monotonic_usec_now()?])
        }
<<<<<<< HEAD
        State::Stopping => sd_notify::notify(&[NotifyState::Stopping]),
=======
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
>>>>>>> 8c05d84587a8b07b15bc451649fa1f2611d60209
    }
}
