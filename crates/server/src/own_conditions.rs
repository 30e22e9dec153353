//! Conditions of the server itself, looked at every second: descriptors, connections, mapped memory, CPU time, certificates.
//!
//! - CONDITION-3: a condition is told in the log when it begins and when it ends, in the status of the server while it holds,
//!   and by a metric.

use std::fs::{File, read_to_string};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use control::{ApiTls, ServerNotice, ServerNoticeKind};
use data_core::CoreMessage;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::nbd_tls::Certificates;
use super::state::State;
use super::{ServeConfig, guard};

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Mapped memory is looked at in each so many looks, since to list it takes time.
const MAPS_EVERY: u64 = 8;
/// Looks for which it is told that connections were refused.
const REFUSED_FOR: u64 = 60;
/// The part of a limit on mapped memory that is left when it is told of.
const LEFT_PART: u64 = 16;

/// Looks once, and then until the server ends.
pub(super) fn start(state: &Arc<State>, config: &ServeConfig, tls: Option<ApiTls>) {
    let (state, names) = (state.clone(), guard::names(config));
    let nbd_tls = state.cores.iter().find_map(|core| core.nbd_tls.clone());
    let refused = Refused { connections_max: config.connections_max, seen: 0, told_until: 0 };
    let mut looks = Looks { tls, nbd_tls, names, refused, maps: None, count: 0 };
    state.own_notices.set(looks.look(None));
    let (tasks, looks) = (state.tasks.clone(), Arc::new(tokio::sync::Mutex::new(looks)));
    tasks.keep("conditions of the server", move || {
        let (state, looks) = (state.clone(), looks.clone());
        async move {
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                // A core that hangs holds up no other look.
                let refused = tokio::time::timeout(LOOK_EVERY, state.refused_connections()).await;
                let refused = refused.ok().flatten();
                state.own_notices.set(looks.lock().await.look(refused));
            }
        }
    });
}

struct Looks {
    tls: Option<ApiTls>,
    nbd_tls: Option<Certificates>,
    /// The names of this server that its certificate should have one of.
    names: Vec<String>,
    refused: Refused,
    /// The condition of mapped memory, when it was last looked at.
    maps: Option<String>,
    count: u64,
}

/// Connections that were refused.
struct Refused {
    /// Connections of a core.
    connections_max: u32,
    /// Those that were seen.
    seen: u64,
    /// The number of the look at which they are told of no more.
    told_until: u64,
}

impl Refused {
    /// Takes in how many there were at a look, if that is known. Returns the condition.
    fn look(&mut self, count: u64, refused: Option<u64>) -> Option<String> {
        let refused = refused.unwrap_or(self.seen);
        if refused > self.seen {
            (self.seen, self.told_until) = (refused, count + REFUSED_FOR);
        }
        let max = self.connections_max;
        (count < self.told_until).then(|| {
            format!(
                "connections were refused in the last minute, since a core takes {max} and the hosts of a volume get a part \
                 of them: disconnect hosts, raise --connections-max, or have more cores serve"
            )
        })
    }
}

impl Looks {
    /// Looks, after so many connections were refused in all.
    fn look(&mut self, refused: Option<u64>) -> Vec<ServerNotice> {
        if self.count.is_multiple_of(MAPS_EVERY) {
            self.maps = Memory::now().shortage();
        }
        self.count += 1;
        let notice = |kind| move |text| ServerNotice { kind, text };
        let limits = open_files().map(notice(ServerNoticeKind::OpenFiles));
        let maps = self.maps.clone().map(notice(ServerNoticeKind::MemoryMaps));
        let refused = self.refused.look(self.count, refused);
        let refused = refused.map(notice(ServerNoticeKind::Connections));
        let cpu_time = cpu_time().map(notice(ServerNoticeKind::CpuTime));
        let certificate = self.tls.iter().flat_map(|tls| tls.doubts(&self.names));
        let certificate = certificate.chain(self.nbd_tls.iter().flat_map(Certificates::doubts));
        limits.into_iter().chain(refused).chain(maps).chain(cpu_time).chain(certificate).collect()
    }
}

/// Returns what keeps this process from opening a file, if descriptors do.
fn open_files() -> Option<String> {
    let error = File::open("/dev/null").err()?;
    match Errno::from_io_error(&error)? {
        Errno::MFILE => {
            let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
            Some(format!(
                "all {limit} descriptors that this process may have are in use, so that connections and devices wait: disconnect \
                 hosts, lower --connections-max, or raise the limit (`prlimit --nofile=N --pid {}`; ulimit -n, a unit's \
                 LimitNOFILE=, a container's --ulimit nofile=)",
                std::process::id()
            ))
        }
        Errno::NFILE => Some(
            "this machine has as many files open as it may, so that connections and devices wait: close some, or raise \
             fs.file-max (`sysctl`)"
                .to_owned(),
        ),
        _ => None,
    }
}

/// Says that this process is ended when it has used some CPU time, if that is so. A limit that it may lift itself is lifted: the
/// kernel ends a process at the lower of both with a signal, and not a word.
fn cpu_time() -> Option<String> {
    let limit = getrlimit(Resource::Cpu);
    limit.current?;
    let _ = setrlimit(Resource::Cpu, Rlimit { current: limit.maximum, ..limit });
    let seconds = getrlimit(Resource::Cpu).current?;
    Some(format!(
        "this process is ended when it has used {seconds} s of CPU time: lift the limit (`prlimit --cpu=unlimited --pid {}`; \
         ulimit -t, a unit's LimitCPU=, a container's --ulimit cpu=)",
        std::process::id()
    ))
}

/// Memory that this process has mapped, and what bounds it.
#[derive(Clone, Copy)]
struct Memory {
    maps: Option<u64>,
    maps_max: Option<u64>,
    bytes: Option<u64>,
    bytes_max: Option<u64>,
    /// Bytes of them that are its own and that it may write.
    data: Option<u64>,
    data_max: Option<u64>,
}

impl Memory {
    fn now() -> Self {
        let number = |text: &str| text.trim().parse::<u64>().ok();
        let status = read_to_string("/proc/self/status").unwrap_or_default();
        let bytes = |name: &str| {
            let size = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(number(size.trim().strip_suffix("kB")?)? << 10)
        };
        Self {
            maps: read_to_string("/proc/self/maps").ok().map(|maps| maps.lines().count() as u64),
            maps_max: read_to_string("/proc/sys/vm/max_map_count")
                .ok()
                .and_then(|max| number(&max)),
            bytes: bytes("VmSize:"),
            bytes_max: getrlimit(Resource::As).current,
            data: bytes("VmData:"),
            data_max: getrlimit(Resource::Data).current,
        }
    }

    /// Returns which limit is close, if one is.
    fn shortage(&self) -> Option<String> {
        let is_close = |used: Option<u64>, max: Option<u64>| {
            used.zip(max).is_some_and(|(used, max)| used >= max - max / LEFT_PART)
        };
        const ENDS: &str = "and a server that can map no more memory ends";
        let bounds = [
            (self.bytes, self.bytes_max, "ulimit -v, a unit's LimitAS="),
            (
                self.data,
                self.data_max,
                "ulimit -d, a unit's LimitDATA=, a container's --ulimit data=",
            ),
        ];
        for (used, max, names) in bounds {
            if is_close(used, max) {
                return Some(format!(
                    "this process has mapped nearly all the memory that it may, {ENDS}: raise the limit ({names}), or lower \
                     --core-memory and --map-memory"
                ));
            }
        }
        is_close(self.maps, self.maps_max).then(|| {
            format!(
                "this process has nearly as many memory maps as it may, {ENDS}: raise vm.max_map_count (`sysctl`)"
            )
        })
    }
}

/// Conditions of this server that were seen a moment ago.
#[derive(Default)]
pub(super) struct OwnNotices(Mutex<Vec<ServerNotice>>);

impl OwnNotices {
    /// Takes over what was seen of the server itself (CONDITION-3).
    fn set(&self, seen: Vec<ServerNotice>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for notice in seen.iter().filter(|notice| !known.contains(notice)) {
            match notice.kind.is_wrong() {
                true => tracing::error!(kind = notice.kind.name(), "{}", notice.text),
                false => tracing::warn!(kind = notice.kind.name(), "{}", notice.text),
            }
        }
        let is_over = |notice: &&ServerNotice| seen.iter().all(|it| it.kind != notice.kind);
        for notice in known.iter().filter(is_over) {
            tracing::warn!(kind = notice.kind.name(), "is over");
        }
        *known = seen;
    }

    fn all(&self) -> Vec<ServerNotice> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl State {
    /// Connections that all cores refused since they began; `None` if one does not say.
    async fn refused_connections(&self) -> Option<u64> {
        let mut refused = 0;
        for link in self.cores.iter() {
            refused += link.ask(|answer| CoreMessage::Refused { answer }).await.ok()?;
        }
        Some(refused)
    }

    /// The conditions of the server that hold, but for that of the audit log, which the API knows.
    pub(super) fn server_notices(&self) -> Vec<ServerNotice> {
        let own = self.own_notices.all();
        self.refusing().into_iter().chain(self.tasks.notices()).chain(own).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Method: connections are refused at one look and at another, and a core does not say how many.
    #[test]
    fn refused_connections_are_told_of_for_a_minute() {
        let mut refused = Refused { connections_max: 7, seen: 0, told_until: 0 };
        assert_eq!(refused.look(1, Some(0)), None);
        let told = refused.look(2, Some(3)).expect("some were");
        assert!(told.contains("a core takes 7"), "{told}");
        assert!(refused.look(50, None).is_some() && refused.look(51, Some(4)).is_some());
        assert!(refused.look(50 + REFUSED_FOR, Some(4)).is_some());
        assert_eq!(refused.look(51 + REFUSED_FOR, Some(4)), None);
        assert_eq!(refused.look(52 + REFUSED_FOR, None), None);
    }

    #[test]
    fn mapped_memory_is_told_of_before_it_is_exhausted() {
        let memory = |maps, bytes| Memory {
            maps: Some(maps),
            maps_max: Some(65_530),
            bytes: Some(bytes),
            bytes_max: Some(1 << 30),
            data: Some(1 << 20),
            data_max: None,
        };
        assert_eq!(memory(100, 1 << 20).shortage(), None);
        assert!(memory(65_000, 1 << 20).shortage().unwrap().contains("vm.max_map_count"));
        assert!(memory(100, (1 << 30) - 1).shortage().unwrap().contains("LimitAS="));
        let data = Memory { data_max: Some(1 << 20), ..memory(100, 1 << 20) };
        assert!(data.shortage().unwrap().contains("LimitDATA="));
        let unlimited = Memory { bytes_max: None, ..memory(100, u64::MAX) };
        assert_eq!(unlimited.shortage(), None);
        let now = Memory::now();
        assert!(now.maps > Some(10) && now.maps_max.is_some() && now.bytes > Some(1 << 20));
        assert!(now.data > Some(1 << 16) && now.data < now.bytes);
    }
}
