//! An executor that is a function of its seed.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use super::{Random, TestDevice};

struct ReadyQueue(Mutex<VecDeque<usize>>);

struct TaskWaker {
    task: usize,
    ready: Arc<ReadyQueue>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        let mut queue = self.ready.0.lock().expect("one thread");
        if !queue.contains(&self.task) {
            queue.push_back(self.task);
        }
    }
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Runs tasks in turn; when none can go on, the device completes a request.
pub struct Sim {
    pub device: TestDevice,
    pub random: Random,
    tasks: Vec<Option<Task>>,
    ready: Arc<ReadyQueue>,
    /// The power goes off when this many writes and flushes are complete.
    pub crash_at: Option<u64>,
}

/// The power went off.
#[derive(Debug)]
pub struct Crashed;

impl Sim {
    pub fn new(device: TestDevice, seed: u64) -> Self {
        let ready = Arc::new(ReadyQueue(Mutex::new(VecDeque::new())));
        Self { device, random: Random(seed), tasks: Vec::new(), ready, crash_at: None }
    }

    pub fn spawn(&mut self, task: impl Future<Output = ()> + 'static) {
        self.tasks.push(Some(Box::pin(task)));
        self.ready.0.lock().expect("one thread").push_back(self.tasks.len() - 1);
    }

    /// Begins `task`; what comes of it is told there.
    pub fn begin<T: 'static>(
        &mut self,
        task: impl Future<Output = T> + 'static,
    ) -> Rc<RefCell<Option<T>>> {
        let told = Rc::new(RefCell::new(None));
        let slot = told.clone();
        self.spawn(async move {
            slot.replace(Some(task.await));
        });
        told
    }

    /// Runs until `future` is done or the power goes off.
    pub fn run<F: Future>(&mut self, future: F) -> Result<F::Output, Crashed> {
        let mut future = pin!(future);
        let main = usize::MAX;
        let mut looked_away = true;
        self.ready.0.lock().expect("one thread").push_back(main);
        loop {
            let next = self.ready.0.lock().expect("one thread").pop_front();
            match next {
                Some(task) if task == main => {
                    let waker =
                        Waker::from(Arc::new(TaskWaker { task, ready: self.ready.clone() }));
                    if let Poll::Ready(output) =
                        future.as_mut().poll(&mut Context::from_waker(&waker))
                    {
                        return Ok(output);
                    }
                }
                Some(task) => {
                    looked_away = true;
                    self.poll_task(task);
                }
                // Conditions without a waker are looked at whenever something happened.
                None if std::mem::take(&mut looked_away) => {
                    self.ready.0.lock().expect("one thread").push_back(main);
                }
                None => {
                    if self.crash_at.is_some_and(|at| self.device.completed() >= at) {
                        return Err(Crashed);
                    }
                    assert!(self.device.complete_one(&mut self.random), "deadlock: nothing to do");
                }
            }
        }
    }

    /// Runs until nothing is under way.
    pub fn settle(&mut self) {
        loop {
            self.poll_ready();
            if !self.device.complete_one(&mut self.random) {
                return;
            }
        }
    }

    fn poll_task(&mut self, task: usize) {
        let waker = Waker::from(Arc::new(TaskWaker { task, ready: self.ready.clone() }));
        let place = &mut self.tasks[task];
        let done = place.as_mut().is_some_and(|future| {
            future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
        });
        if done {
            *place = None;
        }
    }

    /// Runs `task` to its end on a device that completes at once all that is asked of it at the same time. Returns how often
    /// that was, too.
    pub fn run_in_rounds<T: 'static>(
        &mut self,
        task: impl Future<Output = T> + 'static,
    ) -> (T, u32) {
        let told = self.begin(task);
        let mut rounds = 0;
        loop {
            self.poll_ready();
            if let Some(value) = told.take() {
                return (value, rounds);
            }
            rounds += 1;
            assert!(self.device.complete_all(&mut self.random) > 0, "nothing goes on");
        }
    }

    fn poll_ready(&mut self) {
        loop {
            let next = self.ready.0.lock().expect("one thread").pop_front();
            match next {
                Some(task) if task < self.tasks.len() => self.poll_task(task),
                Some(_) => {}
                None => return,
            }
        }
    }

    pub fn run_ok<F: Future>(&mut self, future: F) -> F::Output {
        self.run(future).expect("no crash was asked for")
    }
}
