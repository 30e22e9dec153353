//! Steering, buffers and packets.

use super::{Context, Role, Setting, nics};
use crate::cpu_set::CpuSet;
use crate::proposal::{Form, Proposal, Risk};

/// Bytes that a connection's buffer may grow to: 10 Gbit/s over 10 ms.
const BUFFER_MAX: u64 = 16 << 20;
/// Largest packet that is worth the change, in bytes.
const JUMBO_MTU: u32 = 9000;

pub(super) const RECEIVE_STEERING: Setting = Setting {
    name: "receive-steering",
    about: "software receive steering (RPS) of cards with a queue for each core",
    why: "a card that spreads packets itself needs no second hand-over to another CPU",
    gain: "fewer inter-processor interrupts; EuroSys'16 (3.3) steers in hardware by RSS",
    risk: Risk::Low,
    propose: receive_steering,
};

fn receive_steering(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    let cores = context.intent.cores.len();
    let queue = |nic: &str, queue: u32| {
        let path = format!("/sys/class/net/{nic}/queues/rx-{queue}/rps_cpus");
        let now = context.root.text(&path)?;
        let then = CpuSet::default().to_mask_like(&now);
        setting.file(context, format!("{nic} rx-{queue}"), path, (Form::Plain, then))
    };
    let spread = nics(context).filter(|nic| nic.receive_queues as usize >= cores.max(1));
    let all = spread.flat_map(|nic| (0..nic.receive_queues).filter_map(|n| queue(&nic.name, n)));
    all.collect()
}

pub(super) const TRANSMIT_STEERING: Setting = Setting {
    name: "transmit-steering",
    about: "transmit queue of each CPU (XPS)",
    why: "a core that sends through a queue of its own takes no lock of another's",
    gain: "less contention with several cores; no figure in the papers",
    risk: Risk::Low,
    propose: transmit_steering,
};

fn transmit_steering(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    let cores: Vec<u32> = context.intent.cores.iter().collect();
    let queue = |nic: &str, queue: u32| {
        let path = format!("/sys/class/net/{nic}/queues/tx-{queue}/xps_cpus");
        let now = context.root.text(&path)?;
        let own: CpuSet = cores.get(queue as usize).copied().into_iter().collect();
        let then = own.to_mask_like(&now);
        setting.file(context, format!("{nic} tx-{queue}"), path, (Form::Plain, then))
    };
    // Only where each core has a queue, and none is left without CPU.
    let exact = nics(context).filter(|nic| nic.transmit_queues as usize == cores.len());
    exact
        .filter(|nic| nic.transmit_queues > 1)
        .flat_map(|nic| (0..nic.transmit_queues).filter_map(|n| queue(&nic.name, n)))
        .collect()
}

pub(super) const BUFFERS: Setting = Setting {
    name: "tcp-buffers",
    about: "largest socket buffers of TCP",
    why: "large reads and many outstanding requests need as much in flight as the path holds",
    gain: "large transfers at the rate of the link; no figure in the papers",
    risk: Risk::Low,
    propose: buffers,
};

fn buffers(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    // The side that matters: a Flash server sends, a datastore host receives.
    let file = match context.intent.role {
        Role::FlashServer => "tcp_wmem",
        Role::Datastore => "tcp_rmem",
    };
    let path = format!("/proc/sys/net/ipv4/{file}");
    let Some(now) = context.root.text(&path) else { return Vec::new() };
    let sizes: Vec<u64> = now.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let &[least, usual, most] = sizes.as_slice() else { return Vec::new() };
    let then = format!("{least} {usual} {}", most.max(BUFFER_MAX));
    setting.of_host(context, path, (Form::Words, then))
}

pub(super) const CONGESTION: Setting = Setting {
    name: "tcp-congestion-control",
    about: "congestion control of new connections",
    why: "bbr paces by a timer for each segment; in a virtual machine each timer leaves the guest",
    gain: "13.2 to 20.9 k reads of 128 KiB a second (docs/benchmarks.md, method)",
    risk: Risk::Low,
    propose: congestion,
};

fn congestion(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    let path = "/proc/sys/net/ipv4/tcp_congestion_control";
    let now = context.root.text(path).unwrap_or_default();
    let then = if now == "bbr" { "cubic".to_owned() } else { now };
    setting.of_host(context, path, (Form::Plain, then))
}

pub(super) const IDLE_WINDOW: Setting = Setting {
    name: "tcp-idle-window",
    about: "congestion window after idle times",
    why: "a burst after a pause otherwise begins with ten packets again",
    gain: "first large read after a pause in one round trip; no figure in the papers",
    risk: Risk::Low,
    propose: idle_window,
};

fn idle_window(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    let path = "/proc/sys/net/ipv4/tcp_slow_start_after_idle";
    setting.of_host(context, path, (Form::Plain, "0".into()))
}

pub(super) const JUMBO: Setting = Setting {
    name: "jumbo-frames",
    about: "largest packet of the card",
    why: "a block of 4 KiB fits into one packet",
    gain: "3 to 12 % more requests (EuroSys'16, 3.3)",
    risk: Risk::Network,
    propose: jumbo,
};

fn jumbo(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    // Only what the path was seen to carry.
    let Some(path_mtu) = context.intent.path_mtu else { return Vec::new() };
    let mtu = path_mtu.min(JUMBO_MTU);
    let smaller = nics(context).filter(|nic| nic.mtu.is_some_and(|now| now <= mtu));
    let one = |nic: &crate::machine::Nic| {
        let path = format!("/sys/class/net/{}/mtu", nic.name);
        setting.file(context, nic.name.clone(), path, (Form::Plain, mtu.to_string()))
    };
    smaller.filter_map(one).collect()
}
