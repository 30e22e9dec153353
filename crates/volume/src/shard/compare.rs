//! Finds out which writes of the journal's last records reached the media by comparing their data
//! with its checksums (REPLAY-2, REPLAY-3, REPLAY-7).

use std::collections::BTreeMap;

use io_traits::{Buffer, Device, DeviceError};
use layout::{Entry, KEY_LIMIT};
use situations::{Situation, situation_if};
use units::{BLOCK_SIZE, Lba, LbaRange, Pba, PbaRange};

use super::Inner;
use super::records::Placed;
use super::repersist::at_once;
use crate::OpenError;
use crate::io::join_all;
use crate::sabotage::{Sabotage, broken, tries};

/// Attempts to read data before it counts as unreadable, or as another's.
const READ_TRIES: u32 = 3;

/// Ranges by volume: those that later entries touch.
#[derive(Default)]
struct Touched(BTreeMap<(u32, u64), u64>);

impl Touched {
    fn overlaps(&self, volume: u32, range: LbaRange) -> bool {
        let end = range.end().0;
        let before = self.0.range((volume, 0)..(volume, end)).next_back();
        before.is_some_and(|(_, known_end)| *known_end > range.start.0)
    }

    fn add(&mut self, volume: u32, range: LbaRange) {
        let (mut start, mut end) = (range.start.0, range.end().0);
        while let Some((&(_, s), &e)) = self.0.range((volume, 0)..=(volume, end)).next_back()
            && e >= start
        {
            start = start.min(s);
            end = end.max(e);
            self.0.remove(&(volume, s));
        }
        self.0.insert((volume, start), end);
    }
}

/// The writes, by record and entry, whose data did not reach the media (REPLAY-2).
pub(super) async fn unfinished_writes<D: Device>(
    inner: &Inner<D>,
    unsettled: &[Placed],
) -> Result<Vec<(usize, usize)>, OpenError> {
    let to_compare = writes_to_compare(unsettled);
    let mut skipped = Vec::new();
    let mut left = &to_compare[..];
    while !left.is_empty() {
        let count = at_once(left.iter().map(|write| write.crcs.len() as u64));
        let (chunk, others) = left.split_at(count);
        let matches = chunk.iter().map(|write| data_matches(inner, write.runs, write.crcs));
        for (write, matches) in chunk.iter().zip(join_all(matches).await) {
            if !matches? {
                skipped.push(write.at);
            }
        }
        left = others;
    }
    Ok(skipped)
}

/// A write that is to be compared with its checksums.
struct ToCompare<'a> {
    /// By record and entry.
    at: (usize, usize),
    runs: &'a [PbaRange],
    crcs: &'a [u32],
}

/// Those that are not trusted, that no later entry overlaps (REPLAY-3), and of whose data the last record does not say that
/// it is there (REPLAY-7); the last one first.
fn writes_to_compare(unsettled: &[Placed]) -> Vec<ToCompare<'_>> {
    let last = unsettled.last().map(|placed| placed.record.head);
    let is_there = |sequence| last.is_some_and(|head| head.proves_data(sequence));
    let mut touched = Touched::default();
    let mut found = Vec::new();
    for (number, Placed { record, .. }) in unsettled.iter().enumerate().rev() {
        for (place, entry) in record.entries.iter().enumerate().rev() {
            match entry {
                Entry::Write { volume, lba, trusted, runs, crcs, .. } => {
                    let range = LbaRange::new(*lba, crcs.len() as u64);
                    let is_known = *trusted || is_there(record.head.sequence);
                    if !is_known && !touched.overlaps(*volume, range) {
                        found.push(ToCompare { at: (number, place), runs, crcs });
                    }
                    touched.add(*volume, range);
                }
                Entry::Unmap { volume, range } if range.blocks > 0 => touched.add(*volume, *range),
                Entry::Resize { volume, blocks } => {
                    touched.add(*volume, LbaRange::new(Lba(*blocks), KEY_LIMIT));
                }
                Entry::Delete { volume } => {
                    touched.add(*volume, LbaRange::new(Lba(0), KEY_LIMIT));
                }
                Entry::Unmap { .. }
                | Entry::Reserve { .. }
                | Entry::Create { .. }
                | Entry::SetSlo { .. }
                | Entry::SetAccess { .. } => {}
            }
        }
    }
    found
}

async fn data_matches<D: Device>(
    inner: &Inner<D>,
    runs: &[PbaRange],
    mut crcs: &[u32],
) -> Result<bool, OpenError> {
    if broken(Sabotage::ReplayTrustsData) {
        return Ok(true);
    }
    for (number, run) in runs.iter().enumerate() {
        if run.checked_end().is_none_or(|end| end.0 > inner.superblock.blocks) {
            return Ok(false);
        }
        let blocks = usize::try_from(run.blocks).expect("bounded by one write");
        let Some((of_run, others)) = crcs.split_at_checked(blocks) else { return Ok(false) };
        crcs = others;
        let found = are_there(inner, run.start, of_run).await;
        let is_unreadable = matches!(found, Err(DeviceError::Io { .. }));
        let matches = match is_unreadable {
            true => readable_match(inner, run.start, of_run).await?,
            false => found?,
        };
        if !matches {
            situation_if(Situation::ReplaySkipsLaterRun, || number > 0);
            return Ok(false);
        }
        if broken(Sabotage::CompareFirstRun)
            || is_unreadable && broken(Sabotage::CompareNoneBehindUnreadable)
        {
            break;
        }
    }
    Ok(true)
}

/// Returns whether all blocks from `start` on that can be read are those. The others may be:
/// perhaps the write was acknowledged, and then its reader must get an error, and not the data from
/// before.
async fn readable_match<D: Device>(
    inner: &Inner<D>,
    start: Pba,
    crcs: &[u32],
) -> Result<bool, OpenError> {
    for (pba, crc) in (start.0..).map(Pba).zip(crcs) {
        match are_there(inner, pba, &[*crc]).await {
            Ok(false) => return Ok(false),
            Ok(true) | Err(DeviceError::Io { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

/// Returns whether the blocks from `start` on have these checksums. A mismatch is read again before
/// it counts: skipping an acknowledged write cannot be undone. A failed read is no evidence and is
/// tried again: otherwise a write that was not acknowledged would replace the data from before.
async fn are_there<D: Device>(
    inner: &Inner<D>,
    start: Pba,
    crcs: &[u32],
) -> Result<bool, DeviceError> {
    let tries = tries(READ_TRIES, Sabotage::RecoverByOneRead);
    let (mut different, mut failed) = (0, 0);
    loop {
        match inner.device.read(start, Buffer::new(crcs.len())).await {
            Ok(data) if are(&data, crcs) => {
                situation_if(Situation::DataReadAgain, || different > 0);
                return Ok(true);
            }
            Ok(_) => different += 1,
            Err(error) => {
                failed += 1;
                if failed == tries {
                    return Err(error);
                }
            }
        }
        if different == tries {
            return Ok(false);
        }
    }
}

/// Returns whether each block has its checksum.
fn are(data: &Buffer, crcs: &[u32]) -> bool {
    let found = data.as_bytes().chunks_exact(BLOCK_SIZE).map(checksum::crc32c);
    found.eq(crcs.iter().copied())
}

#[cfg(test)]
mod tests {
    use layout::{Record, RecordHead};
    use uuid::Uuid;

    use super::*;

    /// A record that says of none before it that its data is on the media.
    fn placed(sequence: u64, entries: Vec<Entry<'static>>) -> Placed {
        let head = RecordHead {
            sequence,
            incarnation: 1,
            device: Uuid::nil(),
            shard: 0,
            settled: 0,
            previous_crc: 0,
            generation: 1,
            applied: 0,
            failed: 0,
            secret: 0,
        };
        Placed { pba: Pba(0), record: Record { head, crc: 0, blocks: 1, entries } }
    }

    fn write(volume: u32, lba: u64, blocks: usize) -> Entry<'static> {
        Entry::Write {
            volume,
            lba: Lba(lba),
            trusted: false,
            runs: vec![PbaRange::new(Pba(1000), blocks as u64)].into(),
            crcs: vec![0; blocks].into(),
            metadata: Vec::new().into(),
        }
    }

    fn unmap(volume: u32, lba: u64, blocks: u64) -> Entry<'static> {
        Entry::Unmap { volume, range: LbaRange::new(Lba(lba), blocks) }
    }

    /// REPLAY-3. Method: a write to blocks 10 to 13 of volume 1, and one entry behind it, in the same record or in the
    /// next.
    #[test]
    fn a_write_is_compared_unless_a_later_entry_overlaps_it() {
        let resize = |blocks| Entry::Resize { volume: 1, blocks };
        let cases = [
            (unmap(1, 13, 1), false),
            (unmap(1, 9, 2), false),
            (unmap(1, 0, 100), false),
            (unmap(1, 14, 5), true),
            (unmap(1, 9, 1), true),
            (unmap(1, 12, 0), true),
            (unmap(2, 10, 4), true),
            (write(1, 13, 1), false),
            (write(1, 14, 1), true),
            (resize(13), false),
            (resize(14), true),
            (resize(0), false),
            (Entry::Delete { volume: 1 }, false),
            (Entry::Delete { volume: 2 }, true),
            (Entry::Reserve { extent: 1 }, true),
        ];
        for (later, is_compared) in cases {
            let together = [placed(1, vec![write(1, 10, 4), later.clone()])];
            let apart = [placed(1, vec![write(1, 10, 4)]), placed(2, vec![later.clone()])];
            for records in [&together[..], &apart[..]] {
                let found = writes_to_compare(records);
                let first = found.iter().any(|write| write.at == (0, 0));
                assert_eq!(first, is_compared, "{later:?} in one of {} records", records.len());
            }
        }
    }

    /// REPLAY-7, and what is trusted.
    #[test]
    fn a_write_whose_data_is_known_to_be_there_is_not_compared() {
        let mut records: Vec<Placed> =
            (1..=4).map(|sequence| placed(sequence, vec![write(1, sequence * 10, 1)])).collect();
        let last = &mut records[3].record.head;
        (last.applied, last.failed) = (2, 0b10);
        let found: Vec<_> = writes_to_compare(&records).iter().map(|write| write.at.0).collect();
        assert_eq!(found, [3, 2, 1], "the first is durable, and did not fail");
        let Entry::Write { trusted, .. } = &mut records[2].record.entries[0] else {
            unreachable!()
        };
        *trusted = true;
        let found: Vec<_> = writes_to_compare(&records).iter().map(|write| write.at.0).collect();
        assert_eq!(found, [3, 1]);
    }

    #[test]
    fn touched_ranges_merge_and_are_found_by_volume() {
        let mut touched = Touched::default();
        for (start, blocks) in [(10, 5), (20, 5), (14, 7), (40, 1)] {
            touched.add(1, LbaRange::new(Lba(start), blocks));
        }
        assert_eq!(touched.0.len(), 2);
        let overlaps =
            |volume, start, blocks| touched.overlaps(volume, LbaRange::new(Lba(start), blocks));
        assert!(overlaps(1, 0, 11) && overlaps(1, 24, 1) && overlaps(1, 0, 100));
        assert!(!overlaps(1, 25, 15) && !overlaps(1, 0, 10) && !overlaps(2, 0, 100));
    }
}
