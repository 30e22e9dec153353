//! A server that may not serve for a while keeps hosts out, touches nothing, and goes on as it was.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use client::{Client, ConnectError, Options, Reconnect};
use io_traits::{Clock, Spawn};
use nvme_frontend::nqn_of;
use nvme_wire::Status;
use sim::SimWorld;
use units::{Duration, Instant, Lba};

use crate::support::{VOLUME, connect, data, host, portal, serve_new, simulate, sleep};

fn once() -> Options {
    Options { reconnect: Reconnect::Never, ..host() }
}

/// Returns the answer to a host that connects now.
async fn refusal(world: &SimWorld) -> Status {
    match Client::connect(world.clone(), portal(), &nqn_of(VOLUME), once()).await {
        Err(ConnectError::Refused { status, .. }) => status,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it is let in"),
    }
}

/// SUSPENDED-1 and NVME-AUTH-8.
#[test]
fn hosts_are_cut_and_come_again() {
    simulate(1, |world| async move {
        let (core, _) = serve_new(world.clone(), 1024).await;
        let volume = connect(world.clone(), once()).await;
        volume.write(Lba(0), data(1, 1)).await.expect("it serves");
        core.suspend();
        volume.read(Lba(0), 1).await.expect_err("cut");
        assert_eq!(refusal(&world).await, Status::CONNECT_CONTROLLER_BUSY, "to come again");
        core.resume();
        let volume = connect(world.clone(), once()).await;
        let read = volume.read(Lba(0), 1).await.expect("it serves");
        assert_eq!(read.as_bytes(), data(1, 1).as_bytes());
        volume.write(Lba(1), data(2, 1)).await.expect("it serves");
    });
}

/// SUSPENDED-2. Method: what was written is in the journal only, so that a core that ends has something to write.
#[test]
fn nothing_is_written_not_even_at_the_end() {
    simulate(2, |world| async move {
        let (core, device) = serve_new(world.clone(), 1024).await;
        let volume = connect(world.clone(), once()).await;
        volume.write(Lba(0), data(1, 1)).await.expect("it serves");
        core.suspend();
        sleep(&world, Duration::from_secs(1)).await;
        let before = device.requests();
        sleep(&world, Duration::from_secs(60)).await;
        core.shutdown().await.expect("there is nothing to do");
        assert_eq!(device.requests(), before);
    });
}

/// SUSPENDED-3, for reads, which may touch no device, and for writes. Method: the core was not told of the suspension;
/// it asks.
#[test]
fn what_comes_too_late_is_not_carried_out() {
    simulate(3, |world| async move {
        let (core, _) = serve_new(world.clone(), 1024).await;
        let may_serve = Rc::new(Cell::new(true));
        let asked = may_serve.clone();
        core.serve_while(move || asked.get());
        for round in 1..4 {
            let volume = connect(world.clone(), once()).await;
            volume.write(Lba(0), data(round, 1)).await.expect("it serves");
            may_serve.set(false);
            match round {
                1 => drop(volume.write(Lba(0), data(9, 1)).await.expect_err("too late")),
                2 => drop(volume.read(Lba(7), 1).await.expect_err("too late, though it is empty")),
                _ => drop(volume.flush().await.expect_err("too late")),
            }
            assert_eq!(refusal(&world).await, Status::CONNECT_CONTROLLER_BUSY, "to come again");
            may_serve.set(true);
            core.resume();
            let volume = connect(world.clone(), once()).await;
            let read = volume.read(Lba(0), 1).await.expect("it serves");
            assert_eq!(read.as_bytes(), data(round, 1).as_bytes());
        }
    });
}

/// When it was looked whether to serve a hundred reads that come at a time and need no device, and how many of them were
/// answered. From `end` on it may not serve.
fn looks_at_a_hundred_reads(end: Instant) -> (Vec<Instant>, u32) {
    simulate(4, move |world| async move {
        let (core, _) = serve_new(world.clone(), 1024).await;
        let volume = connect(world.clone(), once()).await;
        let (looks, clock) = (Rc::new(RefCell::new(Vec::new())), world.clone());
        let looked = looks.clone();
        core.serve_while(move || {
            looked.borrow_mut().push(clock.now());
            clock.now() < end
        });
        let answered = Rc::new(Cell::new(0));
        for lba in 0..100 {
            let (volume, answered) = (volume.clone(), answered.clone());
            world.spawn(async move {
                let is_answered = volume.read(Lba(lba), 1).await.is_ok();
                answered.set(answered.get() + u32::from(is_answered));
            });
        }
        sleep(&world, Duration::from_secs(1)).await;
        (looks.take(), answered.get())
    })
}

/// SUSPENDED-3, of what is there when a batch before it is carried out. Method: the end comes in the moment between two
/// batches of a run that is the same but for that; all was received before.
#[test]
fn what_waited_for_its_turn_until_it_was_too_late_is_not_carried_out() {
    let (looks, answered) = looks_at_a_hundred_reads(Instant(u64::MAX));
    assert_eq!(answered, 100);
    let next = looks.windows(2).find(|pair| pair[1] == pair[0] + Duration::from_nanos(1));
    let next = next.unwrap_or_else(|| panic!("no batch follows another at once: {looks:?}"))[1];
    let (_, answered) = looks_at_a_hundred_reads(next);
    assert!(answered <= 64, "{answered} answers, but a batch has 64 commands");
}
