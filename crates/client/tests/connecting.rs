//! Clients that lose their connection, or give it up, in the middle of things.

#[allow(dead_code)]
mod common;

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use auth::{Hash, Secret};
use client::{
    Backoff, Client, ConnectError, Credentials, Disconnect, Error, Options, Reconnect, discover,
};
use common::{Target, address, all, filled, impatient, open, options, with_target};
use io_traits::{Clock, Spawn};
use nvme_wire::Status;
use nvme_wire::property::{Cap, Cc};
use sim::SimWorld;
use units::{Duration, Instant, Lba};

/// Lets new connections in again in a while.
fn come_back(world: &SimWorld, target: &Rc<Target>) {
    let (clock, target) = (world.clone(), target.clone());
    world.spawn(async move {
        clock.sleep_until(clock.now() + Duration::from_secs(1)).await;
        target.down.set(false);
    });
}

/// Method: every place of every queue is taken when the connection is cut, and more requests wait.
/// What connects has to authenticate on each queue all the same.
#[test]
fn full_queues_are_connected_and_authenticated_again() {
    for depth in [1, 2, 8] {
        with_target(20, move |world, target| async move {
            let secret = Secret::new(Hash::Sha256, &[7; 64]);
            *target.secret.borrow_mut() = Some(secret.clone());
            let credentials = Some(Credentials { secret, controller_secret: None });
            let options = Options { depth, queues: 2, credentials, ..options() };
            let volume = open(&world, &target, options).await;
            target.cut_after.set(Some(40));
            let writes = (0..200u64).map(|lba| {
                let volume = volume.clone();
                async move { volume.write(Lba(lba), filled(1, 5)).await.expect("written") }
            });
            all(&world, writes).await;
            assert_eq!(volume.client().counters().reconnects, 1, "depth {depth}");
            assert_eq!(target.blocks.borrow().len(), 200, "depth {depth}");
        });
    }
}

/// The same of the admin queue: its commands wait while there is no connection.
#[test]
fn a_full_admin_queue_is_connected_again() {
    with_target(21, |world, target| async move {
        let volume = open(&world, &target, options()).await;
        target.down.set(true);
        target.cut();
        world.sleep_until(world.now() + Duration::from_millis(10)).await;
        come_back(&world, &target);
        let asked = (0..60).map(|_| {
            let client = volume.client();
            async move { drop(client.identify_controller().await.expect("an answer")) }
        });
        all(&world, asked).await;
        assert_eq!(volume.client().counters().reconnects, 1);
    });
}

/// Polls `future` until `deadline`, then drops it.
async fn give_up_at(world: &SimWorld, deadline: Instant, future: impl Future) {
    let (mut future, mut sleep) = (pin!(future), pin!(world.sleep_until(deadline)));
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(_) => Poll::Ready(()),
        Poll::Pending => sleep.as_mut().poll(context),
    })
    .await;
}

/// Method: drop it at each of many moments, from before the first packet to behind the last.
#[test]
fn a_connect_that_is_given_up_leaves_no_connection() {
    with_target(22, |world, target| async move {
        let options = Options { queues: 2, ..options() };
        let mut seen = [false; 4];
        for step in 0..400u32 {
            let deadline = world.now() + Duration::from_micros(10).saturating_mul(step);
            if step % 2 == 0 {
                let nqn = target.nqn;
                let connect = Client::connect(world.clone(), address(), &nqn, options.clone());
                give_up_at(&world, deadline, Box::pin(connect)).await;
            } else {
                let discover = discover(world.clone(), address(), options.clone());
                give_up_at(&world, deadline, discover).await;
            }
            seen[target.open.get() as usize] = true;
            world.sleep_until(world.now() + Duration::from_millis(1)).await;
            assert_eq!(target.open.get(), 0, "dropped after {step} steps");
        }
        assert_eq!(seen, [true; 4], "connections open in the moment of the drop");
    });
}

/// Method: close while the target refuses every connection, and while it takes them and says nothing.
#[test]
fn a_client_that_is_connecting_again_closes_at_once() {
    for silent in [false, true] {
        with_target(23, move |world, target| async move {
            let volume = open(&world, &target, options()).await;
            target.silent.set(silent);
            target.down.set(!silent);
            target.cut();
            let (pending, outcome) = (volume.clone(), Rc::new(RefCell::new(None)));
            let told = outcome.clone();
            world.spawn(async move {
                *told.borrow_mut() = Some(pending.flush().await);
            });
            world.sleep_until(world.now() + Duration::from_secs(5)).await;
            assert_eq!(*outcome.borrow(), None, "it waits");
            let since = world.now();
            volume.client().close().await;
            world.sleep_until(since + Duration::from_millis(1)).await;
            assert_eq!(*outcome.borrow(), Some(Err(Error::Closed)), "silent: {silent}");
            assert_eq!(target.open.get(), 0);
            assert!(world.now() - since <= Duration::from_millis(1));
        });
    }
}

/// Method: refuse every attempt, once for good and once for now; and for good, but not for long enough.
#[test]
fn a_target_that_refuses_for_good_is_left_sooner_than_others() {
    const REFUSED: Status = Status::CONNECT_INVALID_PARAMETERS;
    let backoff = Backoff::default();
    for (status, patience) in
        [(REFUSED.with_dnr(), backoff.refused_for), (REFUSED, backoff.give_up_after)]
    {
        with_target(24, move |world, target| async move {
            let volume = open(&world, &target, options()).await;
            target.fail_admin.set(Some((u32::MAX, status)));
            target.cut();
            let since = world.now();
            assert!(volume.flush().await.is_err(), "{status}");
            let waited = world.now() - since;
            let late = patience + backoff.delay_max.saturating_mul(2);
            assert!(waited >= patience && waited <= late, "{status}: {waited:?}");
            let why = volume.client().last_connect_error().expect("it was refused");
            assert!(matches!(why, ConnectError::Refused { .. }), "{why}");
        });
    }
    with_target(25, |world, target| async move {
        let volume = open(&world, &target, options()).await;
        for _ in 0..3 {
            target.fail_admin.set(Some((u32::MAX, REFUSED.with_dnr())));
            target.cut();
            let (clock, letting_in) = (world.clone(), target.clone());
            world.spawn(async move {
                clock.sleep_until(clock.now() + Duration::from_secs(20)).await;
                letting_in.fail_admin.set(None);
            });
            volume.flush().await.expect("in the end");
        }
    });
}

/// Servers rate-limit clients that fail to authenticate too often in ten seconds, and all that share the address.
/// Method: a volume's token is replaced, and the connections are cut; then either the old token is valid again, or
/// attempts of other clients have to be admitted beside those of a client that gives up soon.
#[test]
fn a_client_whose_token_is_no_longer_taken_tries_seldom() {
    for (backoff, attempts_max) in [(Backoff::default(), 6), (impatient(), 2)] {
        with_target(27, move |world, target| async move {
            let secret = Secret::new(Hash::Sha256, &[7; 64]);
            *target.secret.borrow_mut() = Some(secret.clone());
            let credentials = Some(Credentials { secret: secret.clone(), controller_secret: None });
            let reconnect = Reconnect::Backoff(backoff);
            let options = Options { credentials, reconnect, ..options() };
            let volume = open(&world, &target, options).await;
            *target.secret.borrow_mut() = Some(Secret::new(Hash::Sha256, &[8; 64]));
            let before = target.accepted.get();
            target.cut();
            world.sleep_until(world.now() + Duration::from_secs(10)).await;
            let attempts = target.accepted.get() - before;
            assert!((1..=attempts_max).contains(&attempts), "{attempts}");
            let why = volume.client().last_connect_error().expect("it was refused");
            assert!(why.is_unproven(), "{why}");
            *target.secret.borrow_mut() = Some(secret);
            let gave_up = Err(Error::Disconnected(Disconnect::GaveUp));
            let expected = if backoff == impatient() { gave_up } else { Ok(()) };
            assert_eq!(volume.flush().await, expected);
        });
    }
}

/// The settings that a controller was enabled with stay until the host disables it. Method: controllers with either
/// choice of command sets are opened and closed.
#[test]
fn good_bye_changes_nothing_but_the_shutdown_notification() {
    for (sets, css) in [(Cap::CSS_NVM, Cc::CSS_NVM), (Cap::CSS_IO_COMMAND_SETS, Cc::CSS_ALL)] {
        with_target(26, move |world, target| async move {
            target.command_sets.set(sets);
            let volume = open(&world, &target, options()).await;
            volume.client().close().await;
            let enabled = Cc::enabled(css);
            let written = [enabled, enabled.with_shn(Cc::SHN_NORMAL)];
            assert_eq!(*target.configurations.borrow(), written);
        });
    }
}
