//! Work of others on the thread that carries out requests.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use io_traits::{Clock, Spawn};
use reactor::Events;
use units::Duration;

use crate::Error;
use crate::runtime::Runtime;

/// Time after which an event is watched again that could not be.
const AGAIN_AFTER: Duration = Duration::from_millis(10);

/// Has the thread call `turn` as `Volume::attend` says.
pub(crate) fn attend(
    runtime: &Runtime,
    event: Arc<OwnedFd>,
    mut turn: impl FnMut(&Waker) -> ControlFlow<()> + Send + 'static,
) -> Result<(), Error> {
    runtime.run(move |core| {
        let world = core.world.clone();
        core.world.spawn(async move {
            loop {
                let mut events = world.events(event.clone());
                let look = |context: &mut Context<'_>| look(&mut events, context, &mut turn);
                if poll_fn(look).await.is_break() {
                    return;
                }
                world.sleep_until(world.now() + AGAIN_AFTER).await;
            }
        });
    })
}

/// Waits until `turn` is over, or the event cannot be watched.
fn look(
    events: &mut Events,
    context: &mut Context<'_>,
    turn: &mut impl FnMut(&Waker) -> ControlFlow<()>,
) -> Poll<ControlFlow<()>> {
    // Asked first, so that what is signalled during the turn is told again.
    loop {
        match events.poll(context) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(_)) => return Poll::Ready(ControlFlow::Continue(())),
            Poll::Pending => break,
        }
    }
    match turn(context.waker()) {
        ControlFlow::Break(()) => Poll::Ready(ControlFlow::Break(())),
        ControlFlow::Continue(()) => Poll::Pending,
    }
}
