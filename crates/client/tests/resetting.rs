//! Clients that end their lost controller before they send anything again.

#[allow(dead_code)]
mod common;

use std::rc::Rc;

use client::{Backoff, ConnectError, Options, Reconnect};
use common::{Reset, Target, filled, open, options, with_target};
use io_traits::{Clock, Spawn};
use nvme_wire::log::CrossControllerResetEntry;
use sim::SimWorld;
use units::{Duration, Instant, Lba};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// As long as a server holds a command up whose device hangs.
const HUNG: Duration = Duration::from_secs(17);

fn impatient() -> Options {
    Options { connect_timeout: CONNECT_TIMEOUT, ..options() }
}

/// Opens a volume on a target that carries out resets like this, and cuts its connections; how long the
/// next write takes.
async fn write_after_cut(world: &SimWorld, target: &Rc<Target>, reset: Reset) -> Duration {
    target.reset.set(Some(reset));
    let volume = open(world, target, impatient()).await;
    target.cut();
    let since = world.now();
    volume.write(Lba(1), filled(1, 5)).await.expect("in the end");
    world.now().since(since)
}

/// RESET-3, RESET-4.
#[test]
fn a_reset_may_take_longer_than_to_connect() {
    with_target(30, |world, target| async move {
        let waited = write_after_cut(&world, &target, Reset::Held(HUNG)).await;
        assert!(waited >= HUNG && waited < HUNG + Duration::from_secs(1), "{waited:?}");
        assert_eq!((target.resets.get(), target.accepted.get()), (1, 4), "one attempt");
        assert!(target.keep_alives.get() >= 2, "its keep alive timer would have expired");
    });
}

/// RESET-2. What failed is not waited for, and neither is what the target does not tell.
#[test]
fn a_reset_that_goes_on_is_asked_for_once() {
    let while_it_goes_on = Duration::from_secs(8);
    for (seed, ccrs) in [(31, CrossControllerResetEntry::SUCCEEDED), (32, 2)] {
        with_target(seed, move |world, target| async move {
            let reset = Reset::Logged(while_it_goes_on, ccrs);
            let waited = write_after_cut(&world, &target, reset).await;
            let late = while_it_goes_on + Duration::from_secs(2);
            assert!(waited >= while_it_goes_on && waited < late, "{waited:?}");
            assert_eq!((target.resets.get(), target.accepted.get()), (1, 4), "one attempt");
            assert!(target.reset_logs.get() < 20, "{}", target.reset_logs.get());
        });
    }
    with_target(33, |world, target| async move {
        let waited = write_after_cut(&world, &target, Reset::Unlogged).await;
        assert!(waited < Duration::from_secs(1), "{waited:?}");
        assert_eq!((target.resets.get(), target.reset_logs.get()), (1, 1));
    });
}

/// RESET-2.
#[test]
fn a_full_log_of_resets_is_emptied_of_those_that_are_over() {
    with_target(36, |world, target| async move {
        let waited = write_after_cut(&world, &target, Reset::LogFull).await;
        assert!(waited < Duration::from_secs(1), "{waited:?}");
        assert_eq!((target.resets.get(), target.reset_logs.get()), (2, 1));
        assert_eq!(target.accepted.get(), 4, "one attempt");
    });
}

/// RESET-3. Nothing is sent again meanwhile.
#[test]
fn a_reset_that_never_ends_is_asked_for_once_in_each_attempt() {
    with_target(34, |world, target| async move {
        let give_up_after = Duration::from_secs(60);
        let backoff = Backoff { give_up_after, ..Backoff::default() };
        let options = Options { reconnect: Reconnect::Backoff(backoff), ..impatient() };
        let never = Duration::from_secs(1 << 20);
        target.reset.set(Some(Reset::Logged(never, 1)));
        let volume = open(&world, &target, options).await;
        target.cut();
        assert!(volume.write(Lba(1), filled(1, 5)).await.is_err());
        assert_eq!(volume.client().last_connect_error(), Some(ConnectError::NotEnded));
        assert!((2..=3).contains(&target.resets.get()), "{}", target.resets.get());
        assert!(target.reset_logs.get() < 200, "{}", target.reset_logs.get());
        assert!(target.blocks.borrow().is_empty());
    });
}

/// RESET-4. Method: nothing is answered any more from three seconds into the reset on, for half a
/// minute.
#[test]
fn a_target_that_falls_silent_during_a_reset_is_left() {
    with_target(35, |world, target| async move {
        let (clock, muted) = (world.clone(), target.clone());
        let left = Rc::new(std::cell::Cell::new(Instant(0)));
        let when = left.clone();
        world.spawn(async move {
            while muted.resets.get() == 0 {
                clock.sleep_until(clock.now() + Duration::from_millis(10)).await;
            }
            clock.sleep_until(clock.now() + Duration::from_secs(3)).await;
            muted.mute.set(true);
            let since = clock.now();
            while muted.open.get() > 0 {
                clock.sleep_until(clock.now() + Duration::from_millis(10)).await;
            }
            when.set(Instant(0) + clock.now().since(since));
            clock.sleep_until(since + Duration::from_secs(30)).await;
            muted.mute.set(false);
        });
        write_after_cut(&world, &target, Reset::Held(HUNG)).await;
        let noticed = left.get().since(Instant(0));
        assert!(noticed <= CONNECT_TIMEOUT * 2, "{noticed:?}");
    });
}
