//! Limits of a connection, which login negotiates or which bound what a peer may cost.

use units::Duration;

/// Limits of a connection.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Data of one PDU that the target takes (MaxRecvDataSegmentLength).
    pub receive_max: u32,
    /// Data that one R2T asks for, and that one sequence of Data-Ins carries (MaxBurstLength).
    pub burst_max: u32,
    /// Data that comes without an R2T (FirstBurstLength).
    pub first_burst_max: u32,
    /// R2Ts of one command that are outstanding (MaxOutstandingR2T).
    pub r2t_max: u16,
    /// Bytes of the text of one login or text request.
    pub text_max: usize,
    /// Time for a login.
    pub login_timeout: Duration,
    /// Silence after which the target sends a NOP-In.
    pub idle: Duration,
    /// Time for the answer to that, and silence in the middle of a PDU or of data that was asked for.
    pub stall_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            receive_max: 256 << 10,
            burst_max: 1 << 20,
            first_burst_max: 64 << 10,
            r2t_max: 8,
            text_max: 16 << 10,
            login_timeout: Duration::from_secs(15),
            idle: Duration::from_secs(20),
            stall_timeout: Duration::from_secs(30),
        }
    }
}
