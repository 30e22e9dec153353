//! The engine over a volume in memory whose requests are answered when the test says so.

use std::sync::mpsc;

use proptest::prelude::*;

use super::*;
use crate::backing::{Done, ReadDone};

const BLOCK: usize = 16;
const SIZE: usize = 16 * BLOCK;
const LIMITS: Limits = Limits { requests: 1000, bytes: 1 << 20 };

/// Gives the answer to a request.
type Answer = Box<dyn FnOnce()>;
/// Carries out a request.
type Job = Box<dyn FnOnce(&mut Memory) -> Answer + Send>;

#[derive(Default)]
struct Memory {
    bytes: Vec<u8>,
    /// Requests that are not carried out yet, and what each is.
    waiting: Vec<(String, Job)>,
    fails: bool,
}

/// A volume in memory. Requests are carried out one by one, in any order.
#[derive(Clone)]
struct Volume(Arc<Mutex<Memory>>);

impl Volume {
    fn new() -> Self {
        let bytes = (0..SIZE).map(|at| (at % 251) as u8).collect();
        Self(Arc::new(Mutex::new(Memory { bytes, ..Memory::default() })))
    }

    fn wait_in_line(&self, what: String, job: impl FnOnce(&mut Memory) -> Answer + Send + 'static) {
        self.0.lock().unwrap().waiting.push((what, Box::new(job)));
    }

    fn waiting(&self) -> Vec<String> {
        self.0.lock().unwrap().waiting.iter().map(|(what, _)| what.clone()).collect()
    }

    /// Carries out the request at `index` of those that wait, and gives its answer.
    fn carry_out(&self, index: usize) {
        let (_, job) = self.0.lock().unwrap().waiting.remove(index);
        let answer = job(&mut self.0.lock().unwrap());
        // Without the lock: it may begin other requests.
        answer();
    }

    fn carry_out_all(&self) {
        while !self.waiting().is_empty() {
            self.carry_out(0);
        }
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().bytes.clone()
    }
}

impl Memory {
    fn outcome(&self) -> Result<(), Error> {
        if self.fails { Err(Error::Closed) } else { Ok(()) }
    }
}

impl Backing for Volume {
    fn block_size(&self) -> usize {
        BLOCK
    }

    fn read(&self, offset: u64, len: usize, done: ReadDone) {
        self.wait_in_line(format!("read {offset}+{len}"), move |memory| {
            let bytes = memory.bytes[offset as usize..][..len].to_vec();
            let outcome = memory.outcome();
            Box::new(move || done(outcome.as_ref().map(|()| &bytes[..]).map_err(Error::clone)))
        });
    }

    fn write(&self, offset: u64, data: Data, done: Done) {
        let len = data.len();
        self.wait_in_line(format!("write {offset}+{len}"), move |memory| {
            let outcome = memory.outcome();
            if outcome.is_ok() {
                memory.bytes[offset as usize..][..len].copy_from_slice(data.as_bytes());
            }
            Box::new(move || done(outcome))
        });
    }

    fn clear(&self, offset: u64, len: u64, _: Clearing, done: Done) {
        self.wait_in_line(format!("clear {offset}+{len}"), move |memory| {
            memory.bytes[offset as usize..][..len as usize].fill(0);
            let outcome = memory.outcome();
            Box::new(move || done(outcome))
        });
    }

    fn flush(&self, done: Done) {
        self.wait_in_line("flush".to_owned(), |memory| {
            let outcome = memory.outcome();
            Box::new(move || done(outcome))
        });
    }
}

fn engine(volume: &Volume) -> Arc<Engine<Volume>> {
    Engine::new(volume.clone(), SIZE as u64, LIMITS, Box::new(|_| {}))
}

fn written(engine: &Arc<Engine<Volume>>, offset: u64, data: &[u8]) -> mpsc::Receiver<String> {
    let (sender, outcome) = mpsc::channel();
    engine.write(offset, data, move |result| {
        sender.send(format!("{result:?}")).expect("it is listened to");
    });
    outcome
}

/// Two writes of different bytes of one block, at the same time: neither undoes the other.
#[test]
fn parts_of_one_block_are_changed_one_after_the_other() {
    let volume = Volume::new();
    let engine = engine(&volume);
    let mut expected = volume.bytes();
    let first = written(&engine, 17, &[0xaa; 3]);
    let second = written(&engine, 25, &[0xbb; 3]);
    let whole = written(&engine, 64, &[0xcc; BLOCK]);
    assert_eq!(volume.waiting(), ["read 16+16", "write 64+16"]);
    volume.carry_out_all();
    expected[17..20].fill(0xaa);
    expected[25..28].fill(0xbb);
    expected[64..80].fill(0xcc);
    assert_eq!(volume.bytes(), expected);
    for (outcome, len) in [(first, 3), (second, 3), (whole, BLOCK)] {
        assert_eq!(outcome.try_recv().as_deref(), Ok(&*format!("Ok({len})")));
    }
    assert_eq!(engine.progress(), Progress { outstanding: 0, ended: 3 });
}

/// A write of several blocks with parts at both ends is one write, behind the reads of the two.
#[test]
fn a_write_with_two_edges_is_one_write() {
    let volume = Volume::new();
    let engine = engine(&volume);
    let outcome = written(&engine, 8, &[1; 36]);
    assert_eq!(volume.waiting(), ["read 32+16"]);
    volume.carry_out(0);
    assert_eq!(volume.waiting(), ["read 0+16"]);
    volume.carry_out(0);
    assert_eq!(volume.waiting(), ["write 0+48"]);
    assert!(outcome.try_recv().is_err(), "it is not done");
    volume.carry_out(0);
    assert_eq!(outcome.try_recv().as_deref(), Ok("Ok(36)"));
}

/// A failure of either request of a partial write is its outcome, and what waited for it goes on.
#[test]
fn a_failed_change_does_not_hold_up_the_next() {
    for fails_at in 0..2 {
        let volume = Volume::new();
        let (sender, troubles) = mpsc::channel();
        let on_trouble = Box::new(move |trouble: &Trouble| {
            sender.send(trouble.to_string()).expect("it is listened to");
        });
        let engine = Engine::new(volume.clone(), SIZE as u64, LIMITS, on_trouble);
        let (first, second) = (written(&engine, 3, &[1; 2]), written(&engine, 5, &[2; 2]));
        for step in 0..=fails_at {
            volume.0.lock().unwrap().fails = step == fails_at;
            volume.carry_out(0);
        }
        volume.0.lock().unwrap().fails = false;
        volume.carry_out_all();
        assert!(first.try_recv().expect("an outcome").starts_with("Err"));
        assert_eq!(second.try_recv().as_deref(), Ok("Ok(2)"));
        assert_eq!(volume.bytes()[3..7], [3, 4, 2, 2]);
        assert_eq!(
            troubles.try_recv().as_deref(),
            Ok("a write at byte 3 failed: the volume is closed")
        );
        assert_eq!(engine.progress().outstanding, 0);
    }
}

#[test]
fn the_file_ends_with_the_volume_and_grows_with_it() {
    let volume = Volume::new();
    let engine = Engine::new(volume.clone(), 40, LIMITS, Box::new(|_| {}));
    assert_eq!(written(&engine, 40, &[1]).try_recv().as_deref(), Ok("Err(Beyond)"));
    let short = written(&engine, 32, &[1; 16]);
    volume.carry_out_all();
    assert_eq!(short.try_recv().as_deref(), Ok("Ok(8)"));
    let read = |engine: &Arc<Engine<Volume>>, offset| {
        let (sender, len) = mpsc::channel();
        engine.read(offset, 30, move |result| {
            sender.send(result.expect("read").len()).expect("it is listened to");
        });
        volume.carry_out_all();
        len.try_recv().expect("an answer")
    };
    assert_eq!((read(&engine, 30), read(&engine, 40)), (10, 0));
    assert!(engine.resize(48) && !engine.resize(48));
    assert_eq!(read(&engine, 30), 18);
}

#[derive(Clone, Debug)]
enum Op {
    Write(usize, usize, u8),
    Clear(usize, usize, Clearing),
    Read(usize, usize),
}

fn op() -> impl Strategy<Value = Op> {
    let range = || (0..SIZE, 1_usize..60);
    prop_oneof![
        (range(), 1_u8..).prop_map(|((at, len), fill)| Op::Write(at, len, fill)),
        (range(), any::<bool>()).prop_map(|((at, len), gives)| {
            let how = if gives { Clearing::Deallocate } else { Clearing::WriteZeroes };
            Op::Clear(at, len, how)
        }),
        range().prop_map(|(at, len)| Op::Read(at, len)),
    ]
}

proptest! {
    /// Changes have the effect that they would have one by one in the order in which they came, in whatever order
    /// requests are carried out; a read that comes when all is done reads that. Method: requests are carried out at
    /// random, and a read after all of them, beside an array of bytes.
    #[test]
    fn the_file_is_what_an_array_of_bytes_is(
        ops in prop::collection::vec(op(), 1..40),
        picks in prop::collection::vec((0_usize..4, any::<prop::sample::Index>()), 400),
    ) {
        let volume = Volume::new();
        let engine = engine(&volume);
        let mut model = volume.bytes();
        let (sender, outcomes) = mpsc::channel();
        let mut picks = picks.into_iter().cycle();
        for op in &ops {
            let sender = sender.clone();
            match *op {
                Op::Write(at, len, fill) => {
                    let len = len.min(SIZE - at);
                    model[at..at + len].fill(fill);
                    engine.write(at as u64, &vec![fill; len], move |result| {
                        sender.send(result.ok() == Some(len)).expect("it is listened to");
                    });
                }
                Op::Clear(at, len, how) => {
                    let end = (at + len).min(SIZE);
                    model[at..end].fill(0);
                    engine.clear(at as u64, len as u64, how, move |result| {
                        sender.send(result.is_ok()).expect("it is listened to");
                    });
                }
                Op::Read(at, len) => {
                    volume.carry_out_all();
                    let expected = model[at..(at + len).min(SIZE)].to_vec();
                    engine.read(at as u64, len, move |result| {
                        let is_same = result.is_ok_and(|bytes| bytes == expected);
                        sender.send(is_same).expect("it is listened to");
                    });
                    volume.carry_out_all();
                }
            }
            let (count, pick) = picks.next().expect("endless");
            for _ in 0..count.min(volume.waiting().len()) {
                volume.carry_out(pick.index(volume.waiting().len()));
                if volume.waiting().is_empty() { break; }
            }
        }
        volume.carry_out_all();
        prop_assert_eq!(volume.bytes(), model);
        let outcomes: Vec<bool> = outcomes.try_iter().collect();
        prop_assert_eq!(outcomes, vec![true; ops.len()]);
        prop_assert_eq!(engine.progress().outstanding, 0);
    }
}
