//! The machine: CPUs, memory nodes, drives, network cards, and their interrupts.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::cpu_set::{CPUS_MAX, CpuSet};
use crate::root::Root;

/// A logical CPU.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Cpu {
    /// Its number.
    pub id: u32,
    /// The package (socket) that it is in.
    pub package: u32,
    /// The first thread of its core: threads of one core have the same.
    pub core: u32,
    /// The memory node that it belongs to, if a node lists it.
    pub node: Option<u32>,
}

/// An interrupt of a device.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Interrupt {
    /// Its number in `/proc/irq`.
    pub number: u32,
    /// Its name in `/proc/interrupts`, such as `nvme0q3` or `eth0-rx-1`.
    pub name: String,
}

impl Interrupt {
    /// The path of its affinity, in list format.
    #[must_use]
    pub fn affinity_path(&self) -> String {
        format!("/proc/irq/{}/smp_affinity_list", self.number)
    }
}

/// A drive: a whole block device that is no partition, loop or memory device.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Drive {
    /// Its name in `/sys/block`.
    pub name: String,
    /// True if it spins.
    pub rotational: bool,
    /// The memory node that it is attached to, if known.
    pub node: Option<u32>,
    /// Its interrupts, those of queues only where the driver tells them apart.
    pub interrupts: Vec<Interrupt>,
}

/// A network interface other than the loopback.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Nic {
    /// The name of its interface.
    pub name: String,
    /// The memory node that it is attached to, if known.
    pub node: Option<u32>,
    /// Receive queues.
    pub receive_queues: u32,
    /// Transmit queues.
    pub transmit_queues: u32,
    /// Its interrupts, without those of the link or of management where they are named so.
    pub interrupts: Vec<Interrupt>,
    /// Largest packet, in bytes.
    pub mtu: Option<u32>,
    /// True if there is no device behind it, such as for a bridge or one end of a pair.
    pub is_virtual: bool,
}

/// A machine as its files describe it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Machine {
    /// CPUs that are online, by number.
    pub cpus: Vec<Cpu>,
    /// Drives by name.
    pub drives: Vec<Drive>,
    /// Network cards by name.
    pub nics: Vec<Nic>,
}

impl Machine {
    /// Reads the machine below `root`. What a file does not tell is left out.
    #[must_use]
    pub fn read(root: &Root) -> Self {
        let names = interrupt_names(root);
        Self { cpus: cpus(root), drives: drives(root, &names), nics: nics(root, &names) }
    }

    /// All CPUs that are online.
    #[must_use]
    pub fn online(&self) -> CpuSet {
        self.cpus.iter().map(|cpu| cpu.id).collect()
    }

    /// The CPUs of one memory node; all of them if it has none or is not known.
    #[must_use]
    pub fn near(&self, node: Option<u32>) -> CpuSet {
        let of_node = self.cpus.iter().filter(|cpu| node.is_some() && cpu.node == node);
        let near: CpuSet = of_node.map(|cpu| cpu.id).collect();
        if near.is_empty() { self.online() } else { near }
    }

    /// The first thread of each physical core.
    #[must_use]
    pub fn first_threads(&self) -> CpuSet {
        self.cpus.iter().map(|cpu| cpu.core).collect()
    }
}

const CPUS: &str = "/sys/devices/system/cpu";

fn cpus(root: &Root) -> Vec<Cpu> {
    let online = online(root);
    let nodes = nodes(root);
    let mut cpus: Vec<Cpu> = Vec::new();
    for id in online.iter() {
        let package = root.number(&format!("{CPUS}/cpu{id}/topology/physical_package_id"));
        let node = nodes.iter().find(|(_, cpus)| cpus.contains(id)).map(|(node, _)| *node);
        let siblings = siblings(root, id).and(&online);
        cpus.push(Cpu {
            id,
            // A machine that does not tell has one package, in which each CPU is a core.
            package: package.unwrap_or(0),
            core: siblings.iter().next().unwrap_or(id),
            node,
        });
    }
    cpus
}

/// CPUs that are online. Old kernels list them only by a file for each; CPU 0 often has none, as it cannot be
/// taken offline.
fn online(root: &Root) -> CpuSet {
    let listed = root.text(&format!("{CPUS}/online")).and_then(|text| text.parse::<CpuSet>().ok());
    let found = || {
        let names = root.names(CPUS).into_iter();
        let all = names.filter_map(|name| name.strip_prefix("cpu")?.parse::<u32>().ok());
        let all = all.filter(|id| *id < CPUS_MAX);
        let is_online = |id: &u32| root.number::<u8>(&format!("{CPUS}/cpu{id}/online")) != Some(0);
        all.filter(is_online).collect()
    };
    listed.filter(|set| !set.is_empty()).unwrap_or_else(found)
}

/// The threads of the core of CPU `id`. Numbers of cores do not tell: in some machines they are those of a die or
/// a book, several of which are in a package.
fn siblings(root: &Root, id: u32) -> CpuSet {
    let text = |file: &str| root.text(&format!("{CPUS}/cpu{id}/topology/{file}"));
    let listed = ["core_cpus_list", "thread_siblings_list"].into_iter().find_map(text);
    let listed = listed.and_then(|list| list.parse::<CpuSet>().ok());
    let masked = || {
        let mask = ["core_cpus", "thread_siblings"].into_iter().find_map(text);
        mask.and_then(|mask| CpuSet::from_mask(&mask).ok())
    };
    let known = listed.or_else(masked).filter(|set| set.contains(id));
    known.unwrap_or_else(|| std::iter::once(id).collect())
}

fn nodes(root: &Root) -> Vec<(u32, CpuSet)> {
    const NODES: &str = "/sys/devices/system/node";
    let numbers = root.names(NODES).into_iter();
    let numbers = numbers.filter_map(|name| name.strip_prefix("node")?.parse::<u32>().ok());
    let with_cpus = |node: u32| {
        let list = root.text(&format!("{NODES}/node{node}/cpulist"));
        let mask = || root.text(&format!("{NODES}/node{node}/cpumap"));
        let cpus = match list {
            Some(list) => list.parse().ok(),
            None => mask().and_then(|mask| CpuSet::from_mask(&mask).ok()),
        };
        Some((node, cpus?))
    };
    numbers.filter_map(with_cpus).collect()
}

/// The names of interrupts: the last word of each line of `/proc/interrupts`.
fn interrupt_names(root: &Root) -> BTreeMap<u32, String> {
    let text = root.text("/proc/interrupts").unwrap_or_default();
    let line = |line: &str| {
        let (number, rest) = line.split_once(':')?;
        let name = rest.split_whitespace().last()?;
        Some((number.trim().parse().ok()?, name.to_owned()))
    };
    text.lines().filter_map(line).collect()
}

/// The interrupts of the PCI device at `device`: those that sysfs lists, or those that are named after it.
fn interrupts(
    root: &Root,
    device: &str,
    named: &[&str],
    names: &BTreeMap<u32, String>,
) -> Vec<Interrupt> {
    let listed: Vec<u32> = root
        .names(&format!("{device}/msi_irqs"))
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect();
    let name_of = |number: u32| names.get(&number).cloned().unwrap_or_default();
    if !listed.is_empty() {
        let all = listed.into_iter();
        return all.map(|number| Interrupt { number, name: name_of(number) }).collect();
    }
    let belongs = |name: &str| {
        named.iter().any(|prefix| {
            name.strip_prefix(prefix)
                .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
        })
    };
    let all = names.iter().filter(|(_, name)| belongs(name));
    all.map(|(number, name)| Interrupt { number: *number, name: name.clone() }).collect()
}

fn drives(root: &Root, names: &BTreeMap<u32, String>) -> Vec<Drive> {
    let is_drive = |name: &String| {
        let virtuals = ["loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd"];
        !virtuals.iter().any(|prefix| name.starts_with(prefix))
    };
    let drive = |name: String| {
        let block = format!("/sys/block/{name}");
        let node = root
            .number::<i64>(&format!("{block}/device/numa_node"))
            .or_else(|| root.number::<i64>(&format!("{block}/device/device/numa_node")));
        // nvme0n1 is a namespace of the controller nvme0.
        let controller = name
            .strip_prefix("nvme")
            .map_or(name.clone(), |rest| format!("nvme{}", rest.split('n').next().unwrap_or(rest)));
        let device = format!("{block}/device/device");
        let interrupts = interrupts(root, &device, &[&controller], names);
        let is_queue = |interrupt: &Interrupt| !interrupt.name.ends_with("q0");
        Drive {
            rotational: root.number::<u8>(&format!("{block}/queue/rotational")) == Some(1),
            node: node.and_then(|node| u32::try_from(node).ok()),
            interrupts: interrupts.into_iter().filter(is_queue).collect(),
            name,
        }
    };
    root.names("/sys/block").into_iter().filter(is_drive).map(drive).collect()
}

fn nics(root: &Root, names: &BTreeMap<u32, String>) -> Vec<Nic> {
    let nic = |name: String| {
        let path = format!("/sys/class/net/{name}");
        // A bonding driver has a file beside the interfaces.
        if name == "lo" || root.names(&path).is_empty() {
            return None;
        }
        let queues = |prefix: &str| {
            let all = root.names(&format!("{path}/queues"));
            let count = all.iter().filter(|queue| queue.starts_with(prefix)).count();
            u32::try_from(count).unwrap_or(u32::MAX)
        };
        let device = format!("{path}/device");
        let behind = root.link_name(&device).unwrap_or_default();
        let mut prefixes = vec![name.as_str()];
        if behind.starts_with("virtio") {
            prefixes.push(&behind);
        }
        let is_queue = |interrupt: &Interrupt| {
            let others = ["config", "control", "mgmt", "async", "link", "fw"];
            !others.iter().any(|word| interrupt.name.contains(word)) && interrupt.name != name
        };
        let all = interrupts(root, &device, &prefixes, names);
        let queues_only: Vec<Interrupt> = all.iter().filter(|one| is_queue(one)).cloned().collect();
        Some(Nic {
            node: root
                .number::<i64>(&format!("{device}/numa_node"))
                .and_then(|node| u32::try_from(node).ok()),
            receive_queues: queues("rx-"),
            transmit_queues: queues("tx-"),
            // A card with a single interrupt names it after itself.
            interrupts: if queues_only.is_empty() { all } else { queues_only },
            mtu: root.number(&format!("{path}/mtu")),
            is_virtual: !root.has(&device),
            name,
        })
    };
    root.names("/sys/class/net").into_iter().filter_map(nic).collect()
}
