//! Draws the next command of a host.

use std::ops::Range;

use crate::command::{Command, Kind, range_list};
use crate::host::Host;
use crate::setup::Queue;

impl Host {
    /// A command that is to be sent now, if there is one that may be.
    pub(crate) fn draw_command(&mut self) -> Option<Command> {
        let outstanding = self.flying.iter().filter(|command| command.ended.is_none()).count();
        let room = usize::from(self.setup.sqsize).saturating_sub(outstanding);
        if room == 0 {
            return None;
        }
        let cid = self.free_cid();
        if self.setup.queue == Queue::Admin {
            if outstanding > 0 {
                return None;
            }
            let kind = self.script.pop_front()?;
            let mut command = Command::new(kind, cid, 0..0);
            command.wanted = if matches!(command.kind, Kind::Identify { .. }) { 4096 } else { 0 };
            return Some(command);
        }
        if self.left == 0 {
            return self.draw_sweep(cid, outstanding);
        }
        let max = self.setup.namespace.transfer_blocks_max.min(self.image.blocks() / 2);
        let count = match self.rng.between(0, 9) {
            0..=3 => 1,
            4..=6 => self.rng.between(1, 4),
            7..=8 => self.rng.between(1, 17),
            _ => self.rng.between(1, 64),
        };
        let start = self.free_run(count.min(max))?;
        let blocks = start..start + count.min(max);
        self.left -= 1;
        let mut command = Command::new(self.draw_kind(room, &blocks), cid, blocks);
        self.fill(&mut command);
        Some(command)
    }

    /// A read of the next blocks, once nothing else is under way.
    fn draw_sweep(&mut self, cid: u16, outstanding: usize) -> Option<Command> {
        let left = self.image.blocks() - self.swept;
        if left == 0 || outstanding > 0 {
            return None;
        }
        let count = self.rng.between(1, left.min(self.setup.namespace.transfer_blocks_max));
        let mut command = Command::new(Kind::Read, cid, self.swept..self.swept + count);
        command.wanted = count * self.setup.namespace.each();
        self.swept += count;
        Some(command)
    }

    fn draw_kind(&mut self, room: usize, blocks: &Range<usize>) -> Kind {
        match self.rng.between(0, 19) {
            0..=7 => Kind::Write,
            8..=12 => Kind::Read,
            13 => Kind::Flush,
            14 => Kind::Zeroes,
            15 => Kind::Compare,
            16 => Kind::CompareAndWrite,
            17 if room >= 2 => Kind::FusedCompare,
            18 => {
                let runs = self.rng.pick(&[1, 1, 2, 5, 64, 256]);
                Kind::Deallocate(
                    (0..runs)
                        .map(|_| {
                            let start = self.rng.between(blocks.start, blocks.end - 1);
                            (start, self.rng.between(0, blocks.end - start))
                        })
                        .collect(),
                )
            }
            _ => Kind::Write,
        }
    }

    /// Draws the data that goes with a command, and where it goes.
    fn fill(&mut self, command: &mut Command) {
        let each = self.setup.namespace.each();
        let (start, count) = (command.blocks.start, command.blocks.len());
        match &command.kind {
            Kind::Read => command.wanted = count * each,
            Kind::Write => command.data = self.rng.bytes(count * each),
            Kind::Deallocate(runs) => {
                command.data = range_list(runs);
                if self.rng.one_in(4) {
                    command.data.resize(4096, 0);
                }
            }
            Kind::Compare | Kind::CompareAndWrite | Kind::FusedCompare => {
                command.data = self.image.bytes(start, count);
                command.must_differ = self.rng.one_in(3);
                if command.must_differ {
                    let at = self.rng.between(0, command.data.len() - 1);
                    command.data[at] ^= 1 << self.rng.between(0, 7);
                }
            }
            _ => {}
        }
        if command.kind == Kind::CompareAndWrite {
            command.data.extend(self.rng.bytes(count * each));
        }
        if command.kind == Kind::FusedCompare {
            self.draw_second_half(command);
        }
        command.is_in_capsule = self.may_be_in_capsule(command);
    }

    fn draw_second_half(&mut self, first: &mut Command) {
        let cid = loop {
            let cid = self.free_cid();
            if cid != first.cid {
                break cid;
            }
        };
        let mut second = Command::new(Kind::FusedWrite, cid, first.blocks.clone());
        second.data = self.rng.bytes(first.data.len());
        second.is_in_capsule = self.may_be_in_capsule(&second);
        second.partner = Some(first.cid);
        first.partner = Some(cid);
        self.second_half = Some(second);
    }

    fn may_be_in_capsule(&mut self, command: &Command) -> bool {
        let len = command.data.len();
        len > 0 && len <= self.setup.namespace.in_capsule_max && self.rng.one_in(2)
    }

    /// An identifier of no outstanding command. FFFFh stands for none.
    fn free_cid(&mut self) -> u16 {
        loop {
            let cid = self.rng.next_u64() as u16;
            let is_used = self.flying.iter().any(|command| command.cid == cid);
            if cid != 0xFFFF && !is_used {
                return cid;
            }
        }
    }

    /// Start of `count` blocks that no outstanding command is about.
    fn free_run(&mut self, count: usize) -> Option<usize> {
        (0..8).find_map(|_| {
            let start = self.rng.between(0, self.image.blocks() - count);
            let is_free = self.flying.iter().all(|command| {
                command.blocks.end <= start || start + count <= command.blocks.start
            });
            is_free.then_some(start)
        })
    }
}
