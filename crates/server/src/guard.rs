//! The users of the API, its audit log, and its encryption.

use std::sync::Arc;

use control::{ApiTls, Guard, Tenant, TlsError, Users};
use data_core::Advertised;
use tls_files::own_names;
use units::BLOCK_SIZE;
use user_messages::Failure;

use super::ServeConfig;
use super::allowance::BlockQuota;
use crate::recorded;

pub(super) fn open(config: &ServeConfig) -> Result<Guard, Failure> {
    let users = users(config)?;
    let audit = config.audit_log.as_deref().map(recorded::open);
    Ok(Guard { users, audit: audit.transpose()?, tls: tls(config)? })
}

/// The list of users as its file has it now.
pub(super) fn users(config: &ServeConfig) -> Result<Users, Failure> {
    let Some(path) = &config.api_users else {
        let uid = rustix::process::geteuid().as_raw();
        return Ok(if config.api_open { Users::open() } else { Users::owner(uid) });
    };
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        let what = format!("the list of API users {shown} cannot be read: {error}");
        Failure::runtime(what, "name a readable file with --api-users")
    })?;
    Users::from_toml(&text).map_err(|error| {
        let what = format!("the list of API users {shown} is wrong: {error}");
        Failure::usage(what, "`farflash api-token --help` shows how an entry looks")
    })
}

/// The space that the tenants' volumes may hold.
pub(super) fn quotas(users: &Users) -> Vec<BlockQuota> {
    let quota = |tenant: &Arc<Tenant>| BlockQuota {
        owner: tenant.name.clone(),
        blocks: tenant.quota.allocated_bytes.map(|bytes| bytes / BLOCK_SIZE as u64),
    };
    users.tenants().iter().map(quota).collect()
}

fn tls(config: &ServeConfig) -> Result<Option<ApiTls>, Failure> {
    let Some(directory) = &config.api_tls else { return Ok(None) };
    let tls = ApiTls::open_or_make(directory, &names(config)).map_err(|error| no_tls(&error))?;
    Ok(Some(tls))
}

/// Why the API has no certificate.
fn no_tls(error: &TlsError) -> Failure {
    let what = format!("the API cannot be encrypted: {error}");
    let remedy = match error {
        TlsError::Half { .. } => "put both files there, or remove the one to have both made",
        TlsError::Content { .. } => "put a certificate and its key there, both in PEM",
        TlsError::File { .. } => "name a directory of this server's own with --api-tls",
    };
    Failure::runtime(what, remedy)
}

/// Why the API's certificate is not replaced.
pub(super) fn same_tls(error: &TlsError) -> Failure {
    let what = format!("the API's certificate stays: {error}");
    Failure::runtime(
        what,
        "put a certificate and its key there, both in PEM, and send SIGHUP again",
    )
}

/// The names of the API, for a certificate that is made here.
pub(super) fn names(config: &ServeConfig) -> Vec<String> {
    let told = config.advertise.iter().flat_map(Advertised::iter);
    own_names(&told.chain([config.api.ip()]).collect::<Vec<_>>())
}
