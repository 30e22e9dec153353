//! The tasks that serve one connection of a queue.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::Poll;

use io_traits::{Clock, SendBatch, Stream, World};
use nvme_initiator::{Config, Connection};
use units::{Duration, Instant};

use crate::Disconnect;
use crate::queue::Queue;

/// Shortest sleep between two looks for late commands.
const TIMER_MIN: Duration = Duration::from_millis(1);

/// A look that comes so much too late says that the program did not run.
const LATE: Duration = Duration::from_millis(250);
/// The time for which answers that came meanwhile are then received, before the next look.
const CATCH_UP: Duration = Duration::from_millis(50);

/// Makes `stream` the connection of `queue` and starts its tasks. Returns the link's number.
pub(crate) fn start<W: World>(
    world: &W,
    queue: &Rc<Queue>,
    stream: &W::Stream,
    config: &Config,
) -> u64 {
    let mut hello = Vec::new();
    let connection = Connection::new(config, |bytes| hello.extend_from_slice(bytes));
    let epoch = queue.attach(connection, &hello);
    world.spawn(receive(world.clone(), queue.clone(), stream.clone(), epoch));
    world.spawn(send(queue.clone(), stream.clone(), epoch));
    world.spawn(watch(world.clone(), Rc::downgrade(queue), epoch, config.command_timeout));
    epoch
}

async fn receive<W: World>(world: W, queue: Rc<Queue>, stream: W::Stream, epoch: u64) {
    while queue.lost(epoch).is_none() {
        match stream.recv().await {
            Ok(chunk) => queue.on_chunk(epoch, world.now(), &chunk),
            Err(error) => queue.fail(epoch, Disconnect::Stream(error)),
        }
    }
}

async fn send<S: Stream>(queue: Rc<Queue>, stream: S, epoch: u64) {
    let mut spare = SendBatch::new();
    while let Some(batch) = queue.next_batch(epoch, spare).await {
        match stream.send(batch).await {
            Ok(empty) => spare = empty,
            Err(error) => {
                queue.fail(epoch, Disconnect::Stream(error));
                break;
            }
        }
    }
    stream.shutdown();
}

/// Looks for commands that are late, unless this was late itself, as the program did not run: then what came meanwhile is
/// received before. A command that is submitted while this sleeps is late after
/// the timeout at the earliest, so that sleeping for one is never too long. Nor does it keep the memory of a
/// client that is gone meanwhile.
async fn watch<W: World>(world: W, queue: Weak<Queue>, epoch: u64, command_timeout: Duration) {
    let deadline = |now| queue.upgrade()?.check_timeout(epoch, now);
    while let Some(deadline) = deadline(world.now()) {
        let now = world.now();
        let next: Instant = deadline.min(now + command_timeout).max(now + TIMER_MIN);
        world.sleep_until(next).await;
        if world.now().since(next) > LATE {
            world.sleep_until(world.now() + CATCH_UP).await;
        }
    }
}

/// The outcome of `future`, or `None` if it takes longer than `limit`.
pub(crate) async fn within<T>(
    clock: &impl Clock,
    limit: Duration,
    future: impl Future<Output = T>,
) -> Option<T> {
    unless(clock.sleep_until(clock.now() + limit), future).await
}

/// The outcome of `future`, or `None` if `stop` comes first.
pub(crate) async fn unless<T>(
    stop: impl Future<Output = ()>,
    future: impl Future<Output = T>,
) -> Option<T> {
    let (mut stop, mut future) = (pin!(stop), pin!(future));
    poll_fn(|context| {
        if let Poll::Ready(value) = future.as_mut().poll(context) {
            return Poll::Ready(Some(value));
        }
        stop.as_mut().poll(context).map(|()| None)
    })
    .await
}

/// The outcomes of both, which run at the same time.
pub(crate) async fn both<A, B>(
    first: impl Future<Output = A>,
    second: impl Future<Output = B>,
) -> (A, B) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut first_done, mut second_done) = (None, None);
    poll_fn(|context| {
        if first_done.is_none()
            && let Poll::Ready(value) = first.as_mut().poll(context)
        {
            first_done = Some(value);
        }
        if second_done.is_none()
            && let Poll::Ready(value) = second.as_mut().poll(context)
        {
            second_done = Some(value);
        }
        match (first_done.take(), second_done.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            (first, second) => {
                (first_done, second_done) = (first, second);
                Poll::Pending
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use io_traits::Spawn;
    use nvme_wire::pdu::Digests;
    use sim::Simulation;

    use super::*;

    /// Method: a queue with a link is dropped while a task watches it for late commands.
    #[test]
    fn a_task_that_watches_for_late_commands_keeps_no_memory() {
        let simulation = Simulation::new(1);
        let world = simulation.world();
        let test = async move {
            let command_timeout = Duration::from_secs(30);
            let config = Config {
                digests: Digests::default(),
                depth: 8,
                command_timeout,
                in_capsule_max: 0,
            };
            let queue = Queue::new(config.depth, || {});
            let epoch = queue.attach(Connection::new(&config, |_| {}), &[]);
            let weak = Rc::downgrade(&queue);
            world.spawn(watch(world.clone(), weak.clone(), epoch, command_timeout));
            world.sleep_until(world.now() + Duration::from_secs(1)).await;
            assert_eq!(Rc::strong_count(&queue), 1);
            drop(queue);
            assert!(weak.upgrade().is_none());
        };
        simulation.run(test).unwrap_or_else(|stalled| panic!("{stalled:?}"));
    }
}
