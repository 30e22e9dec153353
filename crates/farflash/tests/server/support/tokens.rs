//! The tokens of the volumes that this test program made: kept when they are shown, and told to hosts that open them.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use client::{Credentials, Options};
use control::{CreatedVolume, Volume};
use nvme_wire::Nqn;
use serde_json::Value;

/// By the volume's NQN.
static KEPT: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// Keeps the tokens of a volume that was made through the API.
pub fn kept_of(created: CreatedVolume) -> Volume {
    keep(&serde_json::to_value(&created).unwrap());
    created.volume
}

/// Keeps the token in this answer of the program or the API, if one is shown in it.
pub fn keep(answer: &Value) {
    let text = |field: &str| answer[field].as_str().map(str::to_owned);
    if let (Some(nqn), Some(token)) = (text("nqn"), text("token")) {
        kept(|tokens| tokens.insert(nqn, token));
    }
}

/// The token of a volume, if one was shown.
pub fn of(nqn: &str) -> Option<String> {
    kept(|tokens| tokens.get(nqn).cloned())
}

/// Gives a run of the program the token of the volume at `tcp://ADDRESS/NQN`.
pub fn give(command: &mut Command, target: &str) {
    let nqn = target.rsplit('/').next().unwrap();
    command.envs(of(nqn).map(|token| ("FARFLASH_TOKEN", token)));
}

/// Options with which a host with this id opens a volume.
pub fn options(nqn: &Nqn, host: u8) -> Options {
    let secret = of(&nqn.to_string()).map(|token| token.parse().unwrap());
    let credentials = secret.map(|secret| Credentials { secret, controller_secret: None });
    Options { credentials, ..Options::for_host([host; 16]) }
}

/// A test that failed meanwhile has left nothing half done in here.
fn kept<T>(look: impl FnOnce(&mut BTreeMap<String, String>) -> T) -> T {
    look(&mut KEPT.lock().unwrap_or_else(PoisonError::into_inner))
}
