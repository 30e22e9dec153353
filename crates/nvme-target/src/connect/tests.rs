use alloc::vec::Vec;

use zerocopy::IntoBytes;

use super::*;

fn host() -> Nqn {
    Nqn::new("nqn.2014-08.org.example:host").expect("a name")
}

fn connect_data(cntlid: u16) -> ConnectData {
    ConnectData::new(HostId([3; 16]), &host(), &Nqn::DISCOVERY, cntlid)
}

fn decode(connect: Connect, data: &ConnectData) -> Result<ConnectRequest, ConnectRefusal> {
    ConnectRequest::decode(&Sqe::from(connect), data.as_bytes(), &Limits::default())
}

/// The refusal's status, and its IPO with IATTR in bit 16.
fn refused(connect: Connect, data: &ConnectData) -> (Status, u64) {
    let refusal = decode(connect, data).expect_err("refused");
    (refusal.status.code(), refusal.result)
}

#[test]
fn what_the_linux_host_sends_is_understood() {
    let admin = decode(Connect::new(0, 32, 15_000), &connect_data(0xFFFF)).expect("admin");
    assert_eq!((admin.qid, admin.entries, admin.kato_ms), (0, 32, 15_000));
    assert_eq!((admin.host_nqn, admin.subsystem), (host(), Nqn::DISCOVERY));
    assert!(admin.sq_flow_control);
    let disabled = Connect { cattr: CATTR_DISABLE_SQ_FLOW, ..Connect::new(1, 128, 0) };
    let io = decode(disabled, &connect_data(5)).expect("an I/O queue");
    assert_eq!((io.qid, io.entries, io.cntlid, io.sq_flow_control), (1, 128, 5, false));
}

/// Not with Invalid Field in Command, as other commands are: a Connect has a status of its own for that.
#[test]
fn reserved_flags_and_prps_are_refused() {
    for flags in [0x41, 0x42, 0x44, 0x48, 0x50, 0x60, 0x00, 0x80, 0xC0] {
        let connect = Connect { flags, ..Connect::new(0, 32, 0) };
        let invalid = (Status::CONNECT_INVALID_PARAMETERS, 1);
        assert_eq!(refused(connect, &connect_data(0xFFFF)), invalid, "{flags:#x}");
    }
}

#[test]
fn the_cause_of_a_refusal_is_said_in_words() {
    let (good, any) = (Connect::new(0, 32, 0), connect_data(0xFFFF));
    let cause = |connect, data: &ConnectData| decode(connect, data).expect_err("refused").cause();
    let named = |field: &str, cause: &str| assert!(cause.starts_with(field), "{field}: {cause}");
    named("SQSIZE", cause(Connect::new(0, 1000, 0), &any));
    named("QID", cause(Connect::new(999, 32, 0), &connect_data(1)));
    named("CNTLID", cause(good, &connect_data(7)));
    named("HOSTID", cause(good, &ConnectData { hostid: [0; 16], ..any }));
    let mut hostnqn = any.hostnqn;
    hostnqn[..4].copy_from_slice(b"iqn.");
    named("HOSTNQN", cause(good, &ConnectData { hostnqn, ..any }));
    let mut subnqn = any.subnqn;
    subnqn[..4].copy_from_slice(b"iqn.");
    named("SUBNQN", cause(good, &ConnectData { subnqn, ..any }));
    named("busy", ConnectRefusal::BUSY.cause());
    let format = Connect { recfmt: 1.into(), ..good };
    assert_eq!(cause(format, &any), Status::CONNECT_INCOMPATIBLE_FORMAT.name());
}

#[test]
fn what_is_reserved_is_named_by_its_place() {
    let invalid = Status::CONNECT_INVALID_PARAMETERS;
    let (good, any) = (Connect::new(0, 32, 0), connect_data(0xFFFF));
    for (byte, named) in [(5, 5), (23, 5), (46, 46), (47, 47), (54, 54), (63, 54)] {
        let mut bytes = [0; 64];
        bytes.copy_from_slice(good.as_bytes());
        bytes[byte] = 0x20;
        let connect = Connect::read_from_bytes(&bytes).expect("64 bytes");
        assert_eq!(refused(connect, &any), (invalid, named), "byte {byte}");
    }
    for (byte, named) in [(18, 18), (255, 18), (768, 768), (1023, 768)] {
        let mut bytes = any.as_bytes().to_vec();
        bytes[byte] = 1;
        let data = ConnectData::read_from_bytes(&bytes).expect("1024 bytes");
        assert_eq!(refused(good, &data), (invalid, 1 << 16 | named), "byte {byte} of the data");
    }
    let attributes = Connect { cattr: 0b1_1111, ..good };
    assert!(decode(attributes, &any).is_ok(), "these have a meaning");
    for qid in [0, 1] {
        let set = Connect { nvmsetid: 7.into(), ..Connect::new(qid, 32, 0) };
        let data = if qid == 0 { any } else { connect_data(5) };
        assert!(decode(set, &data).is_ok(), "there are no NVM sets, so it is not looked at");
    }
}

#[test]
fn each_wrong_parameter_is_named() {
    let invalid = Status::CONNECT_INVALID_PARAMETERS;
    let (any, five) = (connect_data(0xFFFF), connect_data(5));
    let format = Connect { recfmt: 1.into(), ..Connect::new(0, 32, 0) };
    assert_eq!(refused(format, &any), (Status::CONNECT_INCOMPATIBLE_FORMAT, 0));
    assert_eq!(refused(Connect::new(129, 32, 0), &five), (invalid, 42));
    for sqsize in [0, 128, 0xFFFF] {
        let size = Connect { sqsize: sqsize.into(), ..Connect::new(1, 32, 0) };
        assert_eq!(refused(size, &five), (invalid, 44), "sqsize {sqsize}");
    }
    assert_eq!(refused(Connect::new(0, 32, 0), &five), (invalid, 0x1_0010), "static model");
    for cntlid in [0xFFF0, 0xFFFE, 0xFFFF] {
        let connect = Connect::new(1, 32, 0);
        assert_eq!(refused(connect, &connect_data(cntlid)), (invalid, 0x1_0010));
    }
    let anonymous = ConnectData { hostid: [0; 16], ..any };
    assert_eq!(refused(Connect::new(0, 32, 0), &anonymous), (invalid, 0x1_0000));
    let io = ConnectData { hostid: [0; 16], ..five };
    let io = decode(Connect::new(1, 32, 0), &io).expect("an I/O queue need not say it");
    assert!(io.host_id.is_zero());
    let nameless = ConnectData { hostnqn: [0; 256], ..any };
    assert_eq!(refused(Connect::new(0, 32, 0), &nameless), (invalid, 0x1_0200));
    let endless = ConnectData { subnqn: [b'a'; 256], ..any };
    assert_eq!(refused(Connect::new(0, 32, 0), &endless), (invalid, 0x1_0100));
}

#[test]
fn data_of_another_length_is_refused() {
    let sqe = Sqe::from(Connect::new(0, 32, 0));
    for len in [0, 1023, 1025] {
        let data: Vec<u8> = alloc::vec![0; len];
        let refusal = ConnectRequest::decode(&sqe, &data, &Limits::default());
        let status = refusal.expect_err("refused").status.code();
        assert_eq!(status, Status::DATA_SGL_LENGTH_INVALID);
    }
}

#[test]
fn the_highest_numbers_are_still_numbers() {
    let most = Limits::default().io_queues_max;
    let request = decode(Connect::new(most, 32, 0), &connect_data(CNTLID_MAX)).expect("in range");
    assert_eq!((request.qid, request.cntlid), (most, CNTLID_MAX));
}
