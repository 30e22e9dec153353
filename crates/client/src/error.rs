//! Errors, and how the caller can handle them.

use std::fmt;
use std::net::SocketAddr;

use io_traits::{NetworkError, StreamError};
use nvme_initiator::{CapabilityError, ConnectionError};
use nvme_wire::Status;
use nvme_wire::fabrics::ConnectInvalid;
use units::Duration;

/// Why a request failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Error {
    /// The target refused or failed it. Sent again, it fails again if `status.dnr()`.
    #[error("{command}: the target answers: {status}")]
    Target {
        /// The command's name.
        command: &'static str,
        /// Status that the target returned.
        status: Status,
        /// Dwords 0 and 1 of the completion: what they mean depends on the command.
        result: u64,
    },
    /// More than one command can carry. Split it.
    #[error("{blocks} blocks at once are more than the limit of {limit}")]
    TooLarge {
        /// Blocks asked for.
        blocks: u64,
        /// Blocks that one command can carry.
        limit: u64,
    },
    /// More than is written all or nothing; nothing of it was sent. Write less at once, or by
    /// [`crate::Volume::write`], which promises less.
    #[error(
        "{blocks} blocks are not written all or nothing: the atomic write size is {limit} blocks"
    )]
    NotAtomic {
        /// Blocks asked for.
        blocks: u64,
        /// Blocks of the largest atomic write, [`crate::Volume::atomic_write_blocks`].
        limit: u64,
    },
    /// Nothing was asked for, or the data is no whole number of blocks.
    #[error("{len_bytes} bytes are not one or more whole blocks of {block_bytes} bytes")]
    NotWholeBlocks {
        /// Bytes given.
        len_bytes: u64,
        /// Bytes in a block.
        block_bytes: u32,
    },
    /// The blocks of this volume have other metadata than was given: [`crate::Volume::read_ex`] and its like take
    /// and give it.
    #[error("{given_bytes} bytes of metadata were given where the blocks have {wanted_bytes}")]
    Metadata {
        /// Bytes given.
        given_bytes: u64,
        /// Bytes that so many blocks have.
        wanted_bytes: u64,
    },
    /// Data came damaged again and again. Other requests may succeed; look at the network.
    #[error("the data of a reply does not match its checksum, after {attempts} attempts")]
    Damaged {
        /// Attempts made.
        attempts: u8,
    },
    /// The connection was lost and could not be made again, or must not be by [`Reconnect`]. Connect again. The
    /// request may or may not have been carried out, unless the reason is [`Disconnect::GaveUp`]: then it was never
    /// sent.
    ///
    /// [`Reconnect`]: crate::Reconnect
    #[error("the connection is lost: {0}")]
    Disconnected(Disconnect),
    /// The request was sent, again on a new connection each time, and each was lost before the answer
    /// came, [`crate::SENDS_MAX`] times or until no new one could be made. It may or may not have been
    /// carried out. Other requests may succeed.
    #[error("sent on {sends} connections, each lost before the answer came: {last}")]
    Unanswered {
        /// Times that it was sent.
        sends: u8,
        /// Why the last connection was lost.
        last: Disconnect,
    },
    /// The capabilities that the target reports cannot be used.
    #[error(transparent)]
    Capability(#[from] CapabilityError),
    /// The subsystem has no such namespace.
    #[error("the subsystem has no namespace {nsid}")]
    NoNamespace {
        /// The namespace; 0 if it has none at all.
        nsid: u32,
    },
    /// The target reports another format for the namespace than when it was opened. Nothing more is sent to the
    /// namespace: drop its volumes, and open it again. A request that was sent before may or may not have been
    /// carried out.
    #[error("the blocks of namespace {nsid} have another format than when it was opened")]
    FormatChanged {
        /// The namespace.
        nsid: u32,
    },
    /// The target has no such command.
    #[error("{command}: the target does not support it")]
    Unsupported {
        /// The command's name.
        command: &'static str,
    },
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
}

/// Why a connection was lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Disconnect {
    /// The stream ended.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// One side broke the protocol, or the target ended the connection with a reason.
    #[error(transparent)]
    Protocol(#[from] ConnectionError),
    /// A command was not answered in time.
    #[error("a command was not answered in time")]
    CommandTimeout,
    /// Attempts to connect again failed, or were refused, until the time for it was over;
    /// [`crate::Client::last_connect_error`] knows why.
    #[error("could not connect again")]
    GaveUp,
    /// The client closed it.
    #[error("this client closed it")]
    Closed,
}

/// Why a client could not connect.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ConnectError {
    /// No server listens there, or the network does not reach it.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// No answer within the connect timeout. Is this the port of an NVMe/TCP target?
    #[error("{address}: no NVMe/TCP answer in time")]
    Timeout {
        /// The address tried.
        address: SocketAddr,
    },
    /// The discovery service answers, but its log was not read to the end within
    /// [`Options::discovery_timeout`](field@crate::Options::discovery_timeout).
    #[error("{address}: the discovery log was not read within the discovery timeout of {} s", .limit.as_secs_f32())]
    DiscoveryTimeout {
        /// The address asked.
        address: SocketAddr,
        /// The discovery timeout.
        limit: Duration,
    },
    /// The target refused the Connect command.
    #[error("the target refuses to connect: {}{}", ConnectStatus(*status), invalid_text(*invalid))]
    Refused {
        /// Status that the target returned.
        status: Status,
        /// The field that it rejects, if it reports it.
        invalid: Option<ConnectInvalid>,
    },
    /// The target asks for authentication, for which this client has no secret.
    #[error("the target asks for authentication")]
    AuthenticationRequired,
    /// The controller has to authenticate itself, but connects without any authentication. It may be another server
    /// than meant.
    #[error("the target connects without authentication, so that it does not prove who it is")]
    Unproven,
    /// The controller has to authenticate itself, and does not know the secret for that. It may be another server
    /// than meant. It has accepted the host's own secret.
    #[error(
        "the target does not know the controller token: check that token, and that this is the server meant"
    )]
    WrongController,
    /// The host could not authenticate itself.
    #[error("not authenticated: {0}; check the volume's token")]
    Authentication(nvme_wire::auth::Explanation),
    /// The controller reports a fatal condition.
    #[error("the controller reports a fatal condition (CSTS {csts:#x})")]
    Fatal {
        /// Controller Status.
        csts: u32,
    },
    /// The controller does not get ready: what was sent to those before it may be under way. It may be ready later.
    #[error("the controller does not get ready within {} s", .timeout.as_secs_f32())]
    NotReady {
        /// The time that it states, or the command timeout if that is shorter.
        timeout: Duration,
    },
    /// Within the command timeout the target has not ended the controller that was lost, as it was told to. Nothing
    /// can be sent again before.
    #[error("the target has not yet ended the connections that were lost")]
    NotEnded,
    /// After a reconnect, fewer I/O queues were granted than are in use.
    #[error("the controller grants {granted} of {needed} I/O queues")]
    TooFewQueues {
        /// Queues granted.
        granted: u32,
        /// Queues in use.
        needed: u32,
    },
    /// A command of the sequence failed.
    #[error(transparent)]
    Command(#[from] Error),
}

impl ConnectError {
    /// Returns true if the host or the controller failed to authenticate itself.
    #[must_use]
    pub fn is_unproven(&self) -> bool {
        match self {
            Self::AuthenticationRequired
            | Self::Unproven
            | Self::WrongController
            | Self::Authentication(_) => true,
            Self::Network(_)
            | Self::Timeout { .. }
            | Self::DiscoveryTimeout { .. }
            | Self::Refused { .. }
            | Self::Fatal { .. }
            | Self::NotReady { .. }
            | Self::NotEnded
            | Self::TooFewQueues { .. }
            | Self::Command(_) => false,
        }
    }

    /// Returns true if the target will refuse the next attempt, too: it reports that (Do Not Retry), or
    /// authentication failed on either side.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Refused { status, .. } | Self::Command(Error::Target { status, .. }) => {
                status.dnr()
            }
            other => other.is_unproven(),
        }
    }
}

impl From<CapabilityError> for ConnectError {
    fn from(error: CapabilityError) -> Self {
        Self::Command(Error::Capability(error))
    }
}

/// A status as a Connect means it: other commands share its codes. With its numbers, like any other, so that logs can be searched.
struct ConnectStatus(Status);

impl fmt::Display for ConnectStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(status) = self;
        match status.code() {
            Status::CONNECT_CONTROLLER_BUSY => {
                status.fmt_as("Connect Controller Busy", f)?;
                f.write_str(
                    ": it has no room for this host now, or has put its address off after authentications that failed",
                )
            }
            Status::CONNECT_INCOMPATIBLE_FORMAT => status.fmt_as("Connect Incompatible Format", f),
            Status::CONNECT_INVALID_PARAMETERS => status.fmt_as("Connect Invalid Parameters", f),
            _ => status.fmt(f),
        }
    }
}

fn invalid_text(invalid: Option<ConnectInvalid>) -> String {
    match invalid {
        None => String::new(),
        Some(ConnectInvalid { ipo, in_data: true }) => match ipo {
            256..512 => ": no such subsystem, or not for this host".into(),
            512..768 => ": host NQN".into(),
            0..16 => ": host identifier".into(),
            _ => format!(": connect data, byte {ipo}"),
        },
        Some(ConnectInvalid { ipo, in_data: false }) => format!(": command, byte {ipo}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Method: all that a Connect is refused with, each with and without Do Not Retry.
    #[test]
    fn a_refusal_to_connect_is_shown_with_name_and_numbers() {
        for (status, name, numbers) in [
            (Status::CONNECT_INCOMPATIBLE_FORMAT, "Connect Incompatible Format", "sct 0x1 sc 0x80"),
            (Status::CONNECT_CONTROLLER_BUSY, "Connect Controller Busy", "sct 0x1 sc 0x81"),
            (Status::CONNECT_INVALID_PARAMETERS, "Connect Invalid Parameters", "sct 0x1 sc 0x82"),
        ] {
            let text = |status| ConnectError::Refused { status, invalid: None }.to_string();
            let begins = format!("the target refuses to connect: {name} ({numbers}");
            assert!(text(status).starts_with(&format!("{begins})")), "{}", text(status));
            let refused = text(status.with_dnr());
            assert!(refused.starts_with(&format!("{begins}, do not retry)")), "{refused}");
        }
        let field = ConnectInvalid { ipo: 256, in_data: true };
        let status = Status::CONNECT_INVALID_PARAMETERS;
        let refused = ConnectError::Refused { status, invalid: Some(field) }.to_string();
        assert!(
            refused.ends_with(" sc 0x82): no such subsystem, or not for this host"),
            "{refused}"
        );
    }
}
