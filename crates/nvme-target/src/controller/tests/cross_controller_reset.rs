//! Cross-Controller Reset.

use nvme_wire::CrossControllerReset;

use super::*;

fn identity(harness: &mut Harness) -> IdentifyController {
    let bytes = harness.identify(Cns::CONTROLLER, 0);
    IdentifyController::read_from_bytes(&bytes).expect("4096 bytes")
}

#[test]
fn another_controller_is_reset_a_few_at_a_time() {
    let reset = |cntlid| {
        let impacted = ControllerInstance { cntlid, ..INSTANCE };
        CrossControllerReset(impacted).encode()
    };
    let mut harness = Harness::enabled(ControllerKind::Io);
    let refused = AdminReply::Complete { status: Status::INVALID_FIELD.with_dnr(), result: 0 };
    assert_eq!(harness.run_with(&reset(7), &[]), refused, "itself");
    let other_life = ControllerInstance { cirn: 1, ..INSTANCE };
    for impacted in [other_life, ControllerInstance { cntlid: 8, ..INSTANCE }] {
        let sqe = CrossControllerReset(impacted).encode();
        let reply = harness.run_with(&sqe, &[]);
        assert!(matches!(reply, AdminReply::Reset { instance, .. } if instance == impacted));
    }
    let limit = usize::from(identity(&mut harness).ccrl);
    let begin = |harness: &mut Harness| match harness.run_with(&reset(8), &[]) {
        AdminReply::Reset { id, .. } => id,
        reply => panic!("{reply:?}"),
    };
    let ids: Vec<_> = (2..limit).map(|_| begin(&mut harness)).collect();
    let status = Status::CROSS_CONTROLLER_RESET_LIMIT;
    assert_eq!(harness.run_with(&reset(8), &[]), AdminReply::Complete { status, result: 0 });
    assert_eq!(harness.controller.reset_ended(ids[0]), Some(SlotId(0)));
    begin(&mut harness);

    let mut discovery = Harness::enabled(ControllerKind::Discovery);
    let status = Status::INVALID_OPCODE.with_dnr();
    assert_eq!(discovery.run_with(&reset(8), &[]), AdminReply::Complete { status, result: 0 });
    assert_eq!(identity(&mut discovery).instance(), None);
}

#[test]
fn a_controller_may_reset_those_of_its_own_host_and_subsystem() {
    let of = |host_id: [u8; 16], host: &str, kind| {
        let mut request = request(kind, 0, 0);
        request.host_id = HostId(host_id);
        request.host_nqn = Nqn::new(host).expect("a name");
        let parameters = Harness::disabled(kind, false).controller.parameters().clone();
        Controller::new(NOW, parameters, &request)
    };
    let host = "nqn.2014-08.org.example:host";
    let one = of([3; 16], host, ControllerKind::Io);
    assert!(one.may_reset(&of([3; 16], host, ControllerKind::Io)));
    assert!(!one.may_reset(&of([4; 16], host, ControllerKind::Io)));
    assert!(!one.may_reset(&of([3; 16], "nqn.2014-08.org.example:x", ControllerKind::Io)));
    assert!(!one.may_reset(&of([3; 16], host, ControllerKind::Discovery)));
}

/// Method: some are under way when the controller is disabled, and end when the slots are those of other commands.
#[test]
fn a_controller_level_reset_ends_the_commands_that_wait_for_a_reset() {
    let mut harness = Harness::enabled(ControllerKind::Io);
    let sqe = CrossControllerReset(ControllerInstance { cntlid: 8, ..INSTANCE }).encode();
    let reset_in = |harness: &mut Harness, slot| match harness.controller.on_admin(
        NOW,
        SlotId(slot),
        &sqe,
        &[],
        &harness.facts,
    ) {
        AdminReply::Reset { id, .. } => id,
        reply => panic!("{reply:?}"),
    };
    let before = [5, 6].map(|slot| reset_in(&mut harness, slot));
    assert_eq!(harness.set_cc(Cc(0)), Ok(0));
    assert_eq!(harness.controller.poll_event(), Some(ControllerEvent::CloseIoQueues));
    for slot in [5, 6] {
        assert_eq!(harness.event(), Some((SlotId(slot), Status::ABORT_REQUESTED, 0)));
    }
    assert_eq!(harness.event(), None);
    harness.enable();
    let after = reset_in(&mut harness, 5);
    for id in before {
        assert!(!harness.controller.awaits_reset(id));
        assert_eq!(harness.controller.reset_ended(id), None, "no command waits for it");
    }
    assert!(harness.controller.awaits_reset(after));
    assert_eq!(harness.controller.reset_ended(after), Some(SlotId(5)));
}
