//! Fields of commands and structures, bit by bit at the places that the specification gives them.
//!
//! Method: of an encoded or empty structure one bit or field is set at a time, so that what is decoded can come from
//! nowhere else; and the other way round.

use nvme_wire::auth::Authentication;
use nvme_wire::fabrics::{Connect, ConnectData, Property, PropertySize, is_connect};
use nvme_wire::feature::SetFeatures;
use nvme_wire::identify::{IdentifyController, IdentifyNamespace, vendor_field};
use nvme_wire::io::{BlockCommand, DatasetManagement};
use nvme_wire::log::GetLogPage;
use nvme_wire::pdu::{
    C2hData, CommonHeader, Digests, FatalErrorStatus, H2cData, IcResp, PduFlags, PduType,
};

use nvme_wire::{HostId, IoOpcode, SglDescriptor, Sqe};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Returns the little-endian dword `index` of a command.
fn dword(sqe: &(impl IntoBytes + zerocopy::Immutable), index: usize) -> u32 {
    let bytes = sqe.as_bytes();
    u32::from_le_bytes(bytes[index * 4..][..4].try_into().expect("four bytes"))
}

/// A command of which one dword is not zero.
fn command(index: usize, value: u32) -> Sqe {
    let mut bytes = [0; 64];
    bytes[index * 4..][..4].copy_from_slice(&value.to_le_bytes());
    Sqe::read_from_bytes(&bytes).expect("64 bytes")
}

#[test]
fn each_bit_of_a_block_command_has_its_place() {
    let plain = BlockCommand::new(0, 1);
    for (bit, expected) in [
        (0, BlockCommand { nlb: 2, ..plain }),
        (15, BlockCommand { nlb: 0x8001, ..plain }),
        (16, plain),
        (20, BlockCommand { dtype: 1, ..plain }),
        (23, BlockCommand { dtype: 8, ..plain }),
        (24, BlockCommand { stc: true, ..plain }),
        (25, BlockCommand { deac: true, ..plain }),
        (26, BlockCommand { prinfo: 1, ..plain }),
        (29, BlockCommand { prinfo: 8, ..plain }),
        (30, BlockCommand { fua: true, ..plain }),
        (31, BlockCommand { lr: true, ..plain }),
    ] {
        assert_eq!(BlockCommand::decode(&command(12, 1 << bit)), expected, "bit {bit}");
        let encoded = expected.encode(IoOpcode::READ, 1, 0);
        assert_eq!(dword(&encoded, 12), if expected == plain { 0 } else { 1 << bit });
    }
    let all = BlockCommand::decode(&command(12, u32::MAX));
    assert_eq!((all.nlb, all.prinfo, all.dtype), (BlockCommand::NLB_MAX, 15, 15));
    assert_eq!(dword(&all.encode(IoOpcode::WRITE, 1, 0), 12), 0xFFF0_FFFF);
    let wide = BlockCommand::new(0x0102_0304_0506_0708, 1).encode(IoOpcode::READ, 7, 0);
    assert_eq!([dword(&wide, 10), dword(&wide, 11)], [0x0506_0708, 0x0102_0304]);
    assert_eq!(BlockCommand::decode(&wide).slba, 0x0102_0304_0506_0708);
}

/// A command that moves data says so in its pointer, and one that moves none has none.
#[test]
fn a_block_command_points_at_the_data_that_it_moves() {
    let plain = BlockCommand::new(9, 1);
    assert_eq!(plain.encode(IoOpcode::READ, 1, 0), {
        let mut sqe = Sqe::new(IoOpcode::READ.0, 1);
        sqe.set_cdw10_11(9);
        sqe
    });
    for len in [1, 4096] {
        let sqe = plain.encode(IoOpcode::READ, 1, len);
        assert_eq!(sqe.dptr, SglDescriptor::transport(len));
    }
    for (slba, nlb, end) in
        [(5, 3, Some(8)), (u64::MAX - 1, 1, Some(u64::MAX)), (u64::MAX, 1, None)]
    {
        assert_eq!(BlockCommand::new(slba, nlb).checked_end(), end);
    }
}

#[test]
fn each_attribute_of_a_dataset_management_has_its_bit() {
    for (attributes, expected) in [
        (0, [false, false, false]),
        (1, [true, false, false]),
        (2, [false, true, false]),
        (4, [false, false, true]),
        (u32::MAX - 7, [false; 3]),
    ] {
        let found = DatasetManagement::decode(&command(11, attributes));
        let found = [found.integral_read, found.integral_write, found.deallocate];
        assert_eq!(found, expected, "{attributes:#x}");
    }
    for (field, nr) in [(0, 1), (0xFF, 256), (0x100, 1)] {
        assert_eq!(DatasetManagement::decode(&command(10, field)).nr, nr);
    }
}

#[test]
fn flags_of_admin_commands_do_not_spill_into_their_neighbours() {
    for (value, save) in [(0, false), (1 << 31, true), (0x7F00_0000, false)] {
        assert_eq!(SetFeatures::decode(&command(10, value)).save, save);
    }
    for (byte, lsp, rae) in [(0x7F, 0x7F, false), (0x80, 0, true), (0x81, 1, true)] {
        let log = GetLogPage::decode(&command(10, byte << 8));
        assert_eq!((log.lsp, log.rae), (lsp, rae), "{byte:#x}");
    }
    for (dword, uidx, is_index) in [(0x7F, 0x7F, false), (0x80, 0, false), (0x80 << 16, 0, true)] {
        let log = GetLogPage::decode(&command(14, dword));
        assert_eq!((log.uidx, log.offset_is_index), (uidx, is_index), "{dword:#x}");
    }
}

/// First bytes of every command of the fabrics set: 7Fh, an SGL, and FCTYPE in the place of the namespace.
#[test]
fn commands_of_the_fabrics_set_begin_as_such() {
    let room = SglDescriptor::transport(512);
    let receive = Authentication::receive(512, room);
    assert_eq!((dword(&receive, 0), dword(&receive, 1)), (0x407F, 6));
    assert_eq!((receive.dptr, receive.length.get()), (room, 512));
    let send = Authentication::send(72);
    assert_eq!((dword(&send, 0), dword(&send, 1)), (0x407F, 5));
    assert_eq!(send.dptr, SglDescriptor::in_capsule(72));
    for (size, attrib) in [(PropertySize::Four, 0), (PropertySize::Eight, 1)] {
        let set = Property::set(0x14, size, 7);
        assert_eq!((dword(&set, 0), dword(&set, 1)), (0x407F, 0));
        assert_eq!([10, 11, 12, 13].map(|index| dword(&set, index)), [attrib, 0x14, 7, 0]);
        let get = Property::get(0x14, size);
        assert_eq!((dword(&get, 0), dword(&get, 1), dword(&get, 10)), (0x407F, 4, attrib));
    }
    let connect = Connect::new(0, 32, 0);
    let sqe = Sqe::read_from_bytes(connect.as_bytes()).expect("64 bytes");
    assert!(is_connect(&sqe));
    assert!(!is_connect(&Sqe { opcode: 0x7E, ..sqe }), "of another command set");
    assert!(!is_connect(&Sqe { nsid: 4.into(), ..sqe }), "another FCTYPE");
    assert!(!is_connect(&Sqe::new(2, 9)));
}

/// The offset of the first reserved byte in use is told, wherever in the field it is.
#[test]
fn reserved_bytes_of_a_connect_are_found_where_they_are() {
    let whole = Connect::new(1, 32, 0);
    assert_eq!(whole.reserved_in_use(), None);
    for (byte, offset) in [(5, 5), (23, 5), (47, 47), (54, 54), (63, 54)] {
        let mut bytes: [u8; 64] = whole.as_bytes().try_into().expect("64 bytes");
        bytes[byte] = 1;
        let connect = Connect::read_from_bytes(&bytes).expect("64 bytes");
        assert_eq!(connect.reserved_in_use(), Some(offset), "byte {byte}");
    }
    for (bit, is_reserved) in (0..8).zip([false, false, false, false, false, true, true, true]) {
        let connect = Connect { cattr: 1 << bit, ..whole };
        let expected = is_reserved.then_some(Connect::OFFSET_CATTR);
        assert_eq!(connect.reserved_in_use(), expected, "CATTR bit {bit}");
    }
    let data = ConnectData::new_zeroed();
    assert_eq!(data.reserved_in_use(), None);
    for (byte, offset) in [(18, 18), (255, 18), (768, 768), (1023, 768)] {
        let mut bytes: [u8; 1024] = data.as_bytes().try_into().expect("1024 bytes");
        bytes[byte] = 1;
        let data = ConnectData::read_from_bytes(&bytes).expect("1024 bytes");
        assert_eq!(data.reserved_in_use(), Some(offset), "byte {byte}");
    }
    assert!(HostId([0; 16]).is_zero() && !HostId([1; 16]).is_zero());
}

#[test]
fn a_namespace_has_the_format_and_the_atomic_size_that_it_names() {
    let mut namespace = IdentifyNamespace::new_zeroed();
    for (index, format) in namespace.lbaf.iter_mut().enumerate() {
        format.lbads = u8::try_from(index).expect("64 formats") + 1;
    }
    // Bits 6:5 are the high half of the index, only where there can be more than 16 formats.
    for (nlbaf, flbas, lbads) in [
        (0, 0, 1),
        (15, 0x0F, 16),
        (15, 0x60, 1),
        (16, 0x20, 17),
        (63, 0x40, 33),
        (63, 0x6F, 64),
        (63, 0x90, 1),
    ] {
        (namespace.nlbaf, namespace.flbas) = (nlbaf, flbas);
        assert_eq!(namespace.format().map(|format| format.lbads), Some(lbads), "{flbas:#x}");
    }
    namespace.nawupf = 7.into();
    for (nsfeat, blocks) in [(0, 4), (1 << 1, 8), (!(1 << 1), 4), (0xFF, 8)] {
        namespace.nsfeat = nsfeat;
        assert_eq!(namespace.atomic_write_blocks(3), blocks, "{nsfeat:#x}");
    }
}

#[test]
fn flags_that_a_pdu_does_not_define_are_refused() {
    for (pdu_type, defined) in [
        (PduType::IcReq, 0x00),
        (PduType::CapsuleCmd, 0x03),
        (PduType::H2cData, 0x07),
        (PduType::C2hData, 0x0F),
    ] {
        for bit in 0..8 {
            let header = CommonHeader { flags: 1 << bit, ..CommonHeader::new_zeroed() };
            let is_good = header.check_reserved_flags(pdu_type).is_ok();
            assert_eq!(is_good, defined >> bit & 1 == 1, "{pdu_type:?} bit {bit}");
        }
        let none = CommonHeader::new_zeroed();
        assert!(none.check_reserved_flags(pdu_type).is_ok());
    }
}

#[test]
fn every_fatal_error_has_the_name_of_the_specification() {
    let names = (0..8).map(|code| FatalErrorStatus(code).name()).collect::<Vec<_>>();
    assert_eq!(
        names,
        [
            "reserved fatal error status",
            "Invalid PDU Header Field",
            "PDU Sequence Error",
            "Header Digest Error",
            "Data Transfer Out of Range",
            "Data Transfer or R2T Limit Exceeded",
            "Unsupported Parameter",
            "reserved fatal error status",
        ]
    );
}

/// DATAL repeats what PLEN says, and SUCCESS stands for the completion of all data only.
#[test]
fn data_pdus_are_checked_against_their_layout() {
    let digests = Digests::default();
    for len in [4, 4096] {
        let h2c = H2cData::new((1, 2), (0, len), true, digests, 4);
        let layout = h2c.ch.layout(digests, 4).expect("just made");
        assert!(h2c.check(&layout).is_ok());
        for other in [0, len - 4, len + 4] {
            assert!(H2cData { datal: other.into(), ..h2c }.check(&layout).is_err(), "{other}");
        }
    }
    let (last, success) = (PduFlags::LAST_PDU, PduFlags::SUCCESS);
    for (flags, is_good) in
        [(PduFlags(0), true), (last, true), (PduFlags(last.0 | success.0), true), (success, false)]
    {
        let c2h = C2hData::new(1, (0, 8), flags, digests, 4);
        let layout = c2h.ch.layout(digests, 4).expect("just made");
        assert_eq!(c2h.check(&layout).is_ok(), is_good, "{flags:?}");
        assert!(C2hData { datal: 4.into(), ..c2h }.check(&layout).is_err());
    }
}

#[test]
fn the_answer_to_a_connection_is_checked_up_to_its_bounds() {
    let both = Digests { header: true, data: true };
    let good = IcResp { maxh2cdata: 4096.into(), ..IcResp::new_zeroed() };
    let is_good = |answer: IcResp| answer.check(both).is_ok();
    for (maxh2cdata, expected) in
        [(0, false), (4092, false), (4096, true), (4098, false), (4100, true), (1 << 20, true)]
    {
        let answer = IcResp { maxh2cdata: maxh2cdata.into(), ..good };
        assert_eq!(is_good(answer), expected, "{maxh2cdata}");
    }
    for (cpda, expected) in [(30, true), (31, true), (32, false), (255, false)] {
        assert_eq!(is_good(IcResp { cpda, ..good }), expected, "{cpda}");
    }
    for (dgst, expected) in [(1, true), (2, true), (3, true), (4, false), (7, false), (128, false)]
    {
        assert_eq!(is_good(IcResp { dgst, ..good }), expected, "{dgst}");
    }
    assert!(IcResp { dgst: 1, ..good }.check(Digests::default()).is_err(), "it was not offered");
    assert!(!is_good(IcResp { pfv: 1.into(), ..good }));
}

#[test]
fn only_a_farflash_controller_has_commands_of_farflash() {
    let mut controller = IdentifyController::new_zeroed();
    controller.ver = 0x0002_0100.into();
    assert_eq!((controller.vendor_commands(), controller.version().0), (0, 0x0002_0100));
    controller.vs = vendor_field(6);
    assert_eq!(controller.vendor_commands(), 6);
    controller.vs[0] = 1.into();
    assert_eq!(controller.vendor_commands(), 0);
}
