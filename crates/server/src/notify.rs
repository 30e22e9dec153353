//! Messages to a service manager, where one listens (`sd_notify(3)`).

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
        State::Stopping => sd_notify::notify(&[NotifyState::Stopping]),
    }
}
