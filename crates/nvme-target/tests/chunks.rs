//! NVME-CONNECTION-5: how the stream is cut makes no difference. And no stream, however wrong,
//! breaks the target.

mod driver;

use driver::{ALL_DIGESTS, Driver, admin, capsule, connect_capsule, h2c_for, ic_req, io};
use nvme_target::ControllerKind;
use nvme_wire::io::BlockCommand;
use nvme_wire::pdu::{Digests, PduType};
use nvme_wire::{IoOpcode, Sqe};
use proptest::prelude::*;

/// The slot of a queue's only command in flight: that of the Connect, which is free again.
const FIRST_TTAG: u16 = 0;

/// The bytes that a host sends: for writes without in-capsule data the answer to the R2T too, which
/// is known beforehand, for the target always uses the same slot.
fn stream(commands: &[(u8, u8, bool)], digests: Digests) -> Vec<u8> {
    let mut bytes = ic_req(digests);
    bytes.extend(connect_capsule(ControllerKind::Io, 1, 0, digests));
    for (n, (kind, blocks, in_capsule)) in commands.iter().enumerate() {
        let cid = n as u16;
        let nlb = u32::from(*blocks % 4) + 1;
        let len = nlb as usize * 4096;
        let data: Vec<u8> = (0..len).map(|i| (i + n) as u8).collect();
        let block = BlockCommand::new(u64::from(*blocks % 60), nlb);
        match kind % 4 {
            0 => bytes.extend(capsule(
                block.encode(IoOpcode::READ, 1, len as u32),
                cid,
                &[],
                digests,
            )),
            1 if *in_capsule => {
                bytes.extend(capsule(block.encode(IoOpcode::WRITE, 1, 0), cid, &data, digests));
            }
            1 => {
                let sqe = block.encode(IoOpcode::WRITE, 1, len as u32);
                bytes.extend(capsule(sqe, cid, &[], digests));
                bytes.extend(h2c_for(cid, FIRST_TTAG, &data, 3000, digests));
            }
            // Refused, with data to be dropped.
            2 => {
                let outside = BlockCommand::new(u64::MAX - 1, nlb).encode(IoOpcode::WRITE, 1, 0);
                bytes.extend(capsule(outside, cid, &data, digests));
            }
            _ => bytes.extend(capsule(Sqe::new(IoOpcode::FLUSH.0, 1), cid, &[], digests)),
        }
    }
    bytes
}

fn run<'a>(chunks: impl Iterator<Item = &'a [u8]>) -> (Vec<u8>, Vec<u8>, usize) {
    let mut driver = Driver::new().with_controller();
    for chunk in chunks {
        driver.feed(chunk);
    }
    assert_eq!(driver.closed, None);
    (driver.out, driver.volume.bytes, driver.executed)
}

#[test]
fn a_byte_at_a_time_is_as_good_as_all_at_once() {
    let commands = [(0, 1, false), (1, 2, true), (1, 3, false), (2, 1, true), (3, 0, false)];
    for digests in ALL_DIGESTS {
        let bytes = stream(&commands, digests);
        let whole = run(std::iter::once(&bytes[..]));
        assert_eq!(whole.2, 1 + commands.len() - 1, "all but the refused one");
        assert!(run(bytes.chunks(1)) == whole, "{digests:?}");
        for len in [2, 3, 71, 73, 4096] {
            assert!(run(bytes.chunks(len)) == whole, "{digests:?}, chunks of {len}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_cut_gives_the_same_result(
        commands in prop::collection::vec(any::<(u8, u8, bool)>(), 1..20),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..30),
        digests in prop::sample::select(ALL_DIGESTS.to_vec()),
    ) {
        let bytes = stream(&commands, digests);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let chunks = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]);
        prop_assert!(run(chunks) == run(std::iter::once(&bytes[..])));
    }

    #[test]
    fn random_bytes_never_break_it(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        for mut driver in [Driver::new(), io(0, ALL_DIGESTS[0]), admin(ControllerKind::Io, ALL_DIGESTS[0])] {
            driver.feed(&bytes);
            prop_assert!(driver.out.len() < 1 << 20);
        }
    }

    /// Damage in the middle of a good stream gets further than noise does.
    #[test]
    fn damaged_streams_never_break_it(
        commands in prop::collection::vec(any::<(u8, u8, bool)>(), 1..10),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        digests in prop::sample::select(ALL_DIGESTS.to_vec()),
        chunk in 1usize..5000,
    ) {
        let mut bytes = stream(&commands, digests);
        for (at, value) in &damage {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        let mut driver = Driver::new().with_controller();
        for chunk in bytes.chunks(chunk) {
            driver.feed(chunk);
        }
        prop_assert!(driver.connection.in_flight() <= 32);
        prop_assert!(driver.connection.slot_count() <= 32);
    }

    /// Every admin command of every shape gets exactly one answer, or waits as an event request.
    #[test]
    fn every_admin_command_is_answered(
        opcode in prop::sample::select(vec![0x02u8, 0x06, 0x08, 0x09, 0x0A, 0x0C, 0x18, 0x7F]),
        nsid in prop::sample::select(vec![0u32, 1, 2, 4, 0xFFFF_FFFE, 0xFFFF_FFFF]),
        low in any::<[u8; 2]>(),
        words in any::<[u32; 6]>(),
        length in prop::sample::select(vec![0u32, 4, 16, 512, 4096, 1 << 20]),
        kind in prop::sample::select(vec![ControllerKind::Io, ControllerKind::Discovery]),
    ) {
        let digests = ALL_DIGESTS[0];
        let mut driver = admin(kind, digests);
        let mut sqe = Sqe::new(opcode, nsid);
        sqe.dptr = nvme_wire::SglDescriptor::transport(length);
        // Small numbers in the first dword reach more of the code than large ones.
        sqe.cdw10 = (u32::from(low[0]) | u32::from(low[1]) << 8 | (words[0] & 0x3) << 16).into();
        sqe.cdw11 = words[1].into();
        sqe.cdw12 = (words[2] & 0xFFF).into();
        sqe.cdw13 = (words[3] & 0x1).into();
        sqe.cdw14 = (words[4] & 0xFF).into();
        sqe.cdw15 = words[5].into();
        driver.feed(&capsule(sqe, 4, &[], digests));
        let replies = driver.replies();
        let is_answered =
            replies.last().is_some_and(|reply| reply.pdu == PduType::CapsuleResp);
        prop_assert_eq!(is_answered, driver.connection.in_flight() == 0);
        prop_assert_eq!(driver.closed, None);
    }
}
