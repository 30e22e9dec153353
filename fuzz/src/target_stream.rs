//! A host plays against a complete target: whole PDUs with any contents, and any bytes.
//!
//! Promises: nothing panics; every byte is taken; what the target sends is a sequence of well-formed
//! PDUs with right digests; memory is bounded; once closed, it stays closed.

use nvme_target::ControllerKind;
use nvme_wire::Sqe;
use nvme_wire::pdu::H2cData;
use zerocopy::{FromBytes, IntoBytes};

use crate::input::{Input, digests};
use crate::target_driver::{self, BOTH, Driver, NONE};

/// More steps than this find nothing that fewer do not.
const STEPS_MAX: usize = 64;

/// The input is a mode, then steps: a tag and what belongs to it.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let mode = input.u8();
    let digests = digests(mode);
    let mut driver = match mode >> 2 & 3 {
        0 => Driver::new(),
        1 => target_driver::io(mode >> 4 & 1, digests),
        2 => target_driver::admin(ControllerKind::Io, digests),
        _ => target_driver::admin(ControllerKind::Discovery, digests),
    };
    driver.grants = mode >> 5 & 1 == 0;
    for _ in 0..STEPS_MAX {
        if input.is_empty() || driver.closed.is_some() {
            break;
        }
        step(&mut driver, &mut input);
    }
    assert!(driver.connection.slot_count() <= 128, "memory is bounded");
    assert!(driver.connection.in_flight() <= driver.connection.slot_count());
    // Digests may have been agreed on in this very stream; then the replies cannot be cut apart.
    if mode >> 2 & 3 != 0 {
        target_driver::split(&driver.out, driver.connection.digests());
    }
    if driver.closed.is_some() {
        let sent = driver.out.len();
        driver.feed(&[0x55; 200]);
        assert_eq!(driver.out.len(), sent, "a closed connection answered");
    }
}

fn step(driver: &mut Driver, input: &mut Input<'_>) {
    let digests = driver.connection.digests();
    match input.u8() % 5 {
        0 => {
            let len = usize::from(input.u8());
            driver.feed(input.bytes(len));
        }
        1 => {
            let sqe = Sqe::read_from_bytes(&input.array::<64>()).expect("64 bytes");
            let header = nvme_wire::pdu::CapsuleCmd::new(sqe, 0, digests, 4);
            driver.feed(&target_driver::pdu(header.as_bytes(), &[], digests));
        }
        2 => {
            let sqe = Sqe::read_from_bytes(&input.array::<64>()).expect("64 bytes");
            let len = usize::from(input.u16() % 9000);
            let data = vec![input.u8(); len];
            let cid = sqe.cid.get();
            driver.feed(&target_driver::capsule(sqe, cid, &data, digests));
        }
        3 => {
            let (cid, ttag) = (input.u16() % 4, input.u16() % 4);
            let range = (input.u32() % 20_000, input.u32() % 20_000);
            let data = vec![input.u8(); range.1 as usize];
            let header = H2cData::new((cid, ttag), range, input.u8() & 1 != 0, digests, 4);
            driver.feed(&target_driver::pdu(header.as_bytes(), &data, digests));
        }
        _ => driver.grant_all(1 + input.u32() % 10_000),
    }
}

/// Handshakes, and commands as hosts send them.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for digests in [NONE, BOTH] {
        let bits = u8::from(digests.header) | u8::from(digests.data) << 1;
        // A handshake as bytes: the tag 0, a length, the bytes; ICReq has 128.
        let mut bytes = vec![bits, 0, 128];
        bytes.extend(target_driver::ic_req(digests));
        for piece in target_driver::connect_capsule(ControllerKind::Io, 0, 0, digests).chunks(200) {
            bytes.extend([0, u8::try_from(piece.len()).expect("at most 200")]);
            bytes.extend(piece);
        }
        seeds.push(bytes);
        for mode in 1..4 {
            let mut bytes = vec![bits | mode << 2];
            for opcode in [0x00, 0x01, 0x02, 0x05, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18, 0x7f] {
                let mut sqe = Sqe::new(opcode, 1);
                sqe.cid = u16::from(opcode).into();
                sqe.dptr = nvme_wire::SglDescriptor::transport(4096);
                bytes.push(1);
                bytes.extend(sqe.as_bytes());
                bytes.extend([3, opcode, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 7, 1]);
            }
            seeds.push(bytes);
        }
    }
    seeds
}
