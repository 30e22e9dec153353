//! Contents of blocks: each block says of which volume, place and write it is, and every byte follows from
//! that. So a block that is torn, stale, foreign or misplaced is told apart from what was written.

use crate::random::Random;

pub(crate) const BLOCK: usize = 4096;
const MAGIC: u64 = 0x6b1a_5e0f_77d3_92c4;
/// The block says in so many bytes what it is.
const HEADER: usize = 32;

/// The number of a write; 0 is what was never written, or was deallocated.
pub(crate) type Stamp = u64;
pub(crate) const ZEROES: Stamp = 0;

/// The location that a block belongs to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Place {
    /// The volume's number in this life.
    pub(crate) volume: u64,
    pub(crate) lba: u64,
}

/// Fills a block and its metadata.
pub(crate) fn fill(place: Place, stamp: Stamp, data: &mut [u8], metadata: &mut [u8]) {
    if stamp == ZEROES {
        data.fill(0);
        return metadata.fill(0);
    }
    let words = [MAGIC, place.volume, place.lba, stamp];
    let (header, rest) = data.split_at_mut(HEADER);
    for (bytes, word) in header.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let mut random = Random::new(place.volume ^ place.lba.rotate_left(24) ^ stamp.rotate_left(40));
    for bytes in rest.chunks_exact_mut(8).chain(metadata.chunks_exact_mut(8)) {
        bytes.copy_from_slice(&random.next().to_le_bytes());
    }
}

/// Returns the write that a block is of, or what is wrong with it.
pub(crate) fn identify(place: Place, data: &[u8], metadata: &[u8]) -> Result<Stamp, String> {
    if data.iter().chain(metadata).all(|byte| *byte == 0) {
        return Ok(ZEROES);
    }
    let word =
        |at: usize| u64::from_le_bytes(data[at * 8..at * 8 + 8].try_into().expect("8 bytes"));
    let found = Place { volume: word(1), lba: word(2) };
    if word(0) != MAGIC {
        return Err("holds data that was not written".to_owned());
    }
    if found != place {
        return Err(format!("holds a block of volume {} at {}", found.volume, found.lba));
    }
    let stamp = word(3);
    let (mut right, mut right_metadata) = (vec![0; data.len()], vec![0; metadata.len()]);
    fill(place, stamp, &mut right, &mut right_metadata);
    if let Some(at) = right.iter().zip(data).position(|(right, found)| right != found) {
        return Err(format!("is torn: of write {stamp} up to byte {at}"));
    }
    if right_metadata != metadata {
        return Err(format!("has other metadata than write {stamp}"));
    }
    Ok(stamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_known_and_a_spoilt_one_is_not() {
        let place = Place { volume: 3, lba: 9 };
        let (mut data, mut metadata) = ([0; BLOCK], [0; 8]);
        assert_eq!(identify(place, &data, &metadata), Ok(ZEROES));
        fill(place, 77, &mut data, &mut metadata);
        assert_eq!(identify(place, &data, &metadata), Ok(77));
        let elsewhere = Place { lba: 8, ..place };
        assert!(identify(elsewhere, &data, &metadata).unwrap_err().contains("volume 3 at 9"));
        assert!(identify(place, &data, &[0; 8]).unwrap_err().contains("metadata"));
        data[512..].fill(0);
        assert!(identify(place, &data, &metadata).unwrap_err().contains("torn"));
    }
}
