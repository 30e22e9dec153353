//! Connect: what a host asks for, checked as far as it can be without knowing the subsystem.

use nvme_wire::fabrics::{
    CATTR_DISABLE_SQ_FLOW, CNTLID_DYNAMIC, Connect, ConnectData, ConnectInvalid, ConnectResult,
};
use nvme_wire::{HostId, Nqn, Sqe, Status};
use zerocopy::FromBytes;

use crate::Limits;

/// Largest controller identifier; those above are reserved.
pub const CNTLID_MAX: u16 = 0xFFEF;

/// A Connect command that is well formed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConnectRequest {
    /// The queue; 0 asks for a new controller.
    pub qid: u16,
    /// Entries of the submission queue, at least 2.
    pub entries: u16,
    /// True if the queue uses submission queue flow control.
    pub sq_flow_control: bool,
    /// Keep Alive Timeout in milliseconds, 0 for none (admin queue only).
    pub kato_ms: u32,
    /// The controller to join (I/O queues only).
    pub cntlid: u16,
    /// The host's identifier. On an I/O queue it may be zero: the host of its controller.
    pub host_id: HostId,
    /// The host's NQN.
    pub host_nqn: Nqn,
    /// The subsystem.
    pub subsystem: Nqn,
}

/// Why a Connect failed: what to complete it with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ConnectRefusal {
    /// Status of the completion.
    pub status: Status,
    /// Dwords 0 and 1 of the completion.
    pub result: u64,
}

/// The terms of a successful Connect; see [`crate::Connection::accept`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Negotiated {
    /// The queue.
    pub qid: u16,
    /// Entries of the queue.
    pub entries: u16,
    /// True if it uses submission queue flow control.
    pub sq_flow_control: bool,
    /// The result in the completion.
    pub result: ConnectResult,
}

impl ConnectRefusal {
    /// This subsystem does not exist, or not for this host.
    pub const UNKNOWN_SUBSYSTEM: Self =
        Self::invalid(ConnectInvalid::data(ConnectData::OFFSET_SUBNQN));
    /// There is no such controller.
    pub const UNKNOWN_CONTROLLER: Self =
        Self::invalid(ConnectInvalid::data(ConnectData::OFFSET_CNTLID));
    /// No more controllers or connections now; the host may try again.
    pub const BUSY: Self = Self::status(Status::CONNECT_CONTROLLER_BUSY);

    const fn status(status: Status) -> Self {
        Self { status, result: 0 }
    }

    /// A parameter is wrong; the host learns which.
    #[must_use]
    pub const fn invalid(parameter: ConnectInvalid) -> Self {
        Self {
            status: Status::CONNECT_INVALID_PARAMETERS.with_dnr(),
            result: parameter.to_dw0() as u64,
        }
    }
}

impl ConnectRefusal {
    /// The reason for the refusal, for the log of the server.
    #[must_use]
    pub fn cause(&self) -> &'static str {
        match self.status.code() {
            Status::CONNECT_INVALID_PARAMETERS => {
                let dw0 = u32::try_from(self.result).unwrap_or(u32::MAX);
                cause_of_invalid(ConnectInvalid::from_dw0(dw0))
            }
            Status::CONNECT_CONTROLLER_BUSY => {
                "busy: too many connections, controllers or failed authentications, or an absent device"
            }
            _ => self.status.name(),
        }
    }
}

/// The fault of the field that `invalid` names.
fn cause_of_invalid(invalid: ConnectInvalid) -> &'static str {
    match (invalid.in_data, invalid.ipo) {
        (false, Connect::OFFSET_SQSIZE) => "SQSIZE is zero or larger than queues may be (MQES)",
        (false, Connect::OFFSET_QID) => "QID is that of no queue that the host may have",
        (false, Connect::OFFSET_FLAGS) => "the command has no SGL, or reserved flags",
        (false, _) => "reserved bytes of the command are in use",
        (true, ConnectData::OFFSET_HOSTID) => "HOSTID is zero, or not that of the controller",
        (true, ConnectData::OFFSET_CNTLID) => "CNTLID is that of no controller of the host",
        (true, ConnectData::OFFSET_SUBNQN) => "SUBNQN is no name, or that of no subsystem here",
        (true, ConnectData::OFFSET_HOSTNQN) => {
            "HOSTNQN is no NVMe qualified name (nqn.yyyy-mm.domain...), or not that of the controller"
        }
        (true, _) => "reserved bytes of the data are in use",
    }
}

impl ConnectRequest {
    /// Checks the command and its data, but for what only the subsystem can tell.
    pub fn decode(sqe: &Sqe, data: &[u8], limits: &Limits) -> Result<Self, ConnectRefusal> {
        let connect = Connect::from(*sqe);
        let in_command = |offset| ConnectRefusal::invalid(ConnectInvalid::command(offset));
        let in_data = |offset| ConnectRefusal::invalid(ConnectInvalid::data(offset));
        // A Connect is not refused with Invalid Field in Command (Base, clause 6.3).
        if sqe.flags != Sqe::PSDT_SGL {
            return Err(in_command(Connect::OFFSET_FLAGS));
        }
        if connect.recfmt.get() != 0 {
            let status = Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr();
            return Err(ConnectRefusal::status(status));
        }
        let Ok(connect_data) = ConnectData::read_from_bytes(data) else {
            return Err(ConnectRefusal::status(Status::DATA_SGL_LENGTH_INVALID.with_dnr()));
        };
        if let Some(offset) = connect.reserved_in_use() {
            return Err(in_command(offset));
        }
        if let Some(offset) = connect_data.reserved_in_use() {
            return Err(in_data(offset));
        }
        let qid = connect.qid.get();
        if qid > limits.io_queues_max {
            return Err(in_command(Connect::OFFSET_QID));
        }
        let entries = u16::try_from(connect.entries())
            .ok()
            .filter(|entries| (2..=limits.queue_entries_max).contains(entries))
            .ok_or(in_command(Connect::OFFSET_SQSIZE))?;
        let cntlid = connect_data.cntlid.get();
        if (qid == 0 && cntlid != CNTLID_DYNAMIC) || (qid != 0 && cntlid > CNTLID_MAX) {
            return Err(in_data(ConnectData::OFFSET_CNTLID));
        }
        let host_id = HostId(connect_data.hostid);
        if qid == 0 && host_id.is_zero() {
            return Err(in_data(ConnectData::OFFSET_HOSTID));
        }
        Ok(Self {
            qid,
            entries,
            sq_flow_control: connect.cattr & CATTR_DISABLE_SQ_FLOW == 0,
            kato_ms: if qid == 0 { connect.kato.get() } else { 0 },
            cntlid,
            host_id,
            host_nqn: connect_data.host_nqn().map_err(|_| in_data(ConnectData::OFFSET_HOSTNQN))?,
            subsystem: connect_data.subsystem().map_err(|_| in_data(ConnectData::OFFSET_SUBNQN))?,
        })
    }

    /// The terms for the host with controller `cntlid`.
    pub(crate) fn negotiated(&self, cntlid: u16) -> Negotiated {
        Negotiated {
            qid: self.qid,
            entries: self.entries,
            sq_flow_control: self.sq_flow_control,
            result: ConnectResult::new(cntlid),
        }
    }
}

#[cfg(test)]
mod tests;
