//! Sessions in a simulated world, against the small target that tests the client.

#[allow(dead_code)]
#[path = "../../../client/tests/common/mod.rs"]
mod common;

use std::cell::RefCell;

use client::Reconnect;
use common::{Target, address, filled, impatient, options, with_target};
use io_traits::{Clock, Spawn};
use nvme_wire::IoOpcode;
use sim::SimWorld;
use units::Lba;

use super::*;

const RECOVERY: Duration = Duration::from_secs(30);

/// A session whose clients give up as soon as those of applications do.
async fn open(world: &SimWorld, target: &Target) -> Rc<Session<SimWorld>> {
    let reconnect = Reconnect::Backoff(impatient());
    let connect_timeout = Duration::from_secs(5);
    let options = (Options { reconnect, connect_timeout, ..options() }, RECOVERY);
    let place = Place { address: address(), nqn: target.nqn };
    Session::open(world.clone(), Locator::Fixed, place, options).await.expect("it is there")
}

async fn sleep(world: &SimWorld, duration: Duration) {
    world.sleep_until(world.now() + duration).await;
}

/// CLIENT-SESSION-4. Method: a write ends every connection that it comes on, and after the fifth the target is
/// down for so long that the client gives up.
#[test]
fn no_request_is_sent_more_often_because_clients_follow_each_other() {
    with_target(1, |world, target| async move {
        let session = open(&world, &target).await;
        target.fatal.set(Some(5));
        let (clock, watched) = (world.clone(), target.clone());
        world.spawn(async move {
            while watched.count(IoOpcode::WRITE) < usize::from(SENDS_MAX) - 1 {
                sleep(&clock, Duration::from_millis(1)).await;
            }
            watched.down.set(true);
            sleep(&clock, Duration::from_secs(2)).await;
            watched.down.set(false);
        });
        let data = filled(1, 1);
        let write = async |volume: &client::Volume<_>| volume.write(Lba(5), data.clone()).await;
        let error = session.run(true, write).await.expect_err("no target answers it");
        let Error::Request(client::Error::Unanswered { sends, .. }) = error else {
            panic!("{error}")
        };
        assert_eq!((sends, target.count(IoOpcode::WRITE)), (SENDS_MAX, usize::from(SENDS_MAX)));
        assert_eq!(session.epochs.get(), 1, "the second client goes on");
        session.run(true, async |volume| volume.flush().await).await.expect("the others, too");
        session.close().await;
    });
}

/// Cuts the connection again and again for so long.
async fn flap(world: &SimWorld, target: &Target, duration: Duration) {
    let end = world.now() + duration;
    while world.now() < end {
        sleep(world, Duration::from_millis(300)).await;
        target.cut();
    }
}

/// Returns the time that a request waits for a target that is gone.
async fn patience(world: &SimWorld, target: &Target, session: &Rc<Session<SimWorld>>) -> Duration {
    target.down.set(true);
    target.cut();
    let since = world.now();
    let error = session.run(true, async |volume| volume.flush().await).await;
    let error = error.expect_err("no target is there");
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    world.now().since(since)
}

/// CLIENT-SESSION-5. Method: the client itself makes the connection again each time, for longer than a recovery
/// may take, before the target goes for good.
#[test]
fn a_connection_that_never_holds_does_not_restart_the_time() {
    with_target(2, |world, target| async move {
        let session = open(&world, &target).await;
        sleep(&world, Duration::from_secs(10)).await;
        flap(&world, &target, RECOVERY).await;
        assert_eq!(session.epochs.get(), 0, "it is the first client");
        let waited = patience(&world, &target, &session).await;
        assert!(waited < Duration::from_secs(3), "{waited:?}");
        // The next request tries again.
        let waited = patience(&world, &target, &session).await;
        assert!(waited >= RECOVERY, "{waited:?}");
    });
    with_target(3, |world, target| async move {
        let session = open(&world, &target).await;
        flap(&world, &target, RECOVERY).await;
        sleep(&world, client::STEADY + Duration::from_secs(1)).await;
        let waited = patience(&world, &target, &session).await;
        assert!(waited >= RECOVERY, "it held for a while: {waited:?}");
    });
}

/// Method: no target answers, so that the attempt hangs; then no caller waits for it any more.
#[test]
fn an_attempt_that_is_given_up_leaves_no_connection() {
    with_target(4, |world, target| async move {
        let session = open(&world, &target).await;
        target.silent.set(true);
        let attempt = session.try_at(session.place.get());
        let pause = world.sleep_until(world.now() + Duration::from_millis(100));
        assert!(matches!(first_of(attempt, pause).await, Either::Second(())));
        sleep(&world, Duration::from_millis(1)).await;
        assert_eq!((target.accepted.get(), target.open.get()), (3, 2));
    });
}

/// CLIENT-SESSION-7. Method: no target answers, so that attempts hang; then the session is closed while a request
/// waits, or it loses its last owner and no request waits.
#[test]
fn a_session_that_is_over_makes_no_connection() {
    for is_closed in [false, true] {
        with_target(5, move |world, target| async move {
            let session = open(&world, &target).await;
            target.silent.set(true);
            target.cut();
            sleep(&world, Duration::from_secs(10)).await;
            let outcome = Rc::new(RefCell::new(None));
            if is_closed {
                let (waiting, told) = (session.clone(), outcome.clone());
                world.spawn(async move {
                    let flushed = waiting.run(true, async |volume| volume.flush().await).await;
                    *told.borrow_mut() = Some(flushed);
                });
            } else {
                session.lost(0);
            }
            sleep(&world, Duration::from_secs(3)).await;
            assert_eq!(target.open.get(), 1, "an attempt is under way");
            if is_closed {
                session.close().await;
            } else {
                session.finish().await;
            }
            sleep(&world, Duration::from_millis(1)).await;
            assert_eq!(target.open.get(), 0, "closed: {is_closed}");
            let accepted = target.accepted.get();
            sleep(&world, RECOVERY).await;
            assert_eq!(target.accepted.get(), accepted, "closed: {is_closed}");
            let closed = matches!(outcome.take(), Some(Err(Error::Closed)));
            assert_eq!(closed, is_closed);
        });
    }
}

/// CLIENT-SESSION-2. Method: when the volume is found again its target says that it has other blocks; then the
/// right ones again.
#[test]
fn a_volume_that_has_other_blocks_than_it_had_is_not_taken_for_it() {
    with_target(6, |world, target| async move {
        let session = open(&world, &target).await;
        target.down.set(true);
        target.cut();
        sleep(&world, Duration::from_secs(2)).await;
        session.lost(0);
        target.lbads.set(9);
        target.down.set(false);
        let error = session.run(true, async |volume| volume.flush().await).await;
        let Err(Error::Lost { last, .. }) = error else { panic!("{error:?}") };
        let changed = client::Error::FormatChanged { nsid: 1 };
        assert!(matches!(&*last, Error::Request(error) if *error == changed), "{last}");
        assert_eq!(session.properties().block_size, 4096);
        target.lbads.set(12);
        session.run(true, async |volume| volume.flush().await).await.expect("it is the volume");
        session.close().await;
    });
}
