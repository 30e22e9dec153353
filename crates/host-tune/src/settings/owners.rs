//! Other programs and files that set what is proposed here, too.

use super::others::runs;
use crate::proposal::{Proposal, Target};
use crate::root::Root;

/// A service that sets what is proposed here, too.
struct Owner {
    /// The name of its process.
    name: &'static str,
    settings: &'static [&'static str],
    /// The way to have it leave the settings alone.
    remedy: &'static str,
}

const CARDS: &[&str] = &["jumbo-frames", "nic-offloads", "receive-spread"];

const OWNERS: &[Owner] = &[
    Owner {
        name: "irqbalance",
        settings: &["irq-drives", "irq-network"],
        remedy: "systemctl disable --now irqbalance, or name the interrupts in IRQBALANCE_ARGS=--banirq=N",
    },
    Owner {
        name: "tuned",
        settings: &[
            "cpu-governor",
            "cpu-idle-states",
            "transparent-huge-pages",
            "tcp-buffers",
            "tcp-idle-window",
            "block-scheduler",
            "memory-statistics",
            "irq-default",
            "workqueue-cpus",
            "nic-offloads",
            "boot-isolcpus",
        ],
        remedy: "tuned-adm off, or put the values into its profile",
    },
    Owner {
        name: "power-profiles-daemon",
        settings: &["cpu-governor"],
        remedy: "powerprofilesctl set performance",
    },
    Owner { name: "auto-cpufreq", settings: &["cpu-governor"], remedy: "auto-cpufreq --remove" },
    Owner {
        name: "cpufreqd",
        settings: &["cpu-governor"],
        remedy: "systemctl disable --now cpufreqd",
    },
    Owner {
        name: "thermald",
        settings: &["cpu-governor", "cpu-idle-states"],
        remedy: "systemctl disable --now thermald, if the machine is cooled well",
    },
    Owner {
        name: "NetworkManager",
        settings: CARDS,
        remedy: "nmcli connection modify NAME 802-3-ethernet.mtu BYTES ethtool.feature-tso on ethtool.feature-gro on",
    },
    Owner {
        name: "systemd-networkd",
        settings: CARDS,
        remedy: "MTUBytes=, TCPSegmentationOffload= and GenericReceiveOffload= in a .link file",
    },
];

/// Units without a process of their own that are enabled: link, name and settings.
const ONCE: &[(&str, &str, &[&str])] = &[
    (
        "/etc/systemd/system/multi-user.target.wants/cpupower.service",
        "cpupower.service",
        &["cpu-governor"],
    ),
    ("/etc/systemd/system/multi-user.target.wants/tlp.service", "tlp.service", &["cpu-governor"]),
    (
        "/etc/systemd/system/multi-user.target.wants/cpufrequtils.service",
        "cpufrequtils.service",
        &["cpu-governor"],
    ),
];

/// Files of configuration, with a word that stands in them if they set the settings.
const FILES: &[(&str, &str, &[&str])] = &[
    ("/etc/udev/rules.d", "queue/scheduler", &["block-scheduler"]),
    ("/etc/udev/rules.d", "queue/nomerges", &["block-merges"]),
    ("/etc/udev/rules.d", "queue/rq_affinity", &["block-completion"]),
    ("/etc/udev/rules.d", "ethtool", &["nic-offloads", "receive-spread", "flow-steering"]),
    ("/etc/systemd/network", "MTUBytes", &["jumbo-frames"]),
    ("/etc/systemd/network", "Offload=", &["nic-offloads"]),
    ("/etc/network/interfaces.d", "mtu", &["jumbo-frames"]),
    ("/etc/network/interfaces.d", "ethtool", &["nic-offloads", "receive-spread"]),
    ("/etc/tmpfiles.d", "transparent_hugepage", &["transparent-huge-pages"]),
    ("/etc/tmpfiles.d", "scaling_governor", &["cpu-governor"]),
];

const SYSCTL: [&str; 3] = ["/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d"];

/// The owners of this machine.
pub(super) struct Owners {
    /// Names, with the settings that they own.
    by_setting: Vec<(String, &'static [&'static str])>,
    /// The lines of all files of sysctl, each with its file.
    sysctl: Vec<(String, String)>,
}

impl Owners {
    pub(super) fn read(root: &Root) -> Self {
        let services = OWNERS.iter().filter(|owner| runs(root, owner.name));
        let mut by_setting: Vec<_> =
            services.map(|owner| (owner.name.to_owned(), owner.settings)).collect();
        let enabled = ONCE.iter().filter(|(link, ..)| root.link_target(link).is_some());
        by_setting.extend(enabled.map(|(_, name, settings)| ((*name).to_owned(), *settings)));
        for (directory, word, settings) in FILES {
            let set = lines(root, directory).into_iter().filter(|(_, line)| line.contains(word));
            by_setting.extend(set.map(|(file, _)| (file, *settings)));
        }
        by_setting.dedup();
        let mut sysctl = file_lines(root, "/etc/sysctl.conf");
        sysctl.extend(SYSCTL.iter().flat_map(|directory| lines(root, directory)));
        Self { by_setting, sysctl }
    }

    /// The owners of one proposal.
    pub(super) fn of(&self, proposal: &Proposal) -> Vec<String> {
        let named = self.by_setting.iter().filter(|(_, all)| all.contains(&proposal.setting));
        let mut owners: Vec<String> = named.map(|(name, _)| name.clone()).collect();
        if let Target::File { path, .. } = &proposal.target
            && let Some(key) = path.strip_prefix("/proc/sys/")
        {
            let sets = |line: &str| {
                let name = line.split_once('=').map_or("", |(name, _)| name);
                name.trim().trim_start_matches('-').replace('.', "/") == key
            };
            let files = self.sysctl.iter().filter(|(_, line)| sets(line));
            owners.extend(files.map(|(file, _)| file.clone()));
        }
        owners.sort();
        owners.dedup();
        owners
    }
}

/// The lines of all files in a directory that are no remarks, each with its file.
fn lines(root: &Root, directory: &str) -> Vec<(String, String)> {
    let files = root.names(directory).into_iter();
    files.flat_map(|name| file_lines(root, &format!("{directory}/{name}"))).collect()
}

fn file_lines(root: &Root, path: &str) -> Vec<(String, String)> {
    let text = root.text(path).unwrap_or_default();
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';']));
    lines.map(|line| (path.to_owned(), line.to_owned())).collect()
}

/// The way to have an owner leave the settings alone.
#[must_use]
pub fn remedy(owner: &str) -> String {
    let known = OWNERS.iter().find(|known| known.name == owner);
    match known {
        Some(known) => known.remedy.to_owned(),
        None if owner.starts_with('/') => format!("take the setting out of {owner}"),
        None => format!("systemctl disable {owner}"),
    }
}
