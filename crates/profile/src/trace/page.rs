//! Pages of the kernel's ring buffer.
//!
//! ```text
//! 0            8           16                                              16 + length
//! +------------+-----------+--------+-----------+--------+------------------+
//! | time stamp | length ¹  | head ² | record    | head   | record, padding… |
//! +------------+-----------+--------+-----------+--------+------------------+
//! ¹ bits 0 to 19; bit 31: events before this page were lost
//! ² bits 0 to 4: length of the record in words, or a type; bits 5 to 31: time since the event before
//! ```

const HEAD_LEN: usize = 16;
const LENGTH_MASK: u64 = (1 << 20) - 1;
const LOST: u64 = 1 << 31;

/// Types in the low bits of an event's head. 0: the length is in the word behind it.
const TYPE_LEN_MAX: u32 = 28;
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;

/// A page as it was read.
#[derive(Clone, Debug)]
pub struct Page {
    bytes: Box<[u8]>,
}

/// A record and its time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RawEvent<'a> {
    /// Time of the instance's clock.
    pub at_ns: u64,
    /// The record, from its number on.
    pub record: &'a [u8],
}

impl Page {
    /// Keeps the used part of what was read. Returns nothing if that is no page.
    #[must_use]
    pub fn new(read: &[u8]) -> Option<Self> {
        let word = u64::from_le_bytes(read.get(8..HEAD_LEN)?.try_into().ok()?);
        let end = HEAD_LEN + (word & LENGTH_MASK) as usize;
        Some(Self { bytes: read.get(..end)?.into() })
    }

    fn word(&self, at: usize) -> u64 {
        let bytes = self.bytes[at..at + 8].try_into().expect("eight bytes");
        u64::from_le_bytes(bytes)
    }

    /// Time of its first event.
    #[must_use]
    pub fn begin_ns(&self) -> u64 {
        self.word(0)
    }

    /// Returns true if events before this page were lost.
    #[must_use]
    pub fn lost_before(&self) -> bool {
        self.word(8) & LOST != 0
    }

    /// The events, in order.
    #[must_use]
    pub fn events(&self) -> Events<'_> {
        Events { rest: &self.bytes[HEAD_LEN..], now_ns: self.begin_ns() }
    }
}

/// Iterates over the events of a page. Ends where the bytes make no sense.
#[derive(Clone, Debug)]
pub struct Events<'a> {
    rest: &'a [u8],
    now_ns: u64,
}

impl<'a> Events<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    fn take_word(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }
}

impl<'a> Iterator for Events<'a> {
    type Item = RawEvent<'a>;

    fn next(&mut self) -> Option<RawEvent<'a>> {
        loop {
            let head = self.take_word()?;
            let (kind, delta) = (head & 31, u64::from(head >> 5));
            match kind {
                // The rest of the page is empty.
                PADDING if delta == 0 => return None,
                PADDING => {
                    let len = self.take_word()? as usize;
                    self.take(len.checked_sub(4)?)?;
                }
                TIME_EXTEND => {
                    let high = u64::from(self.take_word()?) << 27;
                    self.now_ns = self.now_ns.wrapping_add(high + delta);
                }
                TIME_STAMP => {
                    const BITS: u64 = (1 << 59) - 1;
                    let low = (u64::from(self.take_word()?) << 27) + delta;
                    self.now_ns = (self.now_ns & !BITS) | (low & BITS);
                }
                _ => {
                    self.now_ns = self.now_ns.wrapping_add(delta);
                    let len = match kind {
                        0 => (self.take_word()? as usize).checked_sub(4)?,
                        words => words.min(TYPE_LEN_MAX) as usize * 4,
                    };
                    let record = self.take(len)?;
                    return Some(RawEvent { at_ns: self.now_ns, record });
                }
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use random::Rng;

    use super::*;

    /// A page that begins at `begin_ns` and holds `records`, each with its distance to the one before.
    pub(crate) fn page(begin_ns: u64, records: &[(u64, Vec<u8>)]) -> Vec<u8> {
        let mut body = Vec::new();
        for (delta, record) in records {
            let mut delta = *delta;
            if delta >= 1 << 27 {
                body.extend((((delta & ((1 << 27) - 1)) << 5) as u32 | TIME_EXTEND).to_le_bytes());
                body.extend(((delta >> 27) as u32).to_le_bytes());
                delta = 0;
            }
            let words = record.len() / 4;
            let small = (1..=28).contains(&words);
            let kind = if small { words as u32 } else { 0 };
            body.extend(((delta as u32) << 5 | kind).to_le_bytes());
            if !small {
                body.extend((record.len() as u32 + 4).to_le_bytes());
            }
            body.extend(record);
        }
        let mut bytes = begin_ns.to_le_bytes().to_vec();
        bytes.extend((body.len() as u64).to_le_bytes());
        bytes.extend(body);
        bytes
    }

    #[test]
    fn times_and_records_of_all_lengths_come_back() {
        let records: Vec<(u64, Vec<u8>)> =
            vec![(0, vec![1; 4]), (7, vec![2; 112]), (1 << 40, vec![3; 200]), (9, vec![4; 8])];
        let mut bytes = page(1_000_000_000_000, &records);
        bytes.resize(4096, 0);
        let page = Page::new(&bytes).unwrap();
        let found: Vec<(u64, Vec<u8>)> =
            page.events().map(|event| (event.at_ns, event.record.to_vec())).collect();
        let mut now = 1_000_000_000_000;
        let expected = records.into_iter().map(|(delta, record)| {
            now += delta;
            (now, record)
        });
        assert_eq!(found, expected.collect::<Vec<_>>());
        assert!(!page.lost_before());
        bytes[11] |= 0x80;
        assert!(Page::new(&bytes).unwrap().lost_before());
    }

    /// A record that a filter discarded is padding in the middle of a page.
    #[test]
    fn discarded_records_are_passed_over() {
        let mut body = Vec::new();
        body.extend(((5u32 << 5) | PADDING).to_le_bytes());
        body.extend(12u32.to_le_bytes());
        body.extend([0xAA; 8]);
        body.extend(((3u32 << 5) | 1).to_le_bytes());
        body.extend([1, 2, 3, 4]);
        body.extend(PADDING.to_le_bytes());
        body.extend([0xAA; 40]);
        let mut bytes = 50u64.to_le_bytes().to_vec();
        bytes.extend((body.len() as u64).to_le_bytes());
        bytes.extend(body);
        let page = Page::new(&bytes).unwrap();
        let found: Vec<RawEvent<'_>> = page.events().collect();
        assert_eq!(found, [RawEvent { at_ns: 53, record: &[1, 2, 3, 4] }]);
    }

    #[test]
    fn random_bytes_never_panic() {
        for seed in 0..2000 {
            let mut rng = Rng::new(seed);
            let len = rng.below(200) as usize;
            let mut bytes: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
            if let Some(length) = bytes.get_mut(8..16) {
                length.copy_from_slice(&((len as u64).saturating_sub(16)).to_le_bytes());
            }
            if let Some(page) = Page::new(&bytes) {
                assert!(page.events().count() <= 200, "seed {seed}");
            }
        }
    }
}
