//! The settings: a row each, with the function that proposes it.

mod block;
mod boot;
mod cards;
mod cpu;
mod interrupts;
mod memory;
mod network;
mod others;
mod owners;
mod persist;
mod priority;

use std::collections::BTreeSet;

pub use owners::remedy;
pub use persist::{NotRefreshed, refresh};
use serde::Serialize;

use crate::cpu_set::CpuSet;
use crate::machine::Machine;
use crate::place;
use crate::proposal::{Form, Proposal, Risk, Target};
use crate::root::Root;

/// The use of the host.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It serves volumes from its drives: sends much, receives little.
    FlashServer,
    /// It uses volumes of a Flash server: receives much.
    Datastore,
}

/// The wishes of the operator.
#[derive(Clone, Debug, Serialize)]
pub struct Intent {
    /// The use of the host.
    pub role: Role,
    /// CPUs of the data plane (`farflash serve --cores`), or of the datastore's threads.
    #[serde(serialize_with = "as_text")]
    pub cores: CpuSet,
    /// Tenants that the host serves at the same time.
    pub tenants: u32,
    /// Drives to tune; all that do not spin if empty.
    pub drives: Vec<String>,
    /// Network cards to tune; all if empty.
    pub nics: Vec<String>,
    /// The largest packet that the path to the peers carries, if it was probed.
    pub path_mtu: Option<u32>,
    /// The port of the first core's portal, if packets are to be steered to cores.
    pub portal: Option<u16>,
    /// The command that applies the settings at each boot, if it is to be installed.
    pub at_boot: Option<Vec<String>>,
}

fn as_text<S: serde::Serializer>(cores: &CpuSet, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(cores)
}

/// The machine, its files and the wishes, for the functions that propose.
pub(crate) struct Context<'a> {
    pub(crate) root: &'a Root,
    pub(crate) machine: &'a Machine,
    pub(crate) intent: &'a Intent,
    pub(crate) chosen: &'a dyn Fn(&str) -> bool,
}

/// One kind of setting.
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// The meaning.
    pub about: &'static str,
    /// Why it is proposed.
    pub why: &'static str,
    /// The expected gain, and its source.
    pub gain: &'static str,
    /// The worst that it can do.
    pub risk: Risk,
    propose: fn(&Setting, &Context<'_>) -> Vec<Proposal>,
}

/// All settings, in the order in which they are applied.
pub const SETTINGS: &[Setting] = &[
    cpu::GOVERNOR,
    cpu::DEEP_SLEEP,
    priority::REALTIME,
    interrupts::DRIVES,
    interrupts::NETWORK,
    interrupts::DEFAULT,
    interrupts::WORKQUEUES,
    network::RECEIVE_STEERING,
    network::TRANSMIT_STEERING,
    network::BUFFERS,
    network::CONGESTION,
    network::IDLE_WINDOW,
    cards::OFFLOADS,
    cards::SPREAD,
    cards::STEERING,
    network::JUMBO,
    block::SCHEDULER,
    block::MERGES,
    block::COMPLETION,
    block::REQUESTS,
    block::POLLING,
    block::THROTTLE,
    block::WRITE_CACHE,
    memory::HUGE_PAGES,
    memory::STATISTICS,
    boot::ISOLATION,
    boot::TICKS,
    boot::CALLBACKS,
    persist::AT_BOOT,
    persist::AT_START,
    persist::ARGUMENTS,
    others::BALANCER,
    others::SMART,
    others::SAVES,
    others::TIMERS,
];

impl Setting {
    /// The setting with this name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.name == name)
    }

    /// A proposal of this setting for the file at `path`; nothing if the file is not there, or does
    /// not offer the value.
    fn file(
        &self,
        context: &Context<'_>,
        subject: impl Into<String>,
        path: impl Into<String>,
        (form, then): (Form, String),
    ) -> Option<Proposal> {
        let path = path.into();
        let content = place::read(context.root, &path, form).ok()??;
        let content = String::from_utf8_lossy(&content);
        if !form.offers(&content, &then) {
            return None;
        }
        let now = Some(form.value(&content));
        Some(self.proposal(subject, Target::File { path, form }, now, then))
    }

    /// A proposal for what need not be there.
    fn new_file(
        &self,
        context: &Context<'_>,
        subject: impl Into<String>,
        path: impl Into<String>,
        (form, then): (Form, String),
    ) -> Proposal {
        let path = path.into();
        let content = place::read(context.root, &path, form).ok().flatten();
        let now = content.map(|content| form.value(&String::from_utf8_lossy(&content)));
        self.proposal(subject, Target::File { path, form }, now, then)
    }

    /// The same for a file that the machine has once.
    fn of_host(
        &self,
        context: &Context<'_>,
        path: impl Into<String>,
        then: (Form, String),
    ) -> Vec<Proposal> {
        self.file(context, "host", path, then).into_iter().collect()
    }

    fn proposal(
        &self,
        subject: impl Into<String>,
        target: Target,
        now: Option<String>,
        then: String,
    ) -> Proposal {
        Proposal {
            setting: self.name,
            subject: subject.into(),
            target,
            now,
            then,
            why: self.why,
            gain: self.gain,
            risk: self.risk,
            owners: Vec::new(),
        }
    }
}

/// The chosen drives: those that the operator names, or all that do not spin.
fn drives<'a>(context: &'a Context<'_>) -> impl Iterator<Item = &'a crate::machine::Drive> {
    let named = &context.intent.drives;
    context.machine.drives.iter().filter(move |drive| match named.is_empty() {
        true => !drive.rotational,
        false => named.contains(&drive.name),
    })
}

/// The chosen network cards: those that the operator names, or all with a device behind them.
fn nics<'a>(context: &'a Context<'_>) -> impl Iterator<Item = &'a crate::machine::Nic> {
    let named = &context.intent.nics;
    context.machine.nics.iter().filter(move |nic| match named.is_empty() {
        true => !nic.is_virtual,
        false => named.contains(&nic.name),
    })
}

/// All proposals for `machine`, those that are met included. `chosen` says which settings.
#[must_use]
pub fn propose(
    root: &Root,
    machine: &Machine,
    intent: &Intent,
    chosen: impl Fn(&str) -> bool,
) -> Vec<Proposal> {
    let context = Context { root, machine, intent, chosen: &chosen };
    let owners = owners::Owners::read(root);
    let rows = SETTINGS.iter().filter(|setting| chosen(setting.name));
    let all = rows.flat_map(|setting| (setting.propose)(setting, &context));
    let with_owners = all.map(|proposal| {
        let owners = if proposal.is_met() { Vec::new() } else { owners.of(&proposal) };
        Proposal { owners, ..proposal }
    });
    without_repetition(root, with_owners)
}

/// One proposal for each file: CPUs of one frequency domain, for example, have a common governor.
fn without_repetition(root: &Root, all: impl Iterator<Item = Proposal>) -> Vec<Proposal> {
    let mut seen = BTreeSet::new();
    let mut is_first = |proposal: &Proposal| match &proposal.target {
        Target::File { path, form } if !form.is_of_program() && !form.may_be_absent() => {
            root.real(path).is_none_or(|file| seen.insert(file))
        }
        _ => true,
    };
    all.filter(|one| is_first(one)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_every_row_says_why_and_what_for() {
        for (at, setting) in SETTINGS.iter().enumerate() {
            let again = SETTINGS[..at].iter().any(|before| before.name == setting.name);
            assert!(!again, "{} twice", setting.name);
            let texts = [setting.about, setting.why, setting.gain];
            assert!(texts.iter().all(|text| text.len() > 10), "{}", setting.name);
        }
    }
}
