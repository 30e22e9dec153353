//! Making a ring on whatever kernel there is, or saying precisely why not.

use std::fs;

use io_uring::{IoUring, Probe, opcode};
use rustix::io::Errno;

use crate::ring::Ring;

/// Why there is no io_uring to be had.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SetupError {
    /// Switched off for everyone.
    #[error("io_uring is switched off; as root: sysctl kernel.io_uring_disabled=0")]
    Disabled,
    /// Switched off for this user.
    #[error(
        "io_uring is reserved for a group (sysctl kernel.io_uring_disabled=1): run as a member of \
         the group in sysctl kernel.io_uring_group, or set kernel.io_uring_disabled=0"
    )]
    Reserved,
    /// A container runtime or service manager forbids it.
    #[error(
        "io_uring is forbidden, most likely by a seccomp filter: allow io_uring_setup, \
         io_uring_enter and io_uring_register (for containers: --security-opt seccomp=unconfined)"
    )]
    Forbidden,
    /// Too old, or built without it.
    #[error("this kernel ({release}) lacks {what}; Linux 6.1 or later is needed")]
    TooOld {
        /// What `uname -r` says.
        release: String,
        /// What is missing.
        what: &'static str,
    },
    /// No memory may be had for the rings.
    #[error("no memory for io_uring's queues: raise the limit on locked memory (ulimit -l)")]
    Memory,
    /// Too many open files.
    #[error("no file descriptor left for io_uring: raise the limit on open files (ulimit -n)")]
    Files,
    /// Something else.
    #[error("io_uring cannot be set up: {errno}")]
    System {
        /// The operating system's error.
        errno: Errno,
    },
}

impl SetupError {
    pub(crate) fn new(errno: Errno, what: &'static str) -> Self {
        match errno {
            Errno::PERM | Errno::ACCESS => match sysctl("io_uring_disabled").as_str() {
                "2" => Self::Disabled,
                "1" => Self::Reserved,
                _ => Self::Forbidden,
            },
            Errno::NOSYS | Errno::INVAL | Errno::OPNOTSUPP => {
                Self::TooOld { release: sysctl("osrelease"), what }
            }
            Errno::NOMEM => Self::Memory,
            Errno::MFILE | Errno::NFILE => Self::Files,
            errno => Self::System { errno },
        }
    }
}

fn sysctl(name: &str) -> String {
    let value = fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
    value.trim().to_owned()
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

/// How to make a ring.
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
            Ok(ring) => {
                check(&ring)?;
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
    Err(SetupError::new(last, "io_uring with cooperative completions (5.19)"))
}

fn check(ring: &IoUring) -> Result<(), SetupError> {
    let too_old = |what| SetupError::TooOld { release: sysctl("osrelease"), what };
    if !ring.params().is_feature_nodrop() || !ring.params().is_feature_ext_arg() {
        return Err(too_old("io_uring's waits with a timeout (5.11)"));
    }
    let mut probe = Probe::new();
    ring.submitter()
        .register_probe(&mut probe)
        .map_err(|error| SetupError::new(errno_of(&error), "io_uring's probe (5.6)"))?;
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
        None => Ok(()),
    }
}

pub(crate) fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::INVAL)
}
