//! Sums that are put together from parts, against a sum of the whole by code that shares none with this crate.

use checksum::{
    Crc32c, append_block, blocks_with_next, copy, crc32c, crc32c_ahead, crc32c_copy,
    crc32c_of_blocks,
};
use wire_oracle::Rng;
use wire_oracle::crc::crc32c as plain;

const BLOCK: usize = 4096;

/// All ways to cut four blocks of data into whole blocks and runs of bytes.
///
/// Method: a bit for each boundary between eighths of a block says whether the data is cut there. Whole blocks between
/// cuts are taken by their own sums, other runs by their bytes; 2^12 of the 2^32 ways, the first ones and drawn ones.
#[test]
fn any_split_into_blocks_and_bytes_sums_to_the_whole() {
    const EIGHTH: usize = BLOCK / 8;
    let mut rng = Rng::new(1);
    let bytes = rng.bytes(4 * BLOCK);
    let whole = plain(&bytes);
    let mut blocks_taken = 0;
    for way in 0..4096_u64 {
        // Few cuts, many cuts, cuts at blocks alone.
        let cuts = match way % 4 {
            0 => rng.next_u64() & rng.next_u64() & rng.next_u64(),
            1 => rng.next_u64(),
            2 => 0x0101_0101,
            _ => 0x0101_0101 & rng.next_u64() | 1 << rng.between(0, 31),
        };
        let mut sum = Crc32c::new();
        let mut start = 0;
        for at in (1..=32).filter(|at| *at == 32 || cuts >> at & 1 == 1) {
            let run = &bytes[start..at * EIGHTH];
            if run.len() == BLOCK && !rng.one_in(3) {
                sum.append_block(plain(run));
                blocks_taken += 1;
            } else if rng.one_in(2) {
                sum.update(run);
            } else {
                let mut target = vec![0xA5; run.len()];
                sum.update_and_copy(run, &mut target);
                assert!(target == run, "way {way}");
            }
            start = at * EIGHTH;
        }
        assert_eq!(sum.value(), whole, "way {way}, cuts {cuts:#010x}");
    }
    assert!(blocks_taken > 1000, "{blocks_taken}");
}

/// Every length of what is before a block, and whether it is there at all.
#[test]
fn a_block_is_appended_behind_any_length() {
    let mut rng = Rng::new(2);
    let bytes = rng.bytes(3 * BLOCK);
    let lengths = (0..600).chain([1024, 4095, 4096, 4097, 5000, 8191, 8192]);
    for len in lengths {
        let (before, block) = (&bytes[..len], &bytes[len..len + BLOCK]);
        let expected = plain(&bytes[..len + BLOCK]);
        assert_eq!(append_block(plain(before), plain(block)), expected, "{len} bytes before");
    }
}

/// Extended blocks: data and metadata by turns, the data by its sum.
#[test]
fn blocks_with_metadata_sum_to_the_whole() {
    let mut rng = Rng::new(3);
    for metadata in [8, 16, 64] {
        for count in 1..12 {
            let bytes = rng.bytes(count * (BLOCK + metadata));
            let mut sum = Crc32c::default();
            for block in bytes.chunks(BLOCK + metadata) {
                sum.append_block(plain(&block[..BLOCK]));
                sum.update(&block[BLOCK..]);
            }
            assert_eq!(sum.value(), plain(&bytes), "{count} blocks with {metadata} bytes");
        }
    }
}

/// Method: lengths drawn up to twelve blocks, and all lengths where the ways to sum change.
#[test]
fn every_function_has_the_plain_sum() {
    let mut rng = Rng::new(4);
    let bytes = rng.bytes(12 * BLOCK);
    let around = |len: usize| len.saturating_sub(9)..len + 9;
    let lengths = [0, 64, 168, 256, 504, 512, 1024, 1360, 2048, 4080, 4096, 8160, 8192];
    let drawn: Vec<usize> = (0..400).map(|_| rng.between(0, bytes.len())).collect();
    for len in lengths.into_iter().flat_map(around).chain(drawn) {
        let start = rng.between(0, (bytes.len() - len).min(300));
        let part = &bytes[start..start + len];
        let expected = plain(part);
        assert_eq!(crc32c(part), expected, "{len} bytes at {start}");
        let next = &bytes[..rng.between(0, len)];
        assert_eq!(crc32c_ahead(part, next), expected, "{len} bytes at {start}");
        let mut target = vec![0xA5; len];
        assert_eq!(crc32c_copy(part, &mut target), expected, "{len} bytes at {start}");
        assert!(target == part, "{len} bytes at {start}");
        target.fill(0x5A);
        copy(part, &mut target);
        assert!(target == part, "{len} bytes at {start}");
        let blocks: Vec<u32> = part.chunks_exact(BLOCK).map(plain).collect();
        assert_eq!(crc32c_of_blocks(part).collect::<Vec<_>>(), blocks, "{len} bytes at {start}");
    }
}

/// Each block comes with the one behind it, the last one with what follows.
#[test]
fn each_block_comes_with_its_successor() {
    let bytes = Rng::new(5).bytes(3 * BLOCK + 17);
    let next = [7; 3];
    let pairs: Vec<_> = blocks_with_next(&bytes, &next).collect();
    let block = |n: usize| &bytes[n * BLOCK..(n + 1) * BLOCK];
    assert!(pairs == [(block(0), block(1)), (block(1), block(2)), (block(2), &next[..])]);
    assert_eq!(blocks_with_next(&bytes[..BLOCK - 1], &next).count(), 0);
}
