//! Settings of `farflash tune` that act on a cause.

use serde::Serialize;

use super::Cause;

/// Share of the explained requests from which on a cause is worth a proposal.
const SHARE_MIN: f64 = 0.05;

/// A proposal.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Advice {
    /// The reason: causes that were seen, in words.
    pub because: String,
    /// Settings of `farflash tune`.
    pub settings: Vec<&'static str>,
    /// Other measures.
    pub beside: Option<&'static str>,
}

/// Families of causes that have the same cure.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Family {
    Task,
    KernelWorker,
    Balancer,
    Completion,
    Timer,
    Network,
    OtherInterrupt,
    Idle,
    Wake,
    Drive,
}

impl Family {
    fn of(cause: &Cause) -> Option<Self> {
        Some(match cause {
            Cause::Task { name, .. } if name.starts_with("irqbalance") => Self::Balancer,
            Cause::Task { name, .. } if is_kernel_worker(name) => Self::KernelWorker,
            Cause::Task { .. } => Self::Task,
            Cause::Interrupt { name } => match name.as_str() {
                "timer" | "local timer" | "TIMER" | "HRTIMER" | "SCHED" | "RCU" => Self::Timer,
                "NET_RX" | "NET_TX" => Self::Network,
                "BLOCK" => Self::Completion,
                name if name.contains("nvme") || name.contains("virtio") => Self::Completion,
                _ => Self::OtherInterrupt,
            },
            Cause::Idle { .. } => Self::Idle,
            Cause::LateWake => Self::Wake,
            Cause::Drive => Self::Drive,
            Cause::Unknown { .. } => return None,
        })
    }

    fn advice(self, because: String, seen: Seen) -> Option<Advice> {
        let (settings, beside): (&[&'static str], Option<&'static str>) = match self {
            Self::Task if seen.realtime => (&["boot-isolcpus", "boot-nohz-full"], None),
            Self::Task => (
                &["boot-isolcpus", "boot-nohz-full"],
                Some("give the reading threads a real-time priority (--realtime)"),
            ),
            Self::KernelWorker => (&["workqueue-cpus", "boot-rcu-nocbs", "boot-isolcpus"], None),
            Self::Balancer => (&["irqbalance"], None),
            Self::Completion => (&["irq-drives", "block-completion"], None),
            Self::Timer => (&["boot-nohz-full", "boot-rcu-nocbs", "memory-statistics"], None),
            Self::Network => (&["irq-network", "receive-steering"], None),
            Self::OtherInterrupt => (&["irq-drives", "irq-default", "irqbalance"], None),
            Self::Idle => (&["cpu-idle-states", "cpu-governor"], None),
            Self::Wake => (&["irq-drives", "block-completion", "cpu-idle-states"], None),
            Self::Drive if seen.periodic => {
                (&["smart-polls"], Some("ask the vendor for firmware with lighter housekeeping"))
            }
            // A drive that is slow now and then is no matter of the host's settings.
            Self::Drive => return None,
        };
        Some(Advice { because, settings: settings.to_vec(), beside })
    }
}

fn is_kernel_worker(name: &str) -> bool {
    ["kworker", "ksoftirqd", "rcu", "migration", "kcompactd", "kswapd", "khugepaged", "watchdog"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

/// Circumstances that decide between measures.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Seen {
    /// A drive is slow at regular times.
    pub periodic: bool,
    /// The reading threads have a real-time priority.
    pub realtime: bool,
}

/// Proposes what acts on the causes that explain a share of the slow requests worth the change.
#[must_use]
pub fn advise(causes: &[(Cause, u64)], seen: Seen) -> Vec<Advice> {
    let total: u64 = causes.iter().map(|(_, count)| count).sum();
    struct Members<'a> {
        family: Family,
        count: u64,
        causes: Vec<(&'a Cause, u64)>,
    }
    let mut families: Vec<Members<'_>> = Vec::new();
    for (cause, count) in causes {
        let Some(family) = Family::of(cause) else { continue };
        let known = families.iter().position(|members| members.family == family);
        let known = known.unwrap_or_else(|| {
            families.push(Members { family, count: 0, causes: Vec::new() });
            families.len() - 1
        });
        families[known].count += count;
        families[known].causes.push((cause, *count));
    }
    families.retain(|members| members.count as f64 >= SHARE_MIN * total as f64);
    families.sort_by_key(|members| std::cmp::Reverse(members.count));
    let advice = families.into_iter().filter_map(|Members { family, count, mut causes }| {
        causes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let named: Vec<String> =
            causes.iter().take(3).map(|(cause, _)| cause.to_string()).collect();
        let share = report::percent(count as f64 / total as f64);
        family.advice(format!("{} ({share} of the slow requests)", named.join(", ")), seen)
    });
    advice.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<(Cause, u64)> {
        let task = |name: &str| Cause::Task { name: name.to_owned(), realtime: false };
        let interrupt = |name: &str| Cause::Interrupt { name: name.to_owned() };
        let causes = [
            task("hog"),
            task("kworker/0:1"),
            task("irqbalance"),
            interrupt("nvme0q1"),
            interrupt("local timer"),
            interrupt("timer"),
            interrupt("NET_RX"),
            Cause::Idle { state: 3 },
            Cause::LateWake,
            Cause::Drive,
        ];
        causes.map(|cause| (cause, 10)).to_vec()
    }

    #[test]
    fn every_proposed_setting_is_one_of_tune() {
        for advice in advise(&all(), Seen { periodic: true, realtime: false }) {
            assert!(!advice.settings.is_empty());
            for name in advice.settings {
                assert!(host_tune::settings::Setting::find(name).is_some(), "{name}");
            }
        }
    }

    #[test]
    fn what_happens_seldom_is_worth_no_change_and_a_slow_drive_is_not_the_hosts() {
        let hog = Cause::Task { name: "hog".to_owned(), realtime: false };
        let advice = advise(
            &[(hog.clone(), 100), (Cause::LateWake, 2), (Cause::Drive, 50)],
            Seen::default(),
        );
        assert_eq!(advice.len(), 1);
        assert!(advice[0].because.starts_with("task `hog` (65.8 %"), "{}", advice[0].because);
        assert!(advice[0].beside.is_some());
        let seen = Seen { periodic: true, realtime: true };
        assert_eq!(advise(&[(Cause::Drive, 9)], seen)[0].settings, ["smart-polls"]);
        assert_eq!(advise(&[(hog, 1)], seen)[0].beside, None);
        assert!(advise(&[], seen).is_empty());
    }
}
