//! The settings: a row each, with the function that proposes it.

mod block;
mod boot;
mod cpu;
mod interrupts;
mod memory;
mod network;
mod others;

use serde::Serialize;

use crate::cpu_set::CpuSet;
use crate::machine::Machine;
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
}

fn as_text<S: serde::Serializer>(cores: &CpuSet, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(cores)
}

/// The machine, its files and the wishes, for the functions that propose.
pub(crate) struct Context<'a> {
    pub(crate) root: &'a Root,
    pub(crate) machine: &'a Machine,
    pub(crate) intent: &'a Intent,
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
    interrupts::DRIVES,
    interrupts::NETWORK,
    interrupts::DEFAULT,
    interrupts::WORKQUEUES,
    network::RECEIVE_STEERING,
    network::TRANSMIT_STEERING,
    network::BUFFERS,
    network::CONGESTION,
    network::IDLE_WINDOW,
    network::JUMBO,
    block::SCHEDULER,
    block::MERGES,
    block::COMPLETION,
    block::THROTTLE,
    memory::HUGE_PAGES,
    memory::STATISTICS,
    boot::ISOLATION,
    boot::TICKS,
    boot::CALLBACKS,
    others::BALANCER,
    others::SMART,
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
        let content = context.root.text(&path)?;
        if !form.offers(&content, &then) {
            return None;
        }
        let now = Some(form.value(&content));
        Some(self.proposal(subject, Target::File { path, form }, now, then))
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
            owner: None,
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

/// The chosen network cards.
fn nics<'a>(context: &'a Context<'_>) -> impl Iterator<Item = &'a crate::machine::Nic> {
    let named = &context.intent.nics;
    context.machine.nics.iter().filter(move |nic| named.is_empty() || named.contains(&nic.name))
}

/// All proposals for `machine`, those that are met included. `chosen` says which settings.
#[must_use]
pub fn propose(
    root: &Root,
    machine: &Machine,
    intent: &Intent,
    chosen: impl Fn(&str) -> bool,
) -> Vec<Proposal> {
    let context = Context { root, machine, intent };
    let owners = others::owners(root);
    let rows = SETTINGS.iter().filter(|setting| chosen(setting.name));
    let all = rows.flat_map(|setting| (setting.propose)(setting, &context));
    let with_owner = all.map(|proposal| {
        let owner = owners.iter().find(|owner| owner.settings.contains(&proposal.setting));
        Proposal { owner: owner.map(|owner| owner.name.to_owned()), ..proposal }
    });
    with_owner.collect()
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
