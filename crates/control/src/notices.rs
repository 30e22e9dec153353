//! Conditions of a server as a whole.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A condition of a server.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct ServerNotice {
    /// Its kind.
    pub kind: ServerNoticeKind,
    /// The condition, and what to do about it.
    pub text: String,
}

/// Kinds of conditions of a server.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ServerNoticeKind {
    /// Changes are refused: the audit log takes no lines.
    AuditLog,
    /// Changes are refused: the directory of the cluster cannot be asked.
    Directory,
    /// Changes are refused, and no volume is served until the directory confirms what is this host's.
    Fence,
    /// Changes of tenants are refused: it is not known yet what they have on this host of their quotas.
    Quotas,
    /// A task that has to live as long as the server failed by a fault of the program.
    TaskEnded,
    /// The process has no descriptor left: connections and devices wait.
    OpenFiles,
    /// The process can map hardly any more memory, and ends when it can map none.
    MemoryMaps,
    /// The process is ended when it has used the CPU time that it may use.
    CpuTime,
    /// Connections of hosts were refused a short time ago, as there are as many as there may be.
    Connections,
    /// Clients refuse the API's certificate, or that of NBD.
    Certificate,
    /// The API's certificate is for none of the names that the server knows of itself.
    CertificateNames,
    /// The API's certificate, or that of NBD, expires soon.
    CertificateExpires,
}

impl ServerNoticeKind {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::AuditLog,
        Self::Directory,
        Self::Fence,
        Self::Quotas,
        Self::TaskEnded,
        Self::OpenFiles,
        Self::MemoryMaps,
        Self::CpuTime,
        Self::Connections,
        Self::Certificate,
        Self::CertificateNames,
        Self::CertificateExpires,
    ];

    /// As it is called in documents and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AuditLog => "audit_log",
            Self::Directory => "directory",
            Self::Fence => "fence",
            Self::Quotas => "quotas",
            Self::TaskEnded => "task_ended",
            Self::OpenFiles => "open_files",
            Self::MemoryMaps => "memory_maps",
            Self::CpuTime => "cpu_time",
            Self::Connections => "connections",
            Self::Certificate => "certificate",
            Self::CertificateNames => "certificate_names",
            Self::CertificateExpires => "certificate_expires",
        }
    }

    /// Returns true if the server refuses changes while it holds.
    #[must_use]
    pub fn refuses_changes(self) -> bool {
        matches!(self, Self::AuditLog | Self::Directory | Self::Fence | Self::Quotas)
    }

    /// Returns true if something is wrong with the server while it holds. The others are warnings: any client can make a server
    /// refuse connections.
    #[must_use]
    pub fn is_wrong(self) -> bool {
        !matches!(self, Self::Connections | Self::CertificateNames | Self::CertificateExpires)
    }
}
