//! Task management (RFC 7143, clause 11.5): aborts and resets.
//!
//! - M1: a request that aborts commands is answered when none of these is being executed any more: whatever they do to the
//!   volume is done by then.

use std::cell::RefCell;
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
    tasks: BTreeSet<TaskId>,
    /// The session ends behind the answer.
    ends_session: bool,
}

/// Requests that wait for commands to end.
#[derive(Default)]
pub(crate) struct TaskRequests(RefCell<Vec<Waiting>>);

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
                self.abort_others(Sense::COMMANDS_CLEARED);
                self.put(|target, _| target.abort_all())
            }
            task_function::LOGICAL_UNIT_RESET
            | task_function::TARGET_WARM_RESET
            | task_function::TARGET_COLD_RESET => {
                self.abort_others(Sense::UNIT_RESET);
                self.raise(Sense::UNIT_RESET);
                self.export.borrow().iter().for_each(|export| export.unlock_all());
                self.put(|target, _| target.abort_all())
            }
            task_function::TASK_REASSIGN | task_function::CLEAR_ACA => {
                return self.answer_task_request(request, task_response::NOT_SUPPORTED);
            }
            _ => return self.answer_task_request(request, task_response::REJECTED),
        };
        let tasks = self.settle(aborts);
        let ends_session = function == task_function::TARGET_COLD_RESET;
        self.task_requests.0.borrow_mut().push(Waiting { request: *request, tasks, ends_session });
        self.answer_those_that_wait();
    }

    /// Forgets what had not begun. Returns what is being executed.
    fn settle(&self, aborts: Vec<Abort>) -> BTreeSet<TaskId> {
        let mut underway = BTreeSet::new();
        for abort in aborts {
            match abort {
                Abort::Forgotten(task) => self.slots.end(task),
                Abort::Underway(task) => {
                    underway.insert(task);
                }
                Abort::Unknown => {}
            }
        }
        underway
    }

    /// Aborts the commands of other sessions to the same unit, which are told so.
    fn abort_others(&self, sense: Sense) {
        let export = self.export.borrow().clone();
        let Some(export) = export else { return };
        for other in self.core.sessions_of(export.uuid()) {
            if other.is_open() && other.link.id() != self.link.id() {
                let aborts = other.put(|target, _| target.abort_all());
                other.settle(aborts);
                other.raise(sense);
            }
        }
    }

    /// A command is over: requests may wait for that (M1).
    pub(crate) fn task_is_over(&self, task: TaskId) {
        let mut waiting = self.task_requests.0.borrow_mut();
        if waiting.is_empty() {
            return;
        }
        waiting.iter_mut().for_each(|it| {
            it.tasks.remove(&task);
        });
        drop(waiting);
        self.answer_those_that_wait();
    }

    fn answer_those_that_wait(&self) {
        loop {
            let mut waiting = self.task_requests.0.borrow_mut();
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
