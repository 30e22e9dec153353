//! Admin commands and the life of an association, through every layer.

use client::{Options, Reconnect, Swap, Volume};
use dataplane::CoreOptions;
use io_traits::{Clock, Spawn, Stream};
use nvme_frontend::{NvmeOptions, nqn_of};
use nvme_wire::async_event::AsyncEvent;
use nvme_wire::fabrics::{Property, PropertySize};
use nvme_wire::feature::{Fid, GetFeatures, Select, SetFeatures};
use nvme_wire::io::{Abort, DatasetManagement, DsmRange};
use nvme_wire::log::{
    CRITICAL_READ_ONLY, DeviceHealth, ErrorLogEntry, FailureDomain, GetLogPage, Lid,
};
use nvme_wire::sqe::NSID_ALL;
use nvme_wire::{AdminOpcode, Cqe, SglDescriptor, Sqe, Status, property};
use sim::{DeviceFaults, SimWorld};
use units::{DeviceIndex, Duration, Lba, LbaRange};
use zerocopy::{FromBytes, IntoBytes};

use crate::support::raw_host::{self, RawHost, capsule};
use crate::support::{
    VOLUME, connect, data, host, portal, serve_new, serve_slowly, simulate, sleep,
};

const BLOCKS: u64 = 16_384;
const C2H_DATA: u8 = 7;

fn log_page(lid: Lid, offset: u64, len_bytes: u64) -> Sqe {
    GetLogPage::new(lid, NSID_ALL, offset, len_bytes).encode()
}

/// 64 KiB of small commands that ask for 1 MiB each: what is sent counts, and is zeroes behind the
/// page.
#[test]
fn padded_log_pages_stay_within_the_budget() {
    simulate(1, |world| async move {
        let options = NvmeOptions {
            core: CoreOptions { memory_bytes: 32 << 20, ..CoreOptions::default() },
            ..NvmeOptions::new(portal())
        };
        let core = serve_slowly(&world, BLOCKS, options).await;
        let (io, mut admin) = RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("connected");
        let command = |cid| capsule(cid, log_page(Lid::HEALTH, 0, 1 << 20), &[]);
        let batch: Vec<u8> = (100..130).flat_map(command).collect();
        admin.send(&batch).await.expect("taken in");
        sleep(&world, Duration::from_millis(50)).await;
        let used = core.stats().memory_used_bytes;
        assert!((2 << 20..8 << 20).contains(&used), "{used} bytes are counted");
        for _ in 0..30 {
            let header = admin.receive(24).await.expect("data");
            assert_eq!(header[0], C2H_DATA);
            let page = admin.receive(1 << 20).await.expect("data");
            assert!(page[512..].iter().all(|byte| *byte == 0));
            admin.receive(24).await.expect("a completion");
        }
        assert_eq!(core.stats().memory_used_bytes, 0);
        io.stream.shutdown();
    });
}

/// The reads of nvme-cli: whole pages of 4096 bytes, and pieces at an offset.
#[test]
fn log_pages_are_read_whole_and_in_pieces() {
    simulate(2, |world| async move {
        let _server = serve_new(world.clone(), BLOCKS).await;
        let client = connect(world, host()).await.client();
        let whole = client.log_page(Lid::COMMAND_EFFECTS, 0, 4096).await.expect("read");
        assert_eq!((whole.len(), whole[0x0C * 4]), (4096, 1));
        let health = client.log_page(Lid::HEALTH, NSID_ALL, 512).await.expect("read");
        assert_eq!((health.len(), health[0], health[3] > 90), (512, 0, true));
    });
}

#[test]
fn the_completion_of_an_aborted_command_comes_before_that_of_the_abort() {
    simulate(3, |world| async move {
        let _server = serve_new(world.clone(), BLOCKS).await;
        let (_io, mut admin) = RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("connected");
        let request = Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, 0);
        admin.send(&capsule(0x70, request, &[])).await.expect("sent");
        let abort = Abort { sqid: 0, cid: 0x70 }.encode();
        admin.send(&capsule(0x71, abort, &[])).await.expect("sent");
        let mut cids = Vec::new();
        for _ in 0..2 {
            let pdu = admin.receive(24).await.expect("a completion");
            cids.push(Cqe::read_from_bytes(&pdu[8..]).expect("16 bytes").cid.get());
        }
        assert_eq!(cids, [0x70, 0x71]);
    });
}

/// A host that resets its controller and reconnects at once is let in at once, and its new queue is not taken
/// from it when the old connection's end is noticed.
#[test]
fn queues_can_be_connected_right_after_a_reset() {
    simulate(4, |world| async move {
        let (core, _) = serve_new(world.clone(), BLOCKS).await;
        let (mut io, mut admin) =
            RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("connected");
        io.send(&capsule(1, raw_host::write_command(0, 256), &[])).await.expect("taken in");
        let mut next = RawHost::greet(&world).await.expect("greeted");
        admin.command(raw_host::disable_command(), &[]).await.expect("reset");
        admin.command(raw_host::enable_command(), &[]).await.expect("enabled");
        let (sqe, connect_data) = raw_host::connect_command(1, 1, &nqn_of(VOLUME));
        let reply = next.command(sqe, &connect_data).await.expect("answered");
        assert!(reply.status().is_success(), "{}", reply.status());
        sleep(&world, Duration::from_secs(3)).await;
        let mut third = RawHost::greet(&world).await.expect("greeted");
        let reply = third.command(sqe, &connect_data).await.expect("answered");
        assert_eq!(reply.status().code(), Status::COMMAND_SEQUENCE_ERROR, "it is in use");
        drop(third);
        assert_eq!(core.stats().memory_used_bytes, 0);
    });
}

/// A Deallocate of ranges that cannot go together goes no further when its queue is gone.
#[test]
fn a_deallocation_ends_with_its_queue() {
    simulate(5, |world| async move {
        let core = serve_slowly(&world, BLOCKS, NvmeOptions::new(portal())).await;
        let volume = connect(world.clone(), host()).await;
        volume.write(Lba(0), data(1, 256)).await.expect("written");
        let (mut io, admin) = RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("connected");
        // The last overlaps the first, so that they go one by one.
        let ranges: Vec<DsmRange> = (0..128).map(|n| DsmRange::new(2 * (n % 127), 1)).collect();
        let bytes = ranges.as_bytes();
        let mut sqe = DatasetManagement::deallocate(1, 128);
        sqe.dptr = SglDescriptor::in_capsule(bytes.len() as u32);
        io.send(&capsule(1, sqe, bytes)).await.expect("taken in");
        while core.volumes()[0].mapped_blocks == 256 {
            sleep(&world, Duration::from_millis(1)).await;
        }
        io.stream.shutdown();
        sleep(&world, Duration::from_millis(100)).await;
        let mapped = core.volumes()[0].mapped_blocks;
        sleep(&world, Duration::from_secs(30)).await;
        assert_eq!(core.volumes()[0].mapped_blocks, mapped, "nothing happens any more");
        assert!(mapped > 128, "{mapped} of 256 are left");
        drop(admin);
    });
}

#[test]
fn a_volume_that_takes_no_changes_says_so() {
    simulate(6, |world| async move {
        let (core, device) = serve_new(world.clone(), BLOCKS).await;
        let options = Options { reconnect: Reconnect::Never, ..host() };
        let volume = connect(world.clone(), options).await;
        let client = volume.client();
        volume.write(Lba(0), data(1, 8)).await.expect("written");
        assert_eq!(volume.failure_domain().await.expect("read"), None, "it was never set");
        let domain = FailureDomain { health: DeviceHealth::Good, ..FailureDomain::default() };
        core.place_device(
            DeviceIndex(0),
            FailureDomain { host: "flash-1".into(), ..domain.clone() },
        );
        let said = volume.failure_domain().await.expect("read").expect("said");
        assert_eq!((said.host.as_str(), said.health), ("flash-1", DeviceHealth::Good));
        assert_eq!(client.smart_health().await.expect("read").critical_warning, 0);
        device.set_faults(DeviceFaults { write_error_one_in: 1, ..DeviceFaults::default() });
        for _ in 0..20 {
            let _ = volume.write(Lba(0), data(2, 8)).await;
        }
        let health = client.smart_health().await.expect("read");
        assert_eq!(health.critical_warning & CRITICAL_READ_ONLY, CRITICAL_READ_ONLY);
        assert!(health.available_spare > 50 && world.now().0 > 0);
        let said = volume.failure_domain().await.expect("read").expect("said");
        assert_eq!(said.health, DeviceHealth::Failed);
    });
}

/// A host that asked for it hears once of a volume that takes no changes any more. Method: the disk fails all
/// writes, and another host writes.
#[test]
fn a_critical_warning_is_told_to_hosts_that_want_to_hear_of_it() {
    simulate(9, |world| async move {
        let (_core, device) = serve_new(world.clone(), BLOCKS).await;
        let options = Options { reconnect: Reconnect::Never, ..host() };
        let volume = connect(world.clone(), options).await;
        let (_io, mut admin) = RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("connected");
        let config = SetFeatures {
            fid: Fid::ASYNC_EVENT_CONFIG,
            save: false,
            value: CRITICAL_READ_ONLY.into(),
            nsid: 0,
        };
        let reply = admin.command(config.encode(), &[]).await.expect("answered");
        assert!(reply.status().is_success(), "{}", reply.status());
        for cid in [0x70, 0x71] {
            let request = Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, 0);
            admin.send(&capsule(cid, request, &[])).await.expect("sent");
        }
        device.set_faults(DeviceFaults { write_error_one_in: 1, ..DeviceFaults::default() });
        while volume.write(Lba(0), data(1, 1)).await.is_ok() {}
        let event = admin.receive(24).await.expect("an event");
        let event = Cqe::read_from_bytes(&event[8..]).expect("16 bytes");
        assert_eq!((event.cid.get(), event.status()), (0x70, Status::SUCCESS));
        let told = AsyncEvent::decode(event.result.get() as u32);
        assert_eq!((told, told.lid), (AsyncEvent::RELIABILITY, Lid::HEALTH));
        sleep(&world, Duration::from_secs(1)).await;
        // No second one: the next answer is that of the log.
        let read = capsule(0x72, log_page(Lid::HEALTH, 0, 512), &[]);
        admin.send(&read).await.expect("sent");
        let page = admin.receive(24 + 512).await.expect("data");
        assert_eq!((page[0], page[24] & CRITICAL_READ_ONLY), (C2H_DATA, CRITICAL_READ_ONLY));
        let done = admin.receive(24).await.expect("a completion");
        assert_eq!(Cqe::read_from_bytes(&done[8..]).expect("16 bytes").cid.get(), 0x72);
    });
}

/// Method: a read hangs for a while, with another beside it.
#[test]
fn a_volume_is_busy_while_a_command_is_under_way() {
    simulate(10, |world| async move {
        let (_core, device) = serve_new(world.clone(), BLOCKS).await;
        let options = Options { command_timeout: Duration::from_secs(600), ..host() };
        let volume = connect(world.clone(), options).await;
        volume.write(Lba(0), data(1, 8)).await.expect("written");
        sleep(&world, Duration::from_secs(300)).await;
        let busy = async |volume: &Volume<SimWorld>| {
            volume.client().smart_health().await.expect("read").busy_minutes.get()
        };
        assert_eq!(busy(&volume).await, 0);
        device.set_faults(DeviceFaults { stuck_one_in: 1, ..DeviceFaults::default() });
        for block in 0..2 {
            let volume = volume.clone();
            world.spawn(async move { drop(volume.read(Lba(block), 1).await) });
        }
        sleep(&world, Duration::from_secs(150)).await;
        assert_eq!(busy(&volume).await, 2);
        device.set_faults(DeviceFaults::default());
        device.release_stuck();
        sleep(&world, Duration::from_secs(300)).await;
        let health = volume.client().smart_health().await.expect("read");
        assert_eq!((health.busy_minutes.get(), health.power_cycles.get()), (2, 1));
    });
}

/// Data Units Read are those of Read, Compare and Verify, Host Read Commands the first two of these; of Data Units Written and
/// Host Write Commands there is Write alone (NVM, clause 1.4.2). A comparison has read its blocks whatever it found.
///
/// Method: each command once, with 125 blocks, which are a data unit of 1000 × 512 bytes.
#[test]
fn smart_figures_count_the_commands_that_the_specification_names() {
    const UNIT: u32 = 125;
    simulate(11, |world| async move {
        let _server = serve_new(world.clone(), BLOCKS).await;
        let volume = connect(world.clone(), host()).await;
        let client = volume.client();
        let figures = async || {
            let health = client.smart_health().await.expect("read");
            let units = [health.data_units_read, health.data_units_written];
            (units.map(|it| it.get()), [health.host_reads, health.host_writes].map(|it| it.get()))
        };
        assert_eq!(figures().await, ([0, 0], [0, 0]));
        let (range, unit) = (LbaRange::new(Lba(0), UNIT.into()), data(1, UNIT as usize));
        volume.write(Lba(0), unit.clone()).await.expect("written");
        assert_eq!(figures().await, ([0, 1], [0, 1]));
        volume.read(Lba(0), UNIT).await.expect("read");
        assert_eq!(figures().await, ([1, 1], [1, 1]));
        for (expected, is_equal) in [(1, true), (2, false)] {
            let expected = data(expected, UNIT as usize);
            assert_eq!(volume.compare(Lba(0), expected).await, Ok(is_equal));
        }
        assert_eq!(figures().await, ([3, 1], [3, 1]));
        volume.verify(range).await.expect("verified");
        assert_eq!(figures().await, ([4, 1], [3, 1]));
        let swapped = volume.compare_and_swap(Lba(0), &unit, &data(2, UNIT as usize)).await;
        assert_eq!((swapped, figures().await), (Ok(Swap::Done), ([5, 2], [4, 2])));
        let swapped = volume.compare_and_swap(Lba(0), &unit, &data(3, UNIT as usize)).await;
        assert!(matches!(swapped, Ok(Swap::Differs { .. })), "{swapped:?}");
        assert_eq!(figures().await, ([6, 2], [5, 2]));
        // What moves no data of the tenant's, and what is refused.
        volume.flush().await.expect("flushed");
        volume.write_zeroes(range).await.expect("zeroed");
        volume.deallocate(&[range]).await.expect("deallocated");
        volume.read(Lba(BLOCKS), UNIT).await.expect_err("beyond the end");
        assert_eq!(figures().await, ([6, 2], [5, 2]));
    });
}

/// A read that the device fails: a media error that a host may try again, with an entry in the error log. Method:
/// the disk fails all reads for a while.
#[test]
fn a_failed_read_is_a_media_error_and_in_the_error_log() {
    simulate(8, |world| async move {
        let (_core, device) = serve_new(world.clone(), BLOCKS).await;
        let volume = connect(world, host()).await;
        let client = volume.client();
        volume.write(Lba(0), data(1, 8)).await.expect("written");
        device.set_faults(DeviceFaults { read_error_one_in: 1, ..DeviceFaults::default() });
        let error = volume.read(Lba(3), 2).await.expect_err("failed");
        let client::Error::Target { status, .. } = error else { panic!("{error}") };
        assert_eq!(status.code(), Status::UNRECOVERED_READ_ERROR, "{status}");
        assert!(!status.dnr() && status.more(), "{status}");
        device.set_faults(DeviceFaults::default());
        let log = client.log_page(Lid::ERROR, NSID_ALL, 64).await.expect("read");
        let entry = ErrorLogEntry::read_from_bytes(&log).expect("64 bytes");
        assert_eq!((entry.error_count.get(), entry.lba.get()), (1, 3));
        assert_eq!((entry.status.get(), entry.nsid.get()), (status.to_field(), 1));
        assert_ne!(entry.sqid.get(), 0);
        let health = client.smart_health().await.expect("read");
        assert_eq!((health.media_errors.get(), health.error_log_entries.get()), (1, 1));
        volume.read(Lba(3), 2).await.expect("the device works again");
    });
}

/// A host of the discovery service that asks for no keep alive timer gets one.
#[test]
fn a_forgotten_discovery_connection_ends() {
    simulate(7, |world| async move {
        let (core, _) = serve_new(world.clone(), BLOCKS).await;
        let mut admin = RawHost::greet(&world).await.expect("greeted");
        let (sqe, connect_data) = raw_host::connect_command(0, 0xFFFF, &nvme_wire::Nqn::DISCOVERY);
        let reply = admin.command(sqe, &connect_data).await.expect("answered");
        assert!(reply.status().is_success());
        sleep(&world, Duration::from_secs(110)).await;
        assert_eq!(core.stats().connections, 1);
        sleep(&world, Duration::from_secs(15)).await;
        assert_eq!(core.stats().connections, 0);
    });
}

/// One that asks for no timer and asks something now and then stays, whatever it asks.
#[test]
fn a_discovery_connection_without_a_timer_stays_while_its_host_asks() {
    simulate(7, |world| async move {
        let (core, _) = serve_new(world.clone(), BLOCKS).await;
        let mut admin = RawHost::greet(&world).await.expect("greeted");
        let (sqe, connect_data) = raw_host::connect_command(0, 0xFFFF, &nvme_wire::Nqn::DISCOVERY);
        assert!(admin.command(sqe, &connect_data).await.expect("answered").status().is_success());
        admin.command(raw_host::enable_command(), &[]).await.expect("enabled");
        let property = Property::get(property::offset::CSTS, PropertySize::Four);
        let feature = GetFeatures {
            fid: Fid::ASYNC_EVENT_CONFIG,
            select: Select::Current,
            parameter: 0,
            nsid: 0,
        };
        for ask in [Sqe::from(property), feature.encode()].into_iter().cycle().take(10) {
            sleep(&world, Duration::from_secs(100)).await;
            let answer = admin.command(ask, &[]).await.expect("it is there");
            assert!(answer.status().is_success(), "{}", answer.status());
        }
        sleep(&world, Duration::from_secs(125)).await;
        assert_eq!(core.stats().connections, 0, "silent");
    });
}
