//! A device, as the control side sees it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use control::DeviceNotice;
use user_messages::Failure;

use super::aside::Aside;
use super::growing::Asks;
use super::scrub_plan::ScrubPlan;
use super::sharing::SharedDevice;

/// A device that is served, or that the server waits for.
pub(super) struct ServedDevice {
    name: String,
    shared: Mutex<SharedDevice>,
    scrubs: Mutex<Option<ScrubPlan>>,
    aside: Option<Aside>,
    trouble: Mutex<Option<String>>,
    notices: Mutex<Vec<DeviceNotice>>,
    is_absent: AtomicBool,
    grow_asks: Asks,
    changing: tokio::sync::Mutex<()>,
    is_doubtful: AtomicBool,
}

impl ServedDevice {
    /// `aside` is the thread for what may wait for it; of a file or drive.
    pub(super) fn new(shared: SharedDevice, aside: Option<Aside>) -> Self {
        Self {
            aside,
            name: shared.name().to_owned(),
            shared: Mutex::new(shared),
            scrubs: Mutex::default(),
            trouble: Mutex::default(),
            notices: Mutex::default(),
            is_absent: AtomicBool::new(false),
            grow_asks: Asks::default(),
            changing: tokio::sync::Mutex::default(),
            is_doubtful: AtomicBool::new(false),
        }
    }

    /// The name by which the API calls it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The thread for what may wait for it, if it is a file or drive.
    pub(super) fn aside(&self) -> Option<&Aside> {
        self.aside.as_ref()
    }

    /// Requests to take up what it has now.
    pub(super) fn grow_asks(&self) -> &Asks {
        &self.grow_asks
    }

    pub(super) fn shared<T>(&self, look: impl FnOnce(&mut SharedDevice) -> T) -> T {
        // Each change is one insert or remove.
        look(&mut whole(&self.shared))
    }

    /// The plan of its scrubs, if there is one.
    pub(super) fn scrub_plan(&self) -> Option<ScrubPlan> {
        *whole(&self.scrubs)
    }

    pub(super) fn plan_scrubs(&self, plan: ScrubPlan) {
        *whole(&self.scrubs) = Some(plan);
    }

    /// Waits until no other change to what lies on it is under way (SERVICE-1), and keeps others
    /// waiting.
    pub(super) async fn alone(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.changing.lock().await
    }

    /// True if it was absent when the server started, and still is.
    pub(super) fn is_absent(&self) -> bool {
        self.is_absent.load(Ordering::Relaxed)
    }

    pub(super) fn set_absent(&self, is_absent: bool) {
        self.is_absent.store(is_absent, Ordering::Relaxed);
    }

    /// True if the directory may have other records of its volumes than it holds.
    pub(super) fn is_doubtful(&self) -> bool {
        self.is_doubtful.load(Ordering::Relaxed)
    }

    pub(super) fn set_doubtful(&self, is_doubtful: bool) {
        self.is_doubtful.store(is_doubtful, Ordering::Relaxed);
    }

    /// The fault that keeps it from being used, and advice, if its drive is away.
    pub(super) fn trouble(&self) -> Option<String> {
        whole(&self.trouble).clone()
    }

    /// Says what keeps it from being used, or that nothing does any more.
    pub(super) fn set_trouble(&self, failure: Option<&Failure>) {
        let trouble = failure.map(Failure::in_one_line);
        let mut known = whole(&self.trouble);
        if *known == trouble {
            return;
        }
        if let Some(trouble) = &trouble {
            tracing::error!(device = self.name, "is away: {trouble}; looking again");
        }
        *known = trouble;
    }

    /// The conditions that were seen a moment ago and that an operator has to know.
    pub(super) fn notices(&self) -> Vec<DeviceNotice> {
        whole(&self.notices).clone()
    }

    /// Takes over what was seen of it (CONDITION-1).
    pub(super) fn set_notices(&self, seen: Vec<DeviceNotice>) {
        let mut known = whole(&self.notices);
        let has = |all: &[DeviceNotice], kind| all.iter().any(|notice| notice.kind == kind);
        for notice in seen.iter().filter(|notice| !has(&known, notice.kind)) {
            match notice.kind.is_wrong() {
                true => tracing::error!(device = self.name, "{}", notice.text),
                false => tracing::warn!(device = self.name, "{}", notice.text),
            }
        }
        for notice in known.iter().filter(|notice| !has(&seen, notice.kind)) {
            tracing::warn!(device = self.name, kind = notice.kind.name(), "is over");
        }
        *known = seen;
    }
}

/// A panic elsewhere leaves each of these whole: a change is one assignment, insert or remove.
fn whole<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}
