//! `farflash tune apply`.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use host_tune::settings::{self, remedy};
use host_tune::{Applied, Proposal, Risk, Root, Target, Tuner};
use serde::Serialize;
use serde_json::{Value, json};
use user_messages::Failure;
use user_messages::output;

use super::{Place, RecordArgs, Wishes, guard, in_short, print, unusable};
use crate::core_list::CoreList;
use crate::interval::Interval;

#[derive(Debug, Args)]
pub(crate) struct Apply {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    wishes: Wishes,
    #[command(flatten)]
    record: RecordArgs,
    /// Apply what may cut the network off, too; it is undone unless `farflash tune confirm` follows
    #[arg(long)]
    network: bool,
    /// Time for `farflash tune confirm`
    #[arg(long, value_name = "TIME", default_value = "60s", requires = "network")]
    confirm_within: Interval,
    /// Ask for no confirmation: the settings were confirmed before
    #[arg(long, requires = "network", conflicts_with = "confirm_within")]
    confirmed: bool,
}

/// A proposal and its outcome.
#[derive(Serialize)]
struct Step {
    #[serde(flatten)]
    proposal: Proposal,
    #[serde(flatten)]
    applied: Applied,
}

/// The command that applies the same at each boot.
pub(super) fn command(
    place: &Place,
    wishes: &Wishes,
    record: Option<&RecordArgs>,
    is_network: bool,
) -> Result<Vec<String>, Failure> {
    let program = std::env::current_exe().map_err(|error| {
        let what = format!("the path of this program cannot be found: {error}");
        Failure::runtime(what, "start it by its full path")
    })?;
    let mut words = vec![program.display().to_string(), "tune".into(), "apply".into()];
    words.extend(wishes.words());
    for (flag, names) in [("--only", &place.only), ("--skip", &place.skip)] {
        if !names.is_empty() {
            words.extend([flag.to_owned(), names.join(",")]);
        }
    }
    if let Some(path) = record.and_then(|record| record.record.as_ref()) {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        words.extend(["--record".to_owned(), path.display().to_string()]);
    }
    if is_network {
        words.extend(["--network".to_owned(), "--confirmed".to_owned()]);
    }
    Ok(words)
}

/// Applies some settings to the running system for another command: network settings and what takes a reboot are left.
/// Returns the outcomes in words and as JSON.
pub(in crate::commands) fn apply_named(
    root: PathBuf,
    record: Option<PathBuf>,
    only: Vec<String>,
    cores: Option<Vec<u32>>,
) -> Result<(String, Value), Failure> {
    let place = Place { root, only, skip: Vec::new(), json: false };
    let wishes = Wishes { cores: cores.map(CoreList), ..Wishes::default() };
    let root = place.root()?;
    let plan = place.plan(&root, &wishes, None)?;
    name_owners(&plan);
    let is_network = |one: &Proposal| one.risk == Risk::Network;
    let (network, others): (Vec<_>, Vec<_>) = plan.into_iter().partition(is_network);
    let mut tuner = RecordArgs { record }.open(&root)?;
    let outcomes = tuner.apply(&others).map_err(|error| unusable(&error))?;
    let mut steps = paired(others, outcomes);
    let left = network.iter().map(|_| Applied::Left).collect();
    steps.extend(paired(network, left));
    Ok((in_words(&steps, false), json!(steps)))
}

impl Apply {
    pub(super) fn run(self) -> Result<(), Failure> {
        let root = self.place.root()?;
        let unit = self
            .wishes
            .persist
            .then(|| command(&self.place, &self.wishes, Some(&self.record), self.network));
        let plan = self.place.plan(&root, &self.wishes, unit.transpose()?)?;
        guard::note_missing_ethtool(&root);
        self.refuse_unconfirmed_unit(&plan)?;
        name_owners(&plan);
        let is_delayed =
            |one: &Proposal| one.risk == Risk::Network && !(self.network && self.confirmed);
        let (network, others): (Vec<_>, Vec<_>) = plan.into_iter().partition(is_delayed);
        let mut tuner = self.record.open(&root)?;
        let outcomes = tuner.apply(&others).map_err(|error| unusable(&error))?;
        let mut steps: Vec<Step> = paired(others, outcomes);
        let unread = self.refresh(&root, &steps);
        let mut said = String::new();
        if self.network && network.iter().any(|one| !one.is_met()) {
            let outcomes = self.apply_network(&root, tuner, &network, &mut said)?;
            steps.extend(paired(network, outcomes));
        } else {
            drop(tuner);
            let outcomes = network.iter().map(|one| match one.is_met() {
                true => Applied::Unchanged,
                false => Applied::Left,
            });
            let outcomes = outcomes.collect();
            steps.extend(paired(network, outcomes));
        }
        match self.place.json {
            true => print(&format!("{}\n", json!(steps)))?,
            false => print(&(in_words(&steps, self.wishes.persist) + &said))?,
        }
        unread.map_or(Ok(()), Err)
    }

    /// A unit must not set at each boot what was never seen to leave the network up.
    fn refuse_unconfirmed_unit(&self, plan: &[Proposal]) -> Result<(), Failure> {
        let is_open = |one: &&Proposal| one.risk == Risk::Network && !one.is_met();
        match plan.iter().find(is_open) {
            Some(one) if self.wishes.persist && self.network && !self.confirmed => {
                let what = format!("--persist: {} of {} is not set yet", one.setting, one.subject);
                let remedy = "apply it without --persist and confirm it, then run this again";
                Err(Failure::usage(what, remedy))
            }
            _ => Ok(()),
        }
    }

    /// Has systemd and GRUB read what was written for them, each time: a run before may have been killed.
    fn refresh(&self, root: &Root, steps: &[Step]) -> Option<Failure> {
        if !self.wishes.persist {
            return None;
        }
        let paths: Vec<&str> = steps.iter().filter_map(|step| step.proposal.path()).collect();
        let unread = settings::refresh(root, &paths);
        let first = unread.first()?;
        let what = format!("{} was written but not taken over: {}", first.paths[0], first.reason);
        Some(Failure::runtime(what, "mend that, then run the same again"))
    }

    /// Applies what may cut the network off, with a process that undoes it unless it is confirmed.
    fn apply_network(
        &self,
        root: &Root,
        mut tuner: Tuner,
        network: &[Proposal],
        said: &mut String,
    ) -> Result<Vec<Applied>, Failure> {
        if !root.is_live() {
            return tuner.apply(network).map_err(|error| unusable(&error));
        }
        if let Some(host) = &self.wishes.probe {
            guard::must_answer(root, host)?;
        }
        let record = self.record.path(root);
        let confirm_by = guard::now() + self.confirm_within.0.as_millis() as u64;
        let outcomes = tuner
            .apply_unconfirmed(network, confirm_by, || guard::start(root, &record, confirm_by))
            .map_err(|error| unusable(&error))?;
        // From here on the process that undoes can have the record, whatever holds this one up.
        drop(tuner);
        if !outcomes.contains(&Applied::Changed) {
            return Ok(outcomes);
        }
        let jumbo = network.iter().find(|one| one.setting == "jumbo-frames");
        if let (Some(host), Some(jumbo)) = (&self.wishes.probe, jumbo)
            && !guard::carries(root, host, jumbo.then.parse().unwrap_or(super::JUMBO))
        {
            let mut tuner = self.record.open(root)?;
            let is_of_now = |saved: &host_tune::Saved| saved.confirm_by == Some(confirm_by);
            tuner.undo(is_of_now).map_err(|error| unusable(&error))?;
            let what =
                format!("no packet of {} bytes gets to {host}; what was set is undone", jumbo.then);
            let remedy = "raise the packet size of the switches and of the peer, or leave it";
            return Err(Failure::runtime(what, remedy));
        }
        let within = self.confirm_within.0.as_secs();
        let _ = writeln!(
            said,
            "The network settings are undone in {within} s, unless you run: farflash tune confirm{}",
            match &self.record.record {
                Some(path) => format!(" --record {}", path.display()),
                None => String::new(),
            }
        );
        Ok(outcomes)
    }
}

fn paired(proposals: Vec<Proposal>, outcomes: Vec<Applied>) -> Vec<Step> {
    let pairs = proposals.into_iter().zip(outcomes);
    pairs.map(|(proposal, applied)| Step { proposal, applied }).collect()
}

/// Names the owners of settings that are about to be changed, before they are.
fn name_owners(plan: &[Proposal]) {
    let open = plan.iter().filter(|one| !one.is_met() && one.path().is_some());
    let mut owners: Vec<(&str, Vec<&str>)> = Vec::new();
    for (owner, setting) in
        open.flat_map(|one| one.owners.iter().map(move |owner| (owner.as_str(), one.setting)))
    {
        match owners.iter_mut().find(|(known, _)| *known == owner) {
            Some((_, settings)) if settings.contains(&setting) => {}
            Some((_, settings)) => settings.push(setting),
            None => owners.push((owner, vec![setting])),
        }
    }
    for (owner, settings) in owners {
        let settings = settings.join(", ");
        output::note(&format!(
            "{owner} sets {settings}, too, and may change it back: {}",
            remedy(owner)
        ));
    }
}

fn in_words(steps: &[Step], is_persistent: bool) -> String {
    let mut text = String::new();
    for Step { proposal, applied } in steps {
        let said = match applied {
            Applied::Unchanged => continue,
            Applied::Left if proposal.is_met() => continue,
            Applied::Left if proposal.risk == Risk::Network => {
                "left: may cut the network off; apply it with --network".into()
            }
            Applied::Left => match proposal.target {
                Target::KernelArgument { .. } if is_persistent => "after a reboot".into(),
                Target::KernelArgument { .. } => "left: takes --persist and a reboot".into(),
                _ => "left: to be set by hand".into(),
            },
            applied => applied.to_string(),
        };
        let value = in_short(Some(&proposal.then));
        let _ = writeln!(text, "{} {}: {value} ({said})", proposal.setting, proposal.subject);
    }
    let changed = steps.iter().filter(|step| step.applied == Applied::Changed).count();
    let _ = writeln!(text, "Changed: {}.", output::counted(changed as u64, "value"));
    text
}
