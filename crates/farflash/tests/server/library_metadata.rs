//! The Rust library for ordinary threads, against a real server: blocks with metadata.

use std::io::Write;

use crate::support::library::{BLOCK, MIB, cluster, fails, filled, opened, opened_with_metadata};
use crate::support::{Files, Server};
use farflash_client::{
    BlockData, Blocks, BlocksMut, Error, ErrorKind, NewVolume, Reply, Request, Swap, Volume,
    VolumeFile,
};

fn blocks((data, metadata): &(Vec<u8>, Vec<u8>)) -> Blocks<'_> {
    Blocks { data, metadata }
}

#[track_caller]
fn holds(volume: &Volume, offset: u64, expected: &(Vec<u8>, Vec<u8>)) {
    // What is not read is not what was expected.
    let (mut data, mut metadata) = (vec![0x5a; expected.0.len()], vec![0x5a; expected.1.len()]);
    volume.read_ex(BlocksMut { data: &mut data, metadata: &mut metadata }, offset).unwrap();
    assert!(data == expected.0 && metadata == expected.1);
}

/// One block, more than goes to the server at once, and more than is done at once; compared and swapped up to
/// the limit; made zeroes.
#[test]
fn blocks_and_their_metadata_are_one() {
    let server = Server::start("mem:256MiB");
    let cluster = cluster(&server);
    for size in [8, 16, 64] {
        let volume = opened_with_metadata(&cluster, &format!("v{size}"), 16 * MIB, size);
        let properties = volume.properties().unwrap();
        assert_eq!((properties.metadata_size, volume.metadata_size()), (size, size));
        assert_eq!(cluster.show(&format!("v{size}")).unwrap().metadata_bytes, size);
        assert!(properties.transfer_bytes_max < 4 * MIB, "else nothing is cut");
        for (block, count) in [(0, 1), (1, 300), (301, 2051)] {
            let (written, offset) = (filled(count, size, count as u8), block * BLOCK as u64);
            volume.write_ex(blocks(&written), offset).unwrap();
            holds(&volume, offset, &written);
            assert!(volume.compare_ex(blocks(&written), offset).unwrap());
            let mut other = written.clone();
            *other.1.last_mut().unwrap() ^= 1;
            assert!(!volume.compare_ex(blocks(&other), offset).unwrap());
        }

        let most = usize::try_from(properties.atomic_write_bytes).unwrap() / BLOCK;
        let (old, new) = (filled(most, size, 1), filled(most, size, 2));
        volume.write_ex(blocks(&old), 4096).unwrap();
        let mut other = old.clone();
        other.1[2 * size as usize + 5] ^= 1;
        let swapped = volume.compare_and_swap_ex(4096, blocks(&other), blocks(&new)).unwrap();
        let offset_bytes = 2 * (4096 + u64::from(size)) + 4096 + 5;
        assert_eq!(swapped, Swap::Differs { offset_bytes });
        holds(&volume, 4096, &old);
        let swapped = volume.compare_and_swap_ex(4096, blocks(&old), blocks(&new)).unwrap();
        assert_eq!(swapped, Swap::Done);
        holds(&volume, 4096, &new);
        let larger = filled(most + 1, size, 3);
        let swapped = volume.compare_and_swap_ex(4096, blocks(&larger), blocks(&larger));
        fails(swapped, ErrorKind::InvalidArgument, "more than the limit");

        volume.write_zeroes(4096, 2 * BLOCK as u64).unwrap();
        volume.deallocate(3 * 4096, BLOCK as u64).unwrap();
        volume.flush().unwrap();
        holds(&volume, 4096, &(vec![0; 3 * BLOCK], vec![0; 3 * size as usize]));
    }
}

/// As `a_transactional_write_is_whole_or_refused`, of blocks with their metadata.
#[test]
fn a_transactional_write_of_blocks_is_whole_or_refused() {
    let server = Server::start("mem:256MiB");
    let cluster = cluster(&server);
    let invalid = ErrorKind::InvalidArgument;
    for size in [8, 16, 64] {
        let volume = opened_with_metadata(&cluster, &format!("v{size}"), 16 * MIB, size);
        let limit = volume.opened().atomic_write_bytes;
        let most = usize::try_from(limit).unwrap() / BLOCK;
        let written = filled(most, size, 1);
        volume.write_tx_ex(blocks(&written), 4096).unwrap();
        for count in [most + 1, 2 * most + 1] {
            let long = filled(count, size, 2);
            let len = (count * BLOCK) as u64;
            let refused = volume.write_tx_ex(blocks(&long), 4096).expect_err("a refusal");
            let Error::TooLarge { len: given, limit: named } = refused else { panic!("{refused}") };
            assert_eq!((given, named), (len, limit));
            let asked = Request::WriteTxEx { offset: 4096, blocks: blocks(&long).into() };
            let says = format!("{len} bytes at once are more than the limit of {limit}");
            fails(volume.start(asked).wait(), invalid, &says);
        }
        holds(&volume, 4096, &written);
        let behind = 4096 + limit;
        holds(&volume, behind, &(vec![0; BLOCK], vec![0; size as usize]));
        let one = filled(1, size, 3);
        let asked = Request::WriteTxEx { offset: 0, blocks: blocks(&one).into() };
        assert!(matches!(volume.start(asked).wait().unwrap(), Reply::Done));
        holds(&volume, 0, &one);

        let nothing = Blocks { data: &[], metadata: &[] };
        volume.write_tx_ex(nothing, 0).unwrap();
        let short = Blocks { metadata: &one.1[1..], ..blocks(&one) };
        fails(volume.write_tx_ex(short, 0), invalid, "bytes of metadata were given");
        fails(volume.write_tx_ex(blocks(&one), 1), invalid, "offset 1");
        fails(volume.write_tx_ex(blocks(&one), 16 * MIB), invalid, "not all within");
    }
    let without = opened(&cluster, "without", MIB);
    fails(without.write_tx_ex(blocks(&filled(1, 8, 1)), 0), invalid, "have no metadata");
    without.write_tx_ex(Blocks { data: &[1; BLOCK], metadata: &[] }, 0).unwrap();
    holds(&without, 0, &(vec![1; BLOCK], Vec::new()));
}

/// On blocks with metadata nothing is done without it, and it has its length; blocks without have none.
#[test]
fn each_mistake_about_metadata_has_its_error() {
    let server = Server::start("mem:256MiB");
    let cluster = cluster(&server);
    let volume = opened_with_metadata(&cluster, "with", MIB, 8);
    let (invalid, one) = (ErrorKind::InvalidArgument, [1; BLOCK]);
    let left_out = "8 bytes of metadata each";
    fails(volume.read_at(&mut [0; BLOCK], 0), invalid, left_out);
    fails(volume.read_at(&mut [], 0), invalid, left_out);
    fails(volume.write_at(&one, 0), invalid, left_out);
    fails(volume.compare(&one, 0), invalid, left_out);
    fails(volume.compare_and_swap(0, &one, &one), invalid, left_out);
    fails(volume.start(Request::Read { offset: 0, len: BLOCK }).wait(), invalid, left_out);
    let mut file = VolumeFile::new(volume.clone());
    assert!(file.write(b"x").unwrap_err().to_string().contains(left_out));

    let short = Blocks { data: &one, metadata: &[0; 7] };
    let says = "7 bytes of metadata were given, but the blocks of 4096 bytes of data have 8";
    fails(volume.write_ex(short, 0), invalid, says);
    fails(volume.compare_ex(short, 0), invalid, says);
    let whole = Blocks { data: &one, metadata: &[0; 8] };
    fails(volume.compare_and_swap_ex(0, short, whole), invalid, says);
    fails(volume.compare_and_swap_ex(0, whole, short), invalid, says);
    let short_room = BlocksMut { data: &mut [0; BLOCK], metadata: &mut [0; 7] };
    fails(volume.read_ex(short_room, 0), invalid, says);
    let nothing = Blocks { data: &[], metadata: &[] };
    fails(volume.compare_and_swap_ex(0, nothing, whole), invalid, "0 bytes cannot be replaced");
    fails(volume.write_ex(Blocks { data: &one[..5], ..nothing }, 0), invalid, "not whole blocks");
    fails(volume.write_ex(whole, 1), invalid, "offset 1");
    fails(volume.write_ex(whole, MIB), invalid, "not all within");
    volume.write_ex(nothing, 0).unwrap();
    holds(&volume, 0, &(vec![0; BLOCK], vec![0; 8]));

    let without = opened(&cluster, "without", MIB);
    assert_eq!(without.metadata_size(), 0);
    fails(without.write_ex(whole, 0), invalid, "have no metadata");
    without.write_ex(Blocks { data: &one, metadata: &[] }, 0).unwrap();
    holds(&without, 0, &(one.to_vec(), Vec::new()));
    let twelve = NewVolume { metadata_size: 12, ..NewVolume::new("v", MIB) };
    fails(cluster.create(&twelve), invalid, "8, 16 or 64 bytes");
}

/// A request to a server that is killed is sent again, except for a swap, whose outcome is not known.
#[test]
fn blocks_with_metadata_are_written_again_and_swapped_once() {
    let files = Files::new();
    let device = files.device("image");
    crate::support::succeed(&["format", "--device", &format!("{device},size=256MiB")]);
    let server = Server::start(&device);
    let api_address = server.api.trim_start_matches("http://").to_owned();
    let volume = opened_with_metadata(&cluster(&server), "v", MIB, 16);
    let (old, new) = (filled(2, 16, 1), filled(2, 16, 2));
    volume.write_ex(blocks(&old), 0).unwrap();

    server.pause();
    let copy = |from: &(Vec<u8>, Vec<u8>)| BlockData::from(blocks(from));
    let swap = Request::CompareAndSwapEx { offset: 0, expected: copy(&old), blocks: copy(&new) };
    let swap = volume.start(swap);
    let write = volume.start(Request::WriteEx { offset: 8192, blocks: copy(&new) });
    let read = volume.start(Request::ReadEx { offset: 0, len: 2 * BLOCK });
    // Answered by the thread that sends, after it has sent.
    volume.properties().unwrap();
    server.signal("KILL");
    server.wait();
    fails(swap.wait(), ErrorKind::OutcomeUnknown, "not known");
    let _server = Server::start_on(&device, "127.0.0.1:0", &api_address, &[]);
    assert!(matches!(write.wait().unwrap(), Reply::Done));
    let Reply::Blocks(read) = read.wait().unwrap() else { panic!("blocks are read") };
    assert_eq!((read.data.to_vec(), read.metadata), old);
    holds(&volume, 0, &old);
    holds(&volume, 8192, &new);
}
