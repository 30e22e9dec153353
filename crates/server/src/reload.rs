//! Reloading at SIGHUP: the list of API users, the API's certificate and those of NBD. The audit log's file is opened again,
//! since the one before may have been moved away.
//!
//! - RELOAD-1: each of these by itself: what cannot be read or makes no sense stays as it was, and the log says why.
//! - RELOAD-2: hosts notice nothing, but for quotas.
//! - RELOAD-3: a user that is off the list may ask nothing more from the moment that it was read: no other change
//!   in the list comes before that, or prevents it.
//! - RELOAD-4: what is another then is in the audit log, with what came of it; so is what cannot be read. Where there is no room
//!   for a line the log says so, and the change is made all the same: a token that was revoked must not live by that.
//! - RELOAD-5: these lines are in the file that is opened then, as is what is asked from then on.
//! - RELOAD-6: the service manager knows when reading begins and when it is over, but for what happens at the end: that the
//!   server stops is the last that it is told.
//! - RELOAD-7: a signal at which something fails or panics keeps none that come later from being followed. What is read here
//!   needs no thread that was not made at the start.

use std::sync::Arc;
use std::time::Duration;

use control::{ApiTls, Deed, Guard, UserChanges};
use serde_json::{Value, json};
use tokio::signal::unix::Signal;
use tokio::task::spawn_blocking;
use user_messages::Failure;

use super::allowance::BlockQuota;
use super::aside::Aside;
use super::state::State;
use super::{ServeConfig, guard, nbd_tls, notify};

/// Time that the audit log may take for a line.
const AUDIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads it again at each `hangup`, for as long as the server runs. Clones of `guard` are in use.
pub(super) fn start(
    state: &Arc<State>,
    config: &ServeConfig,
    (guard, reading): (Guard, Aside),
    mut hangup: Signal,
) {
    let (state, config) = (state.clone(), Arc::new(config.clone()));
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            tell(&state, notify::State::Reloading);
            let reader = read_again(state.clone(), config.clone(), guard.clone(), reading.clone());
            // RELOAD-7.
            let parts = state.tasks.run("what SIGHUP asks for", false, reader).await;
            let parts = parts.unwrap_or_else(|| vec![Err(interrupted())]);
            let kept: Vec<String> =
                parts.into_iter().filter_map(Result::err).map(|kept| kept.in_one_line()).collect();
            for why in &kept {
                tracing::error!("SIGHUP: something stays as it was: {why}");
            }
            tracing::info!(kept = kept.len(), "SIGHUP: read again");
            tell(&state, notify::State::Ready);
        }
    });
}

/// RELOAD-6. The end of the server is on this thread, too, so that nothing comes between the two lines.
fn tell(state: &State, how: notify::State) {
    if state.opening.is_open() {
        notify::notify(how);
    }
}

async fn read_again(
    state: Arc<State>,
    config: Arc<ServeConfig>,
    guard: Guard,
    reading: Aside,
) -> Vec<Result<(), Failure>> {
    // RELOAD-3: before the audit log, whose disk may hang.
    let taken = take_users(&config, &guard, &reading).await;
    // RELOAD-5.
    let audit = audit(&guard).await;
    let users = bound_users(&state, &guard, taken).await;
    let of_api = certificate(&state, &config, &guard, &reading).await;
    let of_nbd = nbd_certificates(&state, &config, &guard, &reading).await;
    vec![users, of_api, of_nbd, audit]
}

/// The content of a list of users that is in force.
struct TakenUsers {
    changes: UserChanges,
    quotas: Vec<BlockQuota>,
}

/// RELOAD-3: locks out users that are not on the list as its file has it now.
async fn take_users(
    config: &Arc<ServeConfig>,
    guard: &Guard,
    reading: &Aside,
) -> Result<TakenUsers, Failure> {
    let config = config.clone();
    let read = reading.run(move || guard::users(&config)).await;
    let users = read.map_err(|_| interrupted())??;
    let taken =
        TakenUsers { changes: guard.users.changes_to(&users), quotas: guard::quotas(&users) };
    guard.users.replace(&users);
    Ok(taken)
}

/// Bounds tenants as the list says that was taken, and records what it changes.
async fn bound_users(
    state: &State,
    guard: &Guard,
    taken: Result<TakenUsers, Failure>,
) -> Result<(), Failure> {
    const WHAT: &str = "api_users";
    let TakenUsers { changes, quotas } = match taken {
        Ok(taken) => taken,
        Err(failure) => return recorded(guard, WHAT, Value::Null, async { Err(failure) }).await,
    };
    let bound = async {
        // Of a tenant that is no longer on the list the volumes stay, and bounded.
        state.bound_tenants(quotas).await.map_err(|error| {
            let what = format!("`allocated` of tenants may be what it was before: {error}");
            Failure::runtime(what, "see what the log says above")
        })
    };
    match changes.is_none() {
        true => bound.await,
        false => recorded(guard, WHAT, json!(changes), bound).await,
    }
}

async fn certificate(
    state: &State,
    config: &Arc<ServeConfig>,
    guard: &Guard,
    reading: &Aside,
) -> Result<(), Failure> {
    const WHAT: &str = "api_tls";
    let (Some(shown), Some(directory)) = (&guard.tls, config.api_tls.clone()) else {
        return Ok(());
    };
    let read = reading.run(move || ApiTls::open(&directory)).await;
    let new = match read.map_err(|_| interrupted())? {
        Ok(new) => new,
        Err(error) => {
            let failed = async { Err(guard::same_tls(&error)) };
            return recorded(guard, WHAT, Value::Null, failed).await;
        }
    };
    if new.certificate() == shown.certificate() {
        shown.replace(&new);
        return Ok(());
    }
    let change = json!({ "certificate_sha256": new.fingerprint() });
    recorded(guard, WHAT, change, async {
        let certificate = Some(new.certificate());
        let host = state.membership.describe(|host| host.api_certificate = certificate);
        // Other hosts rely on the directory's record. If the directory is away, it is told when the
        // connection is back.
        let _ = state.membership.directory.describe(host).await;
        shown.replace(&new);
        Ok(())
    })
    .await
}

/// Reads the certificates of NBD again.
async fn nbd_certificates(
    state: &State,
    config: &Arc<ServeConfig>,
    guard: &Guard,
    reading: &Aside,
) -> Result<(), Failure> {
    const WHAT: &str = "nbd_tls";
    let shown = state.cores.iter().find_map(|core| core.nbd_tls.clone());
    let (Some(shown), Some(directory)) = (shown, config.nbd_tls.clone()) else {
        return Ok(());
    };
    let read = reading.run(move || nbd_tls::Found::read(&directory)).await;
    match read.map_err(|_| interrupted())? {
        Err(failure) => recorded(guard, WHAT, Value::Null, async { Err(failure) }).await,
        Ok(found) if shown.are(&found) => Ok(()),
        Ok(found) => {
            let replace = async {
                shown.replace(found);
                Ok(())
            };
            recorded(guard, WHAT, Value::Null, replace).await
        }
    }
}

/// Makes a change of the setting `what` that a user of this machine asked for by the signal, and records it.
async fn recorded(
    guard: &Guard,
    what: &str,
    change: Value,
    act: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    let deed = Deed { by: "SIGHUP", what: "RELOAD", to: what.to_owned(), change };
    let audit = guard.audit.clone();
    let begun = patiently(move || audit.map(|audit| audit.begin(deed))).await;
    let outcome = act.await;
    // RELOAD-4.
    if let Some(Some(Ok(begun))) = begun {
        let failed = outcome.as_ref().err().map(Failure::in_one_line);
        patiently(move || begun.end(failed.as_deref())).await;
    }
    outcome
}

/// Returns the answer of the audit log; `None` if that takes too long, or it has panicked. The next signal
/// must not wait for a disk that hangs (RELOAD-3).
async fn patiently<T: Send + 'static>(ask: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let Ok(answer) = tokio::time::timeout(AUDIT_TIMEOUT, spawn_blocking(ask)).await else {
        tracing::error!("the audit log does not answer: see whether its disk hangs");
        return None;
    };
    answer.ok()
}

async fn audit(guard: &Guard) -> Result<(), Failure> {
    let Some(audit) = guard.audit.clone() else { return Ok(()) };
    let reopened = patiently(move || audit.reopen()).await;
    reopened.ok_or_else(interrupted)?.map_err(|error| {
        let what = format!("the audit log cannot be opened again: {error}");
        Failure::runtime(what, "see that the server may make a file there")
    })
}

/// The failure of a task that has panicked.
fn interrupted() -> Failure {
    Failure::runtime("it was not read to its end", "see what the log says above")
}
