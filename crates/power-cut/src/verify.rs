//! Looks at everything after a start: the list of volumes, what opens them, and each of their blocks.

use std::collections::BTreeMap;

use farflash_client::{
    Error, Pending, Restrictions, Volume, VolumeRecord, VolumeState, start_open,
};

use crate::boot::{
    Boot, HOST, Opened, Outcome, STRANGER, Shared, admits, identify, lock, options, read_request,
};
use crate::contents::BLOCK;
use crate::control_load::{restrict, rotate};
use crate::model::{Attributes, Change};
use crate::server::target;

/// Blocks that are read at a time.
const STRIDE: u64 = 256;
/// Deleted volumes that are tried to open.
const DELETED_TRIED: usize = 3;

/// Compares everything; the volumes, opened. `None` if the power went, or something was found.
pub(crate) fn verify(boot: &Boot) -> Option<Vec<Opened>> {
    let listed = boot.outcome("the list of volumes", boot.cluster.list());
    let Outcome::Done(records) = listed else { return None };
    verify_records(boot, records);
    if boot.is_over() {
        return None;
    }
    // What is closed to this host is opened to it then.
    end_attempts(boot, begin_attempts(boot, |restrictions| !admits(restrictions)));
    let attempts = begin_attempts(boot, admits);
    for shared in boot.volumes() {
        open_to_us(boot, &shared)?;
    }
    let pending: Vec<(Shared, Pending<Volume>)> =
        boot.volumes().into_iter().map(|shared| begin_open(shared, HOST)).collect();
    let mut opened = Vec::new();
    for (shared, pending) in pending {
        let what = format!("the opening of {} by its token", lock(&shared).name);
        let Outcome::Done(volume) = boot.outcome(&what, pending.wait()) else { return None };
        opened.push(Opened { shared, volume });
    }
    for opened in &opened {
        verify_blocks(boot, opened)?;
    }
    end_attempts(boot, attempts);
    (!boot.is_over()).then_some(opened)
}

/// Checks which volumes there are, and the API's records of them.
fn verify_records(boot: &Boot, records: Vec<VolumeRecord>) {
    let named = records.into_iter().map(|record| (record.name.clone(), record));
    let mut records: BTreeMap<String, VolumeRecord> = named.collect();
    for shared in boot.volumes() {
        let mut volume = lock(&shared);
        let Some(record) = records.remove(&volume.name) else {
            let change = volume.change.take();
            if !matches!(change, Some(Change::Create | Change::Delete)) {
                boot.found(format!("{} is missing", volume.name));
            }
            let mut model = lock(&boot.model);
            model.volumes.remove(&volume.number);
            let token = volume.token.clone();
            model.deleted.extend(token.map(|token| (volume.target.clone(), token)));
            continue;
        };
        if matches!(volume.change, Some(Change::Create | Change::Delete)) {
            volume.change = None;
        }
        volume.target = target(record.address, &record.nqn);
        if record.state != VolumeState::Online {
            boot.found(format!("{} is not served: {:?}", volume.name, record.trouble));
        }
        if let Err(finding) = volume.settle_record(&record) {
            boot.found(finding.0);
        }
    }
    for name in records.keys() {
        boot.found(format!("there is a volume {name}, which was deleted or never made"));
    }
}

/// Begins to open a volume by its token.
fn begin_open(shared: Shared, host: &str) -> (Shared, Pending<Volume>) {
    let (target, token) = {
        let volume = lock(&shared);
        (volume.target.clone(), volume.token.clone().expect("it is known"))
    };
    let pending = start_open(&target, &options(&token, host));
    (shared, pending)
}

/// An attempt to open a volume, and whether it has to succeed.
struct Attempt {
    what: String,
    has_to: bool,
    pending: Pending<Volume>,
}

/// Begins to open what may not be opened, and what a token before still opens, of the volumes whose
/// restrictions are such.
fn begin_attempts(boot: &Boot, are_such: fn(&Restrictions) -> bool) -> Vec<Attempt> {
    let mut attempts = Vec::new();
    let mut attempt = |what: String, has_to: bool, target: &str, token: &str, host: &str| {
        let pending = start_open(target, &options(token, host));
        attempts.push(Attempt { what, has_to, pending });
    };
    for shared in boot.volumes() {
        let volume = lock(&shared);
        let (name, target) = (&volume.name, volume.target.as_str());
        let restrictions = &volume.attributes.restrictions;
        // Of tokens that are being replaced it is not known which ones open the volume.
        let Some(token) = volume.token.as_ref().filter(|_| volume.change.is_none()) else {
            continue;
        };
        if !are_such(restrictions) {
            continue;
        }
        let is_open = admits(restrictions);
        let Restrictions { hosts, .. } = restrictions;
        if !is_open {
            attempt(format!("{name}, closed to this host"), false, target, token, HOST);
        } else if !hosts.is_empty() && !hosts.iter().any(|host| host == STRANGER) {
            attempt(format!("{name}, closed to a stranger"), false, target, token, STRANGER);
        }
        if let Some((token, has_grace)) = &volume.replaced {
            let what = format!("{name}, by the token before (grace: {has_grace})");
            attempt(what, *has_grace && is_open, target, token, HOST);
        }
    }
    // A volume that is deleted is nowhere: it is looked for where another one is.
    let place = boot.volumes().first().map(|shared| lock(shared).target.clone());
    let Some((place, _)) = place.as_deref().and_then(|place| place.rsplit_once('/')) else {
        return attempts;
    };
    for (target, token) in lock(&boot.model).deleted.iter().rev().take(DELETED_TRIED) {
        let nqn = target.rsplit('/').next().expect("a target has an NQN");
        attempt(format!("{nqn}, deleted"), false, &format!("{place}/{nqn}"), token, HOST);
    }
    attempts
}

fn end_attempts(boot: &Boot, attempts: Vec<Attempt>) {
    for Attempt { what, has_to, pending } in attempts {
        let opened: Result<Volume, Error> = pending.wait();
        if boot.may_fail() {
            return;
        }
        match opened {
            Ok(_) if !has_to => boot.found(format!("{what}: it was opened")),
            Err(error) if has_to => boot.found(format!("{what}: it was not opened: {error}")),
            _ => {}
        }
    }
}

/// Sees to it that this host can open the volume, and knows its token.
fn open_to_us(boot: &Boot, shared: &Shared) -> Option<()> {
    let (is_open, knows_token) = {
        let volume = lock(shared);
        let is_known = volume.token.is_some() && volume.change.is_none();
        (admits(&volume.attributes.restrictions), is_known)
    };
    let done = (knows_token || rotate(boot, shared, false))
        && (is_open || restrict(boot, shared, Restrictions::default()));
    done.then_some(())
}

/// Compares all blocks of a volume.
fn verify_blocks(boot: &Boot, opened: &Opened) -> Option<()> {
    let (requests, attributes, name) = {
        let volume = lock(&opened.shared);
        let Attributes { blocks, .. } = volume.attributes;
        let starts = (0..blocks).step_by(STRIDE as usize);
        let request = |first| (first, read_request(&volume, first, STRIDE.min(blocks - first)));
        let requests: Vec<_> = starts.map(request).collect();
        (requests, volume.attributes.clone(), volume.name.clone())
    };
    let properties = boot.outcome("the size of a volume", opened.volume.properties());
    let Outcome::Done(properties) = properties else { return None };
    if properties.size_bytes != attributes.blocks * BLOCK as u64 {
        boot.found(format!("{name} is of {properties:?}, not {attributes:?}"));
        return None;
    }
    let started: Vec<_> = requests
        .into_iter()
        .map(|(first, request)| (first, opened.volume.start(request)))
        .collect();
    let mut found = Vec::new();
    for (first, pending) in started {
        let what = format!("a read of {name} at {first}");
        let Outcome::Done(reply) = boot.outcome(&what, pending.wait()) else { return None };
        match identify(&lock(&opened.shared), first, reply) {
            Ok(stamps) => found.extend(stamps),
            Err(finding) => {
                boot.found(finding.0);
                return None;
            }
        }
    }
    if let Err(finding) = lock(&opened.shared).settle_blocks(&found) {
        boot.found(finding.0);
        return None;
    }
    Some(())
}
