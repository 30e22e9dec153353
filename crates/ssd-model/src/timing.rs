//! The parameters as the model computes with them: whole nanoseconds, scale applied.

use units::BLOCK_SIZE;

use crate::Params;
use crate::chance::{Around, Tail};
use crate::unit::ONE_COLLECTION;

#[derive(Clone, Debug)]
pub(crate) struct Timing {
    pub(crate) read: Around,
    pub(crate) program: Around,
    /// Reading the valid blocks of a victim and programming them elsewhere, one operation's worth.
    pub(crate) collect: Around,
    pub(crate) erase: Around,
    pub(crate) read_overhead_ns: u64,
    pub(crate) write_ns: u64,
    pub(crate) flush_ns: u64,
    pub(crate) discard_ns: u64,
    pub(crate) command_ns: u64,
    pub(crate) read_block_ns: u64,
    pub(crate) write_block_ns: u64,
    pub(crate) idle_ns: u64,
    pub(crate) pause_every_ns: u64,
    pub(crate) pause_ns: u64,
    pub(crate) tail: Tail,
    pub(crate) programs_per_erase: u32,
    pub(crate) reads_before_program: u32,
    pub(crate) turnaround_ns: u64,
    /// Collection that a program causes, in parts of [`ONE_COLLECTION`].
    pub(crate) garbage_per_program: u32,
    /// Time of a unit from one program of the host to the next, with what follows from it.
    pub(crate) cycle_ns: u64,
}

impl Timing {
    pub(crate) fn new(params: &Params) -> Self {
        let ns = |us: f64| (us * 1e3 / params.scale) as u64;
        let block_ns = |megabytes: f64| ns(BLOCK_SIZE as f64 / megabytes);
        let reads_per_program = params.program_blocks.div_ceil(params.page_blocks);
        let collect_us = params.program_us + f64::from(reads_per_program) * params.read_us;
        let tail_ns = ns(params.tail_us);
        Self {
            read: Around::new(ns(params.read_us), params.jitter),
            program: Around::new(ns(params.program_us), params.jitter),
            collect: Around::new(ns(collect_us), params.jitter),
            erase: Around::new(ns(params.erase_us), params.jitter),
            read_overhead_ns: ns(params.read_overhead_us),
            write_ns: ns(params.write_us),
            flush_ns: ns(params.flush_us),
            discard_ns: ns(params.discard_us),
            command_ns: ns(1e6 / params.commands_per_second),
            read_block_ns: block_ns(params.read_megabytes_per_second),
            write_block_ns: block_ns(params.write_megabytes_per_second),
            idle_ns: ns(params.idle_ms * 1e3),
            pause_every_ns: ns(params.pause_every_s * 1e6),
            pause_ns: ns(params.pause_us),
            tail: Tail::new(params.tail_share, tail_ns, params.tail_shape, ns(params.tail_max_us)),
            programs_per_erase: params.programs_per_erase,
            reads_before_program: params.reads_before_program,
            turnaround_ns: ns(params.turnaround_us),
            garbage_per_program: 0,
            cycle_ns: ns(params.program_us),
        }
    }

    /// Sets what depends on the blocks that collection writes for each block of the host.
    pub(crate) fn set_extra(&mut self, extra: f64) {
        self.garbage_per_program = (extra * f64::from(ONE_COLLECTION)) as u32;
        self.cycle_ns = self.program.mean_ns + self.collection_ns(extra);
    }

    /// Returns the time that a program of the host costs its unit in collection and erases.
    pub(crate) fn collection_ns(&self, extra: f64) -> u64 {
        let erases = (1.0 + extra) / f64::from(self.programs_per_erase);
        (extra * self.collect.mean_ns as f64 + erases * self.erase.mean_ns as f64) as u64
    }
}
