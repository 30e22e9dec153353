//! Volumes whose blocks have metadata, through initiator, network and server.

use client::{Blocks, Error, Options, Swap, Volume};
use io_traits::Buffer;
use nvme_frontend::nqn_of;
use nvme_wire::io::BlockCommand;
use nvme_wire::pdu::CapsuleResp;
use nvme_wire::{IoOpcode, SglDescriptor, Sqe, Status};
use sim::SimWorld;
use units::{BLOCK_SIZE, Lba, LbaRange, MetadataSize, ShardIndex};
use volume::{Terms, VolumeSpec};
use zerocopy::FromBytes;

use crate::support::raw_host::{RawHost, capsule};
use crate::support::{SimCore, VOLUME, announce, connect, formatted, host, serve, simulate};

const BLOCKS: u64 = 4096;
const SIZES: [MetadataSize; 3] =
    [MetadataSize::Bytes8, MetadataSize::Bytes16, MetadataSize::Bytes64];

async fn serve_new(world: &SimWorld, metadata: MetadataSize) -> (SimCore, sim::SimDevice) {
    let device = formatted(world.clone()).await;
    let core = serve(world.clone(), device.clone()).await;
    let spec = VolumeSpec { uuid: VOLUME, name: "test".into(), blocks: BLOCKS };
    let terms = Terms { metadata, ..Terms::default() };
    let status = core.create_volume(ShardIndex(0), spec, terms).await.expect("room");
    assert_eq!(status.metadata, metadata);
    announce(&core);
    (core, device)
}

/// Data and metadata of `count` blocks, all different.
fn filled(size: MetadataSize, stamp: u8, count: usize) -> (Vec<u8>, Vec<u8>) {
    let byte = |n: usize| (n / 61) as u8 ^ stamp;
    let data = (0..count * BLOCK_SIZE).map(byte).collect();
    (data, (0..count * size.bytes()).map(|n| byte(n * 67).wrapping_add(1)).collect())
}

fn blocks((data, metadata): &(Vec<u8>, Vec<u8>)) -> Blocks<'_> {
    Blocks { data, metadata }
}

async fn expect(volume: &Volume<SimWorld>, lba: u64, expected: &(Vec<u8>, Vec<u8>)) {
    let count = (expected.0.len() / BLOCK_SIZE) as u32;
    let found = volume.read_ex(Lba(lba), count).await.expect("readable");
    assert!(found.data.as_bytes() == expected.0 && found.metadata == expected.1);
}

/// One block in the capsule, several, and as many as can be, with and without digests; deallocated, compared,
/// swapped; behind a restart.
#[test]
fn metadata_crosses_the_wire_with_its_block() {
    for (seed, size) in (1..).zip(SIZES) {
        let device = simulate(seed, move |world| async move {
            let (_server, device) = serve_new(&world, size).await;
            for digests in [false, true] {
                let options = Options { header_digest: digests, data_digest: digests, ..host() };
                let volume = connect(world.clone(), options).await;
                assert_eq!((volume.block_size(), volume.capacity()), (4096, BLOCKS));
                assert_eq!(volume.metadata_size() as usize, size.bytes());
                let most = (volume.max_transfer_blocks(), volume.atomic_write_blocks());
                assert_eq!(most, (256, 256), "metadata comes on top");
                for (lba, count) in [(0, 1), (10, 2), (20, 3), (100, 17), (1000, 256)] {
                    let written = filled(size, count as u8, count);
                    volume.write_ex(Lba(lba), blocks(&written)).await.expect("room");
                    expect(&volume, lba, &written).await;
                    assert_eq!(volume.compare_ex(Lba(lba), blocks(&written)).await, Ok(true));
                }
                volume.write_zeroes(LbaRange::new(Lba(10), 1)).await.expect("possible");
                volume.deallocate(&[LbaRange::new(Lba(20), 3)]).await.expect("possible");
                let nothing = |count| (vec![0; count * BLOCK_SIZE], vec![0; count * size.bytes()]);
                expect(&volume, 10, &nothing(1)).await;
                expect(&volume, 20, &nothing(3)).await;
                volume.verify(LbaRange::new(Lba(1000), 256)).await.expect("sound");
            }
            device
        });
        simulate(seed, move |world| async move {
            let _server = serve(world.clone(), device.after_crash(&world)).await;
            let volume = connect(world, host()).await;
            expect(&volume, 1000, &filled(size, 0, 256)).await;
            expect(&volume, 0, &filled(size, 1, 1)).await;
        });
    }
}

#[test]
fn comparisons_and_swaps_cover_the_metadata() {
    simulate(5, |world| async move {
        let size = MetadataSize::Bytes16;
        let _server = serve_new(&world, size).await;
        let volume = connect(world.clone(), host()).await;
        let (old, new) = (filled(size, 1, 4), filled(size, 2, 4));
        volume.write_ex(Lba(3), blocks(&old)).await.expect("room");
        let mut other = old.clone();
        other.1[2 * 16 + 5] ^= 1;
        assert_eq!(volume.compare_ex(Lba(3), blocks(&other)).await, Ok(false));
        let swapped = volume.compare_and_swap_ex(Lba(3), blocks(&other), blocks(&new)).await;
        let offset_bytes = 2 * 4112 + 4096 + 5;
        assert_eq!(swapped, Ok(Swap::Differs { offset_bytes }));
        expect(&volume, 3, &old).await;
        let swapped = volume.compare_and_swap_ex(Lba(3), blocks(&old), blocks(&new)).await;
        assert_eq!(swapped, Ok(Swap::Done));
        expect(&volume, 3, &new).await;
    });
}

/// The library refuses what the target would not write all or nothing.
#[test]
fn a_transactional_write_covers_the_metadata_and_has_a_limit() {
    simulate(7, |world| async move {
        let size = MetadataSize::Bytes16;
        let _server = serve_new(&world, size).await;
        let volume = connect(world.clone(), host()).await;
        let limit = volume.atomic_write_blocks();
        let (fits, long) = (filled(size, 1, limit as usize), filled(size, 2, limit as usize + 1));
        volume.write_tx_ex(Lba(3), blocks(&fits)).await.expect("room");
        let refused = Error::NotAtomic { blocks: u64::from(limit) + 1, limit: limit.into() };
        assert_eq!(volume.write_tx_ex(Lba(3), blocks(&long)).await, Err(refused));
        expect(&volume, 3, &fits).await;
    });
}

/// A request without metadata is refused on either side, and changes nothing.
#[test]
fn requests_without_the_metadata_are_refused() {
    simulate(6, |world| async move {
        let _server = serve_new(&world, MetadataSize::Bytes8).await;
        let volume = connect(world.clone(), host()).await;
        let data = Buffer::zeroed(2).into_slice();
        let refused = Error::Metadata { given_bytes: 0, wanted_bytes: 16 };
        assert_eq!(volume.read(Lba(0), 2).await.map(drop), Err(refused));
        assert_eq!(volume.write(Lba(0), data.clone()).await, Err(refused));
        assert_eq!(volume.compare(Lba(0), data.clone()).await, Err(refused));
        let swapped = volume.compare_and_swap(Lba(0), &data, &data).await;
        assert_eq!(swapped, Err(refused));
        let one = Blocks { data: data.as_bytes(), metadata: &[0; 8] };
        let refused = Error::Metadata { given_bytes: 8, wanted_bytes: 16 };
        assert_eq!(volume.write_ex(Lba(0), one).await, Err(refused));
        assert_eq!(volume.used_blocks().await, Ok(0));
        // On the wire.
        let (mut raw, _admin) = RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("connects");
        for opcode in [IoOpcode::WRITE, IoOpcode::COMPARE] {
            let mut sqe = BlockCommand::new(0, 1).encode(opcode, 1, 4096);
            sqe.dptr = SglDescriptor::in_capsule(4096);
            raw.send(&capsule(100, sqe, &[0; BLOCK_SIZE])).await.expect("sent");
            assert_eq!(response(&mut raw).await, Status::DATA_SGL_LENGTH_INVALID);
        }
    });
}

/// Fused, each half with its metadata.
#[test]
fn a_fused_operation_covers_the_metadata() {
    simulate(7, |world| async move {
        let _server = serve_new(&world, MetadataSize::Bytes8).await;
        let volume = connect(world.clone(), host()).await;
        let (mut raw, _admin) = RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("connects");
        let wire = |data: u8, metadata: u8| [vec![data; BLOCK_SIZE], vec![metadata; 8]].concat();
        let (done, failed) = (Status::SUCCESS, Status::ABORTED_FAILED_FUSED);
        for (old, new, statuses) in [
            (wire(0, 0), wire(5, 6), [done; 2]),
            (wire(5, 7), wire(1, 1), [Status::COMPARE_FAILURE, failed]),
            (wire(5, 6), wire(8, 9), [done; 2]),
        ] {
            for (cid, opcode, fuse, data) in [
                (100, IoOpcode::COMPARE, Sqe::FUSE_FIRST, &old),
                (101, IoOpcode::WRITE, Sqe::FUSE_SECOND, &new),
            ] {
                let mut sqe = BlockCommand::new(9, 1).encode(opcode, 1, 4104);
                sqe.flags |= fuse;
                sqe.dptr = SglDescriptor::in_capsule(4104);
                raw.send(&capsule(cid, sqe, data)).await.expect("sent");
            }
            assert_eq!([response(&mut raw).await, response(&mut raw).await], statuses);
        }
        expect(&volume, 9, &(vec![8; BLOCK_SIZE], vec![9; 8])).await;
    });
}

async fn response(raw: &mut RawHost) -> Status {
    let response = raw.receive(24).await.expect("an answer");
    CapsuleResp::read_from_bytes(&response).expect("a completion").cqe.status().code()
}
