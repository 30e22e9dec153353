//! Headers of PDUs, both ways, against an encoder and a table that are made from the figures of the transport
//! specification alone.

use nvme_wire::pdu::{
    C2hData, CapsuleCmd, CapsuleResp, CommonHeader, Digests, H2cData, IcReq, IcResp, PduFlags,
    PduType, R2t,
};
use nvme_wire::{Cqe, Sqe, Status};
use wire_oracle::Rng;
use wire_oracle::pdu::{self, Draft, LAST_PDU, SUCCESS, data_offset};
use zerocopy::{FromBytes, IntoBytes};

/// TCP, figures of the PDUs: type, HLEN, whether a host sends it, whether data may follow, and FLAGS that have a
/// meaning, those of digests included where hosts and controllers set them.
const TYPES: [(u8, PduType, usize, bool, bool, u8); 9] = [
    (0x00, PduType::IcReq, 128, true, false, 0x00),
    (0x01, PduType::IcResp, 128, false, false, 0x00),
    (0x02, PduType::H2cTermReq, 24, true, false, 0x00),
    (0x03, PduType::C2hTermReq, 24, false, false, 0x00),
    (0x04, PduType::CapsuleCmd, 72, true, true, 0x03),
    (0x05, PduType::CapsuleResp, 24, false, false, 0x03),
    (0x06, PduType::H2cData, 24, true, true, 0x07),
    (0x07, PduType::C2hData, 24, false, true, 0x0F),
    (0x09, PduType::R2t, 24, false, false, 0x03),
];

const DIGESTS: [(bool, bool); 4] = [(false, false), (true, false), (false, true), (true, true)];

#[test]
fn types_are_those_of_the_figures() {
    for number in 0..=255 {
        let known = TYPES.iter().find(|known| known.0 == number);
        assert_eq!(PduType::from_u8(number), known.map(|known| known.1), "{number:#x}");
    }
    for (number, pdu, hlen, is_from_host, has_data, flags) in TYPES {
        assert_eq!((pdu as u8, pdu.header_len()), (number, hlen));
        assert_eq!((pdu.is_from_host(), pdu.may_have_data()), (is_from_host, has_data), "{pdu:?}");
        for value in 0..=255 {
            let none = Digests::default();
            let header = CommonHeader::new(pdu, PduFlags::default(), none, 0, 4);
            let header = CommonHeader { flags: value, ..header };
            let is_defined = value & !flags == 0;
            assert_eq!(header.check_reserved_flags(pdu).is_ok(), is_defined, "{pdu:?} {value:#x}");
        }
    }
}

/// A data PDU that says how long its data is not.
#[test]
fn datal_is_compared_with_the_length() {
    let none = Digests::default();
    let h2c = H2cData::new((1, 2), (0, 512), true, none, 4);
    let c2h = C2hData::new(1, (0, 512), PduFlags::LAST_PDU, none, 4);
    for datal in [0, 511, 512, 513, u32::MAX] {
        let layout = h2c.ch.layout(none, 4).expect("lengths are right");
        let wrong = H2cData { datal: datal.into(), ..h2c }.check(&layout);
        assert_eq!(
            wrong.map_err(|error| error.fei()),
            [Err(16), Ok(())][usize::from(datal == 512)]
        );
        let layout = c2h.ch.layout(none, 4).expect("lengths are right");
        let wrong = C2hData { datal: datal.into(), ..c2h }.check(&layout);
        assert_eq!(
            wrong.map_err(|error| error.fei()),
            [Err(16), Ok(())][usize::from(datal == 512)]
        );
    }
    for (flags, is_right) in [(0, true), (LAST_PDU, true), (SUCCESS, false), (0x0C, true)] {
        let data = C2hData::new(1, (0, 512), PduFlags(flags), none, 4);
        let layout = data.ch.layout(none, 4).expect("lengths are right");
        assert_eq!(data.check(&layout).is_ok(), is_right, "{flags:#x}");
    }
}

/// Method: fields drawn, each type with all digests and alignments; ours are the oracle's bytes up to HLEN.
#[test]
fn headers_are_those_of_the_oracle() {
    let mut rng = Rng::new(1);
    for round in 0..400 {
        let (header, data) = DIGESTS[round % 4];
        let (ours, theirs) = (Digests { header, data }, pdu::Digests { header, data });
        let alignment = 4 * rng.between(1, 32);
        let len = rng.pick(&[1, 4, 512, 4097, 8192]);
        let bytes = vec![0; len];
        let (cid, ttag) = (rng.next_u64() as u16, rng.next_u64() as u16);
        let (offset, len) = (rng.next_u64() as u32, len as u32);
        let expected = |kind, flags, own: &[u8], data: &[u8]| {
            let pdo = data_offset(own.len() + 8, theirs, alignment);
            Draft { kind, flags, own, data, pdo, padding: 0 }.header(theirs)
        };
        let mut own = [0; 16];
        own[..2].copy_from_slice(&cid.to_le_bytes());
        own[4..8].copy_from_slice(&offset.to_le_bytes());
        own[8..12].copy_from_slice(&len.to_le_bytes());
        let flags = rng.pick(&[0, LAST_PDU, LAST_PDU | SUCCESS]);
        let c2h = C2hData::new(cid, (offset, len), PduFlags(flags), ours, alignment);
        assert_eq!(c2h.as_bytes(), expected(pdu::C2H_DATA, flags, &own, &bytes));
        own[2..4].copy_from_slice(&ttag.to_le_bytes());
        let is_last = rng.one_in(2);
        let h2c = H2cData::new((cid, ttag), (offset, len), is_last, ours, alignment);
        let flags = if is_last { LAST_PDU } else { 0 };
        assert_eq!(h2c.as_bytes(), expected(pdu::H2C_DATA, flags, &own, &bytes));
        let r2t = R2t::new(cid, ttag, (offset, len), ours);
        assert_eq!(r2t.as_bytes(), expected(pdu::R2T, 0, &own, &[]));
        let sqe = rng.bytes(64);
        let capsule = Sqe::read_from_bytes(&sqe[..]).expect("64 bytes");
        let in_capsule = if rng.one_in(2) { &bytes[..] } else { &[] };
        let capsule = CapsuleCmd::new(capsule, in_capsule.len(), ours, alignment);
        assert_eq!(capsule.as_bytes(), expected(pdu::CAPSULE_CMD, 0, &sqe, in_capsule));
        let cqe = Cqe::with_result(cid, Status::INTERNAL_ERROR, rng.next_u64());
        let response = CapsuleResp::new(cqe, ours);
        assert_eq!(response.as_bytes(), expected(pdu::CAPSULE_RESP, 0, cqe.as_bytes(), &[]));
        let mut own = [0; 120];
        own[3] = u8::from(header) | u8::from(data) << 1;
        own[4..8].copy_from_slice(&len.to_le_bytes());
        assert_eq!(IcResp::new(ours, len).as_bytes(), expected(pdu::IC_RESP, 0, &own, &[]));
        assert_eq!(IcReq::new(ours, len + 1).as_bytes(), expected(pdu::IC_REQ, 0, &own, &[]));
    }
}

/// The positions of the parts of a PDU, or its refusal, by a plain reading of the common header.
fn expected_layout(
    header: &CommonHeader,
    digests: Digests,
    alignment: usize,
) -> Option<(usize, usize, bool, bool)> {
    let (_, _, hlen, _, may_have_data, _) = *TYPES.iter().find(|it| it.0 == header.pdu_type)?;
    let (has_digests, is_term) = (header.pdu_type >= 4, matches!(header.pdu_type, 2 | 3));
    let header_digest = digests.header && has_digests;
    let header_end = hlen + if header_digest { 4 } else { 0 };
    let (plen, pdo) = (header.plen.get() as usize, usize::from(header.pdo));
    if (header.flags & 1 != 0) != header_digest || usize::from(header.hlen) != hlen {
        return None;
    }
    if plen == header_end {
        let must_have_data = matches!(header.pdu_type, 6 | 7);
        return (!must_have_data).then_some((plen, 0, header_digest, false));
    }
    if is_term {
        let quoted = plen.checked_sub(24)?;
        return (quoted <= 128).then_some((24, quoted, false, false));
    }
    let data_end = plen.checked_sub(if digests.data { 4 } else { 0 })?;
    let is_right = may_have_data
        && (header.flags & 2 != 0) == digests.data
        && pdo >= header_end
        && pdo % alignment == 0
        && data_end > pdo;
    is_right.then_some((pdo, data_end.saturating_sub(pdo), header_digest, digests.data))
}

/// Method: sound headers of each type, of which up to three fields are changed to what lies beside what is right.
#[test]
fn what_is_taken_and_where_its_parts_lie_is_as_the_oracle_says() {
    let mut rng = Rng::new(2);
    let (mut taken, mut refused) = (0, 0);
    for round in 0..60_000 {
        let (header, data) = DIGESTS[round % 4];
        let digests = Digests { header, data };
        let (number, pdu, hlen, _, may_have_data, _) = rng.pick(&TYPES);
        let alignment = rng.pick(&[4, 4, 8, 12, 64, 128]);
        let len = if may_have_data { rng.pick(&[0, 1, 4, 512]) } else { 0 };
        let mut common = CommonHeader::new(pdu, PduFlags::default(), digests, len, alignment);
        for _ in 0..rng.pick(&[0, 1, 1, 2, 3]) {
            match rng.between(0, 4) {
                0 => common.flags ^= 1 << rng.between(0, 3),
                1 => common.hlen = rng.pick(&[hlen - 1, hlen, hlen + 1, 24, 72, 128]) as u8,
                2 => common.pdo = common.pdo.wrapping_add(rng.pick(&[1, 4, 252, 255, 128, 64])),
                3 => {
                    let by = rng.pick(&[1, 4, 8, 128, 129, 132, u32::MAX, u32::MAX - 3]);
                    common.plen = common.plen.get().wrapping_add(by).into();
                }
                _ => common.pdu_type = rng.pick(&[number, number ^ 1, number ^ 2, 8, 10, 255]),
            }
        }
        let found = common.layout(digests, alignment).ok();
        let found = found.map(|it| (it.data_offset, it.data_len, it.header_digest, it.data_digest));
        let expected = expected_layout(&common, digests, alignment);
        assert_eq!(found, expected, "round {round}: {common:?} {digests:?} at {alignment}");
        taken += usize::from(expected.is_some());
        refused += usize::from(expected.is_none());
    }
    assert!(taken > 10_000 && refused > 10_000, "{taken} taken, {refused} refused");
}
