//! Asynchronous events: who waits for them, and what there is to tell (K3).

use alloc::collections::VecDeque;

use nvme_wire::Status;
use nvme_wire::async_event::AsyncEvent;
use nvme_wire::feature::{ASYNC_CONFIG_DISCOVERY_CHANGE, ASYNC_CONFIG_NAMESPACE_ATTRIBUTE};

use crate::SlotId;

/// Asynchronous Event Requests that may wait (AERL, converted from 0's based).
pub const AERS_MAX: usize = 4;

/// An Asynchronous Event Request that is to be completed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AsyncCompletion {
    /// The command, on the admin queue.
    pub slot: SlotId,
    /// How it ended.
    pub status: Status,
    /// Dwords 0 and 1 of the completion.
    pub result: u64,
}

/// One kind of event.
#[derive(Debug, Default)]
struct Notice {
    /// There is something to tell.
    is_pending: bool,
    /// It was told, and the host has not yet read the log page.
    is_masked: bool,
}

/// Events of a controller.
#[derive(Debug, Default)]
pub(super) struct AsyncEvents {
    /// Commands that wait: slot and command identifier, oldest first.
    waiting: VecDeque<(SlotId, u16)>,
    /// Aborted, to be completed.
    aborted: VecDeque<SlotId>,
    /// Asynchronous Event Configuration.
    config: u32,
    namespace: Notice,
    discovery: Notice,
    /// The namespace belongs on the changed namespace list.
    namespace_is_listed: bool,
}

impl Notice {
    fn raise(&mut self) {
        self.is_pending = !self.is_masked;
    }

    fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether to tell now; it then counts as told.
    fn take(&mut self, is_enabled: bool) -> bool {
        let is_due = self.is_pending && is_enabled;
        if is_due {
            *self = Self { is_pending: false, is_masked: true };
        }
        is_due
    }
}

impl AsyncEvents {
    pub(super) fn request(&mut self, slot: SlotId, cid: u16) -> Result<(), Status> {
        if self.waiting.len() == AERS_MAX {
            return Err(Status::ASYNC_EVENT_LIMIT_EXCEEDED.with_dnr());
        }
        self.waiting.push_back((slot, cid));
        Ok(())
    }

    /// Aborts the waiting command `cid`, if there is one.
    pub(super) fn abort(&mut self, cid: u16) -> bool {
        let Some(index) = self.waiting.iter().position(|(_, waiting)| *waiting == cid) else {
            return false;
        };
        if let Some((slot, _)) = self.waiting.remove(index) {
            self.aborted.push_back(slot);
        }
        true
    }

    /// The controller is disabled: nobody waits any more, and events start afresh.
    pub(super) fn reset(&mut self) {
        self.aborted.extend(self.waiting.drain(..).map(|(slot, _)| slot));
        self.config = 0;
        self.namespace.clear();
        self.discovery.clear();
        self.namespace_is_listed = false;
    }

    pub(super) fn config(&self) -> u32 {
        self.config
    }

    pub(super) fn set_config(&mut self, config: u32) {
        self.config = config;
    }

    pub(super) fn namespace_changed(&mut self) {
        self.namespace_is_listed = true;
        self.namespace.raise();
    }

    pub(super) fn discovery_changed(&mut self) {
        self.discovery.raise();
    }

    /// Whether the namespace is on the changed namespace list. Reading it without "retain" clears it.
    pub(super) fn read_changed_namespaces(&mut self, retain: bool) -> bool {
        let is_listed = self.namespace_is_listed;
        if !retain {
            self.namespace_is_listed = false;
            self.namespace.clear();
        }
        is_listed
    }

    /// The discovery log was read from its start without "retain".
    pub(super) fn discovery_log_read(&mut self) {
        self.discovery.clear();
    }

    pub(super) fn poll(&mut self) -> Option<AsyncCompletion> {
        if let Some(slot) = self.aborted.pop_front() {
            return Some(AsyncCompletion { slot, status: Status::ABORT_REQUESTED, result: 0 });
        }
        if self.waiting.is_empty() {
            return None;
        }
        let config = self.config;
        let event = if self.namespace.take(config & ASYNC_CONFIG_NAMESPACE_ATTRIBUTE != 0) {
            AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED
        } else if self.discovery.take(config & ASYNC_CONFIG_DISCOVERY_CHANGE != 0) {
            AsyncEvent::DISCOVERY_CHANGED
        } else {
            return None;
        };
        let (slot, _) = self.waiting.pop_front()?;
        let result = u64::from(event.encode());
        Some(AsyncCompletion { slot, status: Status::SUCCESS, result })
    }
}
