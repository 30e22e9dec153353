//! Keeps a client connected.

use std::rc::{Rc, Weak};

use io_traits::World;
use situations::{Situation, situation};
use units::{Duration, Instant};

use crate::association::Association;
use crate::client::Inner;
use crate::{Backoff, ConnectError, Disconnect, Error, Reconnect, admin, events, link};

/// Time that a connection has to hold before the trouble before it counts as over.
pub const STEADY: Duration = Duration::from_secs(1);

/// Serves a client until it is closed or a reconnect fails for good.
pub(crate) async fn run<W: World>(inner: Rc<Inner<W>>, mut association: Association<W>) {
    let mut trouble = Trouble::default();
    loop {
        start_services(&inner, &association);
        let since = inner.world.now();
        let reason = until_lost(&inner, &association).await;
        association.tear_down(reason);
        let now = inner.world.now();
        let lived = now.since(since);
        if lived >= STEADY {
            inner.last_steady.set(Some(now));
        }
        let outcome = match inner.options.reconnect {
            _ if inner.closed.get() => Err(Error::Closed),
            Reconnect::Never => Err(Error::Disconnected(reason)),
            Reconnect::Backoff(backoff) => {
                // One that is lost as soon as it is made is no better than one that is refused.
                if lived >= backoff.delay_max {
                    trouble = Trouble::default();
                }
                let again = reconnect(&inner, &backoff, &mut trouble);
                link::unless(until_closed(&inner), again).await.unwrap_or(Err(Error::Closed))
            }
        };
        association = match outcome {
            Ok(association) => association,
            Err(error) => {
                inner.end(error);
                return;
            }
        };
        inner.reconnects.set(inner.reconnects.get() + 1);
    }
}

async fn until_lost<W: World>(inner: &Inner<W>, association: &Association<W>) -> Disconnect {
    loop {
        let changed = inner.changed.notified();
        if inner.closed.get() {
            return Disconnect::Closed;
        }
        if let Some(reason) = association.lost() {
            return reason;
        }
        changed.await;
    }
}

async fn until_closed<W: World>(inner: &Inner<W>) {
    loop {
        let changed = inner.changed.notified();
        if inner.closed.get() {
            return;
        }
        changed.await;
    }
}

/// Since a connection last held.
#[derive(Default)]
struct Trouble {
    /// When that one was lost.
    since: Option<Instant>,
    /// Attempts since then.
    attempts: u32,
}

/// Connects again, unless it is time to give up: be it that no connection comes about, or that none holds.
async fn reconnect<W: World>(
    inner: &Inner<W>,
    backoff: &Backoff,
    trouble: &mut Trouble,
) -> Result<Association<W>, Error> {
    let lost = inner.world.now();
    let give_up = *trouble.since.get_or_insert(lost) + backoff.give_up_after;
    if trouble.attempts > 0 && lost >= give_up {
        return Err(Error::Disconnected(Disconnect::GaveUp));
    }
    let mut refused_since = None;
    // Number of the latest attempts in a row at which authentication failed.
    let mut unproven = 0;
    let mut pause = backoff.delay(trouble.attempts);
    loop {
        inner.world.sleep_until(inner.world.now() + pause).await;
        trouble.attempts += 1;
        let error = match inner.bring_up().await {
            Ok(association) => {
                inner.last_connect_error.set(None);
                return Ok(association);
            }
            Err(error) => error,
        };
        situation(Situation::ReconnectFails);
        inner.last_connect_error.set(Some(error));
        let now = inner.world.now();
        // A refusal may end, too: a target that starts up may not know its volumes yet.
        refused_since = match error {
            _ if error.is_refusal() => refused_since.or(Some(now)),
            // It is there, and says nothing about us.
            ConnectError::Refused { .. } => refused_since,
            _ => None,
        };
        let refused_for =
            refused_since.filter(|_| error.is_refusal()).map(|since| now.since(since));
        if now >= give_up || refused_for >= Some(backoff.refused_for) {
            return Err(Error::Disconnected(Disconnect::GaveUp));
        }
        unproven = if error.is_unproven() { unproven + 1 } else { 0 };
        pause = match unproven {
            0 => backoff.delay(trouble.attempts),
            _ => backoff.while_unproven().delay(unproven - 1),
        };
        // An attempt after the deadline is of no use to the callers that wait.
        if unproven > 0 && now + pause > give_up {
            return Err(Error::Disconnected(Disconnect::GaveUp));
        }
    }
}

/// Starts what goes on beside requests for as long as the association lasts.
fn start_services<W: World>(inner: &Rc<Inner<W>>, association: &Association<W>) {
    let epoch = association.admin_epoch();
    inner.world.spawn(events::follow(inner.clone(), epoch));
    let interval = Duration::from_millis(u64::from(inner.keep_alive_ms())) / 2;
    if !interval.is_zero() {
        let beat = keep_alive(inner.world.clone(), Rc::downgrade(inner), epoch, interval);
        inner.world.spawn(beat);
    }
}

async fn keep_alive<W: World>(world: W, inner: Weak<Inner<W>>, epoch: u64, interval: Duration) {
    loop {
        world.sleep_until(world.now() + interval).await;
        // While this sleeps it does not keep the memory of a client that is gone.
        let Some(inner) = inner.upgrade() else { return };
        if inner.admin.lost(epoch).is_some() {
            return;
        }
        // Behind requests that take long it would come too late. A failure shows as a lost connection, or as a
        // timeout of the command.
        let _ = inner.first(admin::keep_alive()).await;
    }
}
