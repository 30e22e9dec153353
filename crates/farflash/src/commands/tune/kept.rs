//! `farflash tune undo`, `verify` and `confirm`: the values that were applied.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use host_tune::{Saved, State, Undone};
use serde_json::json;
use user_messages::Failure;
use user_messages::output;

use super::{Place, RecordArgs, guard, in_short, print, unusable};

#[derive(Debug, Args)]
pub(crate) struct Undo {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    record: RecordArgs,
    /// Wait until then, in milliseconds since the boot, and undo what was to be confirmed by then
    #[arg(long, value_name = "MS", hide = true)]
    unconfirmed_by: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Verify {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    record: RecordArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Confirm {
    #[command(flatten)]
    record: RecordArgs,
}

/// Tries to undo what is not confirmed; a card can refuse for a moment.
const TRIES: u32 = 10;

impl Undo {
    pub(super) fn run(self) -> Result<(), Failure> {
        let Some(by) = self.unconfirmed_by else {
            return self.undo(|saved| self.place.takes(&saved.setting));
        };
        guard::wait_until(by);
        let mut left = TRIES;
        loop {
            left -= 1;
            match self.undo(|saved| saved.is_unconfirmed_at(by)) {
                Err(_) if left > 0 => std::thread::sleep(Duration::from_secs(1)),
                done => return done,
            }
        }
    }

    fn undo(&self, wanted: impl Fn(&Saved) -> bool) -> Result<(), Failure> {
        let root = self.place.root()?;
        let mut tuner = self.record.open(&root)?;
        let undone = tuner.undo(wanted).map_err(|error| unusable(&error))?;
        drop(tuner);
        let refused =
            undone.iter().filter(|(_, outcome)| matches!(outcome, Undone::Refused { .. })).count();
        let mut text = String::new();
        for (saved, outcome) in &undone {
            let _ =
                writeln!(text, "{} {}: {} ({outcome})", saved.setting, saved.subject, saved.path);
        }
        let restored = undone.iter().filter(|(_, outcome)| *outcome == Undone::Restored).count();
        let _ = writeln!(text, "Given back: {}.", output::counted(restored as u64, "value"));
        if undone.iter().any(|(saved, _)| saved.setting == "boot-arguments") {
            text.push_str("The kernel's command line changes with the next reboot.\n");
        }
        if self.place.json {
            let of = |(saved, outcome): &(_, Undone)| json!({ "saved": saved, "result": outcome });
            text = format!("{}\n", undone.iter().map(of).collect::<serde_json::Value>());
        }
        print(&text)?;
        match refused {
            0 => Ok(()),
            _ => {
                let what =
                    format!("{} could not be given back", output::counted(refused as u64, "value"));
                Err(Failure::runtime(what, "run this as root; the record keeps what is left"))
            }
        }
    }
}

impl Verify {
    pub(super) fn run(self) -> Result<(), Failure> {
        let root = self.place.root()?;
        let tuner = self.record.open(&root)?;
        let mut all = tuner.verify();
        let unconfirmed = tuner.saved().iter().filter(|saved| saved.confirm_by.is_some()).count();
        all.retain(|status| self.place.takes(&status.setting));
        let changed = all.iter().filter(|status| status.state == State::Changed).count();
        let mut text = String::new();
        for status in all.iter().filter(|status| status.state != State::Kept) {
            let now = status.now.as_ref().map_or("gone".into(), |now| in_short(Some(now)));
            let applied = in_short(Some(&status.applied));
            let _ = writeln!(text, "{}: {applied} was applied, now {now}", status.path);
        }
        let _ = writeln!(
            text,
            "Applied: {}, changed since: {changed}.",
            output::counted(all.len() as u64, "value")
        );
        if unconfirmed > 0 {
            let _ = writeln!(text, "Not confirmed yet: {unconfirmed} (farflash tune confirm).");
        }
        if self.place.json {
            text = format!("{}\n", json!(all));
        }
        print(&text)?;
        match changed {
            0 => Ok(()),
            _ => {
                let what =
                    format!("{} changed since apply", output::counted(changed as u64, "value"));
                Err(Failure::runtime(what, "`farflash tune apply` sets them again"))
            }
        }
    }
}

impl Confirm {
    pub(super) fn run(self) -> Result<(), Failure> {
        let root = host_tune::Root::new("/");
        let mut tuner = self.record.open(&root)?;
        let kept = tuner.confirm().map_err(|error| unusable(&error))?;
        match kept {
            0 => {
                let what = "nothing waits for confirmation";
                let remedy = "what was not confirmed in time is undone: run `farflash tune apply --network` again";
                Err(Failure::runtime(what, remedy))
            }
            _ => print(&format!("Kept: {}.\n", output::counted(kept as u64, "value"))),
        }
    }
}
