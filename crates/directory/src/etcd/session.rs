//! Keeping in touch with etcd (E1): lease, record, claims, view.

use std::sync::Arc;
use std::time::Duration;

use cluster::{Compare, KeyValue, Op, document};
use tokio::time::{Instant, MissedTickBehavior};
use uuid::Uuid;

use super::gateway::{Gateway, Watch, WatchEvent};
use super::holding::{changed, verify};
use super::silence::Silence;
use super::{Connection, Shared, decode};
use crate::HostRecord;
use crate::view::View;
use crate::{BootClock as _, BootTime, DirectoryError, Event};

/// Pause before the next member is tried.
const RETRY_PAUSE: Duration = Duration::from_millis(300);
/// How often it is said that etcd is still away.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// A connection, and the changes that come by it.
pub(super) struct Session {
    connection: Connection,
    watch: Watch,
    /// Which member it is with.
    member: usize,
}

/// Begins the first session. Waits for etcd; and for the lease of a host of our id to end, if one might
/// be us before a reboot.
pub(super) async fn join(shared: &Shared) -> Result<Session, DirectoryError> {
    let patience = Instant::now() + shared.options.lease * 2;
    let mut said: Option<Instant> = None;
    let mut member = 0;
    loop {
        match begin(shared, member).await {
            Ok(session) => return Ok(session),
            Err(DirectoryError::HostLives { .. }) if Instant::now() < patience => {}
            Err(error @ DirectoryError::Unreachable { .. }) => {
                if said.is_none_or(|said| said.elapsed() >= SAY_EVERY) {
                    tracing::warn!("waiting for the directory: {error}");
                    said = Some(Instant::now());
                }
            }
            Err(error) => return Err(error),
        }
        member += 1;
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// Keeps `session` while it lasts, and then begins others.
pub(super) async fn keep(shared: Arc<Shared>, mut session: Session) {
    loop {
        let error = follow(&shared, &mut session).await;
        let mut member = session.member;
        drop(session);
        cut_off(&shared, &error);
        session = loop {
            match begin(&shared, member).await {
                Ok(session) => break session,
                Err(error) => {
                    still_cut_off(&shared, &error);
                    member += 1;
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            }
        };
    }
}

fn cut_off(shared: &Shared, error: &DirectoryError) {
    let reason = error.reason();
    shared.state(|state| {
        state.connection = None;
        Arc::make_mut(&mut state.view).cut_off = Some(reason.as_str().into());
    });
    shared.generation.send_modify(|generation| *generation += 1);
    // Nobody listens when the host leaves.
    let _ = shared.events.send(Event::CutOff { reason });
}

/// Notes why no session begins.
fn still_cut_off(shared: &Shared, error: &DirectoryError) {
    let reason: Arc<str> = error.reason().into();
    let before =
        shared.state(|state| Arc::make_mut(&mut state.view).cut_off.replace(reason.clone()));
    if before.as_ref() == Some(&reason) {
        return;
    }
    if matches!(error, DirectoryError::Foreign { .. }) {
        tracing::error!("{reason}: no lapse of time mends this");
    }
    shared.generation.send_modify(|generation| *generation += 1);
}

/// Begins a session with a member of etcd.
async fn begin(shared: &Shared, member: usize) -> Result<Session, DirectoryError> {
    let members = &shared.options.address.members;
    let authority = members[member % members.len()].clone();
    // Certificates end, and others take their places.
    let access = shared.options.credentials.open(&shared.options.address);
    let access =
        access.map_err(|error| DirectoryError::Unreachable { reason: error.to_string() })?;
    let gateway = Gateway::new(authority, request_timeout(shared.options.lease), access);
    let lease = gateway.grant_lease(shared.options.lease).await?;
    // F4: nothing else is asked for before. Another may be this host by now, and have what was claimed here.
    let held: Vec<Uuid> = shared.state(|state| state.claims.keys().copied().collect());
    for device in held {
        verify(shared, &gateway, device).await?;
    }
    identify(shared, &gateway).await?;
    // N1 of `tenure.rs`.
    let asked = BootTime::now();
    register(shared, &gateway, lease).await?;
    let (keys, revision) = gateway.range(&shared.keys.prefix).await?;
    let watch = gateway.watch(&shared.keys.prefix, revision + 1).await?;
    say_if_restored(shared, revision);
    // F7: what was taken over in between nobody tells of any more.
    for device in changed(shared, &keys) {
        verify(shared, &gateway, device).await?;
    }
    let count = keys.len() as u64;
    let mut view = View::default();
    for KeyValue { key, value, .. } in keys {
        apply(&mut view, &shared.keys.prefix, &key, Some(&value));
    }
    let connection = Connection { gateway, lease };
    if shared.state(|state| state.seen == 0) {
        // Nothing was claimed yet that could have been lost, and nobody acts upon events before something is.
        let _ = shared.options.tenure.renew(asked, BootTime::now());
    }
    shared.state(|state| {
        state.view = Arc::new(view);
        state.seen = revision;
        state.keys = count;
        state.connection = Some(connection.clone());
    });
    shared.generation.send_modify(|generation| *generation += 1);
    let _ = shared.events.send(Event::Connected);
    tell_held(shared, asked);
    Ok(Session { connection, watch, member })
}

/// Says so if etcd is as of an earlier `revision` than it was seen to be.
fn say_if_restored(shared: &Shared, revision: i64) {
    let before = shared.state(|state| state.seen);
    if revision < before {
        tracing::error!(
            before,
            revision,
            "the directory has gone back, as one does that is restored from a backup: start no host until all that run are connected \
             again, and look whether each volume is where it was"
        );
    }
}

/// Has whoever acts upon events renew the tenure, behind all that was lost before.
fn tell_held(shared: &Shared, asked: BootTime) {
    if shared.options.tenure.term().is_some() {
        let _ = shared.events.send(Event::Held { asked });
    }
}

/// How long a member may take: long enough for one that elects a leader, short enough to keep the lease
/// through another.
fn request_timeout(lease: Duration) -> Duration {
    (lease / 3).clamp(Duration::from_millis(500), Duration::from_secs(5))
}

/// Learns which cluster this is (F6). Whoever comes first says it, and who knows it from before says it to an etcd that
/// has forgotten it.
async fn identify(shared: &Shared, gateway: &Gateway) -> Result<(), DirectoryError> {
    let key = shared.keys.cluster();
    let known = shared.state(|state| state.cluster);
    let own = known.unwrap_or_else(Uuid::new_v4);
    let unknown = [Compare::ModRevision(key.clone(), 0)];
    let put = Op::Put { key: key.clone(), value: document(&own), lease: None };
    let answer = gateway.txn(&unknown, &[put], &[Op::Get(key.clone())]).await?;
    let found = answer.read().next().flatten();
    let found = match found.map(|kv| decode::<Uuid>(&kv.key, &kv.value)).transpose()? {
        Some(found) => found,
        None if answer.succeeded => own,
        None => {
            let reason = "the cluster's identity was not read".to_owned();
            return Err(DirectoryError::Unreachable { reason });
        }
    };
    if let Some(known) = known.filter(|known| *known != found) {
        let what =
            format!("the key {key} in etcd: this host is of the cluster {known}, not {found}");
        return Err(DirectoryError::Foreign { what });
    }
    shared.state(|state| state.cluster = Some(found));
    Ok(())
}

/// Puts the host's record under the lease, unless another process is that host.
async fn register(shared: &Shared, gateway: &Gateway, lease: i64) -> Result<(), DirectoryError> {
    let host = shared.state(|state| state.host.clone());
    let name_key = shared.keys.host_name(&host.name);
    // E6: before it is looked who is there.
    let named = gateway.txn(&[], &[Op::Get(name_key.clone())], &[]).await?;
    let named = named.read().next().flatten().map_or(0, |kv| kv.mod_revision);
    let (others, _) = gateway.range(&format!("{}hosts/", shared.keys.prefix)).await?;
    let own_key = shared.keys.host(host.id);
    let mut revision = 0;
    for other in &others {
        let record = decode::<HostRecord>(&other.key, &other.value);
        if other.key == own_key {
            let record = record?;
            revision = other.mod_revision;
            // One of the same kernel and network is gone: its place could be taken (I2).
            if record.session != host.session && record.boot != host.boot {
                let what = format!(
                    "the host `{}` (id {}) lives on another machine or in another container, or did until a moment ago",
                    host.name, host.id
                );
                return Err(DirectoryError::HostLives { what });
            }
            continue;
        }
        match record {
            Ok(record) if record.name == host.name => {
                let what =
                    format!("another host that lives, {}, has the name `{}`", record.id, host.name);
                return Err(DirectoryError::HostLives { what });
            }
            Ok(_) => {}
            // Of a newer release, perhaps: no reason to serve no more.
            Err(error) => {
                tracing::warn!("whether that host has this one's name is unknown: {error}")
            }
        }
    }
    let mut then = vec![
        Op::Put { key: own_key.clone(), value: document(&host), lease: Some(lease) },
        Op::Put { key: name_key.clone(), value: document(&host.id), lease: Some(lease) },
    ];
    if shared.options.tenure.term().is_some() {
        let (key, value) = (shared.keys.registered(host.id), document(&host.session));
        then.push(Op::Put { key, value, lease: None });
    }
    let compare =
        [Compare::ModRevision(own_key.clone(), revision), Compare::ModRevision(name_key, named)];
    let answer = gateway.txn(&compare, &then, &[Op::Get(own_key)]).await?;
    // V2 of `volumes.rs`: nobody else has the lease.
    let is_own_work = answer.read().next().flatten().is_some_and(|kv| kv.lease == lease);
    if answer.succeeded || is_own_work {
        return Ok(());
    }
    let reason = "another registers at the same time as this host or as one of its name".to_owned();
    Err(DirectoryError::Unreachable { reason })
}

/// Keeps the lease and the view. Ends with the reason why it cannot.
async fn follow(shared: &Shared, session: &mut Session) -> DirectoryError {
    let Session { connection, watch, .. } = session;
    let keeping = async {
        let mut ticks = tokio::time::interval(shared.options.lease / 3);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut silence = Silence::default();
        loop {
            let is_time = tokio::select! {
                _ = ticks.tick() => true,
                () = shared.trouble.notified() => false,
            };
            if let Err(error) = stay(shared, connection, is_time.then_some(&mut silence)).await {
                return error;
            }
        }
    };
    let watching = async {
        loop {
            match watch.next().await {
                Ok(answer) => {
                    let taken_in = take_in(shared, &connection.gateway, &answer.events).await;
                    if let Err(error) = taken_in {
                        return error;
                    }
                }
                Err(error) => return error.into(),
            }
        }
    };
    tokio::select! {
        error = keeping => error,
        error = watching => error,
    }
}

/// Keeps the lease, and looks whether all is as it is to be; if it is time to, also whether the watch is silent.
async fn stay(
    shared: &Shared,
    connection: &Connection,
    silence: Option<&mut Silence>,
) -> Result<(), DirectoryError> {
    let Connection { gateway, lease } = connection;
    let unreachable = |reason: &str| DirectoryError::Unreachable { reason: reason.to_owned() };
    if shared.state(|state| state.given_up == Some(*lease)) {
        // E5.
        return Err(unreachable("a change was not answered"));
    }
    for device in shared.state(|state| std::mem::take(&mut state.doubted)) {
        verify(shared, gateway, device).await?;
    }
    if !gateway.keep_lease(*lease).await? {
        return Err(unreachable("the host's lease has ended"));
    }
    // Keeping a lease needs no quorum at the moment; a change does.
    let key = shared.state(|state| shared.keys.host(state.host.id));
    let asked = BootTime::now();
    let lives = gateway.txn(&[], &[Op::Get(key)], &[]).await;
    let lives = lives.map_err(|error| unreachable(&error.to_string()))?;
    let record = lives.read().next().flatten();
    let record = record.ok_or_else(|| unreachable("the host's record is gone"))?;
    found(shared, connection, record, asked).await?;
    if let Some(silence) = silence
        && silence.is_found(shared, gateway, lives.revision()).await?
    {
        return Err(unreachable("its watch has told nothing of what has changed"));
    }
    Ok(())
}

/// This host was found registered, as was asked at `asked` (F7).
async fn found(
    shared: &Shared,
    connection: &Connection,
    record: &KeyValue,
    asked: BootTime,
) -> Result<(), DirectoryError> {
    let own = shared.state(|state| state.host.clone());
    let record = decode::<HostRecord>(&record.key, &record.value);
    // Another process may be this host by now: what that one does confirms nothing here.
    let Some(record) = record.ok().filter(|record| record.session == own.session) else {
        return Ok(());
    };
    if !shared.options.tenure.confirm(asked) {
        tell_held(shared, asked);
    }
    if record != own {
        // It was described anew while the session began, or nobody answered that.
        shared.say(connection, &own).await?;
    }
    Ok(())
}

async fn take_in(
    shared: &Shared,
    gateway: &Gateway,
    events: &[WatchEvent],
) -> Result<(), DirectoryError> {
    let doubtful = shared.state(|state| {
        let mut doubtful = Vec::new();
        let view = Arc::make_mut(&mut state.view);
        for event in events {
            apply(view, &shared.keys.prefix, &event.kv.key, event.put());
            state.seen = state.seen.max(event.kv.mod_revision);
            state.keys = state.keys.saturating_add_signed(event.more_keys());
            doubtful.extend(state.claims.iter().filter_map(|(device, held)| {
                let own = event.kv.key == shared.keys.device(*device);
                (own && event.kv.mod_revision > held.epoch).then_some(*device)
            }));
        }
        doubtful
    });
    if !events.is_empty() {
        shared.generation.send_modify(|generation| *generation += 1);
    }
    for device in doubtful {
        verify(shared, gateway, device).await?;
    }
    Ok(())
}

/// Takes a key into the view: with its value, or without one that is gone.
pub(super) fn apply(view: &mut View, prefix: &str, key: &str, value: Option<&[u8]>) {
    let Some((kind, name)) = key.strip_prefix(prefix).and_then(|rest| rest.split_once('/')) else {
        return;
    };
    let done = match kind {
        "hosts" => put(&mut view.hosts, Uuid::try_parse(name).ok(), key, value),
        "devices" => put(&mut view.claims, Uuid::try_parse(name).ok(), key, value),
        "volumes" => put(&mut view.volumes, Uuid::try_parse(name).ok(), key, value),
        "names" => match value.map(|value| decode::<Uuid>(key, value)).transpose() {
            Ok(Some(id)) => {
                view.names.insert(name.to_owned(), id);
                Ok(())
            }
            Ok(None) => {
                view.names.remove(name);
                Ok(())
            }
            Err(error) => Err(error),
        },
        "grants" => value.map(|value| decode(key, value)).transpose().map(|grants| match grants {
            Some(grants) => drop(view.grants.insert(name.to_owned(), Arc::new(grants))),
            None => drop(view.grants.remove(name)),
        }),
        _ => Ok(()),
    };
    if let Err(error) = done {
        // Of a newer release, perhaps. What it is about is not known here.
        tracing::warn!("a record is left out: {error}");
    }
}

fn put<T: for<'de> serde::Deserialize<'de>>(
    map: &mut std::collections::BTreeMap<Uuid, Arc<T>>,
    id: Option<Uuid>,
    key: &str,
    value: Option<&[u8]>,
) -> Result<(), DirectoryError> {
    let Some(id) = id else {
        return Err(DirectoryError::Foreign { what: format!("the key {key} in etcd names no id") });
    };
    match value {
        Some(value) => drop(map.insert(id, Arc::new(decode(key, value)?))),
        None => drop(map.remove(&id)),
    }
    Ok(())
}
