//! A device that a host wants to serve, and the mark of the last claim that a device carries.

use uuid::Uuid;

/// A device that is to be served.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Claim {
    /// Its id.
    pub device: Uuid,
    /// Its name here.
    pub name: String,
    /// True if its contents end with the host.
    pub volatile: bool,
    /// Its model, if it is a drive that reports one.
    pub model: Option<String>,
    /// Its serial number, if it is a drive that reports one.
    pub serial: Option<String>,
    /// True if it carries the id of the cluster (CLAIM-6): then it was claimed before (CLAIM-8).
    pub belongs: bool,
    /// The mark of the last claim, if it carries one (CLAIM-9).
    pub mark: Option<Mark>,
}

/// The mark that a device carries of the last claim under which it was served (CLAIM-9).
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Mark {
    /// Counts the claims of the device.
    pub number: u64,
    /// The host that made the claim.
    pub host: Uuid,
    /// That host's name.
    pub host_name: String,
}

impl Mark {
    /// Returns whether a device that carries this was claimed later than by `known`.
    ///
    /// Two claims of one number are those of two hosts, of which an etcd that was restored has forgotten one.
    #[must_use]
    pub fn is_later_than(&self, known: &Self) -> bool {
        self.number > known.number || (self.number == known.number && self.host != known.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CLAIM-9.
    #[test]
    fn a_mark_is_later_by_its_number_or_as_another_hosts_of_the_same() {
        let mark =
            |number, host| Mark { number, host: Uuid::from_u128(host), host_name: String::new() };
        let known = mark(5, 1);
        for (carried, is_later) in [
            (mark(4, 1), false),
            (mark(4, 2), false),
            (mark(5, 1), false),
            (mark(5, 2), true),
            (mark(6, 1), true),
            (mark(6, 2), true),
        ] {
            assert_eq!(carried.is_later_than(&known), is_later, "{carried:?}");
        }
    }
}
