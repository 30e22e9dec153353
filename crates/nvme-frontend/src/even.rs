//! Answers strangers at a fixed delay, so that the time tells no more than the answer.
//!
//! - EVEN-1: the volume, the hosts that may open it, and the hash function of its tokens are looked up within
//!   [`ANSWER_AFTER`] of the command, and the answer leaves at that time, however long the lookup took. Code
//!   paths of equal length are not enough: memory that was not used lately is slower than what stands in for
//!   a volume that is not there.
//! - EVEN-2: a core that polls sees at each turn of its loop which answers are due. The schedule of its turns
//!   depends on the duration of earlier work, to the nanosecond; so the core waits out the rest of
//!   [`TURN_MAX`] before it answers.
//! - EVEN-3: a host with the right token waits for that with each queue that it connects, but not for its Reply.

use std::rc::Rc;

use io_traits::{Device, World};
use units::{Duration, Instant};

use crate::connection::Connection;

/// From a command of a stranger until its answer. What is looked at takes some microseconds; ten times that on a
/// slow processor.
pub(crate) const ANSWER_AFTER: Duration = Duration::from_micros(100);

/// More than a turn of a core's loop takes that has nothing else to do. One with more to do hides more.
const TURN_MAX: Duration = Duration::from_micros(4);

impl<W: World, D: Device> Connection<W, D> {
    /// Gives `answer` to a command that came at `came` (EVEN-1).
    pub(crate) fn answer_evenly(
        self: &Rc<Self>,
        came: Instant,
        answer: impl FnOnce(&Rc<Self>) + 'static,
    ) {
        let connection = self.clone();
        self.core.world().spawn(async move {
            let (world, due) = (connection.core.world(), came + ANSWER_AFTER);
            world.sleep_until(due).await;
            world.spin_until(due + TURN_MAX);
            answer(&connection);
        });
    }
}
