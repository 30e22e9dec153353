//! Tasks, timers, messages, sleep.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use io_traits::{Clock, Spawn};
use rustix::time::{ClockId, clock_gettime};
use units::Instant;

use super::{pause, poll_once_and_drop, run};
use crate::cpu::pin_to;
use crate::{CoreConfig, StartError, Undelivered, allowed_cpus, mailbox, spawn_thread};

#[test]
fn timers_fire_in_the_order_of_their_deadlines_and_never_early() {
    let fired = run(|handle| async move {
        let fired = Rc::new(RefCell::new(Vec::new()));
        let start = handle.now();
        for ms in [30, 10, 20, 10, 0] {
            let (handle, fired) = (handle.clone(), fired.clone());
            handle.clone().spawn(async move {
                let deadline = start + Duration::from_millis(ms);
                handle.sleep_until(deadline).await;
                assert!(handle.now() >= deadline);
                fired.borrow_mut().push(ms);
            });
        }
        pause(&handle, Duration::from_millis(60)).await;
        fired.take()
    });
    assert_eq!(fired, [0, 10, 10, 20, 30]);
}

#[test]
fn a_dropped_timer_leaves_nothing_behind() {
    run(|handle| async move {
        let never = handle.now() + Duration::from_secs(3600);
        for _ in 0..100 {
            assert_eq!(poll_once_and_drop(handle.sleep_until(never)).await, None);
        }
        let next = handle.core.timers.borrow().next_deadline();
        assert!(next < Some(never), "only the test's own alarm is left: {next:?}");
        assert_eq!(poll_once_and_drop(handle.sleep_until(Instant(0))).await, Some(()));
    });
}

/// Method: both ends bounce a number, each from its own core, so that each wake meets a core that
/// is about to sleep, asleep or awake.
#[test]
fn messages_from_another_thread_wake_a_sleeping_core() {
    let (to_core, mut inbox) = mailbox::<u32>();
    let (to_main, mut replies) = mailbox::<u32>();
    let core = spawn_thread(CoreConfig::default(), move |_| async move {
        let mut last = 0;
        while let Some(n) = inbox.recv().await {
            last = n;
            to_main.send(n).expect("main waits");
        }
        last
    });
    let core = core.expect("a core starts");
    run(|handle| async move {
        for n in 1..=2_000 {
            to_core.send(n).expect("the core listens");
            assert_eq!(replies.recv().await, Some(n));
            if n % 400 == 0 {
                pause(&handle, Duration::from_millis(3)).await;
            }
        }
    });
    assert_eq!(core.join().expect("no panic"), 2_000, "ends once all senders are gone");
}

#[test]
fn a_mailbox_says_when_its_receiver_is_gone() {
    let (sender, receiver) = mailbox();
    drop(receiver);
    assert!(matches!(sender.send(5), Err(Undelivered::Closed(5))));
}

#[test]
fn a_core_keeps_turning_while_tasks_wake_each_other() {
    run(|handle| async move {
        let stop = Rc::new(RefCell::new(false));
        let stopped = stop.clone();
        handle.spawn(async move {
            while !*stopped.borrow() {
                let mut yielded = false;
                std::future::poll_fn(|context| {
                    context.waker().wake_by_ref();
                    if std::mem::replace(&mut yielded, true) {
                        std::task::Poll::Ready(())
                    } else {
                        std::task::Poll::Pending
                    }
                })
                .await;
            }
        });
        pause(&handle, Duration::from_millis(5)).await;
        *stop.borrow_mut() = true;
    });
}

#[test]
fn a_cpu_that_is_not_there_is_an_error_that_says_so() {
    let config = CoreConfig { cpu: Some(100_000), ..CoreConfig::default() };
    let error = spawn_thread(config, |_| async {}).err().expect("refused");
    assert!(matches!(error, StartError::NoSuchCpu { cpu: 100_000, .. }), "{error}");
}

#[test]
fn a_panic_ends_its_core_and_is_handed_to_the_joining_thread() {
    let dropped = Arc::new(AtomicBool::new(false));
    struct SetOnDrop(Arc<AtomicBool>);
    impl Drop for SetOnDrop {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let held = SetOnDrop(dropped.clone());
    let core = spawn_thread(CoreConfig::default(), |_| async move {
        let _held = held;
        panic!("meant to");
    });
    assert!(core.expect("starts").join().is_err());
    assert!(dropped.load(Ordering::Relaxed));
}

/// CPU-SHARING-2. Method: something is to be done every 200 µs, so a core by itself polls all the time. Beside a thread that takes
/// all that it gets of the CPU, half of that would be the core's.
#[test]
fn a_core_leaves_its_cpu_to_a_program_that_wants_all_of_it() {
    const FINDS_OUT: Duration = Duration::from_millis(500);
    const MEASURED: Duration = Duration::from_secs(1);
    let cpu = allowed_cpus()[0];
    let ends = Arc::new(AtomicBool::new(false));
    let other = std::thread::spawn({
        let ends = ends.clone();
        move || {
            assert!(pin_to(cpu));
            while !ends.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        }
    });
    let config = CoreConfig { cpu: Some(cpu), ..CoreConfig::default() };
    let core = spawn_thread(config, |handle| async move {
        let used = || clock_gettime(ClockId::ThreadCPUTime);
        let work_for = async |time| {
            let until = handle.precise_now() + time;
            while handle.precise_now() < until {
                pause(&handle, Duration::from_micros(200)).await;
            }
        };
        work_for(FINDS_OUT).await;
        let before = used();
        work_for(MEASURED).await;
        Duration::try_from(used() - before).expect("it rises")
    });
    let used = core.expect("a core starts").join().expect("it ends");
    ends.store(true, Ordering::Relaxed);
    other.join().expect("it ends");
    assert!(used < MEASURED / 4, "the core used {used:?} of {MEASURED:?}");
}
