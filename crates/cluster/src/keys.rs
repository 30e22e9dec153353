//! The keys of a cluster in etcd.

use uuid::Uuid;

/// The keys of a cluster.
#[derive(Clone, Debug)]
pub struct Keys {
    /// Begins every key of the cluster, and ends with `/`.
    pub prefix: String,
}

impl Keys {
    /// The cluster's identity (CLAIM-6). No release before it takes the key for one of the others.
    #[must_use]
    pub fn cluster(&self) -> String {
        format!("{}cluster", self.prefix)
    }

    /// The registration of a living host, under its lease.
    #[must_use]
    pub fn host(&self, id: Uuid) -> String {
        format!("{}hosts/{id}", self.prefix)
    }

    /// The note of the last registration of a host of this name, under its lease (SESSION-6).
    #[must_use]
    pub fn host_name(&self, name: &str) -> String {
        format!("{}host-names/{name}", self.prefix)
    }

    /// The claim of a device.
    #[must_use]
    pub fn device(&self, id: Uuid) -> String {
        format!("{}devices/{id}", self.prefix)
    }

    /// The note of the last claim of a device (CLAIM-5).
    #[must_use]
    pub fn claimed(&self, id: Uuid) -> String {
        format!("{}claimed/{id}", self.prefix)
    }

    /// The note, kept as long as a session lasts, that something was changed about a device (VOLUME-RECORD-4).
    #[must_use]
    pub fn changed(&self, id: Uuid) -> String {
        format!("{}changed/{id}", self.prefix)
    }

    /// The note of the last registration of a host that stops by itself (CLAIM-7).
    #[must_use]
    pub fn registered(&self, id: Uuid) -> String {
        format!("{}registered/{id}", self.prefix)
    }

    /// A volume's record.
    #[must_use]
    pub fn volume(&self, id: Uuid) -> String {
        format!("{}volumes/{id}", self.prefix)
    }

    /// A tenant's counters.
    #[must_use]
    pub fn tenant(&self, name: &str) -> String {
        format!("{}tenants/{name}", self.prefix)
    }

    /// The division of an owner's quota.
    #[must_use]
    pub fn grants(&self, name: &str) -> String {
        format!("{}grants/{name}", self.prefix)
    }

    /// The volume that has a name.
    #[must_use]
    pub fn name(&self, name: &str) -> String {
        format!("{}names/{name}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hosts of all releases share these.
    #[test]
    fn each_kind_of_key_has_its_place() {
        let (keys, id) = (Keys { prefix: "/c/".to_owned() }, Uuid::from_u128(1));
        let of_id = "00000000-0000-0000-0000-000000000001";
        assert_eq!(keys.cluster(), "/c/cluster");
        let by_name = [
            (keys.host_name("n"), "host-names"),
            (keys.tenant("n"), "tenants"),
            (keys.grants("n"), "grants"),
            (keys.name("n"), "names"),
        ];
        for (key, kind) in by_name {
            assert_eq!(key, format!("/c/{kind}/n"));
        }
        let by_id = [
            (keys.host(id), "hosts"),
            (keys.device(id), "devices"),
            (keys.claimed(id), "claimed"),
            (keys.changed(id), "changed"),
            (keys.registered(id), "registered"),
            (keys.volume(id), "volumes"),
        ];
        for (key, kind) in by_id {
            assert_eq!(key, format!("/c/{kind}/{of_id}"));
        }
    }
}
