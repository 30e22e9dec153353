//! Ways to break a core on purpose, so that tests can show that they would notice.
//!
//! Without the feature `sabotage` nothing is ever broken, and the compiler removes every trace.

mutation_points::mutations! {
    if feature = "sabotage";
    /// One broken promise.
    #[cfg_attr(not(feature = "sabotage"), allow(unreachable_pub, reason = "named by tests only"))]
    pub enum Sabotage {
        /// A token opens its volume when its grace is over.
        KeepExpiredTokens,
        /// Any host may open a volume, whatever its restrictions are.
        IgnoreRestrictions,
        /// Restrictions hold until the server starts again.
        StartForgetsRestrictions,
        /// A change of access holds from the next start on.
        KeepOldAccess,
        /// A change of access holds before it is durable.
        AccessBeforeRecord,
        /// ADMISSION-5: hosts are not cut that are to be cut.
        CutNoHost,
        /// ADMISSION-5: hosts are not cut that no longer qualify.
        KeepUnqualified,
        /// A deallocation of a part of a block makes all of it zeroes.
        ZeroWholeBlocks,
        /// A reservation is never on the device.
        ReserveInMemory,
        /// RESERVING-3: what is under way of hosts that are excluded may take effect later.
        PassByWrites,
        /// Reservations exclude no host from reading.
        AdmitReaders,
        /// The volumes that a start finds are bound by no allotment.
        StartUnbound,
    }

    /// Breaks the cores of this thread so from now on, or no more.
    pub fn sabotage;
    /// Returns whether this promise is broken.
    pub(crate) fn broken;
}
