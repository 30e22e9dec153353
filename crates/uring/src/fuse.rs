//! Requests of a FUSE file system by io_uring: Linux 6.14, where `fuse.enable_uring` is on.
//!
//! The kernel has a queue for each CPU, and a queue has slots: memory for headers and data. A request goes to a slot of the queue
//! of the CPU on which it was made, or waits for one. The submission that answers it asks for the slot's next request, too.
//!
//! - FUSE-RING-1: a slot's memory belongs to the kernel or to one [`FuseCall`]: the submission gives it to the kernel, and the
//!   completion gives it back.
//! - FUSE-RING-2: memory that the kernel may still touch when the ring goes away is leaked, never freed.
//! - FUSE-RING-3: a thread that sleeps on the event of the ring wakes when there is something for [`FuseRing::turn`], unless that runs.
//!
//! The ring is one of its own, since these submissions are twice as long as others. Absent: the meaning of requests.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::ring::ENTER_GETEVENTS;
use crate::setup::{SETUP, SetupError, errno_of};

/// Bytes of each of the two headers of a request.
pub const FUSE_HEADER_LEN: usize = 128;
/// Bytes that begin each answer: its length, which is not read here, the error, the number of the request.
pub const FUSE_ANSWER_LEN: usize = 16;

/// `FUSE_IO_URING_CMD_REGISTER` and `FUSE_IO_URING_CMD_COMMIT_AND_FETCH` of linux/fuse.h.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// System calls of one turn, so that the requests which came with the first ones begin.
const ENTERS_MAX: usize = 4;
/// The list of CPUs for each of which the kernel has a queue.
const POSSIBLE_CPUS: &str = "/sys/devices/system/cpu/possible";
/// Place of `len` in a submission (struct io_uring_sqe).
const SQE_LEN_AT: usize = 24;

/// `struct fuse_uring_req_header`.
#[repr(C)]
struct Headers {
    /// The header of the request, and then of its answer.
    in_out: [u8; FUSE_HEADER_LEN],
    /// The arguments of the request.
    arguments: [u8; FUSE_HEADER_LEN],
    flags: u64,
    /// The name of the request in the submission that answers it.
    commit_id: u64,
    payload_len: u32,
    padding: u32,
    reserved: u64,
}

const _: () = assert!(size_of::<Headers>() == 288, "struct fuse_uring_req_header");

/// The memory of a request.
struct Slot {
    number: u32,
    queue: u16,
    headers: Box<Headers>,
    payload: Box<[u8]>,
    /// Address and length of each, as the kernel reads them once.
    vectors: Box<[[usize; 2]; 2]>,
}

impl Slot {
    fn new(number: u32, queue: u16, payload_len: usize) -> Box<Self> {
        let headers = Box::new(Headers {
            in_out: [0; FUSE_HEADER_LEN],
            arguments: [0; FUSE_HEADER_LEN],
            flags: 0,
            commit_id: 0,
            payload_len: 0,
            padding: 0,
            reserved: 0,
        });
        // Zeroes, not written here: the kernel provides a page when it is touched.
        let payload = vec![0; payload_len].into_boxed_slice();
        Box::new(Self { number, queue, headers, payload, vectors: Box::default() })
    }

    fn submission(&mut self, device: &OwnedFd, operation: u32) -> Entry128 {
        // struct fuse_uring_cmd_req
        let mut command = [0; 80];
        command[8..16].copy_from_slice(&self.headers.commit_id.to_ne_bytes());
        command[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        let payload = self.payload.as_mut_ptr().expose_provenance();
        let headers = (&raw mut *self.headers).expose_provenance();
        *self.vectors = [[headers, size_of::<Headers>()], [payload, self.payload.len()]];
        let vectors = self.vectors.as_ptr().expose_provenance();
        let mut entry = opcode::UringCmd80::new(types::Fd(device.as_raw_fd()), operation)
            .cmd(command)
            .addr(Some(vectors as u64))
            .build()
            .user_data(u64::from(self.number));
        let vectors = (self.vectors.len() as u32).to_ne_bytes();
        // SAFETY: a submission is 128 bytes of integers, and `len` lies within.
        unsafe {
            let bytes = (&raw mut entry).cast::<u8>();
            bytes.add(SQE_LEN_AT).copy_from_nonoverlapping(vectors.as_ptr(), vectors.len());
        }
        entry
    }
}

/// A request of the kernel. It is answered by [`FuseRing::give_back`]; one that is dropped is never answered, and its slot is lost.
pub struct FuseCall {
    slot: Box<Slot>,
}

impl FuseCall {
    /// The header: `struct fuse_in_header`, and bytes without a meaning.
    #[must_use]
    pub fn header(&self) -> &[u8; FUSE_HEADER_LEN] {
        &self.slot.headers.in_out
    }

    /// The arguments, which each operation has its own of.
    #[must_use]
    pub fn arguments(&self) -> &[u8; FUSE_HEADER_LEN] {
        &self.slot.headers.arguments
    }

    /// The bytes behind the arguments, such as the data of a write.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        let len = self.slot.headers.payload_len as usize;
        &self.slot.payload[..len.min(self.slot.payload.len())]
    }

    /// Sets the answer: its header, and what `fill` writes and counts.
    pub fn set_answer(
        &mut self,
        header: &[u8; FUSE_ANSWER_LEN],
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) {
        let Slot { headers, payload, .. } = &mut *self.slot;
        headers.in_out[..FUSE_ANSWER_LEN].copy_from_slice(header);
        let len = fill(payload);
        assert!(len <= payload.len(), "an answer lies within its slot");
        headers.payload_len = len as u32;
    }
}

/// The requests of one file system.
pub struct FuseRing {
    ring: IoUring<Entry128, cqueue::Entry>,
    event: Arc<OwnedFd>,
    /// The file system, once the ring has started.
    device: Option<OwnedFd>,
    /// The slots that belong to the kernel, by number (FUSE-RING-1); before the ring has a device, all of them.
    with_kernel: Vec<Option<Box<Slot>>>,
    /// Slots that have not been lost.
    alive: usize,
    failure: Option<Errno>,
}

impl FuseRing {
    /// A ring for `queues` queues of `depth` slots, each for `payload_len` bytes of data.
    pub fn new(queues: u16, depth: u16, payload_len: usize) -> Result<Self, SetupError> {
        let alive = usize::from(queues) * usize::from(depth);
        let mut builder = IoUring::builder();
        builder.setup_clamp().setup_submit_all().setup_taskrun_flag();
        // The thread that turns it is another one than that which makes it.
        builder.setup_single_issuer().setup_defer_taskrun().setup_r_disabled();
        let entries = u32::try_from(alive).unwrap_or(u32::MAX);
        let ring: IoUring<Entry128, cqueue::Entry> = builder.build(entries).map_err(|error| {
            SetupError::new(errno_of(&error), SETUP, "io_uring with deferred completions (6.1)")
        })?;
        // Without EFD_NONBLOCK: a ring's read of it has to wait rather than fail.
        let event = eventfd(0, EventfdFlags::CLOEXEC).map_err(SetupError::no_event)?;
        ring.submitter().register_eventfd(event.as_raw_fd()).map_err(|error| {
            SetupError::new(errno_of(&error), crate::setup::REGISTER, "io_uring's events (5.2)")
        })?;
        let slot = |number| {
            let queue = (number / usize::from(depth)) as u16;
            Some(Slot::new(number as u32, queue, payload_len))
        };
        let with_kernel = (0..alive).map(slot).collect();
        Ok(Self { ring, event: Arc::new(event), device: None, with_kernel, alive, failure: None })
    }

    /// Returns the event that is signalled when there is something for [`FuseRing::turn`].
    #[must_use]
    pub fn event(&self) -> Arc<OwnedFd> {
        self.event.clone()
    }

    /// Gives the slots to the file system of `device`, which is initialised and was promised io_uring. From here on the ring
    /// belongs to the calling thread.
    pub fn start(&mut self, device: OwnedFd) {
        // The ring is this process's own, and disabled until here.
        self.ring.submitter().register_enable_rings().expect("a new ring is enabled once");
        for slot in self.with_kernel.iter_mut().flatten() {
            let entry = slot.submission(&device, REGISTER);
            push(&mut self.ring, &entry);
        }
        self.device = Some(device);
    }

    /// Answers a request and asks for the slot's next one, with the next turn.
    pub fn give_back(&mut self, call: FuseCall) {
        let Some(device) = &self.device else {
            unreachable!("calls come from a ring that has started")
        };
        let mut slot = call.slot;
        let entry = slot.submission(device, COMMIT_AND_FETCH);
        let number = slot.number as usize;
        assert!(self.with_kernel[number].is_none(), "FUSE-RING-1: the kernel has slot {number}");
        self.with_kernel[number] = Some(slot);
        push(&mut self.ring, &entry);
    }

    /// Hands over what was given back, and adds what has come to `calls`. Does not wait; true if it is to be called again without
    /// an event.
    pub fn turn(&mut self, calls: &mut Vec<FuseCall>) -> bool {
        for _ in 0..ENTERS_MAX {
            self.ring.completion().disable_eventfd();
            if self.needs_enter() {
                enter(&mut self.ring);
            }
            self.reap(calls);
            self.ring.completion().enable_eventfd();
            // FUSE-RING-3: the kernel says that it has something before it looks whether to signal.
            fence(Ordering::SeqCst);
            if !self.needs_enter() {
                return false;
            }
        }
        true
    }

    /// Returns true if no request will come any more: the file system is gone, or takes no slots.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.alive == 0
    }

    /// Why slots were lost, if not by the end of the file system. If that was when they were given to the kernel, requests come by
    /// `/dev/fuse` instead.
    #[must_use]
    pub fn failure(&self) -> Option<Errno> {
        self.failure
    }

    fn needs_enter(&mut self) -> bool {
        let submission = self.ring.submission();
        submission.taskrun() || submission.cq_overflow() || !submission.is_empty()
    }

    fn reap(&mut self, calls: &mut Vec<FuseCall>) {
        for entry in self.ring.completion() {
            let slot = self.with_kernel[entry.user_data() as usize].take();
            let slot = slot.expect("FUSE-RING-1: one completion for each submission");
            if entry.result() >= 0 {
                calls.push(FuseCall { slot });
                continue;
            }
            self.alive -= 1;
            match Errno::from_raw_os_error(-entry.result()) {
                Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED => {}
                errno => self.failure = self.failure.or(Some(errno)),
            }
        }
    }
}

impl Drop for FuseRing {
    /// FUSE-RING-2
    fn drop(&mut self) {
        if self.device.is_some() {
            self.with_kernel.drain(..).flatten().for_each(std::mem::forget);
        }
    }
}

/// The queue has a place for each slot, and a slot is submitted at most once before it comes back.
fn push(ring: &mut IoUring<Entry128, cqueue::Entry>, entry: &Entry128) {
    loop {
        // SAFETY: what the entry points to belongs to a slot, which the ring keeps until the completion (FUSE-RING-1) or leaks
        // (FUSE-RING-2).
        if unsafe { ring.submission().push(entry) }.is_ok() {
            return;
        }
        // The kernel allows shorter queues.
        enter(ring);
    }
}

fn enter(ring: &mut IoUring<Entry128, cqueue::Entry>) {
    let to_submit = ring.submission().len() as u32;
    // SAFETY: what is submitted was pushed by `push`; no argument.
    let entered = unsafe { ring.submitter().enter::<()>(to_submit, 0, ENTER_GETEVENTS, None) };
    let Err(error) = entered else { return };
    match errno_of(&error) {
        // Interrupted, or short of memory or room for completions: what was not taken stays in the queue.
        Errno::INTR | Errno::BUSY | Errno::AGAIN | Errno::NOMEM => {}
        errno => panic!("io_uring_enter of a file system's ring: {errno}"),
    }
}

/// Returns the number of queues that the kernel wants served: one for each CPU that it may ever use.
#[must_use]
pub fn fuse_queues() -> Option<usize> {
    cpus_in(&std::fs::read_to_string(POSSIBLE_CPUS).ok()?)
}

/// Returns the number of CPUs in a list as the kernel writes it, such as `0-3,8`.
fn cpus_in(list: &str) -> Option<usize> {
    let ranges = list.trim().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        (last + 1).checked_sub(first)
    });
    ranges.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_counted_as_the_kernel_lists_them() {
        assert_eq!(cpus_in("0\n"), Some(1));
        assert_eq!(cpus_in("0-1\n"), Some(2));
        assert_eq!(cpus_in("0-3,8,10-11\n"), Some(7));
        for list in ["", "a", "3-1", "0-"] {
            assert_eq!(cpus_in(list), None, "{list}");
        }
    }
}
