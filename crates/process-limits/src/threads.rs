//! Threads that a process may not have: in containers and units their number has a limit.
//!
//! A server makes all threads that it needs when it starts, so that a lack of them is a refusal of the start and not of
//! something later.

use std::path::Path;
use std::sync::{Mutex, PoisonError, RwLock};
use std::thread::{Builder, scope, sleep};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use user_messages::Failure;

use crate::cgroup;

/// Bounds how long a thread that has ended is waited for; its number may have been given to another one.
const GONE_WITHIN: Duration = Duration::from_secs(1);

/// Refuses if `count` more threads cannot be had at a time.
pub fn check(count: usize) -> Result<(), Failure> {
    let gate = RwLock::new(());
    let ids = Mutex::new(Vec::new());
    let made = scope(|scope| {
        let closed = gate.write().unwrap_or_else(PoisonError::into_inner);
        let wait = || {
            let mut ids = ids.lock().unwrap_or_else(PoisonError::into_inner);
            ids.push(rustix::thread::gettid());
            drop(ids);
            drop(gate.read());
        };
        let made = (0..count).take_while(|_| Builder::new().spawn_scoped(scope, wait).is_ok());
        let made = made.count();
        drop(closed);
        made
    });
    for id in ids.into_inner().unwrap_or_else(PoisonError::into_inner) {
        wait_until_gone(id);
    }
    match made < count {
        true => Err(Failure::runtime(
            format!("{count} more threads are needed, and {made} can be had"),
            remedy(),
        )),
        false => Ok(()),
    }
}

/// Waits until the kernel no longer counts a thread that has ended: that is some time after it was joined.
fn wait_until_gone(id: Pid) {
    let task = format!("/proc/self/task/{}", id.as_raw_nonzero());
    let until = Instant::now() + GONE_WITHIN;
    while Path::new(&task).exists() && Instant::now() < until {
        sleep(Duration::from_millis(1));
    }
}

/// A thread could not be had.
pub fn none(error: &std::io::Error) -> Failure {
    Failure::runtime(lacking(error), remedy())
}

/// Says that a thread could not be had.
pub fn lacking(error: &std::io::Error) -> String {
    format!("a thread is needed, and none can be had: {error}")
}

/// Names the limits to raise.
pub fn remedy() -> String {
    let user = "the limit on processes and threads (ulimit -u, a unit's LimitNPROC=)";
    match cgroup::tasks() {
        Some(limit) => format!(
            "raise {user}, or that of the control group (a container's --pids-limit, a unit's TasksMax=): {} allows {}",
            limit.file.display(),
            limit.value
        ),
        None => format!("raise {user}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_can_be_had_are_not_kept() {
        check(3).expect("there are threads");
        let failure = none(&std::io::ErrorKind::WouldBlock.into()).to_string();
        assert!(failure.contains("ulimit -u"), "{failure}");
    }
}
