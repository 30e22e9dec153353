//! Asynchronous events.

use nvme_wire::reservation::ReservationNotification;
use reservation::NoticeKind;

use super::*;
use crate::io::NSID;

#[test]
fn a_resize_is_told_once_until_the_log_is_read() {
    let mut harness = Harness::io();
    assert_eq!(harness.set(Fid::ASYNC_EVENT_CONFIG, 1 << 8), Ok(0));
    for slot in 0..4 {
        assert_eq!(harness.wait_for_event(slot), AdminReply::Pending);
    }
    let limit = Status::ASYNC_EVENT_LIMIT_EXCEEDED.with_dnr();
    let fifth = harness.wait_for_event(4);
    assert_eq!(fifth, AdminReply::Complete { status: limit, result: 0 });

    let result = u64::from(AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED.encode());
    harness.controller.on_namespace_changed();
    assert_eq!(harness.event(), Some((SlotId(0), Status::SUCCESS, result)));
    harness.controller.on_namespace_changed();
    assert_eq!(harness.event(), None, "masked until the host has read the log");
    let mut retained = GetLogPage::new(Lid::CHANGED_NAMESPACES, NSID_ALL, 0, 4096);
    retained.rae = true;
    let listed = |bytes: &[u8]| -> Vec<u32> {
        ChangedNamespaces::read_from_bytes(bytes).expect("4096 bytes").iter().collect()
    };
    assert_eq!(listed(&harness.data(&retained.encode())), [1]);
    assert_eq!(listed(&harness.log(Lid::CHANGED_NAMESPACES, 0, 4096)), [1]);
    assert_eq!(listed(&harness.log(Lid::CHANGED_NAMESPACES, 0, 4096)), []);
    harness.controller.on_namespace_changed();
    assert_eq!(harness.event(), Some((SlotId(1), Status::SUCCESS, result)));
}

#[test]
fn an_event_waits_for_a_request_and_for_leave_to_be_sent() {
    let mut harness = Harness::io();
    harness.controller.on_namespace_changed();
    harness.wait_for_event(9);
    assert_eq!(harness.event(), None, "not enabled");
    assert_eq!(harness.set(Fid::ASYNC_EVENT_CONFIG, 1 << 8), Ok(0));
    assert!(harness.event().is_some(), "it happened before, but was never told");
}

/// A warning is told when it is set, if the host wants to hear of it, and the next only after the host has read
/// the log.
#[test]
fn a_critical_warning_is_told_once_until_the_log_is_read() {
    let mut harness = Harness::io();
    (0..4).for_each(|slot| drop(harness.wait_for_event(slot)));
    let told =
        |slot, event: AsyncEvent| Some((SlotId(slot), Status::SUCCESS, u64::from(event.encode())));
    assert!(!harness.controller.wants_warnings());
    harness.controller.on_warnings(CRITICAL_SPARE);
    assert_eq!(harness.event(), None, "not enabled");
    let enabled = CRITICAL_SPARE | CRITICAL_READ_ONLY;
    assert_eq!(harness.set(Fid::ASYNC_EVENT_CONFIG, enabled.into()), Ok(0));
    assert!(harness.controller.wants_warnings());
    assert_eq!(harness.event(), told(0, AsyncEvent::SPARE_BELOW_THRESHOLD), "it is set");

    let lost = CRITICAL_RELIABILITY | CRITICAL_READ_ONLY;
    harness.controller.on_warnings(CRITICAL_SPARE | lost);
    assert_eq!(harness.event(), None, "masked until the host has read the log");
    let mut retained = GetLogPage::new(Lid::HEALTH, NSID_ALL, 0, 512);
    retained.rae = true;
    harness.data(&retained.encode());
    assert_eq!(harness.event(), None, "the event is retained");
    harness.log(Lid::HEALTH, 0, 512);
    assert_eq!(harness.event(), told(1, AsyncEvent::RELIABILITY));
    harness.log(Lid::HEALTH, 0, 512);
    harness.controller.on_warnings(CRITICAL_SPARE | lost);
    assert_eq!(harness.event(), None, "both were told, and still are");

    harness.controller.on_warnings(lost);
    harness.controller.on_warnings(CRITICAL_SPARE | lost);
    assert_eq!(harness.event(), told(2, AsyncEvent::SPARE_BELOW_THRESHOLD), "it is set again");
    harness.log(Lid::HEALTH, 0, 512);
    harness.controller.on_warnings(0);
    harness.controller.on_warnings(CRITICAL_RELIABILITY);
    assert_eq!(harness.event(), None, "this one the host did not want");
}

#[test]
fn a_persistent_discovery_connection_hears_of_changes() {
    let mut harness = Harness::enabled(ControllerKind::Discovery);
    harness.wait_for_event(0);
    harness.wait_for_event(1);
    harness.controller.on_discovery_changed();
    assert_eq!(harness.event(), None, "not enabled");
    assert_eq!(harness.set(Fid::ASYNC_EVENT_CONFIG, 1 << 31), Ok(0));
    let result = u64::from(AsyncEvent::DISCOVERY_CHANGED.encode());
    assert_eq!(harness.event(), Some((SlotId(0), Status::SUCCESS, result)));
    harness.controller.on_discovery_changed();
    assert_eq!(harness.event(), None);
    harness.log(Lid::DISCOVERY, 0, 1024);
    harness.controller.on_discovery_changed();
    assert!(harness.event().is_some());
}

/// CONTROLLER-3, for hosts that read the log in pieces. Method: a change comes between two of them, while no command waits for
/// an event or while one was reported that the host has not cleared yet; the rest is read, and only then the host waits.
#[test]
fn a_change_between_two_pieces_of_the_discovery_log_is_told() {
    let counter = |rae| GetLogPage { rae, ..GetLogPage::new(Lid::DISCOVERY, NSID_ALL, 0, 16) };
    let entries = |rae| GetLogPage { rae, ..GetLogPage::new(Lid::DISCOVERY, NSID_ALL, 1024, 1024) };
    for (was_told, rae) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut harness = Harness::enabled(ControllerKind::Discovery);
        assert_eq!(harness.set(Fid::ASYNC_EVENT_CONFIG, 1 << 31), Ok(0));
        if was_told {
            harness.wait_for_event(0);
            harness.controller.on_discovery_changed();
            assert!(harness.event().is_some());
        }
        harness.data(&counter(true).encode());
        harness.controller.on_discovery_changed();
        harness.data(&entries(rae).encode());
        harness.wait_for_event(1);
        let is_masked = was_told && rae;
        assert_eq!(harness.event().is_none(), is_masked, "{was_told} {rae}");
        // A host that has read the counter after the change knows of it.
        harness.wait_for_event(2);
        harness.data(&counter(true).encode());
        harness.data(&entries(false).encode());
        assert_eq!(harness.event(), None, "{was_told} {rae}");
        harness.controller.on_discovery_changed();
        assert!(harness.event().is_some(), "{was_told} {rae}");
    }
}

/// Method: all warnings are set at one time. Each kind of event comes once, and none hides another.
#[test]
fn warnings_that_are_set_at_once_are_told_one_by_one() {
    let mut harness = Harness::io();
    (0..4).for_each(|slot| drop(harness.wait_for_event(slot)));
    let all = CRITICAL_SPARE | CRITICAL_TEMPERATURE | CRITICAL_RELIABILITY | CRITICAL_READ_ONLY;
    assert_eq!(harness.set(Fid::ASYNC_EVENT_CONFIG, all.into()), Ok(0));
    harness.controller.on_warnings(all);
    for (slot, event) in
        [AsyncEvent::SPARE_BELOW_THRESHOLD, AsyncEvent::TEMPERATURE, AsyncEvent::RELIABILITY]
            .into_iter()
            .enumerate()
    {
        let slot = SlotId(u16::try_from(slot).expect("small"));
        assert_eq!(harness.event(), Some((slot, Status::SUCCESS, u64::from(event.encode()))));
        assert_eq!(harness.event(), None, "masked until the host has read the log");
        harness.log(Lid::HEALTH, 0, 512);
    }
    assert_eq!(harness.event(), None, "all were told");
}

/// CONTROLLER-3. Method: the host reads entries alone, before and behind the one change.
#[test]
fn a_change_of_the_discovery_log_is_told_once() {
    let entries = GetLogPage::new(Lid::DISCOVERY, NSID_ALL, 1024, 1024).encode();
    let mut harness = Harness::enabled(ControllerKind::Discovery);
    assert_eq!(harness.set(Fid::ASYNC_EVENT_CONFIG, 1 << 31), Ok(0));
    (0..3).for_each(|slot| drop(harness.wait_for_event(slot)));
    assert_eq!(harness.event(), None);
    harness.data(&entries);
    assert_eq!(harness.event(), None, "nothing has changed");
    harness.controller.on_discovery_changed();
    assert!(harness.event().is_some());
    harness.data(&entries);
    assert_eq!(harness.event(), None, "it was told");
    // What does not tell the counter does not make the next one known.
    let address = ([192, 0, 2, 1], 4420).into();
    let half_a_counter = GetLogPage::new(Lid::DISCOVERY, NSID_ALL, 0, 4).encode();
    for piece in [entries, half_a_counter] {
        let mut harness = Harness::enabled(ControllerKind::Discovery);
        let entry = DiscoveryLogEntry::tcp(SUBTYPE_NVM, &Nqn::from_uuid(&UUID), address);
        harness.facts.log = DiscoveryLog { genctr: 1, entries: vec![Rc::new(entry)] };
        assert_eq!(harness.set(Fid::ASYNC_EVENT_CONFIG, 1 << 31), Ok(0));
        harness.controller.on_discovery_changed();
        harness.data(&piece);
        harness.wait_for_event(0);
        assert!(harness.event().is_some());
    }
}

fn reservation_page(harness: &mut Harness, retain: bool) -> (u64, u8, u8, u32) {
    let mut get = GetLogPage::new(Lid::RESERVATION_NOTIFICATION, NSID_ALL, 0, 64);
    get.rae = retain;
    let bytes = harness.data(&get.encode());
    let page = ReservationNotification::read_from_bytes(&bytes).expect("64 bytes");
    (page.count.get(), page.kind, page.available, page.nsid.get())
}

/// The event is told once until the host has read a page, and again while there are more.
#[test]
fn notifications_of_reservations_are_read_page_by_page() {
    let mut harness = Harness::io();
    (0..4).for_each(|slot| drop(harness.wait_for_event(slot)));
    let encoded = u64::from(AsyncEvent::RESERVATION_NOTIFICATION.encode());
    let told = |slot| Some((SlotId(slot), Status::SUCCESS, encoded));
    assert_eq!(reservation_page(&mut harness, false), (0, 0, 0, 0));
    harness.controller.on_reservation(NoticeKind::RegistrationPreempted);
    assert_eq!(harness.event(), told(0));
    harness.controller.on_reservation(NoticeKind::ReservationReleased);
    assert_eq!(harness.event(), None, "masked");
    assert_eq!(reservation_page(&mut harness, true), (1, 1, 1, NSID));
    assert_eq!(harness.event(), None, "the event is retained");
    assert_eq!(reservation_page(&mut harness, false), (1, 1, 1, NSID));
    assert_eq!(harness.event(), told(1), "there is another page");
    assert_eq!(reservation_page(&mut harness, false), (2, 2, 0, NSID));
    assert_eq!(harness.event(), None);
    assert_eq!(reservation_page(&mut harness, true), (0, 0, 0, 0));
    harness.controller.on_reservation(NoticeKind::ReservationPreempted);
    assert_eq!(harness.event(), told(2));
    assert_eq!(reservation_page(&mut harness, false), (3, 3, 0, NSID));
}

#[test]
fn a_host_hears_of_the_kinds_that_it_does_not_mask() {
    let kinds = [
        (1, NoticeKind::RegistrationPreempted),
        (2, NoticeKind::ReservationReleased),
        (3, NoticeKind::ReservationPreempted),
    ];
    for (bit, masked) in kinds {
        let mut harness = Harness::io();
        assert_eq!(harness.set(Fid::RESERVATION_MASK, 1 << bit), Ok(0));
        harness.controller.on_reservation(masked);
        assert_eq!(reservation_page(&mut harness, false), (0, 0, 0, 0));
        for (count, (kind, notice)) in (1..).zip(kinds.iter().filter(|(other, _)| *other != bit)) {
            harness.controller.on_reservation(*notice);
            assert_eq!(reservation_page(&mut harness, false), (count, *kind, 0, NSID));
        }
    }
}

/// The host sees from the count how many pages there was no room for.
#[test]
fn pages_beyond_the_room_are_counted() {
    let mut harness = Harness::io();
    for _ in 0..70 {
        harness.controller.on_reservation(NoticeKind::ReservationReleased);
    }
    for count in 1..=64_u8 {
        let page = reservation_page(&mut harness, false);
        assert_eq!(page, (count.into(), 2, 64 - count, NSID));
    }
    assert_eq!(reservation_page(&mut harness, false), (0, 0, 0, 0));
    harness.controller.on_reservation(NoticeKind::ReservationReleased);
    assert_eq!(reservation_page(&mut harness, false), (71, 2, 0, NSID));
}
