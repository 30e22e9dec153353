//! Requests of a file system of one file, mounted by hand.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use test_support::fuse_switch::FuseSwitch;
use test_support::skipped::skipped;

use crate::{FUSE_ANSWER_LEN, FuseCall, FuseRing, fuse_queues};

const PATIENCE: Duration = Duration::from_secs(20);
const PAYLOAD_LEN: usize = 128 << 10;
/// Operations of linux/fuse.h.
const OPEN: u32 = 14;
const READ: u32 = 15;
const CONTENT: &[u8] = b"what the file holds";

/// A mount, which goes when this is dropped.
struct Mounted(CString);

impl Mounted {
    fn over(path: &Path, device: &File) -> Self {
        let target = CString::new(path.as_os_str().as_bytes()).expect("a path");
        let options = format!("fd={},rootmode=100000,user_id=0,group_id=0", device.as_raw_fd());
        let options = CString::new(options).expect("text");
        // SAFETY: all are strings that end with a zero, and outlive the call.
        let mounted = unsafe {
            libc::mount(
                c"test".as_ptr(),
                target.as_ptr(),
                c"fuse".as_ptr(),
                0,
                options.as_ptr().cast(),
            )
        };
        assert_eq!(mounted, 0, "{}", std::io::Error::last_os_error());
        Self(target)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // SAFETY: a string that ends with a zero.
        unsafe { libc::umount2(self.0.as_ptr(), libc::MNT_DETACH) };
    }
}

/// Answers the first request of a connection: version 7.42, io_uring, requests of [`PAYLOAD_LEN`].
fn initialise(device: &mut File) {
    let mut request = vec![0; 16 << 10];
    let len = device.read(&mut request).expect("the kernel's first request");
    assert!(len > 40 && request[4..8] == 26_u32.to_ne_bytes(), "FUSE_INIT");
    let (extended, by_ring) = (1_u32 << 30, 1_u32 << 9);
    let mut answer = Vec::new();
    answer.extend([80, 0].iter().flat_map(|word: &u32| word.to_ne_bytes()));
    answer.extend_from_slice(&request[8..16]);
    answer.extend([7, 42, 0, extended].iter().flat_map(|word: &u32| word.to_ne_bytes()));
    answer.extend([16_u16, 12].iter().flat_map(|half| half.to_ne_bytes()));
    answer.extend([PAYLOAD_LEN as u32, 1].iter().flat_map(|word| word.to_ne_bytes()));
    answer.extend([0_u16, 0].iter().flat_map(|half| half.to_ne_bytes()));
    answer.extend_from_slice(&by_ring.to_ne_bytes());
    answer.resize(80, 0);
    device.write_all(&answer).expect("the kernel takes the answer");
}

fn operation_of(call: &FuseCall) -> u32 {
    u32::from_ne_bytes(call.header()[4..8].try_into().expect("4 bytes"))
}

/// Opens past the page cache, reads [`CONTENT`], everything else is not there.
fn answer(call: &mut FuseCall) {
    let (data, error) = match operation_of(call) {
        OPEN => ([&[0; 8][..], &1_u32.to_ne_bytes(), &[0; 4]].concat(), 0),
        READ => (CONTENT.to_vec(), 0),
        _ => (Vec::new(), -libc::ENOSYS),
    };
    let mut header = [0; FUSE_ANSWER_LEN];
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..].copy_from_slice(&call.header()[8..16]);
    call.set_answer(&header, |payload| {
        payload[..data.len()].copy_from_slice(&data);
        data.len()
    });
}

/// Waits for the event (FUSE-RING-3).
fn wait(event: &OwnedFd) {
    let timeout = rustix::time::Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let told = poll(&mut [PollFd::new(event, PollFlags::IN)], Some(&timeout)).expect("polls");
    assert_eq!(told, 1, "the event is signalled");
    rustix::io::read(event, &mut [0; 8]).expect("its counter");
}

#[test]
fn requests_come_and_are_answered_until_the_file_system_is_unmounted() {
    const ROUNDS: usize = 100;
    if !rustix::process::geteuid().is_root() {
        return skipped("to mount takes root");
    }
    let Some(_on) = FuseSwitch::set(true) else { return };
    let place = tempfile::NamedTempFile::new().expect("a file");
    let mut device = File::options().read(true).write(true).open("/dev/fuse").expect("/dev/fuse");
    let mounted = Mounted::over(place.path(), &device);
    initialise(&mut device);
    let queues = fuse_queues().expect("/sys lists CPUs");
    let mut ring = FuseRing::new(queues as u16, 2, PAYLOAD_LEN).expect("a ring");
    let event = ring.event();
    ring.start(device.try_clone().expect("a file").into());
    let path = place.path().to_owned();
    let reader = std::thread::spawn(move || {
        for _ in 0..ROUNDS {
            let mut file = File::open(&path).expect("it opens");
            let mut content = vec![0; 4096];
            let len = file.read(&mut content).expect("it is read");
            assert_eq!(&content[..len], CONTENT);
        }
    });
    let (mut calls, mut reads) = (Vec::new(), 0);
    while reads < ROUNDS {
        if ring.turn(&mut calls) || !calls.is_empty() {
            for mut call in calls.drain(..) {
                reads += usize::from(operation_of(&call) == READ);
                answer(&mut call);
                ring.give_back(call);
            }
            continue;
        }
        wait(&event);
    }
    let deadline = Instant::now() + PATIENCE;
    let mut mounted = Some(mounted);
    while !ring.is_over() {
        assert!(Instant::now() < deadline, "the slots come back");
        ring.turn(&mut calls);
        for mut call in calls.drain(..) {
            answer(&mut call);
            ring.give_back(call);
        }
        if reader.is_finished() {
            mounted = None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(mounted.is_none(), "only then");
    assert_eq!(ring.failure(), None);
    reader.join().expect("all reads are right");
}

/// A file that is no file system takes no slots, which is told, and no request will come.
#[test]
fn a_ring_that_the_kernel_does_not_take_is_over() {
    let mut ring = FuseRing::new(2, 3, PAYLOAD_LEN).expect("a ring");
    ring.start(tempfile::tempfile().expect("a file").into());
    let (mut calls, deadline) = (Vec::new(), Instant::now() + PATIENCE);
    while !ring.is_over() {
        assert!(Instant::now() < deadline);
        ring.turn(&mut calls);
    }
    assert!(calls.is_empty() && ring.failure().is_some());
    drop(FuseRing::new(1, 1, PAYLOAD_LEN).expect("a ring"));
}
