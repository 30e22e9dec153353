//! Owners of volumes, and quotas of tenants.

use std::collections::BTreeMap;
use std::sync::Arc;

use control::{Caller, ServiceError, Slo, Tenant, VolumeName};
use data_core::CoreMessage;
use directory::{Admit, View, VolumeRecord};
use units::ByteLen;
use uuid::Uuid;

use super::cluster::refusal;
use super::directory::{Extent, Place};
use super::state::State;

/// Sums over volumes, in the units of the quotas.
#[derive(Clone, Copy, Default)]
struct Totals([u128; 5]);

impl Totals {
    fn add(self, Extent { size_bytes, slo }: Extent) -> Self {
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

/// Refuses a new volume, or another extent of volume `id`, that exceeds the quota of `tenant`, whose volumes
/// are `own`. A tenant that has more already, because it was once allowed, may still come down.
pub(super) fn check(
    tenant: &Tenant,
    own: &[(Uuid, Extent)],
    id: Option<Uuid>,
    wanted: Extent,
) -> Result<(), ServiceError> {
    let quota = &tenant.quota;
    let now = own.iter().fold(Totals::default(), |sum, (_, extent)| sum.add(*extent));
    let others = own.iter().filter(|(other, _)| Some(*other) != id);
    let others = others.fold(Totals::default(), |sum, (_, extent)| sum.add(*extent));
    let then = others.add(wanted);
    let count: fn(u128) -> String = |number| number.to_string();
    let size: fn(u128) -> String =
        |bytes| ByteLen(u64::try_from(bytes).unwrap_or(u64::MAX)).to_string();
    let bounds = [
        ("volumes", quota.volumes, count),
        ("provisioned", quota.provisioned_bytes, size),
        ("of shares", quota.share.map(u64::from), count),
        ("blocks read a second", Some(quota.reads_per_second), count),
        ("blocks written a second", Some(quota.writes_per_second), count),
    ];
    for (n, (what, bound, shown)) in bounds.into_iter().enumerate() {
        let (now, then) = (now.0[n], then.0[n]);
        if let Some(bound) = bound
            && then > u128::from(bound)
            && then > now
        {
            let (bound, then) = (shown(bound.into()), shown(then));
            let detail =
                format!("the quota of {} is {bound} {what}; this makes {then}", tenant.name);
            return Err(ServiceError::Quota { detail });
        }
    }
    Ok(())
}

impl State {
    /// Judges a new volume, or another extent of one, by what `caller` has on all hosts, if that is a tenant:
    /// by what the directory says, and of volumes that it does not know yet by what is known here.
    pub(super) fn admission(
        &self,
        caller: &Caller,
        (id, before): (Uuid, Option<Extent>),
        wanted: Extent,
    ) -> Option<Admit> {
        let Caller::Tenant(tenant) = caller else { return None };
        let tenant = tenant.clone();
        let here = self.directory(|directory| directory.extents_of(&tenant.name));
        Some(Arc::new(move |view: &View| {
            let all = together(&tenant.name, view, &here, (id, before));
            check(&tenant, &all, Some(id), wanted).map_err(|refused| match refused {
                ServiceError::Quota { detail } => detail,
                other => other.to_string(),
            })
        }))
    }

    /// Waits until it is seen here what `caller` has on other hosts, if that is a tenant. To be done before its
    /// change has a device for itself: others would wait, too.
    pub(super) async fn catch_up(&self, caller: &Caller) -> Result<(), ServiceError> {
        let Caller::Tenant(tenant) = caller else { return Ok(()) };
        self.membership.directory.catch_up(&tenant.name).await.map_err(refusal)
    }

    /// Has the directory hold, before a change is made, what it gives a tenant's volume more: if the tenant
    /// asks, only if all that it has on all hosts admits it; if an operator does, for whatever the tenant asks
    /// next. Whether that is to be [taken back](Self::take_back) if the change fails.
    ///
    /// What else the record says is what the volume is here: what was changed a moment ago the view may not show yet.
    pub(super) async fn admit_growth(
        &self,
        caller: &Caller,
        (place, before): (Place, Extent),
        after: Extent,
    ) -> Result<bool, ServiceError> {
        let Place { id, core, device } = place;
        let only_shrinks = after.slo == before.slo && after.size_bytes <= before.size_bytes;
        if only_shrinks {
            return Ok(false);
        }
        let admit = self.admission(caller, (id, Some(before)), after);
        let volume = self.cores[core].ask(|answer| CoreMessage::ShowVolume { id, answer }).await?;
        let record = match volume.map(|volume| self.record(core, &volume)) {
            Some(record) if record.owner.is_some() => record,
            // Without an owner no other host would count it.
            _ if admit.is_some() => return Err(ServiceError::Unavailable),
            _ => return Ok(false),
        };
        let promise = serde_json::to_value(after.slo).unwrap_or_default();
        let then = VolumeRecord { size_bytes: after.size_bytes, promise, ..record };
        let admitted = self.membership.directory.update_if(then, admit).await;
        admitted.map_err(|error| self.told(device, error))?;
        Ok(true)
    }

    /// Has the record say again what the volume is, after a change that was admitted and failed.
    pub(super) async fn take_back(&self, Place { id, core, device }: Place) {
        match self.cores[core].ask(|answer| CoreMessage::ShowVolume { id, answer }).await {
            Ok(Some(volume)) => self.publish(core, &volume).await,
            // It is compared when that can be asked.
            Ok(None) | Err(_) => self.devices[device].set_doubtful(true),
        }
    }
}

/// The volumes of tenant `owner` on all hosts, with volume `id` as it was before the change. For volumes that
/// are in the directory its records count, since they hold all that other hosts admitted; `here` are those of
/// this host, as they were when the change began.
fn together(
    owner: &str,
    view: &View,
    here: &[(Uuid, Extent)],
    (id, before): (Uuid, Option<Extent>),
) -> Vec<(Uuid, Extent)> {
    let own = view.volumes.values().filter(|record| record.owner.as_deref() == Some(owner));
    let mut all: BTreeMap<Uuid, Extent> = here.iter().copied().collect();
    all.extend(own.map(|record| (record.id, extent_of(record))));
    // What it is to become is counted here already.
    all.remove(&id);
    all.extend(before.map(|before| (id, before)));
    all.into_iter().collect()
}

fn extent_of(record: &VolumeRecord) -> Extent {
    let slo = serde_json::from_value(record.promise.clone()).unwrap_or_default();
    Extent { size_bytes: record.size_bytes, slo }
}

/// Returns the tenant that will own a new volume: the caller, or the tenant that an operator names.
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
        (Caller::Reader(_), _) => setting("a reader has no volumes".to_owned()),
        (Caller::Operator(_), Some(owner)) if owner.parse::<VolumeName>().is_err() => {
            setting("`owner` has 1 to 63 of a-z, 0-9, `.`, `_` and `-`".to_owned())
        }
        (Caller::Operator(_), owner) => Ok(owner),
    }
}

#[cfg(test)]
mod tests {
    use control::Quota;

    use super::*;

    fn tenant(quota: Quota) -> Tenant {
        Tenant { name: "acme".to_owned(), quota }
    }

    fn volume(number: u128, size_bytes: u64, slo: Slo) -> (Uuid, Extent) {
        (Uuid::from_u128(number), Extent { size_bytes, slo })
    }

    /// A new volume, or another extent of one.
    #[derive(Clone, Copy)]
    struct Wanted {
        id: Option<Uuid>,
        extent: Extent,
    }

    fn new(size_bytes: u64, slo: Slo) -> Wanted {
        Wanted { id: None, extent: Extent { size_bytes, slo } }
    }

    fn check(tenant: &Tenant, own: &[(Uuid, Extent)], wanted: Wanted) -> Result<(), ServiceError> {
        super::check(tenant, own, wanted.id, wanted.extent)
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
        let error = bounded(bytes(15_360), new(4096, share)).expect_err("too much").to_string();
        assert_eq!(error, "the quota of acme is 15 KiB provisioned; this makes 16 KiB");
        assert!(bounded(bytes(16_383), new(4096, share)).is_err());
        // A change of one volume counts it once.
        let grown = Wanted { id: Some(own[1].0), ..new(12_288, share) };
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
        let change = |size_bytes, slo| Wanted { id: Some(own[0].0), ..new(size_bytes, slo) };
        assert_eq!(check(&tenant(quota), &own, change(4096, Slo::Share(9))), Ok(()));
        assert!(check(&tenant(quota), &own, change(45_056, Slo::Share(9))).is_err());
        assert!(check(&tenant(quota), &own, change(4096, Slo::Share(10))).is_err());
    }
}
