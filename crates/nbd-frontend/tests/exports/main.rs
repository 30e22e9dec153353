//! A core behind the NBD front end, in a simulated world.

mod awaiting;
mod hostile;
mod paces;

use std::future::Future;
use std::rc::Rc;

use access::{Access, NbdAccess};
use dataplane::{Core, CoreOptions, Loss};
use io_traits::{Network, Spawn};
use nbd_frontend::{ExportPlace, ExportRecord, NbdFrontend, NbdOptions, Way};
use nbd_wire::{Command, CommandFlags, Errno, HeaderStyle, OptionCode, OptionReplyKind};
use sim::{SimDevice, SimWorld, Simulation};
use units::{BLOCK_SIZE, MetadataSize, ShardIndex};
use uuid::Uuid;
use volume::{FormatOptions, Terms, VolumeSpec};

use test_hosts::cores::{SimCore, only_shard};
use test_hosts::nbd as client;

use client::{Client, place, unix_place};

const VOLUME: Uuid = Uuid::from_bytes(*b"a volume of test");
const DEVICE_BLOCKS: u64 = 65_536;
const BLOCKS: u64 = 4096;
const SIZE: u64 = BLOCKS * BLOCK_SIZE as u64;
const NONE: CommandFlags = CommandFlags(0);

/// An access list that names these networks of clients.
fn open_to(networks: &[&str]) -> Access {
    let networks = networks.iter().map(|text| text.parse().expect("a network")).collect();
    let nbd = NbdAccess { networks, ..NbdAccess::default() };
    Access { nbd, ..Access::default() }
}

async fn formatted(world: &SimWorld) -> SimDevice {
    let device = SimDevice::new(world, DEVICE_BLOCKS);
    let options = FormatOptions { uuid: Uuid::from_u128(1) };
    volume::format(&device, &options).await.expect("a sound disk");
    device
}

/// A core that serves what is on `device`, and has the volumes of it announced as they are.
async fn serve_device(world: &SimWorld, device: SimDevice) -> (SimCore, NbdFrontend) {
    serve_device_with(world, device, CoreOptions::default()).await
}

async fn serve_device_with(
    world: &SimWorld,
    device: SimDevice,
    options: CoreOptions,
) -> (SimCore, NbdFrontend) {
    let shard = only_shard(device).await;
    let core = Core::new(world, options);
    let frontend = NbdFrontend::before(&core, NbdOptions::default());
    core.attach(shard);
    for (place, way) in [(place(), Way::Network), (unix_place(), Way::Unix)] {
        let (serving, at) = (core.clone(), frontend.at(way));
        let listener = world.listen(place).expect("a free address");
        world.spawn(async move { serving.serve(&*at, listener).await });
    }
    announce(&core, &frontend);
    (core, frontend)
}

fn announce(core: &SimCore, frontend: &NbdFrontend) {
    for status in core.volumes() {
        let access = status.access.expect("readable");
        let (uuid, name, place) = (status.uuid, status.name, ExportPlace::Here);
        frontend.announce(ExportRecord { uuid, name, place, access });
    }
}

async fn create(core: &SimCore, uuid: Uuid, name: &str, access: &Access, metadata: MetadataSize) {
    let spec = VolumeSpec { uuid, name: name.into(), blocks: BLOCKS };
    let access = access.encode().expect("short");
    let terms = Terms { access, metadata, ..Terms::default() };
    core.create_volume(ShardIndex(0), spec, terms).await.expect("room for a volume");
}

/// A core with the volume `db`, under `access`.
async fn serve(world: &SimWorld, access: &Access) -> (SimCore, NbdFrontend) {
    serve_with(world, access, CoreOptions::default()).await
}

async fn serve_with(
    world: &SimWorld,
    access: &Access,
    options: CoreOptions,
) -> (SimCore, NbdFrontend) {
    let device = formatted(world).await;
    let (core, frontend) = serve_device_with(world, device, options).await;
    create(&core, VOLUME, "db", access, MetadataSize::None).await;
    announce(&core, &frontend);
    (core, frontend)
}

fn simulate<F: Future<Output = ()> + 'static>(scenario: impl Fn(SimWorld) -> F) {
    for seed in 0..4 {
        let simulation = Rc::new(Simulation::new(seed));
        let scenario = scenario(simulation.world());
        simulation.run(scenario).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled:?}"));
    }
}

/// Bytes that tell where they belong.
fn pattern(len: usize, tag: u8) -> Vec<u8> {
    (0..len).map(|n| (n / 7) as u8 ^ tag).collect()
}

#[test]
fn requests_of_every_kind_are_carried_out_and_answered() {
    simulate(async |world| {
        let (core, _) = serve(&world, &open_to(&["0.0.0.0/0"])).await;
        for (structured, style) in [
            (false, HeaderStyle::Compact),
            (true, HeaderStyle::Compact),
            (true, HeaderStyle::Extended),
        ] {
            let mut client = Client::connect(&world, place()).await;
            client.is_structured = structured;
            if style == HeaderStyle::Extended {
                assert_eq!(client.option(OptionCode::EXTENDED_HEADERS, b"").await, []);
            } else if structured {
                assert_eq!(client.option(OptionCode::STRUCTURED_REPLY, b"").await, []);
            }
            if structured {
                client.choose_context("db").await;
            }
            assert_eq!(client.go("db").await, Ok(SIZE));
            client.style = style;
            every_command(&mut client, structured).await;
            let done = client.request((Command::DISCONNECT, NONE), 0, 0, &[]).await;
            assert_eq!(client.answer(0).await, None, "{done} has no answer");
        }
        assert_eq!(core.stats().memory_used_bytes, 0, "all that was charged is given back");
    });
}

async fn every_command(client: &mut Client, structured: bool) {
    let bytes = pattern(20_000, 1);
    assert_eq!(client.write(4000, &bytes).await, 0);
    assert_eq!(client.read(4000, bytes.len()).await, bytes);
    assert_eq!(client.read(4001, 5).await, bytes[1..6]);
    assert_eq!(client.read(0, 0).await, [0; 0]);
    assert_eq!(client.write(0, b"").await, 0);
    let fua = CommandFlags::FUA;
    for (command, flags, offset, len_bytes) in [
        (Command::FLUSH, fua, 0, 0),
        (Command::CACHE, NONE, 1, 9000),
        (Command::WRITE_ZEROES, fua.with(CommandFlags::FAST_ZERO), 5000, 9000),
        (Command::WRITE_ZEROES, CommandFlags::NO_HOLE, 3 << 20, 2_000_001),
        (Command::TRIM, fua, 14_500, 5000),
    ] {
        let answer = client.ask(command, flags, offset, len_bytes).await.expect("an answer");
        assert_eq!(answer.error, 0, "{command:?}");
    }
    let mut expected = bytes.clone();
    expected[1000..10_000].fill(0);
    let found = client.read(4000, bytes.len()).await;
    // Of what was trimmed whole blocks are gone.
    expected[16_384 - 4000..5 * 4096 - 4000 - 4096].fill(0);
    assert_eq!(found[..12_384], expected[..12_384]);
    if structured {
        let status = client.ask(Command::BLOCK_STATUS, NONE, 3 << 20, 2_000_001).await;
        assert_eq!(status.expect("an answer").extents, [(2_000_001, 0)], "zeroes take space");
        let status = client.ask(Command::BLOCK_STATUS, NONE, 0, 1 << 20).await;
        let extents = status.expect("an answer").extents;
        assert_eq!(extents.iter().map(|(len, _)| len).sum::<u64>(), 1 << 20);
        assert!(extents.len() > 2 && extents.windows(2).all(|pair| pair[0].1 != pair[1].1));
        let one = CommandFlags::REQ_ONE;
        let status = client.ask(Command::BLOCK_STATUS, one, 0, 1 << 20).await;
        assert_eq!(status.expect("an answer").extents, extents[..1]);
    }
    for (command, flags, offset, len_bytes, errno) in [
        (Command::READ, NONE, SIZE - 1, 2, Errno::EINVAL),
        (Command::WRITE_ZEROES, NONE, SIZE, 1, Errno::ENOSPC),
        (Command::TRIM, NONE, u64::MAX, 2, Errno::EINVAL),
        (Command::FLUSH, NONE, 1, 0, Errno::EINVAL),
        (Command::READ, CommandFlags::NO_HOLE, 0, 1, Errno::EINVAL),
        (Command(77), NONE, 0, 1, Errno::EINVAL),
        (
            Command::WRITE_ZEROES,
            CommandFlags::NO_HOLE.with(CommandFlags::FAST_ZERO),
            0,
            1,
            Errno::ENOTSUP,
        ),
    ] {
        let answer = client.ask(command, flags, offset, len_bytes).await.expect("an answer");
        assert_eq!(answer.error, errno.0, "{command:?} {offset} {len_bytes}");
    }
    assert_eq!(client.write(SIZE - 1, b"ab").await, Errno::ENOSPC.0);
    assert_eq!(
        client.read(4000, 5).await,
        bytes[..5],
        "the payload of what is refused is passed over"
    );
}

/// NBD-EXPORT-1: what a client may not open it does not find, under any name and by any option.
#[test]
fn a_volume_is_an_export_only_for_clients_that_its_owner_named() {
    let mut by_unix = Access::default();
    by_unix.nbd.unix = true;
    for access in [Access::default(), open_to(&["192.0.2.0/24"]), by_unix] {
        simulate(move |world| is_hidden(world, access.clone()));
    }
}

/// A client by the network finds no volume; one by the unix socket does if that is open.
async fn is_hidden(world: SimWorld, access: Access) {
    let (_core, _) = serve(&world, &access).await;
    let mut client = Client::connect(&world, place()).await;
    assert_eq!(client.option(OptionCode::LIST, b"").await, []);
    for name in ["db", "", "other", &VOLUME.to_string()] {
        assert_eq!(client.go(name).await, Err(OptionReplyKind::ERR_UNKNOWN), "{name}");
    }
    let mut client = Client::connect(&world, unix_place()).await;
    let expected = if access.nbd.unix { Ok(SIZE) } else { Err(OptionReplyKind::ERR_UNKNOWN) };
    assert_eq!(client.go("db").await, expected);
}

#[test]
fn clients_find_exports_by_name_and_identity_and_the_only_one_by_none() {
    simulate(async |world| {
        let (core, frontend) = serve(&world, &open_to(&["0.0.0.0/0"])).await;
        for name in ["db", "", &VOLUME.to_string()] {
            let mut client = Client::connect(&world, place()).await;
            assert_eq!(client.go(name).await, Ok(SIZE), "{name}");
        }
        let other = ExportRecord {
            uuid: Uuid::from_u128(2),
            name: "far".into(),
            place: ExportPlace::Elsewhere { uri: "nbd://10.0.0.1:10811/far".into() },
            access: open_to(&["0.0.0.0/0"]),
        };
        frontend.announce(other);
        let mut client = Client::connect(&world, place()).await;
        let listed = client.option(OptionCode::LIST, b"").await;
        let names: Vec<&[u8]> = listed.iter().map(|(_, data)| &data[4..]).collect();
        assert_eq!(names, [&b"db"[..]], "what is elsewhere is not listed");
        let data = nbd_wire::InfoRequest { name: "far", infos: Vec::new() }.encode();
        let refused = client.option(OptionCode::GO, &data).await;
        assert_eq!(refused[0].0, OptionReplyKind::ERR_POLICY);
        let message = String::from_utf8_lossy(&refused[0].1).into_owned();
        assert!(message.contains("nbd://10.0.0.1:10811/far"), "{message}");
        let mut beside = Client::connect(&world, place()).await;
        assert_eq!(client.go("db").await, Ok(SIZE), "the haggling goes on");
        create(&core, Uuid::from_u128(5), "beside", &open_to(&["0.0.0.0/0"]), MetadataSize::None)
            .await;
        announce(&core, &frontend);
        assert_eq!(beside.option(OptionCode::LIST, b"").await.len(), 2);
        assert_eq!(beside.go("").await, Err(OptionReplyKind::ERR_UNKNOWN), "it could be either");
    });
}

/// NBD-EXPORT-2, and what `NBD_FLAG_CAN_MULTI_CONN` promises. Method: one connection writes and hears that it is done; another
/// one flushes and hears that; the power is cut at once, and everything that was not flushed is lost.
#[test]
fn a_flush_on_one_connection_covers_the_writes_of_another() {
    simulate(async |world| {
        let device = formatted(&world).await.with_volatile_cache(true);
        let (core, frontend) = serve_device(&world, device.clone()).await;
        create(&core, VOLUME, "db", &open_to(&["0.0.0.0/0"]), MetadataSize::None).await;
        announce(&core, &frontend);
        let (mut one, mut other) =
            (Client::open(&world, "db").await, Client::open(&world, "db").await);
        let bytes = pattern(30_000, 9);
        assert_eq!(one.write(777, &bytes).await, 0);
        assert_eq!(other.read(777, bytes.len()).await, bytes, "one sees what the other wrote");
        assert_eq!(other.ask(Command::FLUSH, NONE, 0, 0).await.map(|it| it.error), Some(0));
        device.crash();
        let device = device.after_crash(&world);
        let shard = only_shard(device).await;
        let volume = shard.volume(VOLUME).expect("durable");
        let found = volume.read(units::LbaRange::new(units::Lba(0), 8)).await.expect("sound");
        assert_eq!(found.to_vec()[777..30_777], bytes);
    });
}

#[test]
fn a_client_is_cut_off_when_it_may_not_have_its_export_any_more() {
    simulate(async |world| {
        let (core, _) = serve(&world, &open_to(&["0.0.0.0/0"])).await;
        let mut client = Client::open(&world, "db").await;
        core.set_access(VOLUME, open_to(&["0.0.0.0/0", "192.0.2.0/24"]), false)
            .await
            .expect("room");
        assert_eq!(client.read(0, 1).await, [0], "it may still");
        core.set_access(VOLUME, Access::default(), false).await.expect("room");
        assert!(client.is_closed().await);
        let mut client = Client::connect(&world, place()).await;
        // What was announced is older.
        assert_eq!(client.go("db").await, Err(OptionReplyKind::ERR_UNKNOWN));
    });
}

#[test]
fn a_resized_volume_is_checked_against_its_new_size() {
    simulate(async |world| {
        let (core, _) = serve(&world, &open_to(&["0.0.0.0/0"])).await;
        let mut client = Client::open(&world, "db").await;
        core.resize_volume(VOLUME, 2 * BLOCKS, Loss::Accepted).await.expect("room");
        assert_eq!(client.write(SIZE, b"grown").await, 0);
        // One that comes now is told the new size. The other one stays, and is told nothing.
        let mut again = Client::connect(&world, place()).await;
        assert_eq!(again.go("db").await, Ok(2 * SIZE));
        assert_eq!(again.read(SIZE, 5).await, b"grown");
        assert_eq!(client.read(SIZE, 5).await, b"grown");
        core.resize_volume(VOLUME, 1, Loss::Accepted).await.expect("smaller");
        assert_eq!(client.write(SIZE, b"gone").await, Errno::ENOSPC.0);
        let beyond = client.ask(Command::READ, NONE, SIZE, 5).await;
        assert_eq!(beyond.map(|it| it.error), Some(Errno::EINVAL.0));
        core.delete_volume(VOLUME, Loss::Accepted).await.expect("there");
        assert!(client.is_closed().await);
    });
}

#[test]
fn a_volume_whose_blocks_have_metadata_is_an_export_like_others() {
    simulate(async |world| {
        let (core, frontend) = serve(&world, &open_to(&["0.0.0.0/0"])).await;
        let uuid = Uuid::from_u128(3);
        create(&core, uuid, "meta", &open_to(&["0.0.0.0/0"]), MetadataSize::Bytes8).await;
        announce(&core, &frontend);
        let mut client = Client::open(&world, "meta").await;
        let bytes = pattern(3 * BLOCK_SIZE, 3);
        assert_eq!(client.write(BLOCK_SIZE as u64, &bytes).await, 0);
        assert_eq!(client.read(BLOCK_SIZE as u64, bytes.len()).await, bytes);
        assert_eq!(client.read(BLOCK_SIZE as u64 + 10, 10).await, bytes[10..20]);
        let flags = CommandFlags::NO_HOLE;
        let zeroed = client.ask(Command::WRITE_ZEROES, flags, 4096, 4096).await;
        assert_eq!(zeroed.map(|it| it.error), Some(0));
        assert_eq!(client.read(4096, 4096).await, [0; 4096]);
    });
}

/// A write is larger than any that the engine takes at once.
#[test]
fn the_largest_write_and_read_pass() {
    let simulation = Rc::new(Simulation::new(3));
    let world = simulation.world();
    let scenario = async move {
        let (core, _) = serve(&world, &open_to(&["0.0.0.0/0"])).await;
        core.resize_volume(VOLUME, 16_384, Loss::Accepted).await.expect("room");
        let mut client = Client::open(&world, "db").await;
        let bytes = pattern(32 << 20, 5);
        assert_eq!(client.write(3, &bytes).await, 0);
        assert!(client.read(3, bytes.len()).await == bytes);
        let longer = client.ask(Command::READ, NONE, 0, (32 << 20) + 1).await;
        assert_eq!(longer.map(|it| it.error), Some(Errno::EOVERFLOW.0));
        assert_eq!(core.stats().memory_used_bytes, 0);
    };
    simulation.run(scenario).unwrap_or_else(|stalled| panic!("{stalled:?}"));
}
