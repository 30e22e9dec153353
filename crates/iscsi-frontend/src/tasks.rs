//! Task management (RFC 7143, clause 11.5): aborts and resets.
//!
//! - ISCSI-TASK-1: a request that aborts commands is answered when none of these is being executed any more: whatever they do to
//!   the volume is done by then. Those of a session that ends go with it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use io_traits::{Device, World};
use iscsi_target::{Abort, TaskId};
use iscsi_wire::Sense;
use iscsi_wire::pdu::{TaskRequest, task_function, task_response};

use crate::connection::Connection;

/// A request that waits for commands to end.
struct Waiting {
    request: TaskRequest,
    /// The commands, by the numbers of their connections.
    tasks: BTreeSet<(u64, TaskId)>,
    /// The session ends behind the answer.
    ends_session: bool,
}

/// Requests that wait for commands to end.
#[derive(Default)]
pub(crate) struct TaskRequests {
    waiting: RefCell<Vec<Waiting>>,
    /// Requests of other sessions may wait for commands of this one.
    are_others_waiting: Cell<bool>,
}

impl<W: World, D: Device> Connection<W, D> {
    /// Carries out a task management function.
    pub(crate) fn on_task_request(self: &Rc<Self>, request: &TaskRequest) {
        let function = request.flags & 0x7F;
        let is_for_unit = !matches!(
            function,
            task_function::TARGET_WARM_RESET | task_function::TARGET_COLD_RESET
        );
        if is_for_unit && !matches!(request.lun, [0 | 0x40, 0, 0, 0, 0, 0, 0, 0]) {
            return self.answer_task_request(request, task_response::NO_SUCH_UNIT);
        }
        let mut tasks = BTreeSet::new();
        let aborts = match function {
            task_function::ABORT_TASK => {
                let itt = request.referenced_itt.get();
                let abort = self.put(|target, _| target.abort(itt));
                if abort == Abort::Unknown {
                    return self.answer_task_request(request, task_response::NO_SUCH_TASK);
                }
                vec![abort]
            }
            task_function::ABORT_TASK_SET => self.put(|target, _| target.abort_all()),
            task_function::CLEAR_TASK_SET => {
                tasks = self.abort_others(None);
                self.put(|target, _| target.abort_all())
            }
            task_function::LOGICAL_UNIT_RESET
            | task_function::TARGET_WARM_RESET
            | task_function::TARGET_COLD_RESET => {
                tasks = self.abort_others(Some(Sense::UNIT_RESET));
                self.raise(Sense::UNIT_RESET);
                self.export.borrow().iter().for_each(|export| export.unlock_all());
                self.put(|target, _| target.abort_all())
            }
            task_function::TASK_REASSIGN | task_function::CLEAR_ACA => {
                return self.answer_task_request(request, task_response::NOT_SUPPORTED);
            }
            _ => return self.answer_task_request(request, task_response::REJECTED),
        };
        tasks.append(&mut self.settle(aborts));
        let ends_session = function == task_function::TARGET_COLD_RESET;
        let waiting = Waiting { request: *request, tasks, ends_session };
        self.task_requests.waiting.borrow_mut().push(waiting);
        self.answer_those_that_wait();
    }

    /// Forgets what had not begun. Returns what is being executed.
    fn settle(&self, aborts: Vec<Abort>) -> BTreeSet<(u64, TaskId)> {
        let mut underway = BTreeSet::new();
        for abort in aborts {
            match abort {
                Abort::Forgotten(task) => self.slots.end(task),
                Abort::Underway(task) => {
                    underway.insert((self.link.id().number, task));
                }
                Abort::Unknown => {}
            }
        }
        underway
    }

    /// Aborts the commands of other sessions to the same unit, which are told of `event`. Returns what is being executed.
    fn abort_others(&self, event: Option<Sense>) -> BTreeSet<(u64, TaskId)> {
        let mut underway = BTreeSet::new();
        for other in self.other_sessions() {
            let mut own = other.abort_for_another();
            if !own.is_empty() {
                other.task_requests.are_others_waiting.set(true);
            }
            underway.append(&mut own);
            event.into_iter().for_each(|sense| other.raise(sense));
        }
        underway
    }

    /// Aborts all commands in the name of another initiator. Returns what is being executed.
    pub(crate) fn abort_for_another(&self) -> BTreeSet<(u64, TaskId)> {
        self.settle(self.put(|target, out| target.abort_all_for_another(out)))
    }

    /// Open sessions to the same unit.
    fn other_sessions(&self) -> impl Iterator<Item = Rc<Self>> {
        let export = self.export.borrow().clone();
        let all = export.map_or_else(Vec::new, |export| self.core.sessions_of(export.uuid()));
        let own = self.link.id();
        all.into_iter().filter(move |other| other.is_open() && other.link.id() != own)
    }

    /// A command is over: requests may wait for that (ISCSI-TASK-1).
    pub(crate) fn task_is_over(&self, task: TaskId) {
        self.note_over(self.link.id().number, Some(task));
        self.tell_others_of_end(Some(task));
    }

    /// All its commands are over, as its session is.
    pub(crate) fn tasks_are_over(&self) {
        self.tell_others_of_end(None);
    }

    fn tell_others_of_end(&self, task: Option<TaskId>) {
        if !self.task_requests.are_others_waiting.get() {
            return;
        }
        let others = self.other_sessions();
        let number = self.link.id().number;
        let waiting = others.filter(|other| other.note_over(number, task)).count();
        self.task_requests.are_others_waiting.set(waiting > 0);
    }

    /// Notes that a command of the connection `number` is over, or that all are. Returns whether something waits for others of it.
    fn note_over(&self, number: u64, task: Option<TaskId>) -> bool {
        let mut waiting = self.task_requests.waiting.borrow_mut();
        if waiting.is_empty() {
            return false;
        }
        let is_over = |it: &(u64, TaskId)| it.0 == number && task.is_none_or(|task| it.1 == task);
        waiting.iter_mut().for_each(|it| it.tasks.retain(|task| !is_over(task)));
        let is_waited_for = waiting.iter().any(|it| it.tasks.iter().any(|task| task.0 == number));
        drop(waiting);
        self.answer_those_that_wait();
        is_waited_for
    }

    fn answer_those_that_wait(&self) {
        loop {
            let mut waiting = self.task_requests.waiting.borrow_mut();
            let Some(at) = waiting.iter().position(|it| it.tasks.is_empty()) else { return };
            let Waiting { request, ends_session, .. } = waiting.remove(at);
            drop(waiting);
            self.answer_task_request(&request, task_response::COMPLETE);
            if ends_session {
                self.note_end("the initiator reset the target");
                self.close();
            }
        }
    }

    fn answer_task_request(&self, request: &TaskRequest, answer: u8) {
        self.reply(|target, out| target.answer_task_request(request, answer, out));
    }
}
