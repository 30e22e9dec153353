//! `farflash tune`: proposes settings of this host, applies them, and gives the old values back.

mod apply;
mod guard;
mod kept;

pub(super) use apply::apply_named;

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use host_tune::settings::{self, SETTINGS, Setting};
use host_tune::{
    CpuSet, Intent, Lasting, Machine, Proposal, RecordError, Risk, Role, Root, Target, Tuner,
};
use report::{Align, Table};
use serde_json::{Value, json};
use user_messages::Failure;
use user_messages::output;

use crate::core_list::CoreList;

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

  The same at each boot, with the kernel's command line for isolated CPUs:
    farflash tune apply --cores 2-7 --persist

  What may cut the network off; undone after a minute unless confirmed:
    farflash tune apply --only jumbo-frames --nics eth1 --network --probe 192.0.2.9
    farflash tune confirm";
const CONFIRM_EXAMPLES: &str = "\
Examples:
  Keep what `apply --network` set, from a session that still gets through:
    farflash tune confirm";
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
    Plan(Box<Plan>),
    /// Apply the proposed settings, keeping the old values
    #[command(after_help = APPLY_EXAMPLES)]
    Apply(Box<apply::Apply>),
    /// Keep the network settings that would be undone by themselves
    #[command(after_help = CONFIRM_EXAMPLES)]
    Confirm(kept::Confirm),
    /// Give the old values back
    #[command(after_help = UNDO_EXAMPLES)]
    Undo(kept::Undo),
    /// Compare what was applied with what is set now
    #[command(after_help = VERIFY_EXAMPLES)]
    Verify(kept::Verify),
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
    #[arg(long, value_name = "BYTES", conflicts_with = "probe")]
    path_mtu: Option<u32>,
    /// Propose packets of 9000 bytes on the way to this peer; they are kept only if they get there
    #[arg(long, value_name = "HOST")]
    probe: Option<String>,
    /// Port of the first core's portal, such as 4420, to steer the packets of each portal to its core
    #[arg(long, value_name = "PORT")]
    portal: Option<u16>,
    /// Apply the settings at each boot, too: a systemd unit, and the kernel's command line by GRUB
    #[arg(long)]
    persist: bool,
}

/// The packet that `--probe` proposes: the largest that most switches carry.
const JUMBO: u32 = 9000;

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
pub(crate) struct Explain {
    /// The settings; all if absent
    #[arg(value_name = "SETTING")]
    settings: Vec<String>,
}

impl TuneCommand {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            Self::Plan(command) => command.run(),
            Self::Apply(command) => command.run(),
            Self::Confirm(command) => command.run(),
            Self::Undo(command) => command.run(),
            Self::Verify(command) => command.run(),
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

    /// The plan; `at_boot` is the command of the unit, if there is to be one.
    fn plan(
        &self,
        root: &Root,
        wishes: &Wishes,
        at_boot: Option<Vec<String>>,
    ) -> Result<Vec<Proposal>, Failure> {
        let machine = Machine::read(root);
        let intent = Intent { at_boot, ..wishes.intent(&machine)? };
        let is_persistence = |name: &str| wishes.persist && PERSISTENCE.contains(&name);
        let is_taken = |name: &str| self.takes(name) || is_persistence(name);
        let plan = settings::propose(root, &machine, &intent, is_taken);
        match &wishes.probe {
            Some(host) => guard::only_towards(root, host, plan),
            None => Ok(plan),
        }
    }
}

/// The settings of `--persist`, which `--only` need not name.
const PERSISTENCE: [&str; 3] = ["boot-unit", "start-priority", "boot-arguments"];

impl Default for Wishes {
    /// The wishes of a command line without options.
    fn default() -> Self {
        Self {
            role: Use::FlashServer,
            cores: None,
            tenants: 1,
            drives: Vec::new(),
            nics: Vec::new(),
            path_mtu: None,
            probe: None,
            portal: None,
            persist: false,
        }
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
            path_mtu: self.path_mtu.or(self.probe.as_ref().map(|_| JUMBO)),
            portal: self.portal,
            at_boot: None,
        })
    }

    /// The arguments that say the same.
    fn words(&self) -> Vec<String> {
        let cores = self
            .cores
            .as_ref()
            .map(|CoreList(cores)| cores.iter().copied().collect::<CpuSet>().to_string());
        let role = self.role.to_possible_value().map(|role| role.get_name().to_owned());
        let tenants = (self.tenants != 1).then(|| self.tenants.to_string());
        let listed = |names: &[String]| (!names.is_empty()).then(|| names.join(","));
        // What was probed is not probed again at boot, when the peer may be down.
        let mtu = self.path_mtu.or(self.probe.as_ref().map(|_| JUMBO)).map(|mtu| mtu.to_string());
        let all = [
            ("--role", role),
            ("--cores", cores),
            ("--tenants", tenants),
            ("--drives", listed(&self.drives)),
            ("--nics", listed(&self.nics)),
            ("--path-mtu", mtu),
            ("--portal", self.portal.map(|port| port.to_string())),
        ];
        let given = all.into_iter().filter_map(|(flag, value)| Some([flag.to_owned(), value?]));
        given.flatten().collect()
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
    fn path(&self, root: &Root) -> PathBuf {
        let path = self.record.clone().unwrap_or_else(|| root.at(RECORD));
        std::path::absolute(&path).unwrap_or(path)
    }

    fn open(&self, root: &Root) -> Result<Tuner, Failure> {
        Tuner::open(root.clone(), &self.path(root)).map_err(|error| unusable(&error))
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
        let unit =
            self.wishes.persist.then(|| apply::command(&self.place, &self.wishes, None, false));
        let plan = self.place.plan(&root, &self.wishes, unit.transpose()?)?;
        guard::note_missing_ethtool(&root);
        if let Some(host) = &self.wishes.probe {
            guard::note_present_path(&root, host)?;
        }
        let text = match (self.place.json, self.diff) {
            (true, _) => format!("{}\n", plan.iter().map(in_json).collect::<Value>()),
            (false, true) => diff(&plan),
            (false, false) => in_words(&plan, is_set_at_boot(&root, &self.wishes)),
        };
        print(&text)
    }
}

/// True if the unit applies the settings at each boot, or is about to.
fn is_set_at_boot(root: &Root, wishes: &Wishes) -> bool {
    wishes.persist || root.has("/etc/systemd/system/farflash-tune.service")
}

fn in_json(proposal: &Proposal) -> Value {
    let mut value = json!(proposal);
    value["over_reboot"] = json!(proposal.lasting());
    value
}

fn diff(plan: &[Proposal]) -> String {
    let mut text = String::new();
    for one in plan.iter().filter(|one| !one.is_met()) {
        let Some(path) = one.path() else { continue };
        let old = if one.now.is_none() { "/dev/null" } else { path };
        let _ = writeln!(text, "--- {old}\n+++ {path}");
        let lines = |text: &mut String, sign, value: &str| {
            value.lines().for_each(|line| text.push_str(&format!("{sign}{line}\n")));
        };
        lines(&mut text, '-', one.now.as_deref().unwrap_or_default());
        lines(&mut text, '+', &one.then);
    }
    text
}

/// A value in a cell of a table.
fn in_short(value: Option<&str>) -> String {
    match value {
        None | Some("") => "none".into(),
        Some(text) => match text.lines().count() {
            0 | 1 => text.to_owned(),
            lines => format!("a file of {lines} lines"),
        },
    }
}

/// The fate of a setting at a reboot.
fn over_reboot(proposal: &Proposal, is_set_at_boot: bool) -> &'static str {
    match proposal.lasting() {
        // The unit runs before the server, whose threads are other ones after each start.
        Lasting::UntilReboot if proposal.setting == "realtime-priority" => "lost",
        Lasting::UntilReboot if is_set_at_boot && proposal.risk != Risk::Network => "set again",
        Lasting::UntilReboot => "lost",
        Lasting::FromReboot => "needs one",
        Lasting::Lasts if proposal.setting == "boot-arguments" => "needs one, lasts",
        Lasting::Lasts => "lasts",
        Lasting::ByHand => "by hand",
    }
}

/// Neighbouring proposals that differ in their subject only, as those of all CPUs do.
fn groups(plan: &[Proposal]) -> Vec<Vec<&Proposal>> {
    let mut groups: Vec<Vec<&Proposal>> = Vec::new();
    let key = |one: &Proposal| (one.setting, one.now.clone(), one.then.clone(), one.owners.clone());
    for one in plan.iter().filter(|one| !one.is_met()) {
        match groups.last_mut() {
            Some(group) if key(group[0]) == key(one) => group.push(one),
            _ => groups.push(vec![one]),
        }
    }
    groups
}

fn in_words(plan: &[Proposal], is_set_at_boot: bool) -> String {
    let columns = ["setting", "of", "now", "then", "risk", "over a reboot", "remark"];
    let mut table = Table::new(&columns.map(|name| (name, Align::Left)));
    let mut by_hand = String::new();
    for group in groups(plan) {
        let one = group[0];
        let subject = match group.as_slice() {
            [one] => one.subject.clone(),
            [first, .., last] => {
                format!("{} … {} ({})", first.subject, last.subject, group.len())
            }
            [] => continue,
        };
        let is_advice = matches!(one.target, Target::Advice);
        if is_advice {
            let _ = writeln!(by_hand, "{}: {}\n    because {}", one.setting, one.then, one.why);
        }
        let mut remarks = Vec::new();
        if one.risk == Risk::Network {
            remarks.push("only with --network".to_owned());
        }
        if !one.owners.is_empty() {
            remarks.push(format!("{} may change it back", one.owners.join(", ")));
        }
        let then = if is_advice { "see below".into() } else { in_short(Some(&one.then)) };
        table.row([
            one.setting.to_owned(),
            subject,
            in_short(one.now.as_deref()),
            then,
            one.risk.name().to_owned(),
            over_reboot(one, is_set_at_boot).to_owned(),
            remarks.join("; "),
        ]);
    }
    if !by_hand.is_empty() {
        by_hand.insert_str(0, "\nBy hand:\n");
    }
    let met = output::counted(plan.iter().filter(|one| one.is_met()).count() as u64, "value");
    match table.is_empty() {
        true => format!("Nothing is to be changed; as proposed already: {met}.\n"),
        false => format!("{}{by_hand}\nAs proposed already: {met}.\n", table.to_text()),
    }
}

impl Explain {
    fn run(self) -> Result<(), Failure> {
        if let Some(name) = self.settings.iter().find(|name| Setting::find(name).is_none()) {
            let what = format!("there is no setting `{name}`");
            return Err(Failure::usage(what, "`farflash tune explain` lists all settings"));
        }
        let is_named = |setting: &&Setting| {
            self.settings.is_empty() || self.settings.iter().any(|name| name == setting.name)
        };
        let mut text = String::new();
        for setting in SETTINGS.iter().filter(is_named) {
            let _ = writeln!(text, "{}: {}", setting.name, setting.about);
            let _ = writeln!(text, "    why:  {}\n    gain: {}", setting.why, setting.gain);
            let _ = writeln!(text, "    risk: {}\n", risk(setting.risk));
        }
        print(&text)
    }
}

fn risk(risk: Risk) -> &'static str {
    match risk {
        Risk::Low => "low: slower at worst",
        Risk::Medium => "medium: more power, or less for other work on the machine",
        Risk::Network => {
            "network: may cut it off; only with --network, and undone unless confirmed"
        }
    }
}

fn print(text: &str) -> Result<(), Failure> {
    output::print("give the result somewhere to go", |out| write!(out, "{text}"))
}
