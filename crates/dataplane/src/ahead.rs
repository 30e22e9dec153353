//! What reads will need, on its way into the processor's caches before their turn comes.
//!
//! A read of one block waits for memory several times: for the leaf of the map, its entry there, the block; each
//! time also for the walk through page tables that leads there, which in a virtual machine is longer still. That takes
//! longer than all else that it does. Commands come many at a time, so they can wait together, and for the rest while
//! others are worked on:
//!
//! - A1: up to [`GROUP`] reads are prepared at a time, in rounds: each asks for what the next one looks at, for all of
//!   them, so that the processor waits for all at once. The last asks for the first line of each block.
//! - A2: the rest of the blocks is asked for in parts, in the order in which they are read, each part while something else
//!   is done: the processor drops what is too much at a time. See [`Lines`].
//! - A3: the next group is prepared when none of the last is left to run: what is fetched too early is gone again.
//! - A4: reads are numbered, so that of what is not remembered, or never runs, no other read is taken for it. When no
//!   command waits any more, all is forgotten.
//!
//! All of this is a guess: that reads run in the order in which they came, and that leaves are dense, so that nothing is
//! searched there. Where it is wrong, something is fetched in vain.

use std::collections::VecDeque;

use checksum::Lines;

/// Reads that are prepared at a time.
const GROUP: usize = 8;
/// Reads that are remembered: more than are worth it come only from many connections at once.
const READS_MAX: usize = 256;

/// A read that will run. What it says are hints to the processor.
pub(crate) trait Foreseen {
    /// Asks for what [`Foreseen::will_look_up`] looks at.
    fn will_search(&self);

    /// Asks for what [`Foreseen::lines`] looks at.
    fn will_look_up(&self);

    /// Where the block lies, if that is in memory.
    fn lines(&self) -> Lines;
}

/// Reads that have come and not run, the oldest first, with their numbers (A4).
#[derive(Debug)]
pub(crate) struct Ahead<T> {
    /// Those that are not prepared.
    reads: VecDeque<(u64, T)>,
    /// What is left to be asked for of each of those that are.
    prepared: VecDeque<(u64, Lines)>,
    /// The number of the next read that comes, and of the next that runs.
    coming: u64,
    running: u64,
}

impl<T> Default for Ahead<T> {
    fn default() -> Self {
        Self { reads: VecDeque::new(), prepared: VecDeque::new(), coming: 0, running: 0 }
    }
}

impl<T: Foreseen> Ahead<T> {
    /// A read has come.
    pub(crate) fn came(&mut self, read: T) {
        if self.reads.len() < READS_MAX {
            self.reads.push_back((self.coming, read));
        }
        self.coming += 1;
        if self.reads.len() >= GROUP {
            self.prepare();
        }
    }

    /// A read is about to run.
    pub(crate) fn runs(&mut self) {
        self.prepare();
        self.running += 1;
        self.forget_past();
    }

    /// So many of those that came will not run.
    pub(crate) fn never_run(&mut self, count: usize) {
        self.running += count as u64;
        self.forget_past();
    }

    /// Asks for the next part of a block (A2).
    pub(crate) fn ask(&mut self) {
        let mut lines = self.prepared.iter_mut().map(|(_, lines)| lines);
        if let Some(lines) = lines.find(|lines| !lines.are_all_asked()) {
            lines.fetch_some();
        }
    }

    /// No command waits any more.
    pub(crate) fn clear(&mut self) {
        self.running = self.coming;
        self.forget_past();
    }

    fn forget_past(&mut self) {
        let running = self.running;
        while self.prepared.front().is_some_and(|(number, _)| *number < running) {
            self.prepared.pop_front();
        }
        while self.reads.front().is_some_and(|(number, _)| *number < running) {
            self.reads.pop_front();
        }
    }

    /// Prepares the next group, if none of the last is left and its turn is near (A1, A3).
    fn prepare(&mut self) {
        let end = self.running + GROUP as u64;
        let count = self.reads.iter().take_while(|(number, _)| *number < end).count();
        if count == 0 || !self.prepared.is_empty() {
            return;
        }
        if count == 1 {
            // There is nothing to do meanwhile.
            let alone = self.reads.pop_front();
            return self.prepared.extend(alone.map(|(number, _)| (number, Lines::NONE)));
        }
        self.reads.iter().take(count).for_each(|(_, read)| read.will_search());
        self.reads.iter().take(count).for_each(|(_, read)| read.will_look_up());
        self.prepared.extend(self.reads.drain(..count).map(|(number, read)| {
            let mut lines = read.lines();
            lines.fetch_first();
            (number, lines)
        }));
        self.ask();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    /// Writes down what is asked of it.
    struct Read {
        number: usize,
        asked: Rc<RefCell<Vec<(usize, char)>>>,
        block: Rc<Block>,
    }

    /// As devices have them.
    #[repr(align(4096))]
    struct Block([u8; 4096]);

    impl Foreseen for Read {
        fn will_search(&self) {
            self.asked.borrow_mut().push((self.number, 's'));
        }

        fn will_look_up(&self) {
            self.asked.borrow_mut().push((self.number, 'l'));
        }

        fn lines(&self) -> Lines {
            self.asked.borrow_mut().push((self.number, 'b'));
            Lines::of(&self.block.0)
        }
    }

    #[derive(Default)]
    struct Test {
        ahead: Ahead<Read>,
        asked: Rc<RefCell<Vec<(usize, char)>>>,
    }

    impl Test {
        fn come(&mut self, numbers: std::ops::Range<usize>) {
            let block = Rc::new(Block([0; 4096]));
            for number in numbers {
                let (asked, block) = (self.asked.clone(), block.clone());
                self.ahead.came(Read { number, asked, block });
            }
        }

        /// What was asked since this was called last.
        fn asked(&self) -> Vec<(usize, char)> {
            self.asked.take()
        }

        /// Prepared blocks of which a part is still to be asked for.
        fn unasked(&self) -> usize {
            self.ahead.prepared.iter().filter(|(_, lines)| !lines.are_all_asked()).count()
        }
    }

    fn rounds(numbers: std::ops::Range<usize>) -> Vec<(usize, char)> {
        let round = |what| numbers.clone().map(move |number| (number, what));
        "slb".chars().flat_map(round).collect()
    }

    #[test]
    fn reads_are_prepared_in_rounds_a_group_at_a_time() {
        let mut test = Test::default();
        test.come(0..GROUP - 1);
        assert_eq!(test.asked(), []);
        test.come(GROUP - 1..3 * GROUP);
        assert_eq!(test.asked(), rounds(0..GROUP));
        (0..GROUP).for_each(|_| test.ahead.runs());
        assert_eq!(test.asked(), []);
        test.ahead.runs();
        assert_eq!(test.asked(), rounds(GROUP..2 * GROUP));
    }

    #[test]
    fn the_first_that_runs_has_those_prepared_that_came() {
        let mut test = Test::default();
        test.come(0..3);
        test.ahead.runs();
        assert_eq!(test.asked(), rounds(0..3));
        assert_eq!(test.ahead.prepared.len(), 2);
    }

    #[test]
    fn blocks_are_asked_for_in_parts_the_next_one_first() {
        let mut test = Test::default();
        test.come(0..GROUP);
        assert_eq!(test.unasked(), GROUP);
        while !test.ahead.prepared[0].1.are_all_asked() {
            test.ahead.ask();
        }
        assert_eq!(test.unasked(), GROUP - 1);
        test.ahead.runs();
        test.ahead.runs();
        assert_eq!(test.unasked(), GROUP - 2, "what runs is not asked for any more");
        (0..GROUP * 8).for_each(|_| test.ahead.ask());
        assert_eq!(test.unasked(), 0);
    }

    /// As commands run: one is asked for before it runs, and twice in it.
    #[test]
    fn a_block_is_asked_for_while_the_one_before_it_is_read() {
        let mut test = Test::default();
        test.come(0..GROUP);
        for run in 1..GROUP {
            test.ahead.runs();
            (0..3).for_each(|_| test.ahead.ask());
            assert_eq!(test.unasked(), GROUP - 1 - run, "after read {run}");
        }
    }

    #[test]
    fn what_is_not_remembered_is_not_mixed_up_with_others() {
        let mut test = Test::default();
        test.come(0..READS_MAX * 2);
        assert_eq!(test.ahead.reads.len(), READS_MAX);
        let numbers = |test: &Test| -> Vec<usize> {
            test.asked().into_iter().filter(|(_, what)| *what == 'b').map(|(n, _)| n).collect()
        };
        (0..READS_MAX * 2).for_each(|_| test.ahead.runs());
        // Some came when the first were prepared already.
        let remembered = READS_MAX + GROUP;
        assert_eq!(numbers(&test), (0..remembered).collect::<Vec<_>>());
        test.come(0..2);
        test.ahead.runs();
        assert_eq!(numbers(&test), [0, 1]);
    }

    #[test]
    fn what_never_runs_is_forgotten() {
        let mut test = Test::default();
        test.come(0..4);
        test.ahead.never_run(2);
        test.ahead.runs();
        assert_eq!(test.asked(), rounds(2..4));
        test.ahead.clear();
        assert_eq!((test.ahead.reads.len(), test.ahead.prepared.len()), (0, 0));
        test.come(0..2);
        test.ahead.runs();
        assert_eq!(test.asked(), rounds(0..2));
    }

    #[test]
    fn a_read_by_itself_is_not_prepared() {
        let mut test = Test::default();
        test.come(0..1);
        test.ahead.runs();
        assert_eq!(test.asked(), []);
        assert!(test.ahead.prepared.is_empty());
    }
}
