//! Ways to break the host on purpose, so that tests can show that they would notice.
//!
//! Without the feature `sabotage` nothing is ever broken, and the compiler removes every trace.

/// One broken promise of the host or of what drives it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sabotage {
    /// H2CData counts its offset from the start of its R2T.
    OffsetWithinR2t,
    /// Each H2CData PDU is the last one.
    LastEachTime,
    /// Data begins at a multiple of four, whatever CPDA says.
    IgnoreCpda,
    /// Data PDUs are as long as their R2T, whatever MAXH2CDATA says.
    IgnoreMaxH2cData,
    /// The digest of data that came in pieces is that of the last piece.
    DigestOfLastPiece,
    /// Data whose digest does not match is taken.
    TakeWrongData,
    /// The digest of data that answers an R2T is that of what the PDU before carried, too.
    DigestFromStart,
}

impl Sabotage {
    /// Each way.
    pub const ALL: [Self; 7] = [
        Self::OffsetWithinR2t,
        Self::LastEachTime,
        Self::IgnoreCpda,
        Self::IgnoreMaxH2cData,
        Self::DigestOfLastPiece,
        Self::TakeWrongData,
        Self::DigestFromStart,
    ];
}

#[cfg(feature = "sabotage")]
std::thread_local! {
    static CHOSEN: core::cell::Cell<Option<Sabotage>> = const { core::cell::Cell::new(None) };
}

/// Breaks the hosts of this thread so from now on, or no more.
#[cfg(feature = "sabotage")]
pub fn sabotage(which: Option<Sabotage>) {
    CHOSEN.set(which);
}

/// Whether this promise is broken.
#[cfg(feature = "sabotage")]
#[must_use]
pub fn broken(which: Sabotage) -> bool {
    CHOSEN.get() == Some(which)
}

/// Whether this promise is broken.
#[cfg(not(feature = "sabotage"))]
#[inline(always)]
#[must_use]
pub const fn broken(_: Sabotage) -> bool {
    false
}
