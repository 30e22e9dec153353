//! Errors, and how the caller can handle them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use client::{ConnectError, Disconnect};
use control::{ApiError, ProblemCode};
use nvme_wire::Status;
use nvme_wire::status::StatusCodeType;

use crate::TargetError;

/// Why something was not done. [`Error::kind`] sorts them for programs.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Offsets and lengths are multiples of the block size.
    #[error("{len} bytes at offset {offset} are not whole blocks of {block_size} bytes")]
    Misaligned {
        /// The offset given.
        offset: u64,
        /// The length given.
        len: u64,
        /// The volume's block size.
        block_size: u32,
    },
    /// The request reaches beyond the end of the volume, or beyond 2^64.
    #[error("{len} bytes at offset {offset} are not all within the volume")]
    OutOfRange {
        /// The offset given.
        offset: u64,
        /// The length given.
        len: u64,
    },
    /// A request that is to be atomic is larger than the volume's atomic write size; nothing of it was done.
    #[error(
        "{len} bytes at once are more than the limit of {limit}, the volume's atomic write size"
    )]
    TooLarge {
        /// The length given.
        len: u64,
        /// The longest possible, [`crate::Properties::atomic_write_bytes`].
        limit: u64,
    },
    /// The expected data and its replacement differ in length.
    #[error("expected data of {expected} bytes cannot be replaced by {data} bytes")]
    LengthsDiffer {
        /// Bytes expected.
        expected: u64,
        /// Bytes to replace them.
        data: u64,
    },
    /// The blocks of this volume have metadata, and nothing is read, written or compared without it: use
    /// [`crate::Volume::read_ex`] and its like.
    #[error(
        "the blocks of this volume have {metadata_size} bytes of metadata each, without which they are neither \
         read nor written"
    )]
    MetadataLeftOut {
        /// Bytes of each block.
        metadata_size: u32,
    },
    /// Metadata is as long as so many blocks have.
    #[error(
        "{given} bytes of metadata were given, but the blocks of {len} bytes of data have {wanted}"
    )]
    MetadataLength {
        /// The length given.
        given: u64,
        /// The length of the data.
        len: u64,
        /// The length that the metadata has to have.
        wanted: u64,
    },
    /// The blocks of this volume have no metadata.
    #[error("{given} bytes of metadata were given, but the blocks of this volume have no metadata")]
    NoMetadata {
        /// The length given.
        given: u64,
    },
    /// More requests are outstanding than this process may have. Wait for some of them.
    #[error("{limit} requests are outstanding; wait for some of them")]
    TooManyOutstanding {
        /// The most that there may be.
        limit: usize,
    },
    /// The text names no volume.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A volume cannot have that name.
    #[error(transparent)]
    Name(#[from] control::NameError),
    /// A volume cannot have that size.
    #[error(transparent)]
    Size(#[from] control::VolumeSizeError),
    /// Blocks cannot have so much metadata.
    #[error(transparent)]
    MetadataSize(#[from] control::MetadataBytesError),
    /// Logical blocks cannot have that size.
    #[error(transparent)]
    SectorSize(#[from] control::SectorBytesError),
    /// The text is no token.
    #[error("that is no token: {0}")]
    Token(auth::SecretError),
    /// The text has no token, or something else beside it.
    #[error("that is no token: {0}")]
    TokenText(auth::TokenTextError),
    /// A controller token alone opens nothing.
    #[error("the server is to prove itself, but there is no token by which the host does")]
    TokenMissing,
    /// The text is no NVMe qualified name of a host.
    #[error("that is no host NQN: {0}")]
    HostNqn(nvme_wire::nqn::NqnError),
    /// A name says nothing without a server to ask.
    #[error("no API address is given (nor in FARFLASH_API), so `{volume}` cannot be looked up")]
    NoApi {
        /// The volume's name or id.
        volume: String,
    },
    /// There is no such volume, or not for this user.
    #[error("there is no volume `{volume}`")]
    NotFound {
        /// Its name or id.
        volume: String,
    },
    /// The API refused or cannot be reached.
    #[error("{0}")]
    Api(Arc<ApiError>),
    /// The volume's server does not take the connection.
    #[error("cannot connect to {address}: {error}")]
    Connect {
        /// The location where the volume should be.
        address: SocketAddr,
        /// Why not.
        error: ConnectError,
    },
    /// The connection was lost and could not be made again in time. Reads and writes may be tried again: that looks
    /// for the volume again.
    #[error("the volume cannot be reached for {} s: {last}", after.as_secs_f32())]
    Lost {
        /// For how long it was tried.
        after: Duration,
        /// The error of the last attempt.
        last: Arc<Error>,
    },
    /// The connection was lost under a compare-and-swap. Read what is there.
    #[error("the connection is lost ({0}); whether the swap was carried out is not known")]
    OutcomeUnknown(Disconnect),
    /// A change was asked for, and the answer of the API is lost. Look before it is asked for again.
    #[error("whether the change was made is not known: {0}")]
    ChangeUnknown(Arc<ApiError>),
    /// Others change the same block all the time.
    #[error("the block at {offset} is changed by others all the time")]
    Contended {
        /// Offset of the block.
        offset: u64,
    },
    /// The target refused or failed the request.
    #[error(transparent)]
    Request(client::Error),
    /// The volume was closed.
    #[error("the volume is closed")]
    Closed,
    /// The volume was opened before this process was forked. Open it again.
    #[error("the volume was opened by the process that this one was forked from; open it again")]
    Forked,
    /// A callback may not wait, for requests, the API or the opening of a volume: it runs on the thread that
    /// carries out all requests.
    #[error("a callback cannot wait: submit the request instead, or ask on another thread")]
    WithinCallback,
    /// The background thread cannot be started.
    #[error("the background thread cannot be started: {0}; {advice}", advice = .0.remedy())]
    Start(reactor::StartError),
    /// The system has no thread on which an API could be asked.
    #[error("no thread can be started to ask the API: {0}")]
    NoThread(Arc<std::io::Error>),
    /// The background thread has ended; the process is probably ending, too.
    #[error("the background thread has ended")]
    Stopped,
}

/// Errors by what a program can do about them.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ErrorKind {
    /// The call makes no sense: correct it.
    InvalidArgument,
    /// The volume does not exist, or not for this user.
    NotFound,
    /// The name is taken.
    AlreadyExists,
    /// The token or the user is not the right one.
    PermissionDenied,
    /// A server cannot be reached; later it may be.
    Unreachable,
    /// The server's certificate is not trusted: see [`crate::ClusterOptions::api_ca`].
    Untrusted,
    /// A volume's server does not know the controller token, or does without authentication: it may be another
    /// server than meant. The volume's token, which it may have accepted, is another matter
    /// ([`Self::PermissionDenied`]).
    Unproven,
    /// The device, or the user's quota, is full.
    NoSpace,
    /// Data is damaged, here or on the way.
    Damaged,
    /// The target cannot do that.
    Unsupported,
    /// It may or may not have been done.
    OutcomeUnknown,
    /// The volume is closed.
    Closed,
    /// Too much is under way; later it works.
    Busy,
    /// The volume holds data, or hosts have it open: say that this may be lost. Or a living host has the device.
    InUse,
    /// The volume has not the size that the change was made for: look at it, and decide again.
    Changed,
    /// The target or the API failed the request for another reason.
    Failed,
}

impl Error {
    /// Returns the kind of error, by which a program can handle it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Misaligned { .. }
            | Self::OutOfRange { .. }
            | Self::TooLarge { .. }
            | Self::LengthsDiffer { .. }
            | Self::MetadataLeftOut { .. }
            | Self::MetadataLength { .. }
            | Self::NoMetadata { .. }
            | Self::Target(_)
            | Self::Name(_)
            | Self::Size(_)
            | Self::MetadataSize(_)
            | Self::SectorSize(_)
            | Self::Token(_)
            | Self::TokenText(_)
            | Self::TokenMissing
            | Self::HostNqn(_)
            | Self::NoApi { .. }
            | Self::WithinCallback => ErrorKind::InvalidArgument,
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::TooManyOutstanding { .. } | Self::Contended { .. } | Self::NoThread(_) => {
                ErrorKind::Busy
            }
            Self::Api(error) => api_kind(error),
            Self::Connect { error, .. } => connect_kind(error),
            Self::Lost { last, .. } => match last.kind() {
                kind
                @ (ErrorKind::NotFound | ErrorKind::PermissionDenied | ErrorKind::Unproven) => kind,
                _ => ErrorKind::Unreachable,
            },
            Self::OutcomeUnknown(_) | Self::ChangeUnknown(_) => ErrorKind::OutcomeUnknown,
            Self::Request(error) => request_kind(error),
            Self::Closed | Self::Forked | Self::Stopped => ErrorKind::Closed,
            Self::Start(_) => ErrorKind::Failed,
        }
    }

    /// Converts an error of the API about `volume`.
    pub(crate) fn of_api(error: ApiError, volume: &str) -> Self {
        match &error {
            ApiError::Refused(problem) if problem.code == ProblemCode::VolumeNotFound => {
                Self::NotFound { volume: volume.to_owned() }
            }
            _ => Self::Api(Arc::new(error)),
        }
    }
}

fn api_kind(error: &ApiError) -> ErrorKind {
    match error {
        ApiError::BadUrl(_) | ApiError::Trust(_) => ErrorKind::InvalidArgument,
        ApiError::Unreachable { .. } | ApiError::NotAnApi { .. } => ErrorKind::Unreachable,
        ApiError::Untrusted { .. } => ErrorKind::Untrusted,
        ApiError::OtherVolume { .. } => ErrorKind::Failed,
        ApiError::Refused(problem) => match problem.code {
            ProblemCode::NameTaken => ErrorKind::AlreadyExists,
            ProblemCode::VolumeNotFound => ErrorKind::NotFound,
            ProblemCode::VolumeInUse => ErrorKind::InUse,
            ProblemCode::SizeChanged => ErrorKind::Changed,
            ProblemCode::Unauthenticated | ProblemCode::Forbidden => ErrorKind::PermissionDenied,
            ProblemCode::OutOfSpace | ProblemCode::QuotaExceeded => ErrorKind::NoSpace,
            ProblemCode::Unavailable
            | ProblemCode::DeviceAway
            | ProblemCode::Timeout
            | ProblemCode::HostUnreachable
            | ProblemCode::DirectoryUnavailable => ErrorKind::Unreachable,
            ProblemCode::TooManyRequests => ErrorKind::Busy,
            ProblemCode::DeviceInUse => ErrorKind::InUse,
            _ => match problem.status {
                400..=422 => ErrorKind::InvalidArgument,
                _ => ErrorKind::Failed,
            },
        },
    }
}

fn connect_kind(error: &ConnectError) -> ErrorKind {
    match error {
        ConnectError::AuthenticationRequired | ConnectError::Authentication(_) => {
            ErrorKind::PermissionDenied
        }
        ConnectError::Unproven | ConnectError::WrongController => ErrorKind::Unproven,
        ConnectError::Refused { invalid: Some(_), .. } => ErrorKind::NotFound,
        ConnectError::Command(error) => request_kind(error),
        _ => ErrorKind::Unreachable,
    }
}

fn request_kind(error: &client::Error) -> ErrorKind {
    match error {
        client::Error::Target { status, .. } => match status.code() {
            Status::CAPACITY_EXCEEDED => ErrorKind::NoSpace,
            Status::INVALID_OPCODE => ErrorKind::Unsupported,
            // It was made smaller since its size was seen.
            Status::LBA_OUT_OF_RANGE => ErrorKind::InvalidArgument,
            code if code.code_type() == StatusCodeType::Media => ErrorKind::Damaged,
            _ => ErrorKind::Failed,
        },
        client::Error::TooLarge { .. }
        | client::Error::NotAtomic { .. }
        | client::Error::NotWholeBlocks { .. }
        | client::Error::Metadata { .. } => ErrorKind::InvalidArgument,
        client::Error::Damaged { .. } => ErrorKind::Damaged,
        client::Error::Disconnected(_) | client::Error::Unanswered { .. } => ErrorKind::Unreachable,
        client::Error::Capability(_) | client::Error::Unsupported { .. } => ErrorKind::Unsupported,
        client::Error::NoNamespace { .. } => ErrorKind::NotFound,
        client::Error::FormatChanged { .. } => ErrorKind::Failed,
        client::Error::Closed => ErrorKind::Closed,
    }
}
