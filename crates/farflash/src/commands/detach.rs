//! `farflash detach`: gives up an attached volume.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use clap::Args;
use user_messages::Failure;
use user_messages::output::note;
use user_messages::shell;

use super::attach::mounts;
use super::attach::records::{Entry, StateArgs};
use super::attach::{absolute, not_durable};

pub(super) const EXAMPLES: &str = "\
A volume that a loop device or a process uses stays attached, and the refusal names what has to be ended first. What \
was written is made durable before the volume is given up. What a killed process left behind is cleared away in the \
same way.

Examples:
  farflash detach db-1
  farflash detach /srv/db-1.img";

/// A flush that takes so long waits for the server.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time in which the process ends whose file was unmounted.
const END_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[derive(Debug, Args)]
pub(crate) struct Detach {
    /// The volume, by the name or id, or the file that it is attached as
    #[arg(value_name = "NAME|FILE")]
    given: String,
    #[command(flatten)]
    state: StateArgs,
}

impl Detach {
    pub(super) fn run(self) -> Result<(), Failure> {
        let path = absolute(Path::new(&self.given)).ok();
        let entries = self.state.directory()?.entries();
        let mut found = entries.iter().filter(|entry| entry.is(&self.given, path.as_deref()));
        match found.next() {
            Some(entry) if entry.is_alive => leave(entry),
            Some(entry) => forget(entry),
            None => self.clear_away(path),
        }
    }

    /// Takes away a dead mount of which the list knows nothing.
    fn clear_away(&self, path: Option<PathBuf>) -> Result<(), Failure> {
        let is_ours = |path: &PathBuf| {
            mounts::mount_at(path).is_some_and(|mount| mount.is_ours()) && mounts::is_dead(path)
        };
        match path.filter(is_ours) {
            Some(path) => mounts::clear_dead(&path),
            None => Err(Failure::usage(
                format!("nothing is attached as {}", self.given),
                "see `farflash attach --list`, with the --state-dir that it was attached with",
            )),
        }
    }
}

fn leave(entry: &Entry) -> Result<(), Failure> {
    let record = &entry.record;
    if let Some(since) = record.waits_since {
        let lasts = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let lasts = lasts.unwrap_or_default().as_secs().saturating_sub(since);
        let what = format!("the server of {} does not answer for {lasts} s", record.volume);
        return Err(Failure::runtime(what, give_up(entry)));
    }
    mounts::leave(&record.path, || flush(entry))?;
    let begin = Instant::now();
    while entry.is_served() {
        if begin.elapsed() > END_WITHIN {
            let (path, process) = (record.path.display(), record.process);
            let what = format!("{path} is unmounted, but process {process} still serves it");
            let remedy = "another mount namespace, such as that of a service or container, may have it mounted: \
                          unmount it there";
            return Err(Failure::runtime(what, remedy));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

fn give_up(entry: &Entry) -> String {
    let (process, word) = (entry.record.process, shell::path(&entry.record.path));
    format!(
        "detach it when the server is back; or give up what was not synced: `kill -9 {process} && farflash detach {word}`"
    )
}

/// Makes durable what was written, through the file, as any program can.
fn flush(entry: &Entry) -> Result<(), Failure> {
    let path = entry.record.path.clone();
    let (sender, outcome) = mpsc::channel();
    let syncing = std::thread::Builder::new().spawn(move || {
        let synced = std::fs::File::open(&path).and_then(|file| file.sync_all());
        let _ = sender.send(synced);
    });
    syncing.map_err(|error| not_durable(&entry.record.path, &error.to_string()))?;
    let synced = outcome.recv_timeout(PATIENCE).or_else(|_| {
        note(&format!("waiting for the server; {}", give_up(entry)));
        outcome.recv()
    });
    let synced = synced.unwrap_or_else(|_| Err(std::io::ErrorKind::Interrupted.into()));
    synced.map_err(|error| not_durable(&entry.record.path, &error.to_string()))
}

/// Clears away what is left of a volume whose process was killed.
fn forget(entry: &Entry) -> Result<(), Failure> {
    mounts::clear_dead(&entry.record.path)?;
    entry.forget();
    Ok(())
}
