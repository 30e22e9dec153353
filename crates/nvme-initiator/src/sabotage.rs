//! Ways to break the host on purpose, so that tests can show that they would notice.
//!
//! Without the feature `sabotage` nothing is ever broken, and the compiler removes every trace.

mutation_points::mutations! {
    if feature = "sabotage";
    /// One broken promise of the host or of what drives it.
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

    /// Breaks the hosts of this thread so from now on, or no more.
    pub fn sabotage;
    /// Returns whether this promise is broken.
    #[must_use]
    pub fn broken;
}
