//! The authentication that `farflash serve` requires of hosts.

use auth::{Group, Hash, Policy};
use clap::ValueEnum;
use user_messages::Failure;

use super::settings::Settings;

/// The hosts that may open a volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(super) enum Auth {
    /// Hosts that prove that they know its token.
    On,
    /// Any host that reaches a portal.
    Off,
}

/// Returns the authentication that hosts need; `None`: they are not authenticated.
pub(super) fn settle(settings: &Settings) -> Result<Option<Policy>, Failure> {
    let default = Policy::default();
    let hashes = match &settings.auth_hashes {
        Some(names) => listed("auth-hashes", names, &Hash::ALL, Hash::from_name, Hash::name)?,
        None => default.hashes,
    };
    let groups = match &settings.auth_groups {
        Some(names) => listed("auth-groups", names, &Group::ALL, Group::from_name, Group::name)?,
        None => default.groups,
    };
    let is_on = settings.auth != Some(Auth::Off);
    Ok(is_on.then_some(Policy { hashes, groups }))
}

/// Returns the values that `names` stand for, each once.
fn listed<T: Copy + PartialEq>(
    flag: &str,
    names: &[String],
    all: &[T],
    from_name: fn(&str) -> Option<T>,
    name_of: fn(T) -> &'static str,
) -> Result<Vec<T>, Failure> {
    let known = || all.iter().map(|one| name_of(*one)).collect::<Vec<_>>().join(",");
    let mut list = Vec::new();
    for name in names {
        let Some(one) = from_name(name.trim()) else {
            let what = format!("--{flag}: `{name}` is not known");
            return Err(Failure::usage(what, format!("name some of {}", known())));
        };
        if list.contains(&one) {
            let what = format!("--{flag} names `{name}` twice");
            return Err(Failure::usage(what, "name each once, the preferred first"));
        }
        list.push(one);
    }
    if list.is_empty() {
        let what = format!("--{flag} is empty, so no host could be let in");
        return Err(Failure::usage(what, format!("name some of {}", known())));
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Option<Vec<String>> {
        Some(names.iter().map(|name| (*name).to_owned()).collect())
    }

    fn settled(groups: &[&str]) -> Result<Option<Policy>, Failure> {
        let auth_hashes = names(&["sha512", "sha256"]);
        settle(&Settings { auth_hashes, auth_groups: names(groups), ..Settings::default() })
    }

    #[test]
    fn what_is_listed_is_taken_in_its_order() {
        let policy = settled(&["ffdhe8192", "ffdhe3072"]).expect("known").expect("on");
        assert_eq!(policy.groups, [Group::Ffdhe8192, Group::Ffdhe3072]);
        assert_eq!(policy.hashes, [Hash::Sha512, Hash::Sha256]);
    }

    #[test]
    fn no_host_is_let_in_by_a_mistake() {
        for (groups, expected) in [
            (&["ffdhe1024"][..], "`ffdhe1024` is not known"),
            (&["null", "null"], "twice"),
            (&[], "no host could be let in"),
        ] {
            let failure = settled(groups).expect_err("refused").to_string();
            assert!(failure.contains(expected), "{failure}");
        }
    }
}
