//! Ways to break the target on purpose, so that tests can show that they would notice.
//!
//! Without the feature `sabotage` nothing is ever broken, and the compiler removes every trace.

mutation_points::mutations! {
    if feature = "sabotage";
    /// One broken promise of the target or of what drives it.
    pub enum Sabotage {
        /// The digest of as many bytes as whole blocks have is made of the sums of blocks, wherever the bytes begin.
        DigestOfOtherBlocks,
        /// The digest of data that ends within a block leaves that part out.
        DigestSkipsPart,
        /// The sum of a block that came in pieces is that of the last piece.
        SumOfLastPiece,
        /// The sums of the last transfer of a slot stay.
        KeepOldSums,
        /// Data whose digest does not match is taken.
        TakeWrongData,
        /// A header whose digest does not match is taken.
        TakeWrongHeader,
        /// A data digest that came in two chunks is what the second one holds.
        DigestOfLastChunk,
        /// LAST_PDU is not looked at.
        IgnoreLastPdu,
        /// CCCID is not looked at: the Transfer Tag says enough.
        IgnoreCccid,
        /// An R2T asks from the start of the data, whatever has come.
        R2tFromStart,
        /// Data begins right behind the header, whatever PDO says.
        IgnorePdo,
        /// Data for the host begins at a multiple of four, whatever HPDA says.
        IgnoreHpda,
        /// SUCCESS stands for the completion that follows, too.
        SuccessAndCompletion,
        /// The digest of blocks that are read leaves their metadata out.
        DigestWithoutMetadata,
        /// The digest of blocks that are read has the metadata before the data of each.
        DigestOfMetadataFirst,
    }

    /// Breaks the targets of this thread so from now on, or no more.
    pub fn sabotage;
    /// Returns whether this promise is broken.
    #[must_use]
    pub fn broken;
}
