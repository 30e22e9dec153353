//! Submission queue entries with sound framing, one after the other, each answered exactly once: gets
//! deeper into the commands than raw bytes do.

use nvme_target::ControllerKind;
use nvme_wire::Sqe;
use nvme_wire::pdu::PduType;
use zerocopy::{FromBytes, IntoBytes};

use crate::target_driver::{NONE, admin, capsule, io};

/// The input is which queue, then entries of 64 bytes.
pub fn run(input: &[u8]) {
    let Some((choice, bytes)) = input.split_first() else { return };
    let mut driver = match choice % 3 {
        0 => io(0, NONE),
        1 => admin(ControllerKind::Io, NONE),
        _ => admin(ControllerKind::Discovery, NONE),
    };
    // Solicited data never comes; such commands stay in flight, up to the size of the queue.
    for (cid, command) in bytes.chunks_exact(64).take(24).enumerate() {
        let mut sqe = Sqe::read_from_bytes(command).expect("64 bytes");
        sqe.flags = sqe.flags & 0x3F | Sqe::PSDT_SGL;
        let in_flight = driver.connection.in_flight();
        driver.feed(&capsule(sqe, u16::try_from(cid).expect("small"), &[], NONE));
        let replies = driver.replies();
        let answers = replies.iter().filter(|reply| reply.pdu == PduType::CapsuleResp).count();
        // A command either stays in flight or is answered; one may also complete another.
        assert_eq!(in_flight + 1, driver.connection.in_flight() + answers);
        assert_eq!(driver.closed, None);
    }
}

/// Every opcode on every kind of queue.
pub fn seeds() -> Vec<Vec<u8>> {
    let opcodes: Vec<u8> = (0..=0x20).chain([0x7f, 0x80, 0xff]).collect();
    let entries = |codes: &[u8]| -> Vec<u8> {
        codes.iter().flat_map(|code| Sqe::new(*code, 1).as_bytes().to_vec()).collect()
    };
    let groups = opcodes.chunks(24).flat_map(|codes| (0..3).map(move |choice| (choice, codes)));
    groups.map(|(choice, codes)| [vec![choice], entries(codes)].concat()).collect()
}
