//! A controller that is not enabled, or was shut down (CONTROLLER-2).

use super::*;

/// Longer than any that a test asks for, and as long as a disabled controller stays.
const TWO_MINUTES: Duration = Duration::from_secs(120);
const KATO: Duration = Duration::from_secs(5);

fn configure(harness: &mut Harness, now: Instant, cc: Cc) {
    let set = Property::set(offset::CC, PropertySize::Four, u64::from(cc.0));
    harness.controller.on_admin(now, SlotId(0), &Sqe::from(set), &[], &harness.facts);
}

/// Method: shut down in either way; take CC.SHN back, which changes nothing; reset and enable.
#[test]
fn after_a_shutdown_only_fabrics_commands_are_answered() {
    let enabled = Cc::enabled(Cc::CSS_NVM);
    let queue = request(ControllerKind::Io, 1, 0);
    for shn in [Cc::SHN_NORMAL, Cc::SHN_ABRUPT] {
        let mut harness = Harness::io();
        for cc in [enabled.with_shn(shn), enabled] {
            assert_eq!(harness.set_cc(cc), Ok(0));
            assert_eq!(harness.csts(), Csts::new(true, false, Csts::SHST_COMPLETE));
            let sequence = Status::COMMAND_SEQUENCE_ERROR;
            assert_eq!(harness.identify_status(Cns::CONTROLLER, 0), sequence);
            let keep_alive = Sqe::new(AdminOpcode::KEEP_ALIVE.0, 0);
            assert_eq!(harness.value(&keep_alive), Err(sequence));
            assert!(harness.controller.connect_io(&queue).is_err());
        }
        assert_eq!(harness.set_cc(Cc(enabled.0 & !1)), Ok(0));
        harness.enable();
        assert!(harness.csts().rdy());
        harness.identify(Cns::CONTROLLER, 0);
        assert!(harness.controller.connect_io(&queue).is_ok());
    }
}

/// A disabled controller can be shut down, too, and is enabled again with one write.
#[test]
fn a_controller_that_was_shut_down_disabled_is_enabled_by_one_write() {
    let mut harness = Harness::disabled(ControllerKind::Io, false);
    for cc in [Cc(0).with_shn(Cc::SHN_NORMAL), Cc(0)] {
        assert_eq!(harness.set_cc(cc), Ok(0));
        assert_eq!(harness.csts(), Csts::new(false, false, Csts::SHST_COMPLETE));
    }
    harness.enable();
    assert_eq!(harness.csts(), Csts::new(true, false, Csts::SHST_NORMAL));
}

/// The timer begins with the controller's use, and ends with it. Method: a second before each deadline the next thing is done.
#[test]
fn the_keep_alive_timer_is_active_while_the_controller_is_in_use() {
    let enabled = Cc::enabled(Cc::CSS_NVM);
    let second = Duration::from_secs(1);
    let mut harness = Harness::disabled(ControllerKind::Io, false);
    assert_eq!(harness.controller.next_timeout(), Some(NOW + TWO_MINUTES), "not enabled yet");
    let mut now = NOW;
    let mut deadline = NOW + TWO_MINUTES;
    for (cc, timeout) in [
        (enabled, KATO),
        (enabled.with_shn(Cc::SHN_NORMAL), TWO_MINUTES),
        (Cc(0), TWO_MINUTES),
        (enabled, KATO),
        (Cc(0), TWO_MINUTES),
    ] {
        now = now + (deadline.since(now) - second);
        assert!(!harness.controller.on_timeout(now), "{cc:?}");
        configure(&mut harness, now, cc);
        deadline = now + timeout;
        assert_eq!(harness.controller.next_timeout(), Some(deadline), "{cc:?}");
    }
    assert!(harness.controller.on_timeout(deadline));
}

/// A host that asked for more than two minutes has them, enabled or not.
#[test]
fn a_long_keep_alive_timeout_holds_for_a_disabled_controller() {
    let long = Duration::from_secs(300);
    let parameters = Harness::disabled(ControllerKind::Io, false).controller.parameters;
    let controller = Controller::new(NOW, parameters, &request(ControllerKind::Io, 0, 300_000));
    assert_eq!(controller.next_timeout(), Some(NOW + long));
}

/// CONTROLLER-6. Method: enabled while something of before is under way, for a minute; also reset and enabled again meanwhile.
#[test]
fn a_controller_gets_ready_when_nothing_of_before_is_under_way() {
    let enabled = Cc::enabled(Cc::CSS_NVM);
    let queue = request(ControllerKind::Io, 1, 0);
    let mut harness = Harness::disabled(ControllerKind::Io, false);
    harness.facts.has_settled = false;
    for cc in [enabled, Cc(0), enabled] {
        assert_eq!(harness.set_cc(cc), Ok(0));
        assert_eq!(harness.csts(), Csts(0), "{cc:?}");
        let sequence = Status::COMMAND_SEQUENCE_ERROR;
        assert_eq!(harness.identify_status(Cns::CONTROLLER, 0), sequence);
        assert!(harness.controller.connect_io(&queue).is_err());
        assert_eq!(harness.controller.next_timeout(), Some(NOW + TWO_MINUTES), "{cc:?}");
    }
    harness.facts.has_settled = true;
    assert_eq!(harness.csts(), Csts::new(true, false, Csts::SHST_NORMAL));
    assert_eq!(harness.controller.next_timeout(), Some(NOW + KATO), "in use from then on");
    harness.identify(Cns::CONTROLLER, 0);
    assert!(harness.controller.connect_io(&queue).is_ok());
    // Ready it stays, whatever others leave behind.
    harness.facts.has_settled = false;
    assert!(harness.csts().rdy());
}

/// The settings of a controller stay those it was enabled with. Method: each field is changed while CC.EN stays 1, alone
/// and together with a shutdown, which then does not begin; reserved bits are no field.
#[test]
fn an_enabled_controller_keeps_what_it_was_enabled_with() {
    let enabled = Cc::enabled(Cc::CSS_NVM);
    let mut harness = Harness::io();
    assert!(harness.controller.connect_io(&request(ControllerKind::Io, 1, 0)).is_ok());
    for bit in (4..14).chain(16..25) {
        let changed = Cc(enabled.0 ^ 1 << bit);
        for cc in [changed, changed.with_shn(Cc::SHN_NORMAL)] {
            assert_eq!(harness.set_cc(cc), Err(Status::INVALID_FIELD), "bit {bit}");
            assert_eq!(harness.cc(), enabled, "bit {bit}");
            assert_eq!(harness.csts(), Csts::new(true, false, Csts::SHST_NORMAL), "bit {bit}");
        }
    }
    assert_eq!(harness.controller.io_queue_count(), 1);
    for cc in [Cc(enabled.0 | 0x8000_0002), enabled, Cc(0x0045_0000)] {
        assert_eq!(harness.set_cc(cc), Ok(0), "{cc:?}");
        assert_eq!(harness.cc(), cc);
    }
}

/// Method: the value of CC.SHN that is reserved, for an enabled controller and a disabled one.
#[test]
fn a_reserved_shutdown_notification_shuts_nothing_down() {
    for mut harness in [Harness::io(), Harness::disabled(ControllerKind::Io, false)] {
        let (cc, csts) = (harness.cc(), harness.csts());
        assert_eq!(harness.set_cc(cc.with_shn(Cc::SHN_RESERVED)), Err(Status::INVALID_FIELD));
        assert_eq!((harness.cc(), harness.csts()), (cc, csts));
    }
}
