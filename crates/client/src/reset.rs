//! Ends the controller that requests were last sent to, through the one that takes its place (Cross-Controller
//! Reset; Base 2.3, clause 8.3.3).
//!
//! - RESET-1: nothing is sent again before that, as far as the target can do it: what it does not know how to do, or says
//!   that it could not, is not waited for.
//! - RESET-2: a target is told once. If it has begun then, and is not done, its log page says how far it is; that is read
//!   more and more slowly.
//! - RESET-3: what holds it up are requests at a device, which may take as long as any command. So it has the command
//!   timeout, and the connect timeout stands still meanwhile: doing it again gains nothing.
//! - RESET-4: meanwhile the new controller is kept alive. A target that does not answer that within the connect timeout is
//!   gone.

use io_traits::World;
use nvme_wire::log::{CrossControllerResetLog, GetLogPage, Lid, ResetStatus};
use nvme_wire::sqe::NSID_ALL;
use nvme_wire::{ControllerInstance, CrossControllerReset, Status};
use units::Duration;

use crate::client::Inner;
use crate::{ConnectError, Error, admin, link};

/// Shortest and longest pause between two looks whether a controller has ended.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Progress of a reset.
enum Progress {
    /// It is over, or will never be (RESET-1).
    Over,
    UnderWay,
    /// It has not begun: others have to end first.
    NotBegun,
}

impl<W: World> Inner<W> {
    /// Ends the controller that requests were last sent to: nothing of them is carried out from now on.
    pub(crate) async fn end_last_controller(&self) -> Result<(), ConnectError> {
        let Some(last) = self.controller.get() else { return Ok(()) };
        let silent = Err(ConnectError::Timeout { address: self.address });
        link::unless(self.falls_silent(), self.end_controller(last)).await.unwrap_or(silent)?;
        self.controller.set(None);
        Ok(())
    }

    /// RESET-4: keeps the new controller alive until it does not answer.
    async fn falls_silent(&self) {
        let limit = self.options.connect_timeout;
        let interval = match self.options.keep_alive / 2 {
            Duration::ZERO => limit,
            interval => interval.min(limit),
        };
        loop {
            self.world.sleep_until(self.world.now() + interval).await;
            // An error is an answer; that of a lost connection comes to the other command, too.
            let answer = self.first(admin::keep_alive());
            if link::within(&self.world, limit, answer).await.is_none() {
                return;
            }
        }
    }

    async fn end_controller(&self, last: ControllerInstance) -> Result<(), ConnectError> {
        let give_up = self.world.now() + self.options.command_timeout;
        let (mut has_begun, mut pause) = (false, PAUSE_MIN);
        loop {
            // RESET-2
            let progress =
                if has_begun { self.reset_progress(last, 0).await } else { self.reset(last).await };
            match progress? {
                Progress::Over => return Ok(()),
                Progress::UnderWay => has_begun = true,
                Progress::NotBegun => {}
            }
            if self.world.now() >= give_up {
                return Err(ConnectError::NotEnded);
            }
            self.world.sleep_until(self.world.now() + pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn reset(&self, last: ControllerInstance) -> Result<Progress, Error> {
        let status = match self.first(admin::cross_controller_reset(last)).await {
            Ok(cqe) if cqe.dw0() & CrossControllerReset::DONE != 0 => return Ok(Progress::Over),
            Ok(_) => return Ok(Progress::UnderWay),
            Err(Error::Target { status, .. }) => status,
            Err(error) => return Err(error),
        };
        match status.code() {
            // It does not know the command. Or the number is another's already, that of the one that is asked.
            Status::INVALID_OPCODE | Status::INVALID_FIELD | Status::INVALID_CONTROLLER_ID => {
                Ok(Progress::Over)
            }
            Status::CROSS_CONTROLLER_RESET_IN_PROGRESS | Status::CROSS_CONTROLLER_RESET_LIMIT => {
                Ok(Progress::NotBegun)
            }
            // Those that are over make room.
            Status::CROSS_CONTROLLER_RESET_LOG_FULL => {
                self.reset_progress(last, CrossControllerResetLog::LSP_REMOVE_COMPLETED).await?;
                Ok(Progress::NotBegun)
            }
            _ => Err(Error::Target { command: "Cross-Controller Reset", status, result: 0 }),
        }
    }

    /// Returns the progress of a reset that has begun, from the log page read with this Log Specific Parameter.
    async fn reset_progress(&self, last: ControllerInstance, lsp: u8) -> Result<Progress, Error> {
        let len = size_of::<CrossControllerResetLog>() as u64;
        let page = GetLogPage::new(Lid::CROSS_CONTROLLER_RESET, NSID_ALL, 0, len);
        let page = GetLogPage { lsp, ..page };
        let read = self.admin.run_first(self.world.now(), admin::get_log_page(&page)).await;
        let status = match read {
            Ok(completion) => {
                let log: &CrossControllerResetLog = admin::structure(completion.buffer.as_ref());
                return Ok(match log.status_of(last) {
                    Some(ResetStatus::Succeeded | ResetStatus::Failed) => Progress::Over,
                    Some(ResetStatus::InProgress) | None => Progress::UnderWay,
                });
            }
            Err(Error::Target { status, .. }) => status,
            Err(error) => return Err(error),
        };
        match status.code() {
            Status::INVALID_LOG_PAGE | Status::INVALID_FIELD => Ok(Progress::Over),
            _ => Err(Error::Target { command: "Get Log Page", status, result: 0 }),
        }
    }
}
