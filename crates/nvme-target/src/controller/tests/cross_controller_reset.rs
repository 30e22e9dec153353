//! Cross-Controller Reset.

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
        assert_eq!(harness.run_with(&sqe, &[]), AdminReply::Reset(impacted));
    }
    let limit = usize::from(identity(&mut harness).ccrl);
    for _ in 2..limit {
        assert!(matches!(harness.run_with(&reset(8), &[]), AdminReply::Reset(_)));
    }
    let status = Status::CROSS_CONTROLLER_RESET_LIMIT;
    assert_eq!(harness.run_with(&reset(8), &[]), AdminReply::Complete { status, result: 0 });
    harness.controller.reset_ended();
    assert!(matches!(harness.run_with(&reset(8), &[]), AdminReply::Reset(_)));

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
