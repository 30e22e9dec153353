//! PDU headers: whatever the bytes, lengths that are accepted are consistent.

use nvme_wire::Sqe;
use nvme_wire::pdu::{
    C2hData, CapsuleCmd, CommonHeader, H2cData, IcReq, IcResp, PduType, R2t, TermReq,
    header_from_bytes,
};
use zerocopy::IntoBytes;

use crate::input::{Input, digests};

/// The input is which digests and what alignment, then a PDU.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let choice = input.u8();
    let bytes = input.0;
    let digests = digests(choice);
    let alignment = 4 << (choice >> 2 & 7);
    let Some(common) = CommonHeader::from_prefix(bytes) else { return };
    match common.layout(digests, alignment) {
        Ok(layout) => {
            let digest = if layout.data_digest { 4 } else { 0 };
            assert!(layout.header_end() <= layout.data_offset);
            assert_eq!(layout.data_offset + layout.data_len + digest, layout.plen);
            assert!(layout.data_len == 0 || layout.data_offset <= 255);
            if let Some(data) = header_from_bytes::<H2cData>(bytes) {
                let _ = data.check(&layout);
            }
            if let Some(data) = header_from_bytes::<C2hData>(bytes) {
                let _ = data.check(&layout);
            }
        }
        Err(error) => {
            let quoted = TermReq::encode(PduType::C2hTermReq, &error, bytes);
            assert!((24..=152).contains(&quoted.len()));
        }
    }
    if let Some(request) = header_from_bytes::<IcReq>(bytes)
        && request.check().is_ok()
    {
        assert!(request.data_alignment() <= 128 && request.r2ts_max() >= 1);
    }
    if let Some(response) = header_from_bytes::<IcResp>(bytes)
        && response.check(digests).is_ok()
    {
        assert!(response.data_alignment() <= 128);
    }
}

/// PDUs of several types, and zeroes.
pub fn seeds() -> Vec<Vec<u8>> {
    let command = CapsuleCmd::new(Sqe::new(2, 1), 0, digests(0), 4);
    let mut seeds = vec![vec![0; 128]];
    for header in [
        IcReq::new(digests(3), 1).as_bytes(),
        IcResp::new(digests(3), 4096).as_bytes(),
        command.as_bytes(),
        H2cData::new((1, 1), (0, 512), true, digests(0), 4).as_bytes(),
        R2t::new(1, 1, (0, 4096), digests(0)).as_bytes(),
    ] {
        seeds.push([&[0], header].concat());
    }
    seeds
}
