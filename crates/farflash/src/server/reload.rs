//! What a running server reads again when it gets SIGHUP: who may ask the API, and its certificate. The audit log's
//! file is opened again, since the one before may have been moved away.
//!
//! - G1: each of these by itself: what cannot be read or makes no sense stays as it was, and the log says why.
//! - G2: hosts notice nothing, but for quotas.
//! - G3: who is off the list may ask nothing more from the moment that it was read: nothing else that it says comes before
//!   that, or keeps it from being so.

use std::sync::Arc;

use control::{ApiTls, Guard};
use tokio::signal::unix::Signal;
use tokio::task::spawn_blocking;

use super::state::State;
use super::{ServeConfig, guard};
use crate::failure::Failure;

/// Reads it again at each `hangup`, for as long as the server runs. Clones of `guard` are in use.
pub(super) fn start(state: &Arc<State>, config: &ServeConfig, guard: Guard, mut hangup: Signal) {
    let (state, config) = (state.clone(), Arc::new(config.clone()));
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            let parts = [
                users(&state, &config, &guard).await,
                certificate(&state, &config, &guard).await,
                audit(&guard).await,
            ];
            let kept: Vec<String> =
                parts.into_iter().filter_map(Result::err).map(|kept| kept.in_one_line()).collect();
            for why in &kept {
                tracing::error!("SIGHUP: something stays as it was: {why}");
            }
            tracing::info!(kept = kept.len(), "SIGHUP: read again");
        }
    });
}

async fn users(state: &State, config: &Arc<ServeConfig>, guard: &Guard) -> Result<(), Failure> {
    let config = config.clone();
    let read = spawn_blocking(move || guard::users(&config)).await;
    let users = read.map_err(|_| interrupted())??;
    let quotas = guard::quotas(&users);
    // G3.
    guard.users.replace(&users);
    // Of a tenant that is no longer on the list the volumes stay, and bounded.
    state.bound_tenants(quotas).await.map_err(|error| {
        let what = format!("`allocated` of tenants may be what it was before: {error}");
        Failure::runtime(what, "see what the log says above")
    })
}

async fn certificate(
    state: &State,
    config: &Arc<ServeConfig>,
    guard: &Guard,
) -> Result<(), Failure> {
    let (Some(shown), Some(directory)) = (&guard.tls, config.api_tls.clone()) else {
        return Ok(());
    };
    let read = spawn_blocking(move || ApiTls::open(&directory)).await;
    let new = read.map_err(|_| interrupted())?.map_err(|error| guard::no_tls(&error))?;
    if new.certificate() != shown.certificate() {
        let certificate = Some(new.certificate());
        let host = state.membership.describe(|host| host.api_certificate = certificate);
        // Other hosts believe what the directory says. If it is away it is told by whoever connects.
        let _ = state.membership.directory.describe(host).await;
    }
    shown.replace(&new);
    Ok(())
}

async fn audit(guard: &Guard) -> Result<(), Failure> {
    let Some(audit) = guard.audit.clone() else { return Ok(()) };
    let reopened = spawn_blocking(move || audit.reopen()).await;
    reopened.map_err(|_| interrupted())?.map_err(|error| {
        let what = format!("the audit log cannot be opened again: {error}");
        Failure::runtime(what, "see that the server may make a file there")
    })
}

/// What was begun has panicked.
fn interrupted() -> Failure {
    Failure::runtime("it was not read to its end", "see what the log says above")
}
