//! Offloads of network cards, and their steering of packets to queues.

use super::{Context, Role, Setting, nics};
use crate::card::{feature_key, rule_key, spread_key};
use crate::machine::Nic;
use crate::placement::{Purpose, place};
use crate::proposal::{Form, Proposal, Risk};

/// The first place of a card's table of rules that is used here: those of others often begin at either end.
const FIRST_PLACE: u32 = 512;

pub(super) const OFFLOADS: Setting = Setting {
    name: "nic-offloads",
    about: "the card cuts what is sent (TSO) and the kernel joins what is received (GRO)",
    why: "a read of 128 KiB is ninety packets; each of them otherwise goes through the whole stack",
    gain: "large transfers with less processor time; EuroSys'16 (3.3) tunes offloads, too",
    risk: Risk::Network,
    propose: offloads,
};

fn offloads(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    let of_role: &[&str] = match context.intent.role {
        Role::FlashServer => &["tso", "gro"],
        Role::Datastore => &["gro"],
    };
    let one = |nic: &Nic, feature: &str| {
        let (key, subject) = (feature_key(&nic.name, feature), format!("{} {feature}", nic.name));
        setting.file(context, subject, key, (Form::Feature, "on".into()))
    };
    nics(context)
        .flat_map(|nic| of_role.iter().filter_map(move |feature| one(nic, feature)))
        .collect()
}

pub(super) const SPREAD: Setting = Setting {
    name: "receive-spread",
    about: "receive queues that the card spreads connections over (RSS)",
    why: "each core of the data plane has a queue, and no queue interrupts another core",
    gain: "EuroSys'16 (3.3) steers by RSS; no figure of its own",
    risk: Risk::Network,
    propose: spread,
};

fn spread(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    let cores = u32::try_from(context.intent.cores.len()).unwrap_or(u32::MAX);
    let one = |nic: &Nic| {
        let queues = nic.receive_queues.min(cores);
        let key = spread_key(&nic.name, nic.receive_queues);
        (queues > 0).then(|| {
            setting.file(context, nic.name.clone(), key, (Form::Spread, queues.to_string()))
        })?
    };
    nics(context).filter(|nic| nic.receive_queues > 1).filter_map(one).collect()
}

pub(super) const STEERING: Setting = Setting {
    name: "flow-steering",
    about: "rules of the card that give each portal's packets to its core's queue (n-tuple)",
    why: "packets arrive on the core that serves their portal, so that no other is interrupted",
    gain: "part of interrupt placement (EuroSys'16, 3.3); needs --portal",
    risk: Risk::Network,
    propose: steering,
};

fn steering(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    let Some(portal) = context.intent.portal else { return Vec::new() };
    nics(context)
        .filter(|nic| nic.receive_queues > 1)
        .flat_map(|nic| of_nic(setting, context, nic, portal))
        .collect()
}

/// The switch of a card's rules, and a rule for each core that has a queue. None if the card has no rules.
fn of_nic(setting: &Setting, context: &Context<'_>, nic: &Nic, portal: u16) -> Vec<Proposal> {
    let switch = setting.file(
        context,
        format!("{} ntuple", nic.name),
        feature_key(&nic.name, "ntuple"),
        (Form::Feature, "on".into()),
    );
    let plan = place(&context.intent.cores, context.intent.tenants);
    let (Some(switch), Some(plan)) = (switch, plan) else { return Vec::new() };
    let mut all = vec![switch];
    for (port, core) in (portal..=u16::MAX).zip(context.intent.cores.iter()) {
        let mut queues = 0..nic.receive_queues;
        let Some(queue) = queues.find(|queue| plan.cpu(Purpose::Network, *queue as usize) == core)
        else {
            continue;
        };
        let then = format!("tcp4 dst-port {port} action {queue}");
        // The first place that is free, or has the rule already.
        let first = FIRST_PLACE + u32::from(port - portal);
        let mut places = (first..).step_by(context.intent.cores.len()).take(8).map(|place| {
            let (key, subject) = (rule_key(&nic.name, place), format!("{} port {port}", nic.name));
            setting.new_file(context, subject, key, (Form::Rule, then.clone()))
        });
        all.extend(places.find(|one| one.now.is_none() || one.is_met()));
    }
    all
}
