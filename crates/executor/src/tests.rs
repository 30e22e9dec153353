//! EXECUTOR-1 to EXECUTOR-4, staged.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};

use super::*;

fn executor() -> Executor {
    Executor::new(Arc::new(|| {}))
}

/// A task that waits for `wakers` to be used, and counts its polls.
fn parked(
    polls: &Rc<Cell<u32>>,
    wakers: &Rc<RefCell<Vec<Waker>>>,
) -> impl Future<Output = ()> + use<> {
    let (polls, wakers) = (polls.clone(), wakers.clone());
    poll_fn(move |context| {
        polls.set(polls.get() + 1);
        wakers.borrow_mut().push(context.waker().clone());
        Poll::Pending
    })
}

#[test]
fn tasks_run_in_the_order_in_which_they_became_ready() {
    let executor = executor();
    let order = Rc::new(RefCell::new(Vec::new()));
    for n in 0..5 {
        let order = order.clone();
        executor.spawner().spawn(async move { order.borrow_mut().push(n) });
    }
    assert_eq!(executor.run_ready(3), 3);
    assert_eq!(*order.borrow(), [0, 1, 2]);
    assert_eq!(executor.run_ready(usize::MAX), 2);
    assert_eq!(executor.task_count(), 0);
}

#[test]
fn many_wakes_are_one_poll() {
    let executor = executor();
    let (polls, wakers) = (Rc::default(), Rc::default());
    executor.spawner().spawn_now(parked(&polls, &wakers));
    assert_eq!(polls.get(), 1, "polled at once");
    let waker = wakers.borrow()[0].clone();
    waker.wake_by_ref();
    waker.wake_by_ref();
    assert_eq!(executor.run_ready(usize::MAX), 1);
    assert_eq!(polls.get(), 2);
    assert_eq!(executor.run_ready(usize::MAX), 0);
}

#[test]
fn a_task_that_wakes_itself_is_polled_again_behind_the_others() {
    let executor = executor();
    let left = Cell::new(3);
    executor.spawner().spawn(poll_fn(move |context| {
        left.set(left.get() - 1);
        if left.get() == 0 {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }));
    assert_eq!(executor.run_ready(usize::MAX), 3);
    assert!(!executor.has_ready());
}

#[test]
fn a_wake_from_another_thread_arrives_and_tells_the_owner() {
    let told = Arc::new(AtomicUsize::new(0));
    let count = told.clone();
    let executor = Executor::new(Arc::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
    }));
    let (polls, wakers) = (Rc::default(), Rc::default());
    executor.spawner().spawn_now(parked(&polls, &wakers));
    let waker = wakers.borrow()[0].clone();
    std::thread::spawn(move || waker.wake()).join().expect("waking does not panic");
    assert_eq!(told.load(Ordering::Relaxed), 1);
    assert!(executor.has_ready());
    executor.run_ready(usize::MAX);
    assert_eq!(polls.get(), 2);
}

#[test]
fn wakers_outlive_tasks_and_executors_harmlessly() {
    let executor = executor();
    let (polls, wakers) = (Rc::default(), Rc::default());
    executor.spawner().spawn_now(parked(&polls, &wakers));
    let waker = wakers.borrow()[0].clone();
    drop(executor);
    waker.wake_by_ref();
    let later = self::executor();
    waker.wake_by_ref();
    assert_eq!(later.run_ready(usize::MAX), 0);
}

#[test]
fn dropping_the_executor_drops_its_tasks_even_if_they_spawn_while_they_go() {
    struct SpawnsWhenDropped(Spawner, Rc<Cell<bool>>);
    impl Drop for SpawnsWhenDropped {
        fn drop(&mut self) {
            self.0.spawn(async {});
            self.1.set(true);
        }
    }
    let executor = executor();
    let dropped = Rc::new(Cell::new(false));
    let held = SpawnsWhenDropped(executor.spawner(), dropped.clone());
    executor.spawner().spawn_now(async move {
        let _held = held;
        std::future::pending::<()>().await;
    });
    drop(executor);
    assert!(dropped.get());
}

#[test]
fn tasks_spawn_tasks_from_within() {
    let executor = executor();
    let spawner = executor.spawner();
    let done = Rc::new(Cell::new(0));
    let count = done.clone();
    executor.spawner().spawn(async move {
        for _ in 0..10 {
            let count = count.clone();
            spawner.spawn_now(async move { count.set(count.get() + 1) });
        }
        count.set(count.get() + 100);
    });
    executor.run_ready(usize::MAX);
    assert_eq!(done.get(), 110);
}
