//! Quotas of tenants, and their use.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::caller::{Caller, forbidden};
use crate::problem::Problem;
use crate::relay::{self, Origin};
use crate::{Slo, Tenant, Users, Volume, VolumeService};

/// Use of a resource, and its limit.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct Use {
    /// Amount that the tenant uses.
    pub used: u64,
    /// The tenant's limit; absent if there is none.
    pub limit: Option<u64>,
}

/// A tenant's quota and what it uses of it, on all hosts together. What a host that does not answer holds of its devices is
/// missing.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct TenantQuota {
    /// The tenant.
    pub tenant: String,
    /// Volumes.
    pub volumes: Use,
    /// Their sizes, as hosts see them, all together.
    pub provisioned_bytes: Use,
    /// Bytes allocated on devices, all together.
    pub allocated_bytes: Use,
    /// Weights of their shares, all together.
    pub share: Use,
    /// Blocks read a second that they are promised, all together.
    pub reads_per_second: Use,
    /// Blocks written a second that they are promised, all together.
    pub writes_per_second: Use,
}

/// Quotas, by tenant.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct QuotaList {
    /// The quotas.
    pub quotas: Vec<TenantQuota>,
}

/// Quotas, and what is used of them: a tenant's own, or for operators those of all tenants.
#[utoipa::path(
    get, path = "/v1/quota", tag = "tenants", operation_id = "showQuota",
    responses(
        (status = 200, body = QuotaList, description = "The quotas"),
        Problem,
    )
)]
pub(crate) async fn show_quota(
    State(service): State<Arc<dyn VolumeService>>,
    Extension(users): Extension<Users>,
    caller: Caller,
    origin: Origin,
) -> Result<Json<QuotaList>, Problem> {
    let tenants = match &caller {
        Caller::Operator(_) => users.tenants(),
        Caller::Tenant(own) => vec![own.clone()],
        Caller::Reader(_) => return Err(forbidden()),
    };
    let volumes = relay::list_all(&service, &caller, &origin).await?;
    Ok(Json(QuotaList { quotas: of(&tenants, &volumes) }))
}

/// Returns the limits of each of `tenants`, and its use by `volumes`; by name.
pub(crate) fn of(tenants: &[Arc<Tenant>], volumes: &[Volume]) -> Vec<TenantQuota> {
    let mut quotas: Vec<TenantQuota> = tenants.iter().map(|tenant| nothing_of(tenant)).collect();
    quotas.sort_by(|a, b| a.tenant.cmp(&b.tenant));
    for volume in volumes {
        let Some(owner) = &volume.owner else { continue };
        let Ok(own) = quotas.binary_search_by(|quota| quota.tenant.cmp(owner)) else { continue };
        quotas[own].add(volume);
    }
    quotas
}

/// The quota of a tenant that has no volume.
fn nothing_of(Tenant { name, quota }: &Tenant) -> TenantQuota {
    let limit = |limit| Use { used: 0, limit };
    TenantQuota {
        tenant: name.clone(),
        volumes: limit(quota.volumes),
        provisioned_bytes: limit(quota.provisioned_bytes),
        allocated_bytes: limit(quota.allocated_bytes),
        share: limit(quota.share.map(u64::from)),
        reads_per_second: limit(Some(quota.reads_per_second)),
        writes_per_second: limit(Some(quota.writes_per_second)),
    }
}

impl TenantQuota {
    fn add(&mut self, volume: &Volume) {
        let add = |part: &mut Use, more: u64| part.used = part.used.saturating_add(more);
        add(&mut self.volumes, 1);
        add(&mut self.provisioned_bytes, volume.size_bytes);
        add(&mut self.allocated_bytes, volume.allocated_bytes);
        match volume.slo {
            Slo::Share(weight) => add(&mut self.share, weight.into()),
            Slo::Rate { reads_per_second, writes_per_second } => {
                add(&mut self.reads_per_second, reads_per_second);
                add(&mut self.writes_per_second, writes_per_second);
            }
        }
    }

    /// Its parts, with what each is called where it needs a name.
    pub(crate) fn parts(&self) -> [(&'static str, Use); 6] {
        [
            ("volumes", self.volumes),
            ("provisioned_bytes", self.provisioned_bytes),
            ("allocated_bytes", self.allocated_bytes),
            ("share", self.share),
            ("reads_per_second", self.reads_per_second),
            ("writes_per_second", self.writes_per_second),
        ]
    }
}
