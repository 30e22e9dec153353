//! Whose a volume is, and what a tenant may have.

use control::{Caller, ServiceError, Slo, Volume, VolumeName};

/// What a volume is to have after a change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// The volume, if there is one already.
    pub(super) id: Option<uuid::Uuid>,
    pub(super) size_bytes: u64,
    pub(super) slo: Slo,
}

/// Refuses what would be more than `caller` may have, whose volumes are `own`.
pub(super) fn check(caller: &Caller, own: &[Volume], wanted: Wanted) -> Result<(), ServiceError> {
    let Caller::Tenant(tenant) = caller else { return Ok(()) };
    let quota = &tenant.quota;
    let others = || own.iter().filter(|volume| Some(volume.id) != wanted.id);
    let slos = || others().map(|volume| volume.slo).chain([wanted.slo]);
    let count = others().count() as u64 + 1;
    let sizes = others().map(|volume| volume.size_bytes).chain([wanted.size_bytes]);
    let bytes: u128 = sizes.map(u128::from).sum();
    let share: u64 = slos().map(|slo| u64::from(weight_of(slo))).sum();
    let rate = |side: fn(Slo) -> u64| slos().fold(0, |sum, slo| side(slo).saturating_add(sum));
    let within = |what: &str, wanted: u128, quota: Option<u128>| match quota {
        Some(quota) if wanted > quota => {
            let detail =
                format!("the quota of {} is {quota} {what}; this makes {wanted}", tenant.name);
            Err(ServiceError::Quota { detail })
        }
        _ => Ok(()),
    };
    within("volumes", count.into(), quota.volumes.map(u128::from))?;
    within("bytes provisioned", bytes, quota.provisioned_bytes.map(u128::from))?;
    within("of shares", share.into(), quota.share.map(u128::from))?;
    within("blocks read a second", rate(reads_of).into(), Some(quota.reads_per_second.into()))?;
    within("blocks written a second", rate(writes_of).into(), Some(quota.writes_per_second.into()))
}

/// The tenant whose a new volume is: the one who asks, or whom an operator names.
pub(super) fn owner_for(
    caller: &Caller,
    wanted: Option<String>,
) -> Result<Option<String>, ServiceError> {
    let setting = |detail: String| Err(ServiceError::Setting { detail });
    match (caller, wanted) {
        (Caller::Tenant(tenant), wanted) => match wanted {
            Some(other) if other != tenant.name => setting("`owner` must be yourself".to_owned()),
            _ => Ok(Some(tenant.name.clone())),
        },
        (Caller::Operator(_), Some(owner)) if owner.parse::<VolumeName>().is_err() => {
            setting("`owner` has 1 to 63 of a-z, 0-9, `.`, `_` and `-`".to_owned())
        }
        (Caller::Operator(_), owner) => Ok(owner),
    }
}

fn weight_of(slo: Slo) -> u32 {
    match slo {
        Slo::Share(weight) => weight,
        Slo::Rate { .. } => 0,
    }
}

fn reads_of(slo: Slo) -> u64 {
    match slo {
        Slo::Share(_) => 0,
        Slo::Rate { reads_per_second, .. } => reads_per_second,
    }
}

fn writes_of(slo: Slo) -> u64 {
    match slo {
        Slo::Share(_) => 0,
        Slo::Rate { writes_per_second, .. } => writes_per_second,
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use control::{Portal, Quota, Restrictions, Tenant};
    use uuid::Uuid;

    use super::*;

    fn tenant(quota: Quota) -> Caller {
        Caller::Tenant(Arc::new(Tenant { name: "acme".to_owned(), quota }))
    }

    fn volume(number: u128, size_bytes: u64, slo: Slo) -> Volume {
        let address = SocketAddr::from(([127, 0, 0, 1], 4420));
        Volume {
            id: Uuid::from_u128(number),
            name: format!("v{number}"),
            nqn: String::new(),
            size_bytes,
            allocated_bytes: 0,
            address,
            portal: Portal { address, core: 0 },
            device: String::new(),
            slo,
            restrictions: Restrictions::default(),
            owner: Some("acme".to_owned()),
            connect: String::new(),
        }
    }

    fn new(size_bytes: u64, slo: Slo) -> Wanted {
        Wanted { id: None, size_bytes, slo }
    }

    #[test]
    fn each_bound_holds_for_all_volumes_together() {
        let own = [volume(1, 4096, Slo::Share(100)), volume(2, 8192, Slo::Share(50))];
        let share = Slo::Share(10);
        let bounded = |quota: Quota, wanted| check(&tenant(quota), &own, wanted);
        let volumes = |volumes| Quota { volumes: Some(volumes), ..Quota::default() };
        assert_eq!(bounded(volumes(3), new(4096, share)), Ok(()));
        assert!(bounded(volumes(2), new(4096, share)).is_err());
        let bytes = |bytes| Quota { provisioned_bytes: Some(bytes), ..Quota::default() };
        assert_eq!(bounded(bytes(16_384), new(4096, share)), Ok(()));
        assert!(bounded(bytes(16_383), new(4096, share)).is_err());
        // A change of one volume counts it once.
        let grown = Wanted { id: Some(own[1].id), ..new(12_288, share) };
        assert_eq!(bounded(bytes(16_384), grown), Ok(()));
        let shares = |share| Quota { share: Some(share), ..Quota::default() };
        assert_eq!(bounded(shares(160), new(4096, share)), Ok(()));
        let error = bounded(shares(159), new(4096, share)).expect_err("too much").to_string();
        assert_eq!(error, "the quota of acme is 159 of shares; this makes 160");
    }

    #[test]
    fn rates_are_for_those_who_were_given_some_and_operators_have_no_bounds() {
        let rate = Slo::Rate { reads_per_second: 10, writes_per_second: 5 };
        assert!(check(&tenant(Quota::default()), &[], new(4096, rate)).is_err());
        let quota = Quota { reads_per_second: 10, writes_per_second: 5, ..Quota::default() };
        assert_eq!(check(&tenant(quota), &[], new(4096, rate)), Ok(()));
        let own = [volume(1, 4096, rate)];
        assert!(check(&tenant(quota), &own, new(4096, rate)).is_err());
        let operator = Caller::Operator("ops".into());
        assert_eq!(check(&operator, &own, new(u64::MAX, rate)), Ok(()));
    }
}
