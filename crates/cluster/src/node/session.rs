//! Keeping in touch with etcd (SESSION-1): lease, record, claims, view.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::holding::{changed, verify};
use super::silence::Silence;
use super::{Connection, Node, decode};
use crate::race::{Either, race};
use crate::sabotage::{Sabotage, broken};
use crate::store::{Compare, KeyValue, Op, Store, Watch as _, WatchEvent, document};
use crate::{BootTime, DirectoryError, Event, HostRecord, View, World};

/// Pause before the next member is tried.
const RETRY_PAUSE: Duration = Duration::from_millis(300);
/// The interval between messages that etcd is still away.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// A connection, and the changes that come by it.
pub struct Session<S: Store> {
    connection: Connection<S>,
    watch: S::Watch,
    /// The member that the session is with.
    member: usize,
}

impl<W: World> Node<W> {
    /// Begins the first session. Waits for etcd; and for the lease of a host of our id to end, if one might
    /// be us before a reboot.
    ///
    /// # Errors
    /// The host must not take part, or records of etcd are not understood.
    pub async fn join(&self) -> Result<Session<W::Store>, DirectoryError> {
        let patience = self.world.now() + self.lease * 2;
        let mut say = BootTime::default();
        let mut member = 0;
        loop {
            match begin(self, member).await {
                Ok(session) => return Ok(session),
                Err(DirectoryError::HostLives { .. }) if self.world.now() < patience => {}
                Err(error @ DirectoryError::Unreachable { .. }) => {
                    let now = self.world.now();
                    if say <= now {
                        tracing::warn!("waiting for the directory: {error}");
                        say = now + SAY_EVERY;
                    }
                }
                Err(error) => return Err(error),
            }
            member += 1;
            self.world.sleep(RETRY_PAUSE).await;
        }
    }

    /// Keeps `session` while it lasts, and then begins others. It does not end.
    pub async fn keep(&self, mut session: Session<W::Store>) {
        loop {
            let error = follow(self, &mut session).await;
            let mut member = session.member;
            drop(session);
            cut_off(self, &error);
            session = loop {
                match begin(self, member).await {
                    Ok(session) => break session,
                    Err(error) => {
                        still_cut_off(self, &error);
                        member += 1;
                        self.world.sleep(RETRY_PAUSE).await;
                    }
                }
            };
        }
    }
}

fn cut_off<W: World>(node: &Node<W>, error: &DirectoryError) {
    let reason = error.reason();
    node.state(|state| {
        state.connection = None;
        Arc::make_mut(&mut state.view).cut_off = Some(reason.as_str().into());
    });
    node.view_changed();
    node.world.tell(Event::CutOff { reason });
}

/// Notes why no session begins.
fn still_cut_off<W: World>(node: &Node<W>, error: &DirectoryError) {
    let reason: Arc<str> = error.reason().into();
    let before = node.state(|state| Arc::make_mut(&mut state.view).cut_off.replace(reason.clone()));
    if before.as_ref() == Some(&reason) {
        return;
    }
    if matches!(error, DirectoryError::Foreign { .. }) {
        tracing::error!("{reason}: no lapse of time mends this");
    }
    node.view_changed();
}

/// Begins a session with a member of etcd.
async fn begin<W: World>(
    node: &Node<W>,
    member: usize,
) -> Result<Session<W::Store>, DirectoryError> {
    let store = node.world.open(member, request_timeout(node.lease))?;
    let lease = store.grant_lease(node.lease).await?;
    // CLAIM-4: nothing else is asked for before. Another may be this host by now, and have what was claimed here.
    let held: Vec<Uuid> = node.state(|state| state.claims.keys().copied().collect());
    for device in held {
        verify(node, &store, device).await?;
    }
    identify(node, &store).await?;
    // TENURE-1.
    let asked = node.world.now();
    register(node, &store, lease).await?;
    let (keys, revision) = store.range(&node.keys.prefix).await?;
    let watch = store.watch(&node.keys.prefix, revision + 1).await?;
    say_if_restored(node, revision);
    // CLAIM-7: the watch has no event for a claim that was taken over in between.
    for device in changed(node, &keys) {
        verify(node, &store, device).await?;
    }
    let count = keys.len() as u64;
    let mut view = View::default();
    for KeyValue { key, value, .. } in keys {
        view.apply(&node.keys.prefix, &key, Some(&value));
    }
    let connection = Connection { store, lease };
    if node.state(|state| state.seen == 0) {
        // No claim was made yet that could have been lost, and no task acts upon events before one is.
        let _ = node.tenure.renew(asked, node.world.now());
    }
    node.state(|state| {
        state.view = Arc::new(view);
        state.seen = revision;
        state.keys = count;
        state.connection = Some(connection.clone());
    });
    node.view_changed();
    node.world.tell(Event::Connected);
    tell_held(node, asked);
    Ok(Session { connection, watch, member })
}

/// Says so if etcd is as of an earlier `revision` than it was seen to be.
fn say_if_restored<W: World>(node: &Node<W>, revision: i64) {
    let before = node.state(|state| state.seen);
    if revision < before {
        tracing::error!(
            before,
            revision,
            "the directory has gone back, as one does that is restored from a backup: start no host until all that run are connected \
             again, and look whether each volume is where it was"
        );
    }
}

/// Has the task that acts upon events renew the tenure, after it has handled all that was lost
/// before.
fn tell_held<W: World>(node: &Node<W>, asked: BootTime) {
    if node.tenure.term().is_some() {
        node.world.tell(Event::Held { asked });
    }
}

/// The time that a member may take: long enough for one that elects a leader, short enough to keep the
/// lease through another.
fn request_timeout(lease: Duration) -> Duration {
    (lease / 3).clamp(Duration::from_millis(500), Duration::from_secs(5))
}

/// Learns the identity of the cluster (CLAIM-6). The first host writes it, and a host that knows it from before writes
/// it to an etcd that has forgotten it.
async fn identify<W: World>(node: &Node<W>, store: &W::Store) -> Result<(), DirectoryError> {
    let key = node.keys.cluster();
    let known = node.state(|state| state.cluster);
    let own = known.unwrap_or_else(|| node.world.new_id());
    let unknown = [Compare::ModRevision(key.clone(), 0)];
    let put = Op::Put { key: key.clone(), value: document(&own), lease: None };
    let answer = store.txn(&unknown, &[put], &[Op::Get(key.clone())]).await?;
    let found = match answer.first().map(|kv| decode::<Uuid>(&kv.key, &kv.value)).transpose()? {
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
    node.state(|state| state.cluster = Some(found));
    Ok(())
}

/// Puts the host's record under the lease, unless another process is that host.
async fn register<W: World>(
    node: &Node<W>,
    store: &W::Store,
    lease: i64,
) -> Result<(), DirectoryError> {
    let host = node.state(|state| state.host.clone());
    let name_key = node.keys.host_name(&host.name);
    // SESSION-6: before the name's holder is looked up.
    let named = store.txn(&[], &[Op::Get(name_key.clone())], &[]).await?;
    let named = named.first().map_or(0, |kv| kv.mod_revision);
    let (others, _) = store.range(&format!("{}hosts/", node.keys.prefix)).await?;
    let own_key = node.keys.host(host.id);
    let mut revision = 0;
    for other in &others {
        let record = decode::<HostRecord>(&other.key, &other.value);
        if other.key == own_key {
            let record = record?;
            revision = other.mod_revision;
            // One of the same kernel and network is gone: its place could be taken (IDENTITY-2).
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
    if node.tenure.term().is_some() {
        let (key, value) = (node.keys.registered(host.id), document(&host.session));
        then.push(Op::Put { key, value, lease: None });
    }
    let compare =
        [Compare::ModRevision(own_key.clone(), revision), Compare::ModRevision(name_key, named)];
    let answer = store.txn(&compare, &then, &[Op::Get(own_key)]).await?;
    // VOLUME-RECORD-2: no other process has the lease.
    let is_own_work = answer.first().is_some_and(|kv| kv.lease == lease);
    if answer.succeeded || is_own_work {
        return Ok(());
    }
    let reason = "another registers at the same time as this host or as one of its name".to_owned();
    Err(DirectoryError::Unreachable { reason })
}

/// Keeps the lease and the view. Ends with the reason why it cannot.
async fn follow<W: World>(node: &Node<W>, session: &mut Session<W::Store>) -> DirectoryError {
    let Session { connection, watch, .. } = session;
    let keeping = async {
        let (mut next, mut troubles) = (node.world.now(), node.trouble.times());
        let mut silence = Silence::default();
        loop {
            let left = next - node.world.now();
            let is_time = match race(node.world.sleep(left), node.trouble.after(troubles)).await {
                Either::First(()) => {
                    next = node.world.now() + node.lease / 3;
                    true
                }
                Either::Second(_) => false,
            };
            troubles = node.trouble.times();
            if let Err(error) = stay(node, connection, is_time.then_some(&mut silence)).await {
                return error;
            }
        }
    };
    let watching = async {
        loop {
            let taken_in = match watch.next().await {
                Ok(events) => take_in(node, &connection.store, &events).await,
                Err(error) => Err(error.into()),
            };
            if let Err(error) = taken_in {
                return error;
            }
        }
    };
    match race(keeping, watching).await {
        Either::First(error) | Either::Second(error) => error,
    }
}

/// Keeps the lease, and looks whether all is as it is to be; if it is time to, also whether the watch is silent.
async fn stay<W: World>(
    node: &Node<W>,
    connection: &Connection<W::Store>,
    silence: Option<&mut Silence>,
) -> Result<(), DirectoryError> {
    let Connection { store, lease } = connection;
    let unreachable = |reason: &str| DirectoryError::Unreachable { reason: reason.to_owned() };
    if node.state(|state| state.given_up == Some(*lease)) {
        // SESSION-5.
        return Err(unreachable("a change was not answered"));
    }
    for device in node.state(|state| std::mem::take(&mut state.doubted)) {
        verify(node, store, device).await?;
    }
    if !store.keep_lease(*lease).await? && !broken(Sabotage::OutliveLease) {
        return Err(unreachable("the host's lease has ended"));
    }
    // Keeping a lease needs no quorum at the moment; a change does.
    let key = node.state(|state| node.keys.host(state.host.id));
    let asked = node.world.now();
    let lives = store.txn(&[], &[Op::Get(key)], &[]).await;
    let lives = lives.map_err(|error| unreachable(&error.error.reason()))?;
    let record = lives.first();
    if record.is_none() && broken(Sabotage::OutliveLease) {
        return Ok(());
    }
    let record = record.ok_or_else(|| unreachable("the host's record is gone"))?;
    found(node, connection, record, asked).await?;
    if !broken(Sabotage::TrustWatch)
        && let Some(silence) = silence
        && silence.is_found(node, store, lives.revision).await?
    {
        return Err(unreachable("its watch has told nothing of what has changed"));
    }
    Ok(())
}

/// This host was found registered, as was asked at `asked` (CLAIM-7).
async fn found<W: World>(
    node: &Node<W>,
    connection: &Connection<W::Store>,
    record: &KeyValue,
    asked: BootTime,
) -> Result<(), DirectoryError> {
    let own = node.state(|state| state.host.clone());
    let record = decode::<HostRecord>(&record.key, &record.value);
    // Another process may be this host by now: what that one does confirms nothing here.
    let Some(record) = record.ok().filter(|record| record.session == own.session) else {
        return Ok(());
    };
    if !node.tenure.confirm(asked) {
        tell_held(node, asked);
    }
    if record != own {
        // It was described again while the session began, or the description was not answered.
        node.say(connection, &own).await?;
    }
    Ok(())
}

async fn take_in<W: World>(
    node: &Node<W>,
    store: &W::Store,
    events: &[WatchEvent],
) -> Result<(), DirectoryError> {
    let doubtful = node.state(|state| {
        let mut doubtful = Vec::new();
        let view = Arc::make_mut(&mut state.view);
        for event in events {
            view.apply(&node.keys.prefix, &event.kv.key, event.put());
            state.seen = state.seen.max(event.kv.mod_revision);
            state.keys = state.keys.saturating_add_signed(event.more_keys());
            doubtful.extend(state.claims.iter().filter_map(|(device, held)| {
                let own = event.kv.key == node.keys.device(*device);
                (own && event.kv.mod_revision > held.epoch).then_some(*device)
            }));
        }
        doubtful
    });
    if !events.is_empty() {
        node.view_changed();
    }
    for device in doubtful {
        verify(node, store, device).await?;
    }
    Ok(())
}
