//! The REST API of a Flash server, and a small client for it.
//!
//! - [`serve`] answers HTTP on a listening socket: `/v1/volumes`, `/v1/hosts`, `/v1/devices`, `/v1/quota`, `/v1/serving`, `/v1/stats`,
//!   `/v1/server`, `/v1/openapi.json`, `/metrics`, `/healthz`, `/readyz`. It changes nothing itself: what it is asked goes to a [`VolumeService`].
//! - Documents ([`Volume`], [`Server`], …) are what clients see, and stay compatible within `/v1`.
//! - Every refusal is a [`Problem`]: a stable code, what is wrong, what to do.
//! - Of a service of several hosts each answers for all: requests are passed on (`relay.rs`).
//! - [`ApiClient`] is the other side, for command lines: blocking, and with errors made for reading.
//!
//! Everything a client can make the server hold has a bound: see `limits.rs`.
//!
//! Absent from this crate: volumes, devices, data cores, and anything on the data path.

mod access;
mod api_url;
mod audit;
mod awaited;
mod caller;
mod client;
mod cluster;
mod compress;
mod connecting;
mod crowd;
mod deed;
mod documents;
mod doubts;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod gate;
mod hex;
mod iscsi;
mod limits;
mod links;
mod metadata;
mod metrics;
mod name;
mod notices;
mod openapi;
mod owner;
mod paced;
mod plain;
mod presence;
mod problem;
mod quota;
mod recording;
mod refusals;
mod relay;
mod request;
mod resolving;
mod routes;
mod scrub;
mod sector;
mod server;
mod service;
mod sharing;
mod shell;
mod stranger_lines;
mod tls;

pub use access::{
    ChangeAuth, ChangeRestrictions, CreatedVolume, GRACE_SECONDS_MAX, NbdClients, Restrictions,
    Tokens,
};
pub use api_url::{ApiUrl, BadApiUrl};
pub use audit::Audit;
pub use caller::{ApiToken, Caller, Quota, Tenant, UserChanges, Users, UsersError};
pub use client::{ANSWER_LIMIT, ApiClient, ApiError, Awaiting};
pub use cluster::{
    DirectoryStatus, Host, HostDevice, HostList, HostState, Location, OtherHost, Serving,
    VolumeState,
};
pub use deed::{Begun, Deed};
pub use documents::{
    ChangeVolume, Core, CreateVolume, CutOff, Device, DeviceHealth, DeviceList, DeviceNotice,
    Drive, GrownDevice, NoticeKind, Portal, ProtocolStats, Resizing, Server, Volume, VolumeList,
    connect_line, nqn,
};
pub use doubts::doubts_of_nbd;
pub use gate::Guard;
pub use iscsi::{ChapSource, iscsi_connect, iscsi_connect_by_files};
pub use limits::Limits;
pub use metadata::{MetadataBytes, MetadataBytesError};
pub use name::{NameError, VolumeName, VolumeSize, VolumeSizeError};
pub use notices::{ServerNotice, ServerNoticeKind};
pub use openapi::openapi;
pub use presence::{Presence, ask_serving};
pub use problem::{Problem, ProblemCode};
pub use quota::{QuotaList, TenantQuota, Use};
pub use recording::{
    RECORDING_BUFFER_MAX, RECORDING_FETCH_MAX, RECORDING_SECONDS_MAX, RECORDING_UNASKED_MAX,
    RecordedKind, RecordedRequest, Recording, RecordingRequest, StartRecording,
};
pub use scrub::{DamagedPlace, Scrub, ScrubRequest, ScrubState, StartScrub};
pub use sector::{SectorBytes, SectorBytesError};
pub use server::serve;
pub use service::{Reply, ServiceError, VolumeKey, VolumeService};
pub use sharing::{
    Ceiling, ChangeDevice, CoreStats, DeviceStats, FlowStats, Latency, MapStats, ScrubStats,
    Sharing, Slo, Stats, VolumeStats, Window, WindowStats,
};
pub use shell::shell_word;
pub use tls::ApiTls;
pub use tls_files::utc;
pub use tls_files::{CERTIFICATE_FILE, KEY_FILE, TlsError};
