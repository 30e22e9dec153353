//! Interfaces that restrictions name, and that this host does not have.

use std::path::Path;

/// A directory for each interface, by the name that connections are known by, and by no other one that it may have. To ask the kernel
/// by ioctl would have it look for a module that brings an interface of this name, each time.
const INTERFACES: &str = "/sys/class/net";

/// Those of `names` that no interface has here now: no host comes by them. If the system does not tell, none.
///
/// What is mounted there is of the network namespace of this server, unless a container was put together by hand: so this is good
/// for a warning, and not for a decision.
pub(super) fn absent(names: &[String]) -> Vec<String> {
    absent_below(Path::new(INTERFACES), names)
}

fn absent_below(interfaces: &Path, names: &[String]) -> Vec<String> {
    // Beside the directories there are files of drivers.
    let is_there = |name: &str| interfaces.join(name).join("ifindex").exists();
    // Each network namespace has this one.
    if names.is_empty() || !is_there("lo") {
        return Vec::new();
    }
    names.iter().filter(|name| !is_there(name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_there_and_a_made_up_one_is_not() {
        let names = ["lo", "nosuch0", "bonding_masters"].map(str::to_owned);
        assert_eq!(absent(&names), names[1..]);
        assert_eq!(absent(&names[..1]), [""; 0]);
    }

    #[test]
    fn where_the_system_does_not_tell_nothing_is_absent() {
        let empty = tempfile::tempdir().expect("a directory");
        assert_eq!(absent_below(empty.path(), &["nosuch0".to_owned()]), [""; 0]);
    }
}
