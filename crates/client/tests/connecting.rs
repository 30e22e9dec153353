//! Clients that lose their connection, or give it up, in the middle of things.

#[allow(dead_code)]
mod common;

use std::rc::Rc;

use auth::{Hash, Secret};
use client::{Credentials, Options};
use common::{Target, all, filled, open, options, with_target};
use io_traits::{Clock, Spawn};
use sim::SimWorld;
use units::{Duration, Lba};

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
