//! `farflash tune`: proposes settings of this host, applies them, and gives the old values back.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use host_tune::settings::{self, SETTINGS, Setting};
use host_tune::{
    Applied, CpuSet, Intent, Machine, Proposal, RecordError, Risk, Role, Root, State, Tuner, Undone,
};
use report::{Align, Table};
use serde::Serialize;
use serde_json::json;

use crate::core_list::CoreList;
use crate::failure::Failure;
use crate::output;

/// The record of old values, below the root.
const RECORD: &str = "/var/lib/farflash/tune.jsonl";

const PLAN_EXAMPLES: &str = "\
Examples:
  What would be changed for a Flash server on CPUs 2 to 7 with three tenants:
    farflash tune plan --cores 2-7 --tenants 3

  The same as a diff, for a tree that was copied from another machine:
    farflash tune plan --root ./tree --diff";
const APPLY_EXAMPLES: &str = "\
Examples:
  Apply what concerns drives:
    farflash tune apply --only block-scheduler,block-merges

What might cut the network off, and what takes a reboot, is listed and left as it is.";
const UNDO_EXAMPLES: &str = "\
Examples:
  Give all old values back, or those of one setting:
    farflash tune undo
    farflash tune undo --only cpu-governor";
const VERIFY_EXAMPLES: &str = "\
Examples:
  Exit code 1 if another program or a reboot changed what was applied:
    farflash tune verify";
const EXPLAIN_EXAMPLES: &str = "\
Examples:
  All settings, or one:
    farflash tune explain
    farflash tune explain irq-drives";

#[derive(Debug, Subcommand)]
pub(crate) enum TuneCommand {
    /// Show the proposed settings; writes nothing
    #[command(after_help = PLAN_EXAMPLES)]
    Plan(Plan),
    /// Apply the proposed settings, keeping the old values
    #[command(after_help = APPLY_EXAMPLES)]
    Apply(Apply),
    /// Give the old values back
    #[command(after_help = UNDO_EXAMPLES)]
    Undo(Kept),
    /// Compare what was applied with what is set now
    #[command(after_help = VERIFY_EXAMPLES)]
    Verify(Kept),
    /// Say what settings mean, why they are proposed, and what they risk
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain(Explain),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Use {
    /// Serves volumes from its drives
    FlashServer,
    /// Uses volumes of a Flash server
    Datastore,
}

#[derive(Debug, Args)]
struct Place {
    /// Directory that stands for /, such as a tree copied from another machine
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Settings to take, others are left (see `farflash tune explain`)
    #[arg(long, value_name = "SETTINGS", value_delimiter = ',')]
    only: Vec<String>,
    /// Settings to leave
    #[arg(long, value_name = "SETTINGS", value_delimiter = ',')]
    skip: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Wishes {
    /// The use of this host
    #[arg(long, value_enum, default_value = "flash-server")]
    role: Use,
    /// CPUs of the data plane, such as 2-7 [default: all but those of the first core]
    #[arg(long, value_name = "CPUS")]
    cores: Option<CoreList>,
    /// Tenants that are served at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    tenants: u32,
    /// Drives to tune, such as nvme0n1 [default: all that do not spin]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    drives: Vec<String>,
    /// Network cards to tune [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    nics: Vec<String>,
    /// Largest packet that the path to the peers carries, in bytes
    #[arg(long, value_name = "BYTES")]
    path_mtu: Option<u32>,
}

#[derive(Debug, Args)]
struct RecordArgs {
    /// Record of old values [default: /var/lib/farflash/tune.jsonl below the root]
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    wishes: Wishes,
    /// Print a diff of the files that apply would change
    #[arg(long, conflicts_with = "json")]
    diff: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Apply {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    wishes: Wishes,
    #[command(flatten)]
    record: RecordArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Kept {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    record: RecordArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// The setting; all if absent
    #[arg(value_name = "SETTING")]
    setting: Option<String>,
}

/// A proposal and what became of it.
#[derive(Serialize)]
struct Step {
    #[serde(flatten)]
    proposal: Proposal,
    #[serde(flatten)]
    applied: Applied,
}

impl TuneCommand {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            Self::Plan(command) => command.run(),
            Self::Apply(command) => command.run(),
            Self::Undo(command) => command.undo(),
            Self::Verify(command) => command.verify(),
            Self::Explain(command) => command.run(),
        }
    }
}

impl Place {
    fn root(&self) -> Result<Root, Failure> {
        if !self.root.is_dir() {
            let what = format!("{} is no directory", self.root.display());
            return Err(Failure::usage(what, "name a directory with --root"));
        }
        let flags = [("--only", &self.only), ("--skip", &self.skip)];
        for (flag, name) in
            flags.iter().flat_map(|(flag, names)| names.iter().map(move |name| (flag, name)))
        {
            if Setting::find(name).is_none() {
                let what = format!("{flag}: there is no setting `{name}`");
                return Err(Failure::usage(what, "`farflash tune explain` lists all settings"));
            }
        }
        Ok(Root::new(&self.root))
    }

    fn takes(&self, setting: &str) -> bool {
        let named = |names: &[String]| names.iter().any(|name| name == setting);
        (self.only.is_empty() || named(&self.only)) && !named(&self.skip)
    }

    fn plan(&self, root: &Root, wishes: &Wishes) -> Result<Vec<Proposal>, Failure> {
        let machine = Machine::read(root);
        let intent = wishes.intent(&machine)?;
        Ok(settings::propose(root, &machine, &intent, |name| self.takes(name)))
    }
}

impl Wishes {
    fn intent(&self, machine: &Machine) -> Result<Intent, Failure> {
        let online = machine.online();
        let cores = match &self.cores {
            Some(CoreList(cores)) => cores.iter().copied().collect(),
            None => without_first_core(machine),
        };
        if !online.is_empty() && !cores.without(&online).is_empty() {
            let what = format!("--cores: CPUs {} are not online", cores.without(&online));
            return Err(Failure::usage(what, format!("these are: {online}")));
        }
        let drives: Vec<_> = machine.drives.iter().map(|drive| drive.name.as_str()).collect();
        let nics: Vec<_> = machine.nics.iter().map(|nic| nic.name.as_str()).collect();
        all_there("--drives", "drive", &self.drives, &drives)?;
        all_there("--nics", "network card", &self.nics, &nics)?;
        Ok(Intent {
            role: match self.role {
                Use::FlashServer => Role::FlashServer,
                Use::Datastore => Role::Datastore,
            },
            cores,
            tenants: self.tenants,
            drives: self.drives.clone(),
            nics: self.nics.clone(),
            path_mtu: self.path_mtu,
        })
    }
}

/// All CPUs but the threads of the first core, which is left to the rest of the system; all if there is no other.
fn without_first_core(machine: &Machine) -> CpuSet {
    let first = machine.cpus.first().map(|cpu| (cpu.package, cpu.core));
    let others = machine.cpus.iter().filter(|cpu| Some((cpu.package, cpu.core)) != first);
    let others: CpuSet = others.map(|cpu| cpu.id).collect();
    if others.is_empty() { machine.online() } else { others }
}

fn all_there(flag: &str, thing: &str, named: &[String], there: &[&str]) -> Result<(), Failure> {
    match named.iter().find(|name| !there.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => {
            let remedy = match there {
                [] => format!("this host shows no {thing}"),
                _ => format!("this host has {}", there.join(", ")),
            };
            Err(Failure::usage(format!("{flag}: there is no {thing} `{name}`"), remedy))
        }
    }
}

impl RecordArgs {
    fn open(&self, root: &Root) -> Result<Tuner, Failure> {
        let path = self.record.clone().unwrap_or_else(|| root.at(RECORD));
        Tuner::open(root.clone(), &path).map_err(|error| unusable(&error))
    }
}

fn unusable(error: &RecordError) -> Failure {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    let what = format!("{error}{}", cause.unwrap_or_default());
    Failure::runtime(what, "run this as root, or name another file with --record")
}

impl Plan {
    fn run(self) -> Result<(), Failure> {
        let root = self.place.root()?;
        let plan = self.place.plan(&root, &self.wishes)?;
        let text = match (self.place.json, self.diff) {
            (true, _) => format!("{}\n", json!(plan)),
            (false, true) => diff(&plan),
            (false, false) => in_words(&plan),
        };
        print(&text)
    }
}

fn diff(plan: &[Proposal]) -> String {
    let mut text = String::new();
    for one in plan.iter().filter(|one| !one.is_met()) {
        let Some(path) = one.path() else { continue };
        let now = one.now.as_deref().unwrap_or_default();
        let _ = write!(text, "--- {path}\n+++ {path}\n-{now}\n+{}\n", one.then);
    }
    text
}

fn in_words(plan: &[Proposal]) -> String {
    let columns = ["setting", "of", "now", "then", "risk", "remark"];
    let mut table = Table::new(&columns.map(|name| (name, Align::Left)));
    let open: Vec<_> = plan.iter().filter(|one| !one.is_met()).collect();
    for one in &open {
        let mut remark = String::new();
        if one.needs_reboot() {
            remark.push_str("takes a reboot; ");
        }
        if let Some(owner) = &one.owner {
            let _ = write!(remark, "{owner} may change it back; ");
        }
        let now = one.now.clone().unwrap_or_else(|| "-".into());
        let risk = one.risk.name().to_owned();
        let remark = remark.trim_end_matches("; ").to_owned();
        table.row([
            one.setting.to_owned(),
            one.subject.clone(),
            now,
            one.then.clone(),
            risk,
            remark,
        ]);
    }
    let met = output::counted((plan.len() - open.len()) as u64, "value");
    match open.is_empty() {
        true => format!("Nothing is to be changed; as proposed already: {met}.\n"),
        false => format!("{}\nAs proposed already: {met}.\n", table.to_text()),
    }
}

impl Apply {
    fn run(self) -> Result<(), Failure> {
        let root = self.place.root()?;
        let plan = self.place.plan(&root, &self.wishes)?;
        let mut tuner = self.record.open(&root)?;
        let mut steps = Vec::new();
        for proposal in plan {
            // A connection that is cut off could not be used to undo it.
            let applied = match proposal.risk {
                Risk::Network if !proposal.is_met() => Applied::Left,
                _ => tuner.apply(&proposal).map_err(|error| unusable(&error))?,
            };
            steps.push(Step { proposal, applied });
        }
        if self.place.json {
            return print(&format!("{}\n", json!(steps)));
        }
        let mut text = String::new();
        for Step { proposal, applied } in &steps {
            let said = match applied {
                Applied::Unchanged => continue,
                Applied::Left if proposal.is_met() => continue,
                Applied::Left if proposal.risk == Risk::Network => {
                    "left: may cut the network off".into()
                }
                Applied::Left if !proposal.needs_reboot() => "left: to be set by hand".into(),
                applied => applied.to_string(),
            };
            let _ = writeln!(
                text,
                "{} {}: {} ({said})",
                proposal.setting, proposal.subject, proposal.then
            );
        }
        let changed = steps.iter().filter(|step| step.applied == Applied::Changed).count();
        let _ = writeln!(text, "Changed: {}.", output::counted(changed as u64, "value"));
        print(&text)
    }
}

impl Kept {
    fn undo(self) -> Result<(), Failure> {
        let root = self.place.root()?;
        let mut tuner = self.record.open(&root)?;
        let undone = tuner
            .undo(|saved| self.place.takes(&saved.setting))
            .map_err(|error| unusable(&error))?;
        let refused =
            undone.iter().filter(|(_, outcome)| matches!(outcome, Undone::Refused { .. })).count();
        let mut text = String::new();
        for (saved, outcome) in &undone {
            let _ =
                writeln!(text, "{} {}: {} ({outcome})", saved.setting, saved.subject, saved.path);
        }
        let restored = output::counted((undone.len() - refused) as u64, "value");
        let _ = writeln!(text, "Given back: {restored}.");
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

    fn verify(self) -> Result<(), Failure> {
        let root = self.place.root()?;
        let tuner = self.record.open(&root)?;
        let mut all = tuner.verify();
        all.retain(|status| self.place.takes(&status.setting));
        let changed = all.iter().filter(|status| status.state == State::Changed).count();
        let mut text = String::new();
        for status in all.iter().filter(|status| status.state != State::Kept) {
            let now = status.now.as_deref().unwrap_or("gone");
            let _ = writeln!(text, "{}: {} was applied, now {now}", status.path, status.applied);
        }
        let _ = writeln!(
            text,
            "Applied: {}, changed since: {changed}.",
            output::counted(all.len() as u64, "value")
        );
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

impl Explain {
    fn run(self) -> Result<(), Failure> {
        let mut text = String::new();
        let named =
            |setting: &&Setting| self.setting.as_deref().is_none_or(|name| name == setting.name);
        for setting in SETTINGS.iter().filter(named) {
            let _ = writeln!(text, "{}: {}", setting.name, setting.about);
            let _ = writeln!(text, "    why:  {}\n    gain: {}", setting.why, setting.gain);
            let _ = writeln!(text, "    risk: {}\n", risk(setting.risk));
        }
        match self.setting.filter(|_| text.is_empty()) {
            None => print(&text),
            Some(name) => {
                let what = format!("there is no setting `{name}`");
                Err(Failure::usage(what, "`farflash tune explain` lists all settings"))
            }
        }
    }
}

fn risk(risk: Risk) -> &'static str {
    match risk {
        Risk::Low => "low: slower at worst",
        Risk::Medium => "medium: more power, or less for other work on the machine",
        Risk::Network => "network: may cut it off, so apply leaves it",
    }
}

fn print(text: &str) -> Result<(), Failure> {
    output::print("give the result somewhere to go", |out| write!(out, "{text}"))
}
