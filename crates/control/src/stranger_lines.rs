//! Log lines about requests without a known token: as many for each source as `strangers::Quiet` allows, so
//! that no client can fill the log with requests.

use std::mem::replace;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use strangers::{LeftOut, Quiet};
use tokio::time::Instant;

use crate::audit::shown_text;

/// Interval at which the counts of suppressed lines are logged.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Lines about strangers. While some are left out, a task waits to say how many.
pub(crate) struct StrangerLines {
    start: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    quiet: Quiet,
    /// The task is there.
    is_awaited: bool,
}

impl Default for StrangerLines {
    fn default() -> Self {
        Self { start: Instant::now(), state: Mutex::default() }
    }
}

impl StrangerLines {
    /// Notes that the client at `peer` asked for `path` without a known token.
    pub(crate) fn note(self: &Arc<Self>, peer: SocketAddr, path: &str) {
        let (is_said, left_out, begins) = self.with(|state, now| {
            let left_out = state.quiet.over(now);
            let is_said = state.quiet.allows(peer.ip(), now);
            (is_said, left_out, !is_said && !replace(&mut state.is_awaited, true))
        });
        left_out.into_iter().for_each(say);
        if is_said {
            let path = shown_text(path);
            tracing::info!(%peer, path, "API request without a known token");
        }
        if begins {
            tokio::spawn(self.clone().tell());
        }
    }

    /// Says of each period that ends how many lines it had not, until there is none.
    async fn tell(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let (left_out, is_over) = self.with(|state, now| {
                let left_out = state.quiet.over(now);
                state.is_awaited = !state.quiet.is_empty();
                (left_out, !state.is_awaited)
            });
            left_out.into_iter().for_each(say);
            if is_over {
                return;
            }
        }
    }

    fn with<T>(&self, look: impl FnOnce(&mut State, units::Instant) -> T) -> T {
        let nanos = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // A panic elsewhere leaves the counts whole.
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner), units::Instant(nanos))
    }
}

fn say(LeftOut { source, lines }: LeftOut) {
    tracing::warn!(%source, lines, "lines about strangers at the API left out");
}
