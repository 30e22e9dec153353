//! Log pages and Identify structures, field by field.

use nvme_wire::discovery::TRTYPE_TCP;
use nvme_wire::identify::NSFEAT_OPTIMAL_PERFORMANCE;
use nvme_wire::log::FailureDomainLog;
use reservation::NoticeKind;

use super::*;

#[test]
fn the_health_page_has_each_figure_in_its_own_field() {
    let mut harness = Harness::io();
    harness.facts.health = Health {
        critical_warning: 0x0C,
        available_spare: 91,
        available_spare_threshold: 11,
        bytes_read: 3 * 512_000,
        bytes_written: 4 * 512_000,
        host_reads: 5,
        host_writes: 6,
        busy_minutes: 7,
        power_cycles: 8,
        power_on_hours: 9,
        unsafe_shutdowns: 10,
        media_errors: 12,
    };
    let bytes = harness.log(Lid::HEALTH, 0, 512);
    let smart = SmartHealth::read_from_bytes(&bytes).expect("512 bytes");
    assert_eq!(smart.critical_warning, 0x0C);
    assert_eq!((smart.available_spare, smart.available_spare_threshold), (91, 11));
    let figures = [
        smart.data_units_read,
        smart.data_units_written,
        smart.host_reads,
        smart.host_writes,
        smart.busy_minutes,
        smart.power_cycles,
        smart.power_on_hours,
        smart.unsafe_shutdowns,
        smart.media_errors,
        smart.error_log_entries,
    ];
    assert_eq!(figures.map(|figure| figure.get()), [3, 4, 5, 6, 7, 8, 9, 10, 12, 0]);
    // Zero stands for what is not reported.
    let temperatures = [smart.temperature].into_iter().chain(smart.temperature_sensors);
    assert!(temperatures.into_iter().all(|kelvins| kelvins.get() == 0), "{smart:?}");
    assert_eq!(smart.percentage_used, 0);
}

#[test]
fn an_entry_of_the_error_log_has_all_that_is_known() {
    let mut harness = Harness::io();
    let mut sqe = Sqe::new(IoOpcode::READ.0, 0x0102_0304);
    sqe.cid = 0x1234.into();
    let status = Status::INVALID_FIELD.with_dnr();
    harness.controller.record_error(3, &sqe, status, 0x55_6677_8899);
    let bytes = harness.log(Lid::ERROR, 0, 64);
    let entry = ErrorLogEntry::read_from_bytes(&bytes).expect("64 bytes");
    assert_eq!((entry.error_count.get(), entry.sqid.get(), entry.cid.get()), (1, 3, 0x1234));
    assert_eq!(entry.status.get(), status.to_field());
    assert_eq!(entry.parameter_error_location.get(), 0xFFFF, "unknown");
    assert_eq!((entry.lba.get(), entry.nsid.get()), (0x55_6677_8899, 0x0102_0304));
    assert_eq!((entry.trtype, entry.opcode, entry.version), (TRTYPE_TCP, IoOpcode::READ.0, 1));
}

#[test]
fn log_pages_end_where_the_specification_says() {
    let mut harness = Harness::io();
    harness.facts.domain = Some(FailureDomain { host: "flash-1".into(), ..Default::default() });
    let lengths = [
        (Lid::SUPPORTED, 1024),
        (Lid::ERROR, 64 * 64),
        (Lid::HEALTH, 512),
        (Lid::FIRMWARE_SLOT, 512),
        (Lid::CHANGED_NAMESPACES, 4096),
        (Lid::COMMAND_EFFECTS, 4096),
        (Lid::FEATURE_EFFECTS, 1024),
        (Lid::CROSS_CONTROLLER_RESET, 4096),
        (Lid::FAILURE_DOMAIN, size_of::<FailureDomainLog>() as u64),
    ];
    assert_ne!(size_of::<FailureDomainLog>(), 1024, "told from a table of what is supported");
    for (lid, len) in lengths {
        harness.log(lid, len - 4, 4);
        let behind = GetLogPage::new(lid, NSID_ALL, len, 4).encode();
        assert_eq!(harness.value(&behind), Err(Status::INVALID_FIELD), "{lid:?}");
    }
    let resets = harness.log(Lid::CROSS_CONTROLLER_RESET, 0, 4096);
    assert!(resets.iter().all(|byte| *byte == 0), "no reset is under way");
    let by_index =
        GetLogPage { offset_is_index: true, ..GetLogPage::new(Lid::ERROR, NSID_ALL, 0, 4) };
    assert_eq!(harness.value(&by_index.encode()), Err(Status::INVALID_FIELD));
}

/// A log page as it is when all that it could report has happened: its length and its first bytes.
type Expected = (Lid, usize, Vec<u8>);

/// Returns the pages that a controller is to have, each with content of its own.
fn expected_pages(kind: ControllerKind, has_domain: bool) -> Vec<Expected> {
    let supported = |lids: &[u8]| {
        let mut table = vec![0; 1024];
        lids.iter().for_each(|lid| table[usize::from(*lid) * 4] = 1);
        table
    };
    if kind == ControllerKind::Discovery {
        let discovery = (Lid::DISCOVERY, 4096, vec![9, 0, 0, 0, 0, 0, 0, 0, 3]);
        return vec![(Lid::SUPPORTED, 1024, supported(&[0x00, 0x70])), discovery];
    }
    let mut lids = vec![0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x12, 0x1E, 0x80];
    lids.extend(has_domain.then_some(0xE0));
    let mut pages = vec![
        (Lid::SUPPORTED, 1024, supported(&lids)),
        (Lid::ERROR, 4096, vec![1, 0, 0, 0, 0, 0, 0, 0, 3, 0]),
        (Lid::HEALTH, 512, vec![CRITICAL_SPARE, 0, 0, 91, 11]),
        (Lid::FIRMWARE_SLOT, 512, b"\x01\0\0\0\0\0\0\x000.1.0   ".to_vec()),
        (Lid::CHANGED_NAMESPACES, 4096, vec![1, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        // Of the admin commands 0 and 1 are missing, 2 (Get Log Page) is there.
        (Lid::COMMAND_EFFECTS, 4096, vec![0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]),
        // Of the features 0 is missing, 1 (Arbitration) is there.
        (Lid::FEATURE_EFFECTS, 1024, vec![0, 0, 0, 0, 1, 0, 0, 0]),
        (Lid::CROSS_CONTROLLER_RESET, 4096, vec![0; 4096]),
        // Log page count 1, type 2 (reservation released), no other page available.
        (Lid::RESERVATION_NOTIFICATION, 64, vec![1, 0, 0, 0, 0, 0, 0, 0, 2, 0]),
    ];
    let place = b"farflash\x01\0\0\0".to_vec();
    pages.extend(has_domain.then_some((Lid::FAILURE_DOMAIN, size_of::<FailureDomainLog>(), place)));
    pages
}

/// Method: of each kind of controller, let all happen that a page could report, then ask for every identifier. A page
/// has its own length and its own first bytes, in which no two pages of a controller are alike; that of supported pages is
/// compared as a whole.
#[test]
fn every_advertised_page_is_served_as_itself_and_every_other_one_refused() {
    for (kind, has_domain) in [
        (ControllerKind::Io, false),
        (ControllerKind::Io, true),
        (ControllerKind::Discovery, false),
        (ControllerKind::Discovery, true),
    ] {
        let mut harness = Harness::enabled(kind);
        let domain = FailureDomain { host: "flash-1".into(), ..Default::default() };
        harness.facts.domain = has_domain.then_some(domain);
        harness.facts.health = Health {
            critical_warning: CRITICAL_SPARE,
            available_spare: 91,
            available_spare_threshold: 11,
            ..Health::default()
        };
        let address = core::net::SocketAddr::from(([192, 0, 2, 1], 4420));
        let entry = Rc::new(DiscoveryLogEntry::tcp(SUBTYPE_NVM, &Nqn::from_uuid(&UUID), address));
        harness.facts.log = DiscoveryLog { genctr: 9, entries: vec![entry; 3] };
        let expected = expected_pages(kind, has_domain);
        for (number, (lid, len, head)) in expected.iter().enumerate() {
            let is_alike = |(_, other_len, other): &&Expected| {
                let common = head.len().min(other.len());
                len == other_len && head[..common] == other[..common]
            };
            assert_eq!(expected[..number].iter().find(is_alike), None, "{lid:?} tells nothing");
        }
        if kind == ControllerKind::Io {
            let sqe = Sqe::new(IoOpcode::READ.0, 1);
            harness.controller.record_error(3, &sqe, Status::INVALID_FIELD.with_dnr(), 7);
            harness.controller.on_namespace_changed();
            harness.controller.on_reservation(NoticeKind::ReservationReleased);
        }
        // Before anything is refused: the error log would tell of it.
        for (lid, len, head) in &expected {
            let bytes = harness.log(*lid, 0, *len as u64);
            assert_eq!(bytes[..head.len()], *head, "{kind:?} {lid:?}");
        }
        for (lid, len, _) in &expected {
            let behind = GetLogPage::new(*lid, NSID_ALL, *len as u64, 4).encode();
            // The discovery log may have shrunk since its header was read: zeroes follow it.
            let end = match *lid {
                Lid::DISCOVERY => AdminReply::Data { bytes: Vec::new(), zeroes: 4 },
                _ => AdminReply::Complete { status: Status::INVALID_FIELD.with_dnr(), result: 0 },
            };
            assert_eq!(harness.run_with(&behind, &[]), end, "{kind:?} {lid:?}");
        }
        let is_expected = |lid: Lid| expected.iter().any(|(expected, ..)| *expected == lid);
        for lid in (0..=u8::MAX).map(Lid).filter(|lid| !is_expected(*lid)) {
            let get = GetLogPage::new(lid, NSID_ALL, 0, 4).encode();
            assert_eq!(harness.value(&get), Err(Status::INVALID_LOG_PAGE), "{kind:?} {lid:?}");
        }
    }
}

#[test]
fn the_table_of_features_lists_those_that_can_be_read() {
    for has_cache in [false, true] {
        let mut harness = Harness::disabled(ControllerKind::Io, has_cache);
        harness.enable();
        let table = harness.log(Lid::FEATURE_EFFECTS, 0, 1024);
        for fid in 0..=u8::MAX {
            let get = GetFeatures {
                fid: Fid(fid),
                select: Select::SupportedCapabilities,
                parameter: 0,
                nsid: 0,
            };
            let is_supported = harness.value(&get.encode()).is_ok();
            let entry = &table[usize::from(fid) * 4..][..4];
            assert_eq!(entry, u32::from(is_supported).to_le_bytes(), "FID {fid:#x}");
        }
        assert_eq!(table[usize::from(Fid::VOLATILE_WRITE_CACHE.0) * 4], u8::from(has_cache));
    }
}

#[test]
fn a_discovery_log_has_its_entries_behind_the_header() {
    let mut harness = Harness::enabled(ControllerKind::Discovery);
    let entries: Vec<Rc<DiscoveryLogEntry>> = (0..3u16)
        .map(|n| {
            let address = core::net::SocketAddr::from(([192, 0, 2, 1], 4420 + n));
            Rc::new(DiscoveryLogEntry::tcp(SUBTYPE_NVM, &Nqn::from_uuid(&UUID), address))
        })
        .collect();
    harness.facts.log = DiscoveryLog { genctr: 9, entries: entries.clone() };
    let whole = harness.log(Lid::DISCOVERY, 0, 4096);
    for (record, entry) in whole[1024..].chunks(1024).zip(&entries) {
        assert_eq!(record, entry.as_bytes());
    }
}

#[test]
fn identify_answers_for_the_nvm_command_set_and_for_itself_alone() {
    let mut harness = Harness::io();
    for cns in [Cns::CSI_ACTIVE_NAMESPACES, Cns::CSI_NAMESPACE, Cns::CSI_CONTROLLER] {
        let zoned = Identify { csi: 2, ..Identify::new(cns, 1) };
        assert_eq!(harness.value(&zoned.encode()), Err(Status::INVALID_FIELD), "{cns:?}");
    }
    for cntid in [7, 0xFFFF] {
        let sets = Identify { cntid, ..Identify::new(Cns::COMMAND_SETS, 0) };
        let bytes = harness.data(&sets.encode());
        assert_eq!(bytes[0], 1, "the NVM command set alone");
        assert!(bytes[1..].iter().all(|byte| *byte == 0));
    }
    for cntid in [0, 6, 8] {
        let sets = Identify { cntid, ..Identify::new(Cns::COMMAND_SETS, 0) };
        assert_eq!(harness.value(&sets.encode()), Err(Status::INVALID_FIELD), "{cntid}");
    }
}

#[test]
fn identify_says_how_blocks_and_numbers_look() {
    let mut harness = Harness::io();
    let bytes = harness.identify(Cns::CONTROLLER, 0);
    let identify = IdentifyController::read_from_bytes(&bytes).expect("4096 bytes");
    assert_eq!(identify.ctratt.get(), 1 << 16 | 1);
    assert_eq!(usize::from(identify.aerl) + 1, AERS_MAX, "0's based");

    harness.facts.namespace.metadata = MetadataSize::ALL[1];
    let bytes = harness.identify(Cns::NAMESPACE, 1);
    let identify = IdentifyNamespace::read_from_bytes(&bytes).expect("4096 bytes");
    let format = &identify.lbaf[0];
    assert_eq!(usize::from(format.ms.get()), MetadataSize::ALL[1].bytes());
    assert_eq!((identify.flbas, identify.mc), (1 << 4, 1), "behind the data of each block");
    assert!(!MetadataSize::ALL[1].is_none());

    harness.facts.namespace.metadata = MetadataSize::default();
    let bytes = harness.identify(Cns::NAMESPACE, 1);
    let identify = IdentifyNamespace::read_from_bytes(&bytes).expect("4096 bytes");
    assert_eq!((identify.lbaf[0].ms.get(), identify.flbas, identify.mc), (0, 0, 0));
}

/// With logical blocks of 512 bytes all limits count these, and a host is told that whole blocks of 4096 are better.
#[test]
fn small_logical_blocks_come_with_the_granularity_of_blocks() {
    let mut harness = Harness::enabled(ControllerKind::Io);
    let bytes = harness.identify(Cns::NAMESPACE, 1);
    let identify = IdentifyNamespace::read_from_bytes(&bytes).expect("4096 bytes");
    assert_eq!((identify.nsfeat & NSFEAT_OPTIMAL_PERFORMANCE, identify.npwg.get()), (0, 0));

    harness.facts.namespace.sector = SectorSize::Bytes512;
    let bytes = harness.identify(Cns::NAMESPACE, 1);
    let identify = IdentifyNamespace::read_from_bytes(&bytes).expect("4096 bytes");
    assert_eq!(identify.block_bytes(), Some(512));
    assert_eq!(identify.nvmcap.get(), 512 * u128::from(identify.nsze.get()));
    assert_ne!(identify.nsfeat & NSFEAT_OPTIMAL_PERFORMANCE, 0);
    let granularities = [identify.npwg, identify.npwa, identify.npdg, identify.npda, identify.nows];
    assert_eq!(granularities.map(|each| each.get() + 1), [8; 5]);
}
