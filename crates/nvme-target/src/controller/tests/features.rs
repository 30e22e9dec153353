//! Get and Set Features.

use super::*;
use crate::io::NSID;

#[test]
fn features_have_current_default_and_saved_values() {
    let mut harness = Harness::io();
    for (fid, value) in [
        (Fid::ARBITRATION, 0x0102_0305),
        (Fid::TEMPERATURE_THRESHOLD, 350),
        (Fid::ERROR_RECOVERY, 10),
        (Fid::WRITE_ATOMICITY, 1),
        (Fid::ASYNC_EVENT_CONFIG, 0x11F),
        (Fid::KEEP_ALIVE_TIMER, 15_000),
    ] {
        let default = harness.get(fid, Select::Default);
        assert_eq!(harness.set(fid, value), Ok(0), "{fid:?}");
        assert_eq!(harness.get(fid, Select::Current), Ok(u64::from(value)), "{fid:?}");
        assert_eq!(harness.get(fid, Select::Default), default);
        assert_eq!(harness.get(fid, Select::Saved), default);
        let capabilities = if fid == Fid::ERROR_RECOVERY { 6 } else { 4 };
        assert_eq!(harness.get(fid, Select::SupportedCapabilities), Ok(capabilities));
        let save = SetFeatures { fid, save: true, value, nsid: 0 }.encode();
        assert_eq!(harness.value(&save), Err(Status::FEATURE_NOT_SAVEABLE));
        assert_eq!(harness.get(fid, Select::Reserved), Err(Status::INVALID_FIELD));
    }
}

#[test]
fn features_refuse_what_they_cannot_be() {
    let mut harness = Harness::io();
    let invalid = Err(Status::INVALID_FIELD);
    assert_eq!(harness.set(Fid::POWER_MANAGEMENT, 0), Ok(0));
    for (fid, value) in [
        (Fid::POWER_MANAGEMENT, 1),
        (Fid::POWER_MANAGEMENT, 1 << 8),
        (Fid::ARBITRATION, 1 << 3),
        (Fid::TEMPERATURE_THRESHOLD, 1 << 16 | 350),
        (Fid::TEMPERATURE_THRESHOLD, 1 << 31 | 350),
        (Fid::ERROR_RECOVERY, 1 << 16),
        (Fid::ERROR_RECOVERY, 1 << 17),
        (Fid::WRITE_ATOMICITY, 2),
        (Fid::NUMBER_OF_QUEUES, 0xFFFF),
        (Fid::ASYNC_EVENT_CONFIG, 1 << 11),
        (Fid::VOLATILE_WRITE_CACHE, 1),
        (Fid::INTERRUPT_COALESCING, 0),
        (Fid::LBA_RANGE_TYPE, 0),
        (Fid(0xC0), 0),
    ] {
        assert_eq!(harness.set(fid, value), invalid, "{fid:?}");
    }
    assert_eq!(harness.get(Fid::VOLATILE_WRITE_CACHE, Select::Current), invalid, "there is none");
    for bit in 8..31 {
        let mut set =
            SetFeatures { fid: Fid::ERROR_RECOVERY, save: false, value: 0, nsid: 0 }.encode();
        set.cdw10 = (set.cdw10.get() | 1 << bit).into();
        assert_eq!(harness.value(&set), invalid, "Set Features, bit {bit} of dword 10");
    }
    for bit in 11..32 {
        let select = Select::Current;
        let get = GetFeatures { fid: Fid::ERROR_RECOVERY, select, parameter: 0, nsid: 0 };
        let mut get = get.encode();
        get.cdw10 = (get.cdw10.get() | 1 << bit).into();
        assert_eq!(harness.value(&get), invalid, "Get Features, bit {bit} of dword 10");
    }
    let set = |fid, nsid| SetFeatures { fid, save: false, value: 0, nsid }.encode();
    let not_specific = Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC);
    assert_eq!(harness.value(&set(Fid::ARBITRATION, 1)), not_specific);
    assert_eq!(harness.value(&set(Fid::ERROR_RECOVERY, 1)), Ok(0));
    let unknown = Err(Status::INVALID_NAMESPACE_OR_FORMAT);
    assert_eq!(harness.value(&set(Fid::ERROR_RECOVERY, 2)), unknown);
    let sequence = Err(Status::COMMAND_SEQUENCE_ERROR);
    assert_eq!(harness.set(Fid::HOST_IDENTIFIER, 1), sequence, "Connect has set it");
}

/// The composite temperature sensor is the only one, so that all sensors are that one. Method: all 16 values of
/// TMPSEL, for either threshold.
#[test]
fn a_threshold_for_all_temperature_sensors_is_the_composite_ones() {
    let mut harness = Harness::io();
    for (threshold, default) in [(0, 0xFFFF), (1 << 20, 0)] {
        let get = |harness: &mut Harness, sensor: u32| {
            let (fid, select) = (Fid::TEMPERATURE_THRESHOLD, Select::Current);
            let parameter = threshold | sensor << 16;
            harness.value(&GetFeatures { fid, select, parameter, nsid: 0 }.encode())
        };
        assert_eq!(get(&mut harness, 0), Ok(default));
        for sensor in 0..16 {
            let kelvins = 300 + sensor;
            let set = harness.set(Fid::TEMPERATURE_THRESHOLD, threshold | sensor << 16 | kelvins);
            let is_there = matches!(sensor, 0 | 15);
            assert_eq!(set.is_ok(), is_there, "sensor {sensor}");
            let read = get(&mut harness, sensor);
            assert_eq!(read.is_ok(), sensor == 0, "Get Features knows no all, {sensor}");
        }
        assert_eq!(get(&mut harness, 0), Ok(315), "the last one set");
    }
}

#[test]
fn the_write_cache_can_be_switched_off() {
    let mut harness = Harness::disabled(ControllerKind::Io, true);
    harness.enable();
    assert!(harness.controller.write_cache_enabled());
    assert_eq!(harness.set(Fid::VOLATILE_WRITE_CACHE, 0), Ok(0));
    assert!(!harness.controller.write_cache_enabled());
}

#[test]
fn queues_are_allocated_up_to_the_limit_and_before_the_first() {
    let mut harness = Harness::io();
    let queues = |count| NumberOfQueues { submission: count, completion: count }.encode();
    assert_eq!(harness.set(Fid::NUMBER_OF_QUEUES, queues(4)), Ok(u64::from(queues(4))));
    assert_eq!(harness.set(Fid::NUMBER_OF_QUEUES, queues(1000)), Ok(u64::from(queues(128))));
    harness.controller.connect_io(&request(ControllerKind::Io, 1, 0)).expect("free");
    let late = harness.set(Fid::NUMBER_OF_QUEUES, queues(4));
    assert_eq!(late, Err(Status::COMMAND_SEQUENCE_ERROR));
}

#[test]
fn features_with_data_move_it_both_ways() {
    let mut harness = Harness::io();
    let mut behavior = [7; 512];
    behavior[..6].copy_from_slice(&[1, 1, 1, 1, 0, 0]);
    let set = SetFeatures { fid: Fid::HOST_BEHAVIOR, save: false, value: 0, nsid: 0 }.encode();
    assert_eq!(harness.run_with(&set, &behavior), AdminReply::success(0));
    assert_eq!(harness.value(&set), Err(Status::DATA_SGL_LENGTH_INVALID));
    for place in 0..6 {
        let mut reserved = behavior;
        reserved[place] = 2;
        let invalid = AdminReply::Complete { status: Status::INVALID_FIELD.with_dnr(), result: 0 };
        assert_eq!(harness.run_with(&set, &reserved), invalid, "byte {place}");
    }
    let mut get =
        GetFeatures { fid: Fid::HOST_BEHAVIOR, select: Select::Current, parameter: 0, nsid: 0 }
            .encode();
    assert_eq!(harness.value(&get), Err(Status::DATA_SGL_LENGTH_INVALID));
    get.dptr = SglDescriptor::transport(512);
    assert_eq!(harness.data(&get), behavior);
    let mut identifier =
        GetFeatures { fid: Fid::HOST_IDENTIFIER, select: Select::Current, parameter: 1, nsid: 0 }
            .encode();
    identifier.dptr = SglDescriptor::transport(16);
    assert_eq!(harness.data(&identifier), [3; 16]);
    identifier.cdw11 = 0.into();
    assert_eq!(harness.value(&identifier), Err(Status::INVALID_FIELD), "64-bit form");
}

/// A reset of the controller brings all features but the keep alive timer back to their defaults.
#[test]
fn a_reset_brings_back_the_defaults() {
    let mut harness = Harness::disabled(ControllerKind::Io, true);
    harness.enable();
    let of = |harness: &mut Harness, select| {
        [Fid::ARBITRATION, Fid::ERROR_RECOVERY, Fid::VOLATILE_WRITE_CACHE, Fid::WRITE_ATOMICITY]
            .map(|fid| harness.get(fid, select).expect("a feature"))
    };
    let before = of(&mut harness, Select::Current);
    assert_eq!(before, of(&mut harness, Select::Default));
    assert_eq!(harness.set(Fid::ARBITRATION, 3), Ok(0));
    assert_eq!(harness.set(Fid::VOLATILE_WRITE_CACHE, 0), Ok(0));
    assert_eq!(harness.set(Fid::KEEP_ALIVE_TIMER, 7000), Ok(0));
    assert_ne!(of(&mut harness, Select::Current), before);
    assert_eq!(harness.set_cc(Cc(0)), Ok(0));
    harness.enable();
    assert_eq!(of(&mut harness, Select::Current), before);
    assert_eq!(harness.get(Fid::KEEP_ALIVE_TIMER, Select::Current), Ok(7000));
}

#[test]
fn the_write_cache_is_on_or_off_and_queues_have_a_number() {
    let mut harness = Harness::disabled(ControllerKind::Io, true);
    harness.enable();
    assert_eq!(harness.get(Fid::VOLATILE_WRITE_CACHE, Select::Current), Ok(1));
    assert_eq!(harness.set(Fid::VOLATILE_WRITE_CACHE, 2), Err(Status::INVALID_FIELD));
    assert_eq!(harness.set(Fid::VOLATILE_WRITE_CACHE, 0), Ok(0));
    assert_eq!(harness.get(Fid::VOLATILE_WRITE_CACHE, Select::Current), Ok(0));
    let most = u64::from(Limits::default().io_queues_max - 1);
    assert_eq!(harness.get(Fid::NUMBER_OF_QUEUES, Select::Current), Ok(most << 16 | most));
    assert_eq!(harness.set(Fid::NUMBER_OF_QUEUES, 1 << 16 | 2), Ok(1 << 16 | 2));
    assert_eq!(harness.get(Fid::NUMBER_OF_QUEUES, Select::Current), Ok(1 << 16 | 2));
}

#[test]
fn the_host_identifier_may_be_asked_for_with_more_room_than_it_takes() {
    let mut harness = Harness::io();
    for (len, fits) in [(0, false), (15, false), (16, true), (4096, true)] {
        let get = GetFeatures {
            fid: Fid::HOST_IDENTIFIER,
            select: Select::Current,
            parameter: 1,
            nsid: 0,
        };
        let sqe = Sqe { dptr: SglDescriptor::transport(len), ..get.encode() };
        let expected = if fits {
            AdminReply::data([3; 16])
        } else {
            let status = Status::DATA_SGL_LENGTH_INVALID.with_dnr();
            AdminReply::Complete { status, result: 0 }
        };
        assert_eq!(harness.run_with(&sqe, &[]), expected, "{len} bytes");
    }
}

/// Controller Ready With Media Timeout, in units of 500 ms.
#[test]
fn the_time_until_it_is_ready_is_a_property() {
    let mut harness = Harness::io();
    let get = Property::get(offset::CRTO, PropertySize::Four);
    assert_eq!(harness.value(&Sqe::from(get)), Ok(60));
}

/// Get Features and Set Features of the namespace.
fn of_namespace(harness: &mut Harness, fid: Fid, nsid: u32) -> Result<u64, Status> {
    harness.value(&GetFeatures { fid, select: Select::Current, parameter: 0, nsid }.encode())
}

#[test]
fn the_mask_of_reservation_notifications_is_kept() {
    let mut harness = Harness::io();
    let fid = Fid::RESERVATION_MASK;
    for bit in 0..32 {
        let outcome = if (1..=3).contains(&bit) { Ok(0) } else { Err(Status::INVALID_FIELD) };
        assert_eq!(harness.set(fid, 1 << bit), outcome, "{bit}");
    }
    let set = SetFeatures { fid, save: false, value: 0b0110, nsid: NSID }.encode();
    assert_eq!(harness.value(&set), Ok(0));
    assert_eq!(of_namespace(&mut harness, fid, NSID), Ok(0b0110));
    for nsid in [0, NSID_ALL] {
        let refused = Err(Status::INVALID_NAMESPACE_OR_FORMAT);
        assert_eq!(of_namespace(&mut harness, fid, nsid), refused, "{nsid}");
    }
    assert_eq!(harness.get(fid, Select::SupportedCapabilities), Ok(6));
}

/// A backend whose reservations outlive a restart.
struct Persistent;

impl Backend for Persistent {
    fn reservations_persist(&self) -> bool {
        true
    }
}

#[test]
fn persistence_of_reservations_is_that_of_the_backend() {
    let mut harness = Harness::io();
    let fid = Fid::RESERVATION_PERSISTENCE;
    assert_eq!(of_namespace(&mut harness, fid, NSID), Ok(0));
    let get = GetFeatures { fid, select: Select::Current, parameter: 0, nsid: NSID }.encode();
    let reply = harness.controller.on_admin(NOW, SlotId(0), &get, &[], &Persistent);
    assert_eq!(reply, AdminReply::success(1));
    let set = |value, nsid| SetFeatures { fid, save: false, value, nsid }.encode();
    for (value, persists) in [(0, false), (1, true)] {
        assert_eq!(harness.run_with(&set(value, NSID), &[]), AdminReply::Persist(persists));
    }
    for bit in 1..32 {
        assert_eq!(harness.value(&set(1 << bit, NSID)), Err(Status::INVALID_FIELD), "{bit}");
    }
    let of_no_namespace = Err(Status::INVALID_NAMESPACE_OR_FORMAT);
    assert_eq!(harness.value(&set(1, 0)), of_no_namespace);
    assert_eq!(of_namespace(&mut harness, fid, 0), of_no_namespace);
    assert_eq!(harness.get(fid, Select::SupportedCapabilities), Ok(6));
}
