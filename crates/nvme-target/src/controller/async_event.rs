//! Asynchronous events: the commands that wait for them, and the events to report (CONTROLLER-3).

use alloc::collections::VecDeque;

use nvme_wire::Status;
use nvme_wire::async_event::AsyncEvent;
use nvme_wire::feature::{
    ASYNC_CONFIG_DISCOVERY_CHANGE, ASYNC_CONFIG_NAMESPACE_ATTRIBUTE, ASYNC_CONFIG_SMART,
};
use nvme_wire::log::{CRITICAL_SPARE, CRITICAL_TEMPERATURE};
use nvme_wire::reservation::ReservationNotification;
use reservation::NoticeKind;
use zerocopy::FromZeros;

use crate::SlotId;
use crate::io::NSID;

/// Asynchronous Event Requests that may wait (AERL, converted from 0's based).
pub const AERS_MAX: usize = 4;

/// Reservation Notification log pages that wait to be read.
const RESERVATION_PAGES_MAX: usize = 64;

/// An Asynchronous Event Request that is to be completed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AsyncCompletion {
    /// The command, on the admin queue.
    pub slot: SlotId,
    /// The status of the command.
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

/// Changes of the discovery log, which hosts read in pieces: one that read the generation counter before a change has not learnt of
/// it by the pieces that it reads behind it.
#[derive(Debug, Default)]
struct DiscoveryNotice {
    notice: Notice,
    /// Since the last change the host was neither told nor has it read the generation counter.
    is_unknown: bool,
}

/// Critical warnings of the SMART / Health log. A warning is told when it is set, once for each time that it
/// is; all of them are masked from an event until the host has read the log.
#[derive(Debug, Default)]
struct Warnings {
    /// Critical Warning bits as they are.
    set: u8,
    /// Those that were told since they were set.
    told: u8,
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
    warnings: Warnings,
    namespace: Notice,
    discovery: DiscoveryNotice,
    reservations: ReservationNotices,
    /// The namespace belongs on the changed namespace list.
    namespace_is_listed: bool,
}

/// Effects of other hosts' commands on the controller's host: one log page for each.
#[derive(Debug, Default)]
struct ReservationNotices {
    /// Count and type of each log page that was not read, oldest first.
    pages: VecDeque<(u64, u8)>,
    /// Log pages so far.
    count: u64,
    event: Notice,
}

impl ReservationNotices {
    fn note(&mut self, kind: NoticeKind, mask: u32) {
        let kind = match kind {
            NoticeKind::RegistrationPreempted => ReservationNotification::REGISTRATION_PREEMPTED,
            NoticeKind::ReservationReleased => ReservationNotification::RESERVATION_RELEASED,
            NoticeKind::ReservationPreempted => ReservationNotification::RESERVATION_PREEMPTED,
        };
        if mask & 1 << kind != 0 {
            return;
        }
        // The host sees from the count that one is missing.
        self.count += 1;
        if self.pages.len() < RESERVATION_PAGES_MAX {
            self.pages.push_back((self.count, kind));
        }
        self.event.raise();
    }

    /// The oldest page. It is gone then, but for a host that retains the event.
    fn read(&mut self, retain: bool) -> ReservationNotification {
        let page = if retain { self.pages.front().copied() } else { self.pages.pop_front() };
        let left = self.pages.len() - usize::from(retain && page.is_some());
        if !retain {
            self.event = Notice { is_pending: left > 0, is_masked: false };
        }
        let Some((count, kind)) = page else { return ReservationNotification::new_zeroed() };
        ReservationNotification {
            count: count.into(),
            kind,
            available: u8::try_from(left).unwrap_or(u8::MAX),
            nsid: NSID.into(),
            ..FromZeros::new_zeroed()
        }
    }
}

impl Notice {
    fn raise(&mut self) {
        self.is_pending = !self.is_masked;
    }

    fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns true if the event is to be reported now; it then counts as reported.
    fn take(&mut self, is_enabled: bool) -> bool {
        let is_due = self.is_pending && is_enabled;
        if is_due {
            *self = Self { is_pending: false, is_masked: true };
        }
        is_due
    }
}

impl DiscoveryNotice {
    fn raise(&mut self) {
        self.is_unknown = true;
        self.notice.raise();
    }

    /// Returns true if the event is to be reported now; it then counts as reported.
    fn take(&mut self, is_enabled: bool) -> bool {
        let is_due = self.notice.take(is_enabled);
        self.is_unknown &= !is_due;
        is_due
    }

    /// A piece was read, with the generation counter or not, and the event is retained or not.
    fn read(&mut self, has_counter: bool, retain: bool) {
        self.is_unknown &= !has_counter;
        if !retain {
            self.notice = Notice { is_pending: self.is_unknown, is_masked: false };
        }
    }
}

impl Warnings {
    fn note(&mut self, set: u8) {
        self.set = set;
        self.told &= set;
    }

    /// The next event to report of the warnings `enabled`; it then counts as reported.
    fn take(&mut self, enabled: u8) -> Option<AsyncEvent> {
        let due = self.set & !self.told & enabled;
        if due == 0 || self.is_masked {
            return None;
        }
        let (event, told) = if due & CRITICAL_SPARE != 0 {
            (AsyncEvent::SPARE_BELOW_THRESHOLD, CRITICAL_SPARE)
        } else if due & CRITICAL_TEMPERATURE != 0 {
            (AsyncEvent::TEMPERATURE, CRITICAL_TEMPERATURE)
        } else {
            (AsyncEvent::RELIABILITY, due)
        };
        self.told |= told;
        self.is_masked = true;
        Some(event)
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

    /// Handles the disabling of the controller: waiting commands are aborted, `others` that waited for something else
    /// too, and events start from the beginning.
    pub(super) fn reset(&mut self, others: impl Iterator<Item = SlotId>) {
        self.aborted.extend(self.waiting.drain(..).map(|(slot, _)| slot).chain(others));
        self.config = 0;
        self.warnings = Warnings::default();
        self.namespace.clear();
        self.discovery = DiscoveryNotice::default();
        self.reservations = ReservationNotices::default();
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

    /// Returns true if the host has enabled events for critical warnings.
    pub(super) fn wants_warnings(&self) -> bool {
        self.config & ASYNC_CONFIG_SMART != 0
    }

    /// The critical warnings are these now.
    pub(super) fn note_warnings(&mut self, warnings: u8) {
        self.warnings.note(warnings);
    }

    /// The SMART / Health log was read without "retain".
    pub(super) fn health_log_read(&mut self) {
        self.warnings.is_masked = false;
    }

    /// A command of another host concerned the controller's, which does not want to hear of the kinds in `mask`.
    pub(super) fn reservation_noticed(&mut self, kind: NoticeKind, mask: u32) {
        self.reservations.note(kind, mask);
    }

    /// The Reservation Notification log page. Reading it without "retain" clears the event.
    pub(super) fn read_reservation_notice(&mut self, retain: bool) -> ReservationNotification {
        self.reservations.read(retain)
    }

    pub(super) fn discovery_changed(&mut self) {
        self.discovery.raise();
    }

    /// Returns true if the namespace is on the changed namespace list. Reading it without "retain"
    /// clears it.
    pub(super) fn read_changed_namespaces(&mut self, retain: bool) -> bool {
        let is_listed = self.namespace_is_listed;
        if !retain {
            self.namespace_is_listed = false;
            self.namespace.clear();
        }
        is_listed
    }

    /// A piece of the discovery log was read, with its generation counter or not.
    pub(super) fn discovery_log_read(&mut self, has_counter: bool, retain: bool) {
        self.discovery.read(has_counter, retain);
    }

    pub(super) fn poll(&mut self) -> Option<AsyncCompletion> {
        if let Some(slot) = self.aborted.pop_front() {
            return Some(AsyncCompletion { slot, status: Status::ABORT_REQUESTED, result: 0 });
        }
        if self.waiting.is_empty() {
            return None;
        }
        let config = self.config;
        let [enabled, ..] = (config & ASYNC_CONFIG_SMART).to_le_bytes();
        let event = if let Some(event) = self.warnings.take(enabled) {
            event
        } else if self.namespace.take(config & ASYNC_CONFIG_NAMESPACE_ATTRIBUTE != 0) {
            AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED
        } else if self.discovery.take(config & ASYNC_CONFIG_DISCOVERY_CHANGE != 0) {
            AsyncEvent::DISCOVERY_CHANGED
        } else if self.reservations.event.take(true) {
            AsyncEvent::RESERVATION_NOTIFICATION
        } else {
            return None;
        };
        let (slot, _) = self.waiting.pop_front()?;
        let result = u64::from(event.encode());
        Some(AsyncCompletion { slot, status: Status::SUCCESS, result })
    }
}
