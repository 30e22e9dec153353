//! Common parts of the targets that run one host against a whole server in a simulated world.

use std::rc::Rc;

use io_traits::{Clock, Stream};
use sim::{SimStream, SimWorld, Simulation};
use test_hosts::cores::SimNvmeCore;
use units::Duration;

/// Commands of one input: fewer than the queue's 32 entries, so that each is taken in.
pub(crate) const COMMANDS_MAX: u16 = 24;

/// Runs `scenario` to its end.
pub(crate) fn play<F: Future<Output = ()> + 'static>(scenario: impl FnOnce(SimWorld) -> F) {
    let simulation = Rc::new(Simulation::new(1));
    let scenario = scenario(simulation.world());
    simulation.run(scenario).expect("it comes to an end");
}

/// The host has nothing more to say, and leaves when it should have all answers. After `all_is_over` nothing is left of it.
pub(crate) async fn leave(
    world: &SimWorld,
    core: &SimNvmeCore,
    stream: &SimStream,
    (sent, heard): (u16, impl Fn() -> u16),
    all_is_over: Duration,
) {
    world.sleep_until(world.now() + Duration::from_secs(1)).await;
    assert!(heard() <= sent, "more answers than commands");
    stream.shutdown();
    world.sleep_until(world.now() + all_is_over).await;
    assert_eq!(core.stats().connections, 0, "a host stayed");
}
