//! A target whose namespace has another format than when it was opened.

#![allow(missing_docs, unreachable_pub, dead_code)]

mod common;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use client::{Error, Options, Volume};
use common::{Target, all, filled, open, options, with_target};
use io_traits::{Clock, Spawn};
use sim::SimWorld;
use units::{BLOCK_SIZE, Duration, Lba, LbaRange};

const CHANGED: Error = Error::FormatChanged { nsid: 1 };

/// Changes that make a namespace another one.
#[derive(Clone, Copy, Debug)]
enum Other {
    BlockSize,
    Metadata,
    /// One that no host could use.
    Unusable,
}

impl Other {
    const ALL: [Self; 3] = [Self::BlockSize, Self::Metadata, Self::Unusable];

    fn tell(self, target: &Target) {
        match self {
            Self::BlockSize => target.lbads.set(9),
            Self::Metadata => target.metadata_bytes.set(8),
            Self::Unusable => target.lbads.set(3),
        }
    }
}

/// Waits as long as anything here takes.
async fn a_second(world: &SimWorld) {
    world.sleep_until(world.now() + Duration::from_secs(1)).await;
}

/// One request of each kind, and more than a queue has places for; what came of them.
async fn ask_all(volume: Volume<SimWorld>, world: SimWorld) -> Vec<Option<Error>> {
    let outcomes = Rc::new(RefCell::new(Vec::new()));
    let requests = (0..24u64).map(|number| {
        let (volume, outcomes) = (volume.clone(), outcomes.clone());
        async move {
            let (lba, range) = (Lba(number), LbaRange::new(Lba(number), 1));
            let outcome = match number % 7 {
                0 => volume.read(lba, 1).await.map(drop),
                1 => volume.write(lba, filled(1, 3)).await,
                2 => volume.write(lba, filled(5, 3)).await,
                3 => volume.compare(lba, filled(1, 0)).await.map(drop),
                4 => volume.write_zeroes(range).await,
                5 => volume.verify(range).await,
                _ => volume.deallocate(&[range]).await,
            };
            outcomes.borrow_mut().push(outcome.err());
        }
    });
    all(&world, requests).await;
    outcomes.take()
}

/// Method: a target takes requests in and answers none; then all connections are cut, and the controller that is connected
/// next says that the blocks are others.
#[test]
fn what_waited_for_a_connection_is_not_sent_to_a_namespace_of_another_format() {
    for other in Other::ALL {
        with_target(31, move |world, target| async move {
            let volume = open(&world, &target, Options { queues: 2, ..options() }).await;
            target.mute.set(true);
            let clock = world.clone();
            let (cutting, before) = (target.clone(), world.now() + Duration::from_millis(10));
            let sent = Rc::new(Cell::new(0));
            let sent_before = sent.clone();
            world.spawn(async move {
                clock.sleep_until(before).await;
                sent_before.set(cutting.log.borrow().len());
                other.tell(&cutting);
                cutting.mute.set(false);
                cutting.cut();
            });
            let outcomes = ask_all(volume.clone(), world.clone()).await;
            assert_eq!(outcomes, [Some(CHANGED); 24], "{other:?}");
            assert!(sent.get() > 0, "some were under way");
            assert_eq!(target.log.borrow().len(), sent.get(), "{other:?}: sent again");
            assert_eq!(volume.client().counters().reconnects, 1);
            // Nor is anything new, which would wait for nothing.
            let asked_at = world.now();
            assert_eq!(volume.flush().await, Err(CHANGED));
            assert_eq!((world.now(), target.log.borrow().len()), (asked_at, sent.get()));
        });
    }
}

/// Method: the same while the connection holds, by an event.
#[test]
fn a_namespace_that_gets_another_format_is_asked_nothing_more() {
    for other in Other::ALL {
        with_target(32, move |world, target| async move {
            let volume = open(&world, &target, options()).await;
            volume.write(Lba(1), filled(1, 5)).await.expect("written");
            other.tell(&target);
            target.resize(1000);
            a_second(&world).await;
            let sent = target.log.borrow().len();
            assert_eq!((volume.block_size(), volume.metadata_size()), (4096, 0), "{other:?}");
            assert_eq!(volume.capacity(), 1 << 20, "what was known of it stays");
            assert_eq!(volume.deallocate(&[LbaRange::new(Lba(1), 1)]).await, Err(CHANGED));
            assert_eq!(volume.read(Lba(1), 1).await.err(), Some(CHANGED));
            // What it once held is gone, even if the target says that it is as before.
            target.lbads.set(12);
            target.metadata_bytes.set(0);
            target.resize(1000);
            a_second(&world).await;
            assert_eq!(volume.read(Lba(1), 1).await.err(), Some(CHANGED));
            assert_eq!(volume.client().volume().await.err(), Some(CHANGED), "it is in use");
            assert_eq!(target.log.borrow().len(), sent, "{other:?}");
            let client = volume.client();
            drop(volume);
            let volume = client.volume().await.expect("opened again");
            assert_eq!(volume.capacity(), 1000);
            assert_eq!(volume.read(Lba(1), 1).await.expect("read").as_bytes(), [5; BLOCK_SIZE]);
        });
    }
}

/// Method: a target takes requests in and answers none; the controller that is connected next says that the volume is larger,
/// or smaller.
#[test]
fn a_size_that_changed_meanwhile_is_known_before_anything_is_sent_again() {
    for blocks in [500, 1 << 21] {
        with_target(33, move |world, target| async move {
            let volume = open(&world, &target, options()).await;
            target.mute.set(true);
            let (clock, cutting) = (world.clone(), target.clone());
            let before = world.now() + Duration::from_millis(10);
            world.spawn(async move {
                clock.sleep_until(before).await;
                cutting.size.set(blocks);
                cutting.mute.set(false);
                cutting.cut();
            });
            volume.write(Lba(7), filled(1, 5)).await.expect("within it");
            assert_eq!(volume.capacity(), blocks);
        });
    }
}
