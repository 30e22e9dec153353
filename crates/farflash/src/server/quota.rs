//! Whose a volume is, and what a tenant may have.

use control::{Caller, ServiceError, Slo, Tenant, Volume, VolumeName};

/// What a volume is to have after a change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// The volume, if there is one already.
    pub(super) id: Option<uuid::Uuid>,
    pub(super) size_bytes: u64,
    pub(super) slo: Slo,
}

/// What volumes have together, by what quotas bound.
#[derive(Clone, Copy, Default)]
struct Totals([u128; 5]);

impl Totals {
    fn add(self, size_bytes: u64, slo: Slo) -> Self {
        let (share, reads, writes) = match slo {
            Slo::Share(weight) => (weight, 0, 0),
            Slo::Rate { reads_per_second, writes_per_second } => {
                (0, reads_per_second, writes_per_second)
            }
        };
        let more = [1, size_bytes.into(), share.into(), reads.into(), writes.into()];
        Self(std::array::from_fn(|n| self.0[n] + more[n]))
    }
}

/// Refuses what would be more than `tenant` may have, whose volumes are `own`. Who has more already,
/// because it was once allowed, may still come down.
pub(super) fn check(tenant: &Tenant, own: &[Volume], wanted: Wanted) -> Result<(), ServiceError> {
    let quota = &tenant.quota;
    let now = own.iter().fold(Totals::default(), |sum, v| sum.add(v.size_bytes, v.slo));
    let others = own.iter().filter(|volume| Some(volume.id) != wanted.id);
    let others = others.fold(Totals::default(), |sum, v| sum.add(v.size_bytes, v.slo));
    let then = others.add(wanted.size_bytes, wanted.slo);
    let bounds = [
        ("volumes", quota.volumes),
        ("bytes provisioned", quota.provisioned_bytes),
        ("of shares", quota.share.map(u64::from)),
        ("blocks read a second", Some(quota.reads_per_second)),
        ("blocks written a second", Some(quota.writes_per_second)),
    ];
    for (n, (what, bound)) in bounds.into_iter().enumerate() {
        let (now, then) = (now.0[n], then.0[n]);
        if let Some(bound) = bound
            && then > u128::from(bound)
            && then > now
        {
            let detail =
                format!("the quota of {} is {bound} {what}; this makes {then}", tenant.name);
            return Err(ServiceError::Quota { detail });
        }
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use control::{Portal, Quota, Restrictions};
    use uuid::Uuid;

    use super::*;

    fn tenant(quota: Quota) -> Tenant {
        Tenant { name: "acme".to_owned(), quota }
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
    fn rates_are_for_those_who_were_given_some() {
        let rate = Slo::Rate { reads_per_second: 10, writes_per_second: 5 };
        assert!(check(&tenant(Quota::default()), &[], new(4096, rate)).is_err());
        let quota = Quota { reads_per_second: 10, writes_per_second: 5, ..Quota::default() };
        assert_eq!(check(&tenant(quota), &[], new(4096, rate)), Ok(()));
        let own = [volume(1, 4096, rate)];
        assert!(check(&tenant(quota), &own, new(4096, rate)).is_err());
    }

    #[test]
    fn who_has_too_much_already_may_come_down() {
        let own = [volume(1, 40_960, Slo::Share(9)), volume(2, 40_960, Slo::Share(9))];
        let quota = Quota { provisioned_bytes: Some(8192), share: Some(5), ..Quota::default() };
        let change = |size_bytes, slo| Wanted { id: Some(own[0].id), size_bytes, slo };
        assert_eq!(check(&tenant(quota), &own, change(4096, Slo::Share(9))), Ok(()));
        assert!(check(&tenant(quota), &own, change(45_056, Slo::Share(9))).is_err());
        assert!(check(&tenant(quota), &own, change(4096, Slo::Share(10))).is_err());
    }
}
