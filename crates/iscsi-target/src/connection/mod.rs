//! One connection: framing and digests, login, and the commands of full feature phase.
//!
//! - ISCSI-CONNECTION-1: bytes go in by [`Connection::poll`]; what is to be done comes out as [`Step`]s, what is to be
//!   sent goes into the outbox. Data of commands passes by, and is not kept here.
//! - ISCSI-CONNECTION-2: a task that the caller completes is forgotten. Data that still comes for it is dropped.
//! - ISCSI-CONNECTION-3: a command whose number lies beyond the window is dropped, as RFC 7143 (clause 4.2.2.1) wants it.

mod data_out;
mod receive;
mod reply;
mod task;

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use iscsi_wire::Cdb;
use iscsi_wire::pdu::{self, Bhs, Lun, NO_TAG, Sequence, TaskRequest, login_status};
use units::Instant;

use crate::limits::Limits;
use crate::login::{Admission, Login, LoginQuestion, Reply, SessionType};
use crate::negotiate::Parameters;
use crate::outbox::Outbox;

pub use reply::Completion;
pub use task::{TASKS_MAX, TaskId};

use receive::Receiver;
use task::Tasks;

/// Why a connection ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CloseReason {
    /// The bytes are no PDU, or one that may not come now.
    ProtocolError(&'static str),
    /// The first bytes are of this protocol.
    OtherProtocol(&'static str),
    /// A digest does not match.
    Digest,
    /// The login was refused.
    LoginRefused([u8; 2]),
    /// The initiator logged out.
    LoggedOut,
    /// The login took too long.
    LoginTimeout,
    /// The initiator does not answer, or owes data.
    Stalled,
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ProtocolError(what) => write!(f, "the initiator broke the protocol: {what}"),
            Self::OtherProtocol(name) => {
                write!(f, "the client speaks {name}, and this port iSCSI without TLS")
            }
            Self::Digest => f.write_str("a digest does not match"),
            Self::LoginRefused(status) => {
                let [class, detail] = *status;
                write!(f, "{} (status {class:02x}{detail:02x}h)", words_of(*status))
            }
            Self::LoggedOut => f.write_str("the initiator logged out"),
            Self::LoginTimeout => f.write_str("the login took too long"),
            Self::Stalled => f.write_str("the initiator does not answer"),
        }
    }
}

/// The reason of a refusal with this status, in words.
fn words_of(status: [u8; 2]) -> &'static str {
    match status {
        login_status::AUTHENTICATION_FAILURE => "the initiator did not authenticate",
        login_status::AUTHORIZATION_FAILURE => "the initiator may not open the target",
        login_status::NOT_FOUND => "there is no such target for this initiator",
        login_status::UNSUPPORTED_VERSION => "the initiator speaks another version of iSCSI",
        login_status::MISSING_PARAMETER => "the initiator names neither itself nor a target",
        login_status::SESSION_TYPE => "there is no session of this type",
        login_status::NO_SUCH_SESSION => "there is no such session to join",
        login_status::TARGET_ERROR
        | login_status::SERVICE_UNAVAILABLE
        | login_status::OUT_OF_RESOURCES => "the target cannot serve the initiator now",
        _ => "the login was not understood",
    }
}

/// Work that the caller is to do.
#[derive(Debug)]
pub enum Step<'a> {
    /// All input is taken in.
    NeedMore,
    /// Decide by [`Connection::admit`] or [`Connection::refuse`].
    Login(LoginQuestion),
    /// Full feature phase has begun.
    LoggedIn,
    /// A command came: call [`Connection::expect`], or complete it. Its data may follow.
    Command(TaskId),
    /// Data of a command, from byte `offset` of what it wants.
    Data {
        /// The command.
        task: TaskId,
        /// Place of the bytes in that data.
        offset: u32,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// There has to be memory for all the data that the command wants: then call [`Connection::grant`].
    Solicit(TaskId),
    /// All data that the command wants has come: execute it.
    Ready(TaskId),
    /// Data of the command came in another order than it was sent: fail the command. The rest of its data is dropped.
    Disordered(TaskId),
    /// Answer by [`Connection::answer_task_request`].
    Manage(TaskRequest),
    /// Answer by [`Connection::answer_text`]. The value of `SendTargets`.
    SendTargets(String),
    /// The connection is over once what is in the outbox was sent.
    Closed(CloseReason),
}

/// The result of an abort.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Abort {
    /// There is no such task.
    Unknown,
    /// It is forgotten: it had not begun.
    Forgotten(TaskId),
    /// It is being executed; it is not answered when it ends.
    Underway(TaskId),
}

/// A text answer that goes on in further PDUs.
struct TextAnswer {
    itt: u32,
    rest: Vec<u8>,
}

/// The session, in full feature phase.
struct Session {
    question: LoginQuestion,
    tsih: u16,
}

/// One connection as its target sees it.
pub struct Connection {
    limits: Limits,
    parameters: Parameters,
    receiver: Receiver,
    /// Until full feature phase.
    login: Option<Login>,
    session: Option<Session>,
    tasks: Tasks,
    stat_sn: u32,
    exp_cmd_sn: u32,
    /// Makes transfer tags differ.
    transfers: u32,
    text: Option<TextAnswer>,
    proven: Option<String>,
    began: Instant,
    last_heard: Instant,
    /// Bytes of commands' data that have come.
    data_heard: u64,
    /// The tag of a NOP-In that is not answered, and the time since which neither that nor progress in reading was seen.
    ping: Option<(u32, Instant)>,
    is_closed: bool,
}

impl Connection {
    /// A connection that began `now`.
    #[must_use]
    pub fn new(now: Instant, limits: &Limits) -> Self {
        Self {
            limits: limits.clone(),
            parameters: Parameters::default(),
            receiver: Receiver::new(),
            login: Some(Login::new()),
            session: None,
            tasks: Tasks::new(),
            stat_sn: 0,
            exp_cmd_sn: 0,
            transfers: 0,
            text: None,
            proven: None,
            began: now,
            last_heard: now,
            data_heard: 0,
            ping: None,
            is_closed: false,
        }
    }

    /// Returns whether full feature phase has begun.
    #[must_use]
    pub fn is_logged_in(&self) -> bool {
        self.session.is_some()
    }

    /// The initiator and its session, in full feature phase.
    #[must_use]
    pub fn session(&self) -> Option<&LoginQuestion> {
        self.session.as_ref().map(|session| &session.question)
    }

    /// The target's part of the session's identifier, in full feature phase.
    #[must_use]
    pub fn tsih(&self) -> Option<u16> {
        self.session.as_ref().map(|session| session.tsih)
    }

    /// The outcome of negotiation.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The user name whose secret the initiator has proven to know.
    #[must_use]
    pub fn proven(&self) -> Option<&str> {
        self.proven.as_deref()
    }

    /// Tasks under way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.tasks.len()
    }

    /// The command of a task and the unit that it is for.
    #[must_use]
    pub fn command(&self, id: TaskId) -> Option<(Cdb, Lun)> {
        self.tasks.get(id).map(|task| (task.cdb, task.lun))
    }

    /// Bytes that the initiator has for the task, and bytes that it takes.
    #[must_use]
    pub fn expected(&self, id: TaskId) -> (u32, u32) {
        self.tasks.get(id).map_or((0, 0), |task| (task.writable(), task.readable()))
    }

    /// Bytes of the data of a task that come, or may come, without an R2T.
    #[must_use]
    pub fn unsolicited_max(&self, id: TaskId) -> u32 {
        let Some(task) = self.tasks.get(id) else { return 0 };
        let with_command = u32::try_from(self.receiver.data_len()).unwrap_or(u32::MAX);
        let max = if task.has_unsolicited { self.parameters.first_burst_max } else { with_command };
        max.min(task.writable())
    }

    /// Returns whether data is on its way that comes by itself.
    #[must_use]
    pub fn awaits_unsolicited(&self) -> bool {
        self.receiver.is_in_data() || self.tasks.iter().any(|(_, task)| task.has_unsolicited)
    }

    /// Returns whether data is on its way that an R2T has asked for.
    #[must_use]
    pub fn awaits_solicited(&self) -> bool {
        self.tasks.iter().any(|(_, task)| !task.transfers.is_empty())
    }

    fn sequence(&mut self, has_status: bool) -> Sequence {
        let sequence = Sequence {
            stat_sn: self.stat_sn.into(),
            exp_cmd_sn: self.exp_cmd_sn.into(),
            max_cmd_sn: self.max_cmd_sn().into(),
        };
        self.stat_sn = self.stat_sn.wrapping_add(u32::from(has_status));
        sequence
    }

    fn max_cmd_sn(&self) -> u32 {
        self.exp_cmd_sn.wrapping_add(self.tasks.room()).wrapping_sub(1)
    }

    /// Goes on with a login as the caller has decided.
    pub fn admit(&mut self, admission: Admission, out: &mut impl Outbox) -> Option<Step<'static>> {
        let reply = self.login.as_mut()?.admit(admission, &self.limits);
        self.answer_login(reply, out)
    }

    /// Refuses a login with this status.
    pub fn refuse(&mut self, status: [u8; 2], out: &mut impl Outbox) -> Option<Step<'static>> {
        self.answer_login(Reply::Refuse(status), out)
    }

    fn answer_login(&mut self, reply: Reply, out: &mut impl Outbox) -> Option<Step<'static>> {
        let login = self.login.as_mut()?;
        let mut response: pdu::LoginResponse = pdu::blank(pdu::opcode::LOGIN_RESPONSE);
        (response.isid, response.itt) = (login.request.isid, login.request.itt);
        response.tsih = login.request.tsih;
        let (flags, pairs, status) = match reply {
            Reply::Ask(question) => return Some(Step::Login(question)),
            Reply::More => (login.request.flags & 0x0C, Vec::new(), pdu::login_status::SUCCESS),
            Reply::Answer { pairs, flags } => (flags, pairs, pdu::login_status::SUCCESS),
            Reply::Refuse(status) => (0, Vec::new(), status),
        };
        (response.flags, response.status) = (flags, status);
        response.lengths = pdu::Lengths::of_data(pairs.len());
        let is_refused = status != pdu::login_status::SUCCESS;
        let has_ended = login.has_ended() && !is_refused;
        if has_ended {
            response.tsih = login.tsih().into();
        }
        self.proven = login.proven().map(Into::into);
        response.sequence = self.sequence(!is_refused);
        self.put(&response.encode(), &pairs, out);
        if is_refused {
            self.is_closed = true;
            return Some(Step::Closed(CloseReason::LoginRefused(status)));
        }
        if !has_ended {
            return None;
        }
        let login = self.login.take()?;
        self.parameters = login.parameters.clone();
        let tsih = login.tsih();
        let (question, _) = login.into_question();
        self.session = Some(Session { question: question?, tsih });
        Some(Step::LoggedIn)
    }

    /// Begins a PDU of the login, or refuses it.
    fn on_login(
        &mut self,
        header: &Bhs,
        text: &[u8],
        out: &mut impl Outbox,
    ) -> Option<Step<'static>> {
        let request = pdu::LoginRequest::decode(&header.encode());
        let login = self.login.as_mut()?;
        if self.stat_sn == 0 && self.exp_cmd_sn == 0 {
            self.stat_sn = request.exp_stat_sn.get();
        }
        self.exp_cmd_sn = request.cmd_sn.get();
        let reply = login.on_request(request, text, &self.limits);
        self.answer_login(reply, out)
    }

    /// Acts on deadlines that have passed; `in_need` of the time, the initiator was silent while nothing was read.
    pub fn on_tick(&mut self, now: Instant, out: &mut impl Outbox) -> Option<CloseReason> {
        if self.is_closed {
            return None;
        }
        if self.login.is_some() {
            let is_late = now.since(self.began) > self.limits.login_timeout;
            return is_late.then_some(CloseReason::LoginTimeout);
        }
        let silence = now.since(self.last_heard);
        let owes =
            self.receiver.is_in_pdu() || self.tasks.iter().any(|(_, task)| task.awaits_data());
        let is_unanswered =
            self.ping.is_some_and(|(_, since)| now.since(since) > self.limits.stall_timeout);
        if is_unanswered || (owes && silence > self.limits.stall_timeout) {
            return Some(CloseReason::Stalled);
        }
        if silence > self.limits.idle && self.ping.is_none() {
            let ttt = self.next_transfer();
            self.ping = Some((ttt, now));
            let mut nop: pdu::NopIn = pdu::blank(pdu::opcode::NOP_IN);
            (nop.itt, nop.ttt) = (NO_TAG.into(), ttt.into());
            nop.sequence = self.sequence(false);
            self.put(&nop.encode(), &[], out);
        }
        None
    }

    /// Returns whether the answer to a NOP-In is awaited.
    #[must_use]
    pub fn awaits_answer(&self) -> bool {
        self.ping.is_some()
    }

    /// Notes that the initiator has just taken some of what was sent: a NOP-In may lie behind the rest.
    pub fn on_taken(&mut self, now: Instant) {
        if let Some((_, since)) = &mut self.ping {
            *since = now;
        }
    }

    /// Bytes of data that the initiator has sent so far, while it owes some that was asked for or that comes by itself.
    #[must_use]
    pub fn owed_bytes_received(&self) -> Option<u64> {
        let owes =
            self.receiver.is_in_data() || self.tasks.iter().any(|(_, task)| task.awaits_data());
        owes.then_some(self.data_heard)
    }

    /// A tag that was not given lately.
    fn next_transfer(&mut self) -> u32 {
        self.transfers = self.transfers.wrapping_add(1);
        if self.transfers == NO_TAG {
            self.transfers = 0;
        }
        self.transfers
    }

    /// Returns whether the session is there to discover targets.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        self.session().is_some_and(|question| question.session == SessionType::Discovery)
    }
}

#[cfg(test)]
mod tests;
