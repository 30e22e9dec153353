//! What may go wrong with a disk.

use units::Pba;

/// What may go wrong, each once in so many requests on average; zero is never.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DeviceFaults {
    /// A read fails with an I/O error.
    pub read_error_one_in: u64,
    /// A write fails with an I/O error; any of its sectors may have been written.
    pub write_error_one_in: u64,
    /// A flush fails. Some of what it should have covered is on the medium, the rest is seen by
    /// reads and gone after a crash, whatever later flushes say. Whoever asked for it hears of that
    /// a while later.
    pub flush_error_one_in: u64,
    /// A write fails for want of space and has no effect.
    pub no_space_one_in: u64,
    /// A discard fails. All of it, some or nothing was done.
    pub discard_error_one_in: u64,
    /// A write succeeds and has no effect.
    pub lost_write_one_in: u64,
    /// A write succeeds, but elsewhere.
    pub misdirected_write_one_in: u64,
    /// A read succeeds, but gives what lies elsewhere. That passes: the next reads there are sound.
    pub misdirected_read_one_in: u64,
    /// With a request, one bit of some written block flips.
    pub rot_one_in: u64,
    /// A request takes a thousand times as long as usual.
    pub slow_one_in: u64,
    /// A request waits until [`crate::SimDevice::release_stuck`].
    pub stuck_one_in: u64,
}

/// What a crash leaves of writes that no flush covers. Those that had not completed count as well.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Survival {
    /// Each sector of 512 bytes survives or not by chance.
    Sectors,
    /// Each write survives wholly or not at all by chance.
    Writes,
    /// Nothing survives.
    Nothing,
    /// All survives, even what had not completed.
    Everything,
    /// What had completed is there, and nothing else: the end of a process, not of the power. No flush covers it still.
    Completed,
    /// What had not completed survives, and what had completed does not.
    InFlight,
    /// What was issued first survives, up to a write that is cut at a sector.
    Prefix,
    /// What was issued last survives, from some write on.
    Suffix,
}

impl Survival {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Sectors,
        Self::Writes,
        Self::Nothing,
        Self::Everything,
        Self::Completed,
        Self::InFlight,
        Self::Prefix,
        Self::Suffix,
    ];
}

/// In what way a block was damaged.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DamageKind {
    /// Its last write was lost.
    LostWrite,
    /// Its last write went elsewhere.
    MisdirectedWrite,
    /// A write that was meant for another block went here.
    Overwritten,
    /// A bit flipped.
    Rot,
    /// One read gave what another block holds; the block itself is sound.
    MisdirectedRead,
}

/// A block that does not hold, or once did not give, what it should.
#[derive(Clone, Debug)]
pub struct Damage {
    /// In what way.
    pub kind: DamageKind,
    /// Which block.
    pub pba: Pba,
    /// What it should hold.
    pub intended: Vec<u8>,
}
