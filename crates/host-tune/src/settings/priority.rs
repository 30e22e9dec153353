//! The priority of the data plane's threads.

use super::{Context, Role, Setting};
use crate::proposal::{Form, Proposal, Risk};
use crate::thread::key;

/// Above all ordinary tasks, and below the kernel's own threads for interrupts, which have 50.
const PRIORITY: &str = "fifo 10";

pub(super) const REALTIME: Setting = Setting {
    name: "realtime-priority",
    about: "real-time priority of the threads of a running server's cores",
    why: "an ordinary task that has the CPU keeps it for milliseconds while a request waits",
    gain: "worst read latency from 5 ms to 600 µs (all-flash arrays, IV-B, figures 6 and 7)",
    risk: Risk::Medium,
    propose: realtime,
};

fn realtime(setting: &Setting, context: &Context<'_>) -> Vec<Proposal> {
    let root = context.root;
    if context.intent.role != Role::FlashServer {
        return Vec::new();
    }
    let processes = root.names("/proc").into_iter();
    let processes = processes.filter(|entry| entry.bytes().all(|byte| byte.is_ascii_digit()));
    let named = |path: &str, name: &str| root.text(path).as_deref() == Some(name);
    let servers = processes.filter(|pid| named(&format!("/proc/{pid}/comm"), "farflash"));
    let of_server = |pid: String| {
        let threads = root.names(&format!("/proc/{pid}/task"));
        let cores = threads.into_iter().filter_map(|thread| {
            let name = root.text(&format!("/proc/{pid}/task/{thread}/comm"))?;
            let core = name.strip_prefix("core-")?.parse().ok()?;
            if !context.intent.cores.contains(core) {
                return None;
            }
            let subject = format!("{name} of process {pid}");
            let key = key(root, &pid, &thread)?;
            setting.file(context, subject, key, (Form::Priority, PRIORITY.to_owned()))
        });
        cores.collect::<Vec<_>>()
    };
    servers.flat_map(of_server).collect()
}
