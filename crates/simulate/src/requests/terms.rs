//! Requests of operators: service levels, access and restrictions, allotments; and checks of their effect.

use access::{Access, HostName, InterfaceName, Network, Restrictions, Token, UnixSeconds};
use auth::{Hash, KEY_LEN_MAX, Secret};
use sim::Rng;

use super::Worker;
use crate::hosts::{ADDRESSES, Guest, HOSTS, INTERFACE, host_nqn};
use crate::model::VolumeModel;
use crate::rig::Rig;
use crate::run::{Allotted, Run, TENANTS};
use crate::target::Failure;

/// For how many seconds the token before opens a volume, too: less than a boot takes, and more than that.
const GRACES: [u64; 4] = [1, 3, 60, 7200];
/// Networks that may be named.
const NETWORKS: [&str; 4] = ["10.0.0.0/8", "10.0.0.1", "192.168.0.0/16", "2001:db8::/32"];

/// Returns a secret that no host has: a function of a number.
fn secret(number: u64) -> Secret {
    let (mut rng, mut random) = (Rng::new(number), [0; KEY_LEN_MAX]);
    for part in random.chunks_exact_mut(8) {
        part.copy_from_slice(&rng.next_u64().to_le_bytes());
    }
    Secret::new(Hash::Sha256, &random)
}

/// A token that no volume had.
fn new_token(model: &VolumeModel, rng: &mut Rng) -> Token {
    let (secret, controller) = (secret(rng.next_u64()), secret(rng.next_u64()));
    model.secrets.borrow_mut().push((secret.clone(), controller.clone()));
    Token { secret, controller: Some(controller), until: None }
}

/// Some of these.
fn some_of<T>(all: impl IntoIterator<Item = T>, rng: &mut Rng) -> Vec<T> {
    match rng.one_in(2) {
        true => Vec::new(),
        false => all.into_iter().filter(|_| rng.one_in(2)).collect(),
    }
}

/// Other restrictions; most admit a host that works on volumes.
fn restrictions(rng: &mut Rng) -> Restrictions {
    let networks = NETWORKS.map(|text| text.parse::<Network>().expect("a network"));
    let interfaces = ["eth9", INTERFACE].map(|name| name.parse::<InterfaceName>().expect("a name"));
    let mut all = Restrictions {
        hosts: some_of((0..=HOSTS).map(host_nqn).map(HostName::from), rng),
        networks: some_of(networks, rng),
        interfaces: some_of(interfaces.clone(), rng),
    };
    if !rng.one_in(4) {
        let host = HostName::from(host_nqn(rng.below(HOSTS as u64) as usize));
        if !all.hosts.is_empty() && !all.hosts.contains(&host) {
            all.hosts.push(host);
        }
        if !all.networks.is_empty() && !all.networks.contains(&networks[1]) {
            all.networks.push(networks[1]);
        }
        if !all.interfaces.is_empty() && !all.interfaces.contains(&interfaces[1]) {
            all.interfaces.push(interfaces[1].clone());
        }
    }
    all
}

/// Draws the terms of a volume that is about to be created.
pub(crate) fn first_terms(run: &Run, model: &VolumeModel, rng: &mut Rng) {
    let owner = TENANTS.get(rng.below(3) as usize).map(|owner| (*owner).to_owned());
    let restrictions = if rng.one_in(4) { restrictions(rng) } else { Restrictions::default() };
    let tokens = vec![new_token(model, rng)];
    let access = Access { tokens, restrictions, owner, ..Access::default() };
    let now = run.now();
    model.access.borrow_mut().settle(access, now);
    if rng.one_in(2) {
        let (_, slo) = run.begin_slo(model);
        model.slo.borrow_mut().settle(slo, now);
    }
}

/// A host, and a secret that was ever to open the volume, or none.
pub(crate) fn guest(model: &VolumeModel, rng: &mut Rng) -> Guest {
    let secrets = model.secrets.borrow();
    let count = secrets.len() as u64;
    let known = match rng.below(8) {
        0 => None,
        1 => Some((secret(rng.next_u64()), None)),
        // The newest, and the one before it.
        2..6 => secrets.iter().rev().nth(rng.below(2) as usize).cloned().map(proven),
        _ if count > 0 => Some(proven(secrets[rng.below(count) as usize].clone())),
        _ => None,
    };
    let known = known.map(|(secret, controller)| (secret, controller.filter(|_| rng.one_in(2))));
    Guest { host: rng.below(HOSTS as u64 + 1) as usize, address: ADDRESSES[0], secret: known }
}

fn proven((secret, controller): (Secret, Secret)) -> (Secret, Option<Secret>) {
    (secret, Some(controller))
}

/// The tokens that open a volume after a rotation: the new one, and until the end of the grace the newest of those before.
fn rotated(before: &[Token], new: Token, grace: Option<UnixSeconds>) -> Vec<Token> {
    let mut tokens = vec![Token { until: None, ..new }];
    if let (Some(end), Some(newest)) = (grace, before.first()) {
        let until = newest.until.map_or(end, |earlier| if earlier < end { earlier } else { end });
        tokens.push(Token { until: Some(until), ..newest.clone() });
    }
    tokens
}

impl Worker {
    /// Changes what a volume is promised.
    pub(super) async fn change_slo(&mut self) -> Result<(), Failure> {
        let Some(model) = self.pick_model() else { return Ok(()) };
        let (tag, slo) = self.run.begin_slo(&model);
        let outcome = self.rig.set_slo(&model, slo).await;
        self.run.end_slo(&model, tag, outcome);
        outcome
    }

    /// Changes the access of a volume as the server does: its tokens or its restrictions, and the rest stays.
    pub(super) async fn change_access(&mut self) -> Result<(), Failure> {
        let Some(model) = self.pick_model() else { return Ok(()) };
        let _alone = self.rig.change_alone(&model).await;
        let Some(found) = self.rig.terms(&model) else { return Ok(()) };
        self.run.check_terms(&model, &found);
        let Some(mut access) = found.access else { return Ok(()) };
        let now = self.rig.time_of_day();
        let mut cut = false;
        // What is expected of the product is worked out beside it.
        let mut expected = access.clone();
        expected.tokens.retain(|token| token.until.is_none_or(|end| end > now));
        if self.rng.one_in(3) {
            access.forget_expired(now);
            access.restrictions = restrictions(&mut self.rng);
            expected.restrictions = access.restrictions.clone();
        } else {
            let grace = GRACES.get(self.rng.below(6) as usize);
            let grace = grace.map(|seconds| UnixSeconds(now.0 + seconds));
            let token = new_token(&model, &mut self.rng);
            expected.tokens = rotated(&expected.tokens, token.clone(), grace);
            access.rotate(token, now, grace);
            cut = self.rng.one_in(3);
        }
        if access != expected {
            self.run.fail(format!("volume {}: {access:?}, not {expected:?}", model.id));
        }
        let tag = self.run.begin_access(&model, &access);
        let outcome = self.rig.set_access(&model, access, cut).await;
        self.run.end_access(&model, tag, outcome);
        if outcome.is_ok() {
            self.rig.prove_cut(&self.run, &model, cut).await;
        }
        outcome
    }

    /// Asks for a volume as a host that may know its token.
    pub(super) async fn knock(&mut self) {
        if self.rig.core().is_none() {
            return;
        }
        if let Some(model) = self.pick_model() {
            let guest = guest(&model, &mut self.rng);
            self.rig.knock(&self.run, &model, &guest).await;
        }
    }

    /// Says how much the volumes of a tenant may hold.
    pub(super) fn allot(&mut self) {
        self.rig.check_allotments(&self.run);
        let tenant = self.rng.below(TENANTS.len() as u64) as usize;
        let most = 2 * self.profile.volume_blocks;
        let limit = if self.rng.one_in(3) { u64::MAX } else { self.rng.below(most) };
        self.rig.allot(&self.run, tenant, limit);
    }
}

impl Rig {
    /// Looks at what the server says of all volumes.
    pub(crate) fn look(&self, run: &Run) {
        for model in run.volumes().into_iter().filter(|model| model.is_usable()) {
            if let Some(found) = self.terms(&model) {
                run.check_terms(&model, &found);
            } else if !run.excuses_existence(&model, false) {
                run.fail(format!("volume {} is gone", model.id));
            }
        }
    }

    /// Checks that the data plane and the engine have the same terms of each volume, while no operator changes
    /// them.
    pub(crate) fn compare_terms(&self, run: &Run) {
        for model in run.volumes().into_iter().filter(|model| model.is_usable()) {
            let (served, kept) = (self.terms(&model), self.terms_of_engine(&model));
            if served != kept {
                run.fail(format!("volume {}: served as {served:?}, is {kept:?}", model.id));
            }
        }
    }

    fn allot(&self, run: &Run, tenant: usize, limit: u64) {
        let Some(core) = self.core() else { return };
        let used = core.allot(&[(tenant, limit)])[tenant].used;
        let allotted = Allotted { limit, held_max: used.max(limit) };
        run.allot(tenant, (limit < u64::MAX).then_some(allotted));
    }

    /// Says at a start how much the volumes of each tenant may hold: no disk keeps it.
    pub(crate) fn allot_again(&self, run: &Run) {
        for tenant in 0..TENANTS.len() {
            if let Some(allotted) = run.allotted(tenant) {
                self.allot(run, tenant, allotted.limit);
            }
        }
    }

    /// The volumes of a tenant hold no more than they may, or did when that was said.
    pub(crate) fn check_allotments(&self, run: &Run) {
        let (Some(core), lenient) = (self.core(), run.leniency()) else { return };
        // What was answered with an error may be there when the shard comes back.
        if lenient.device_errors || lenient.returns || run.excuses_held() {
            return;
        }
        for (tenant, name) in TENANTS.into_iter().enumerate() {
            let Some(Allotted { held_max, .. }) = run.allotted(tenant) else { continue };
            let is_owned = |owner: &Option<String>| owner.as_deref() == Some(name);
            let volumes = core.volumes();
            let owned = volumes
                .iter()
                .filter(|volume| volume.access.as_ref().is_some_and(|a| is_owned(&a.owner)));
            let held: u64 = owned.map(|volume| volume.mapped_blocks).sum();
            if held > held_max {
                run.fail(format!("volumes of {name} hold {held} blocks, and may hold {held_max}"));
            }
        }
    }
}
