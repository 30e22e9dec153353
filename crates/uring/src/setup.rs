//! Making a ring on whatever kernel there is, or saying precisely why not.

use std::fs;

use io_uring::{IoUring, Probe, opcode, squeue};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid, getgroups};
use rustix::system::uname;

use crate::ring::Ring;
use crate::table::UNOWNED;

pub(crate) const SETUP: &str = "io_uring_setup";
const ENTER: &str = "io_uring_enter";
pub(crate) const REGISTER: &str = "io_uring_register";

/// Why there is no io_uring to be had.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SetupError {
    /// Switched off for every process.
    #[error("io_uring is switched off on this machine (sysctl kernel.io_uring_disabled is 2)")]
    Disabled,
    /// Switched off for this user.
    #[error(
        "io_uring is kept for a group that this process is not in (sysctl kernel.io_uring_disabled is 1)"
    )]
    Reserved,
    /// A container runtime or service manager forbids it.
    #[error("a seccomp filter forbids {what} ({errno})")]
    Filtered {
        /// The system call.
        what: &'static str,
        /// The answer of the filter.
        errno: Errno,
    },
    /// No filter forbids it, and no sysctl.
    #[error("the kernel refuses {what} ({errno}), most likely by a security module")]
    Refused {
        /// The system call.
        what: &'static str,
        /// The answer of the kernel.
        errno: Errno,
    },
    /// Too old, or built without it.
    #[error("this kernel ({release}) lacks {what}")]
    TooOld {
        /// The output of `uname -r`.
        release: String,
        /// The missing feature.
        what: &'static str,
    },
    /// No memory may be had for the rings.
    #[error("no memory for the queues of io_uring")]
    Memory,
    /// Too many open files.
    #[error("no file descriptor left for io_uring")]
    Files,
    /// No thread of the kernel may be had.
    #[error("the kernel can make no thread for flushes")]
    Workers,
    /// Something else.
    #[error("{what} fails: {errno}")]
    System {
        /// The system call.
        what: &'static str,
        /// The operating system's error.
        errno: Errno,
    },
}

impl SetupError {
    /// No event by which other threads could wake a ring.
    pub(crate) fn no_event(errno: Errno) -> Self {
        Self::new(errno, "eventfd", "eventfd")
    }

    pub(crate) fn new(errno: Errno, call: &'static str, lacking: &'static str) -> Self {
        Self::within(errno, call, lacking, &Surroundings::find())
    }

    fn within(
        errno: Errno,
        what: &'static str,
        lacking: &'static str,
        around: &Surroundings,
    ) -> Self {
        match errno {
            Errno::PERM | Errno::ACCESS => match around.disabled {
                Some(2) => Self::Disabled,
                Some(1) if !around.is_privileged => Self::Reserved,
                _ if around.is_filtered => Self::Filtered { what, errno },
                _ => Self::Refused { what, errno },
            },
            // A filter that says so hides what the kernel has.
            Errno::NOSYS if around.is_filtered && around.may_have_it() => {
                Self::Filtered { what, errno }
            }
            Errno::NOSYS | Errno::INVAL | Errno::OPNOTSUPP => {
                Self::TooOld { release: around.release.clone(), what: lacking }
            }
            Errno::NOMEM => Self::Memory,
            Errno::MFILE | Errno::NFILE => Self::Files,
            errno => Self::System { what, errno },
        }
    }

    /// The advice that goes with the error.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Disabled => "as root: sysctl kernel.io_uring_disabled=0",
            Self::Reserved => {
                "run as a member of the group in sysctl kernel.io_uring_group, or as root: sysctl kernel.io_uring_disabled=0"
            }
            Self::Filtered { .. } => {
                "allow io_uring_setup, io_uring_enter and io_uring_register: of a container by \
                 --security-opt seccomp=/usr/share/farflash/seccomp.json, of a unit by \
                 SystemCallFilter=io_uring_setup io_uring_enter io_uring_register"
            }
            Self::Refused { .. } => {
                "allow io_uring to this program; the kernel's log (dmesg) says what refused it"
            }
            Self::TooOld { .. } => "run Linux 6.1 or later, with io_uring (CONFIG_IO_URING)",
            Self::Memory => "raise the limit on locked memory (ulimit -l), or free memory",
            Self::Files => "raise the limit on open files (ulimit -n)",
            Self::Workers => {
                "raise the limit on processes and threads (ulimit -u, a unit's TasksMax=, a container's --pids-limit)"
            }
            Self::System { .. } => "the kernel's log (dmesg) may say more",
        }
    }
}

/// The surroundings of a refusal, which decide about its meaning.
#[derive(Debug)]
struct Surroundings {
    /// The sysctl `kernel.io_uring_disabled`; kernels with io_uring have it since 6.6.
    disabled: Option<u8>,
    /// The sysctl does not concern this process.
    is_privileged: bool,
    /// A seccomp filter is in force.
    is_filtered: bool,
    release: String,
}

impl Surroundings {
    fn find() -> Self {
        let sysctl = |name: &str| {
            let value = fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?;
            value.trim().parse::<i64>().ok()
        };
        let group = sysctl("io_uring_group").and_then(|group| u32::try_from(group).ok());
        Self {
            disabled: sysctl("io_uring_disabled").and_then(|value| u8::try_from(value).ok()),
            is_privileged: geteuid().is_root() || group.is_some_and(is_member_of),
            is_filtered: is_filtered(),
            release: uname().release().to_string_lossy().into_owned(),
        }
    }

    /// Returns true if the kernel is one that has io_uring, as far as can be told.
    fn may_have_it(&self) -> bool {
        let mut numbers = self.release.split(|it: char| !it.is_ascii_digit());
        let mut number = || numbers.next().and_then(|it| it.parse::<u32>().ok()).unwrap_or(0);
        // Later kernels show the sysctl, where there is /proc.
        self.disabled.is_some() || (number(), number()) >= (5, 1)
    }
}

fn is_member_of(group: u32) -> bool {
    let others = getgroups().unwrap_or_default();
    getegid().as_raw() == group || others.iter().any(|other| other.as_raw() == group)
}

/// Returns true if a seccomp filter is in force. Asks without `/proc`, which a container need not have.
fn is_filtered() -> bool {
    // SAFETY: takes no pointer.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP) == libc::SECCOMP_MODE_FILTER as libc::c_int }
}

/// Tries out all that a core needs of io_uring, and says what is missing.
pub fn self_test() -> Result<(), SetupError> {
    Ring::new().map(drop)
}

/// When the kernel runs what turns an event into a completion.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mode {
    /// When this thread asks for it, 6.1.
    Deferred,
    /// At this thread's next system call; a flag tells when to make one, 5.19.
    Cooperative,
}

/// Requests to files and drives that may be stuck in the kernel at a time, each with a thread of it. A
/// drive that hangs holds as many as it was sent, and whatever else may have to wait in the kernel, for
/// another drive, needs one more. By default there are four for each CPU.
const KERNEL_WORKERS_MAX: u32 = 4096;

/// The options for making a ring.
pub(crate) struct Options {
    /// In order of preference.
    pub(crate) modes: &'static [Mode],
    /// Submissions that one system call can carry.
    pub(crate) sq_entries: u32,
    /// Completions that fit into the shared queue; the kernel keeps the rest until there is room.
    pub(crate) cq_entries: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { modes: &[Mode::Deferred, Mode::Cooperative], sq_entries: 256, cq_entries: 4096 }
    }
}

/// A ring in the first of the modes that the kernel has.
pub(crate) fn build(options: &Options) -> Result<IoUring, SetupError> {
    let mut last = Errno::INVAL;
    for mode in options.modes {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(options.cq_entries).setup_clamp().setup_submit_all();
        builder.setup_taskrun_flag();
        match mode {
            Mode::Deferred => builder.setup_single_issuer().setup_defer_taskrun(),
            Mode::Cooperative => builder.setup_coop_taskrun(),
        };
        match builder.build(options.sq_entries) {
            Ok(mut ring) => {
                check(&mut ring)?;
                // Kernels before 5.15 do not know it, and keep their limit.
                let _ = ring.submitter().register_iowq_max_workers(&mut [KERNEL_WORKERS_MAX, 0]);
                return Ok(ring);
            }
            Err(error) => last = errno_of(&error),
        }
        if last != Errno::INVAL {
            break;
        }
    }
    Err(SetupError::new(last, SETUP, "io_uring with cooperative completions (5.19)"))
}

/// Does nothing by a thread of the kernel, which stays.
pub(crate) fn start_kernel_worker(ring: &mut IoUring) -> Result<(), SetupError> {
    match do_nothing(ring, squeue::Flags::ASYNC)? {
        0.. => Ok(()),
        _ => Err(SetupError::Workers),
    }
}

/// Asks a ring in which nothing is under way for nothing; the result.
fn do_nothing(ring: &mut IoUring, flags: squeue::Flags) -> Result<i32, SetupError> {
    let nothing = opcode::Nop::new().build().flags(flags).user_data(UNOWNED);
    // SAFETY: the entry points to nothing.
    let pushed = unsafe { ring.submission().push(&nothing) };
    pushed.map_err(|_| SetupError::new(Errno::BUSY, ENTER, ""))?;
    loop {
        match ring.submit_and_wait(1).map_err(|error| errno_of(&error)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(SetupError::new(errno, ENTER, "io_uring's waits")),
        }
        if let Some(done) = ring.completion().next() {
            return Ok(done.result());
        }
    }
}

fn check(ring: &mut IoUring) -> Result<(), SetupError> {
    let too_old = |what| SetupError::TooOld {
        release: uname().release().to_string_lossy().into_owned(),
        what,
    };
    if !ring.params().is_feature_nodrop() || !ring.params().is_feature_ext_arg() {
        return Err(too_old("io_uring's waits with a timeout (5.11)"));
    }
    let mut probe = Probe::new();
    ring.submitter()
        .register_probe(&mut probe)
        .map_err(|error| SetupError::new(errno_of(&error), REGISTER, "io_uring's probe (5.6)"))?;
    let needed = [
        (opcode::Read::CODE, "io_uring's read"),
        (opcode::Write::CODE, "io_uring's write"),
        (opcode::Fsync::CODE, "io_uring's fsync"),
        (opcode::Fallocate::CODE, "io_uring's fallocate"),
        (opcode::Send::CODE, "io_uring's send"),
        (opcode::SendMsg::CODE, "io_uring's sendmsg"),
        (opcode::PollAdd::CODE, "io_uring's poll"),
        (opcode::Connect::CODE, "io_uring's connect"),
        (opcode::AsyncCancel::CODE, "io_uring's cancel"),
    ];
    match needed.iter().find(|(code, _)| !probe.is_supported(*code)) {
        Some((_, what)) => Err(too_old(what)),
        // A filter may allow the one call and not the other.
        None => do_nothing(ring, squeue::Flags::empty()).map(drop),
    }
}

pub(crate) fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(disabled: Option<u8>, is_filtered: bool) -> Surroundings {
        Surroundings { disabled, is_privileged: false, is_filtered, release: "6.12.1-x".to_owned() }
    }

    #[test]
    fn a_refusal_names_what_forbids_io_uring_and_how_to_allow_it() {
        let filtered = |errno| SetupError::Filtered { what: SETUP, errno };
        let too_old = || SetupError::TooOld { release: "6.12.1-x".to_owned(), what: "it" };
        let refused = SetupError::Refused { what: SETUP, errno: Errno::PERM };
        for (errno, around, expected, advice) in [
            (Errno::PERM, around(Some(2), false), SetupError::Disabled, "io_uring_disabled=0"),
            (Errno::PERM, around(Some(2), true), SetupError::Disabled, "io_uring_disabled=0"),
            (Errno::PERM, around(Some(1), false), SetupError::Reserved, "io_uring_group"),
            (Errno::PERM, around(Some(0), true), filtered(Errno::PERM), "seccomp.json"),
            (Errno::PERM, around(None, true), filtered(Errno::PERM), "seccomp.json"),
            (Errno::PERM, around(Some(0), false), refused, "dmesg"),
            (Errno::NOSYS, around(Some(0), true), filtered(Errno::NOSYS), "seccomp.json"),
            (Errno::NOSYS, around(None, true), filtered(Errno::NOSYS), "seccomp.json"),
            (Errno::NOSYS, around(None, false), too_old(), "CONFIG_IO_URING"),
            (Errno::INVAL, around(Some(0), true), too_old(), "6.1 or later"),
        ] {
            let error = SetupError::within(errno, SETUP, "it", &around);
            assert_eq!(error, expected, "{errno} {around:?}");
            assert!(error.remedy().contains(advice), "{error}: {}", error.remedy());
        }
        let old = Surroundings { release: "4.18.0".to_owned(), ..around(None, true) };
        let error = SetupError::within(Errno::NOSYS, SETUP, "it", &old);
        assert_eq!(error, SetupError::TooOld { release: "4.18.0".to_owned(), what: "it" });
        let member = Surroundings { is_privileged: true, ..around(Some(1), true) };
        let error = SetupError::within(Errno::PERM, SETUP, "it", &member);
        assert_eq!(error, filtered(Errno::PERM), "the sysctl does not concern it");
    }

    #[test]
    fn groups_and_filters_of_a_thread_are_found() {
        assert!(is_member_of(getegid().as_raw()) && !is_member_of(u32::MAX - 1));
        for group in getgroups().expect("groups") {
            assert!(is_member_of(group.as_raw()), "{group:?}");
        }
        std::thread::spawn(|| {
            let status = fs::read_to_string("/proc/thread-self/status").expect("/proc");
            assert_eq!(is_filtered(), status.contains("\nSeccomp:\t2\n"));
            let (code, k) = ((libc::BPF_RET | libc::BPF_K) as u16, libc::SECCOMP_RET_ALLOW);
            let mut allow_all = libc::sock_filter { code, jt: 0, jf: 0, k };
            let program = libc::sock_fprog { len: 1, filter: &raw mut allow_all };
            // SAFETY: the kernel reads the program, of one instruction, during the call. Both calls concern this thread alone.
            let is_set = unsafe {
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                    && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
            };
            assert!(is_set && is_filtered());
        })
        .join()
        .expect("the assertions hold");
    }

    #[test]
    fn the_kernel_keeps_a_thread_that_was_asked_for() {
        std::thread::spawn(move || {
            let ring = Ring::new().expect("a ring");
            ring.start_kernel_worker().expect("a thread");
            let tid = rustix::thread::gettid().as_raw_nonzero();
            let name = format!("iou-wrk-{tid}");
            let mut tasks = fs::read_dir("/proc/self/task").expect("/proc").flatten();
            let is_it = |task: fs::DirEntry| {
                let comm = fs::read_to_string(task.path().join("comm"));
                comm.is_ok_and(|comm| comm.trim() == name)
            };
            assert!(tasks.any(is_it), "no {name}");
        })
        .join()
        .expect("the assertions hold");
    }
}
