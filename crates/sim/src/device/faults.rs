//! Faults of a disk.

use units::Pba;

/// Chances of faults: each happens once in so many requests on average; zero is never.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DeviceFaults {
    /// A read fails with an I/O error.
    pub read_error_one_in: u64,
    /// A write fails with an I/O error; any of its sectors may have been written.
    pub write_error_one_in: u64,
    /// A flush fails. Some of what it should have covered is on the medium, the rest is visible to reads and gone
    /// after a crash, even if later flushes succeed. Its caller gets the error a while later.
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

/// Survivors of a crash among the writes that no flush covers. Those that had not completed count as well.
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
    /// Completed writes survive, and no others: the end of a process, not of the power. They are still not flushed.
    Completed,
    /// Writes that had not completed survive, and completed ones do not.
    InFlight,
    /// The writes issued first survive, up to one that is cut at a sector.
    Prefix,
    /// The writes issued last survive, from some write on.
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
    /// The damaged block.
    pub pba: Pba,
    /// The content that it should have.
    pub intended: Vec<u8>,
}
