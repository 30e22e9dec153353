//! Chooses the device requests that fetch the runs of a read.
//!
//! A request costs a device as much as several blocks do, so runs that lie close to each other are
//! fetched together, with what lies between.
//!
//! - SPAN-1: between two runs there are at most [`GAP_BLOCKS_MAX`] blocks, and in a span no more
//!   unrequested blocks than requested ones: a read takes at most twice its memory. On a device in
//!   memory that lends its blocks there are no gaps: a writer to a lent gap would be refused.
//! - SPAN-2: blocks in a gap are not used: they may be another tenant's, or be written meanwhile.
//!   Each run is a slice of its own, and no more of the span is handed on.
//! - SPAN-3: where the device fails a span, each of its runs is read alone: an error is one only of
//!   the blocks that it concerns.

use std::rc::Rc;

use io_traits::{Buffer, BufferSlice, Device, DeviceError};
use smallvec::SmallVec;
use units::PbaRange;

use crate::io::join_all;
use crate::shard::Inner;

/// The most blocks that a drive reads in little more time than a separate request takes: an NVMe
/// drive with 80 000 requests and 3 GB a second reads nine blocks in that time.
const GAP_BLOCKS_MAX: u64 = 8;

/// A run, as the device gave it.
pub(super) type Fetched = Result<BufferSlice, DeviceError>;

/// Runs fetched by one device request.
#[derive(Debug)]
struct Span {
    range: PbaRange,
    /// Indices of the runs.
    runs: SmallVec<[usize; 4]>,
    /// Blocks that were asked for.
    wanted: u64,
}

impl Span {
    fn of(number: usize, run: PbaRange) -> Self {
        Self { range: run, runs: SmallVec::from_slice(&[number]), wanted: run.blocks }
    }

    /// Takes in a run that begins no earlier than the last one, if SPAN-1 allows it.
    fn try_join(&mut self, number: usize, run: PbaRange, gap_blocks_max: u64) -> bool {
        let start = self.range.start.0;
        // A damaged map may name a block twice.
        let gap = run.start.0.saturating_sub(self.range.end().0);
        let blocks = self.range.end().0.max(run.end().0) - start;
        if gap > gap_blocks_max || blocks > 2 * (self.wanted + run.blocks) {
            return false;
        }
        self.runs.push(number);
        self.wanted += run.blocks;
        self.range.blocks = blocks;
        true
    }
}

/// The requests to make for `runs`, with gaps of so many blocks.
fn spans(runs: &[PbaRange], gap_blocks_max: u64) -> Vec<Span> {
    let mut order: SmallVec<[usize; 32]> = (0..runs.len()).collect();
    order.sort_unstable_by_key(|number| runs[*number].start.0);
    let mut spans: Vec<Span> = Vec::new();
    for number in order {
        let run = runs[number];
        if !spans.last_mut().is_some_and(|last| last.try_join(number, run, gap_blocks_max)) {
            spans.push(Span::of(number, run));
        }
    }
    spans
}

impl<D: Device> Inner<D> {
    /// Reads runs that the map has just led to, in few requests: where they lie if that is in memory.
    pub(super) async fn read_runs(self: &Rc<Self>, runs: Vec<PbaRange>) -> Vec<Fetched> {
        match self.is_lent() {
            true => read_spans(|range| self.read_run(range), &spans(&runs, 0), &runs).await,
            false => fetch_runs(self.device.clone(), runs).await,
        }
    }
}

/// By how many requests [`fetch_runs`] reads them, and how many blocks in all.
pub(super) fn cost_of(runs: &[PbaRange]) -> (usize, u64) {
    let spans = spans(runs, GAP_BLOCKS_MAX);
    (spans.len(), spans.iter().map(|span| span.range.blocks).sum())
}

/// Reads runs of a drive in few requests.
pub(super) async fn fetch_runs<D: Device>(device: D, runs: Vec<PbaRange>) -> Vec<Fetched> {
    let spans = spans(&runs, GAP_BLOCKS_MAX);
    read_spans(|range| fetch(&device, range), &spans, &runs).await
}

/// Reads spans: what became of each of the runs in them.
async fn read_spans<F>(
    read: impl Fn(PbaRange) -> F,
    spans: &[Span],
    runs: &[PbaRange],
) -> Vec<Fetched>
where
    F: Future<Output = Fetched>,
{
    let fetched = join_all(spans.iter().map(|span| read_span(&read, span, runs))).await;
    let mut in_order: Vec<_> = runs.iter().map(|_| Err(DeviceError::Gone)).collect();
    for (span, fetched) in spans.iter().zip(fetched) {
        for (number, run) in span.runs.iter().zip(fetched) {
            in_order[*number] = run;
        }
    }
    in_order
}

/// Reads a span: what became of each of its runs.
async fn read_span<F>(read: impl Fn(PbaRange) -> F, span: &Span, runs: &[PbaRange]) -> Vec<Fetched>
where
    F: Future<Output = Fetched>,
{
    let own = span.runs.iter().map(|number| runs[*number]);
    match read(span.range).await {
        Ok(all) => own
            .map(|run| {
                let first = run.start.0 - span.range.start.0;
                Ok(all.blocks(in_memory(first), in_memory(run.blocks)))
            })
            .collect(),
        Err(error) if error == DeviceError::Gone || span.runs.len() == 1 => {
            own.map(|_| Err(error)).collect()
        }
        Err(_) => join_all(own.map(read)).await,
    }
}

async fn fetch<D: Device>(device: &D, range: PbaRange) -> Fetched {
    let buffer = Buffer::new(in_memory(range.blocks));
    Ok(device.read(range.start, buffer).await?.into_slice())
}

fn in_memory(blocks: u64) -> usize {
    usize::try_from(blocks).expect("bounded by memory")
}

#[cfg(test)]
mod tests {
    use units::Pba;

    use super::*;

    fn run(start: u64, blocks: u64) -> PbaRange {
        PbaRange::new(Pba(start), blocks)
    }

    /// Start and blocks of each request, and the runs in it.
    fn requests(runs: &[PbaRange]) -> Vec<(u64, u64, Vec<usize>)> {
        let request = |span: Span| (span.range.start.0, span.range.blocks, span.runs.to_vec());
        spans(runs, GAP_BLOCKS_MAX).into_iter().map(request).collect()
    }

    #[test]
    fn runs_that_lie_close_are_one_request_in_whatever_order() {
        let scattered = [run(107, 2), run(100, 4), run(106, 1), run(500, 1)];
        assert_eq!(requests(&scattered), [(100, 9, vec![1, 2, 0]), (500, 1, vec![3])]);
        assert_eq!(requests(&[]), []);
    }

    /// SPAN-1.
    #[test]
    fn what_is_read_in_vain_is_bounded() {
        assert_eq!(requests(&[run(0, 20), run(28, 1)]).len(), 1);
        assert_eq!(requests(&[run(0, 20), run(29, 1)]).len(), 2);
        assert_eq!(requests(&[run(0, 1), run(3, 1)]).len(), 1);
        assert_eq!(requests(&[run(0, 1), run(4, 1)]).len(), 2);
        let sparse: Vec<_> = (0..100).map(|n| run(n * 9, 1 + n % 3)).collect();
        for span in spans(&sparse, GAP_BLOCKS_MAX) {
            assert!(span.range.blocks <= 2 * span.wanted, "{span:?}");
        }
    }

    /// SPAN-1: what lies in memory.
    #[test]
    fn runs_that_touch_are_one_without_gaps() {
        let scattered = [run(107, 2), run(100, 4), run(106, 1), run(104, 1)];
        let found = spans(&scattered, 0);
        let ranges: Vec<_> =
            found.iter().map(|span| (span.range.start.0, span.range.blocks)).collect();
        assert_eq!(ranges, [(100, 5), (106, 3)]);
    }

    #[test]
    fn a_block_that_a_damaged_map_names_twice_is_read_once() {
        assert_eq!(requests(&[run(10, 5), run(12, 1), run(12, 9)]), [(10, 11, vec![0, 1, 2])]);
    }
}
