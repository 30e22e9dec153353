//! The failure of a command, as its user is told of it.

use std::fmt;
use std::process::ExitCode;

/// One line on what is wrong, and one on what to do about it.
#[derive(Clone, Debug)]
pub struct Failure {
    cause: Cause,
    what: String,
    remedy: String,
}

#[derive(Clone, Copy, Debug)]
enum Cause {
    Usage,
    Runtime,
    Absence,
    OneDevice,
}

impl Failure {
    /// The command line or configuration asks for something that makes no sense: exit code 2.
    pub fn usage(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { cause: Cause::Usage, what: what.into(), remedy: remedy.into() }
    }

    /// The request makes sense, but cannot be carried out: exit code 1.
    pub fn runtime(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { cause: Cause::Runtime, what: what.into(), remedy: remedy.into() }
    }

    /// A device cannot be had for now, without a mistake of the user: it is not there, or does not work. Exit
    /// code 1.
    pub fn absence(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { cause: Cause::Absence, what: what.into(), remedy: remedy.into() }
    }

    /// A device must not be served as it is: only a later release of this program can, or it is not the one that was there. Exit
    /// code 1.
    pub fn of_one_device(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { cause: Cause::OneDevice, what: what.into(), remedy: remedy.into() }
    }

    /// Returns true if the failure is one device's, and others can be served without it.
    pub fn spares_others(&self) -> bool {
        matches!(self.cause, Cause::Absence | Cause::OneDevice)
    }

    /// Returns true if the failure may go away by itself: see [`Self::absence`].
    pub fn is_absence(&self) -> bool {
        matches!(self.cause, Cause::Absence)
    }

    /// The same with other advice.
    pub fn advising(self, remedy: impl Into<String>) -> Self {
        Self { remedy: remedy.into(), ..self }
    }

    /// The fault and the advice, for a log or a document.
    pub fn in_one_line(&self) -> String {
        format!("{} ({})", self.what, self.remedy)
    }

    /// The exit code of a program that ends with it.
    pub fn exit_code(&self) -> ExitCode {
        match self.cause {
            Cause::Usage => ExitCode::from(2),
            Cause::Runtime | Cause::Absence | Cause::OneDevice => ExitCode::FAILURE,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}\n hint: {}", self.what, self.remedy)
    }
}

impl From<control::ApiError> for Failure {
    fn from(error: control::ApiError) -> Self {
        let remedy = error.hint();
        match &error {
            control::ApiError::BadUrl(_) => Self::usage(error.to_string(), remedy),
            control::ApiError::Refused(problem) => {
                let (what, remedy) = crate::flags::in_options(problem);
                Self::runtime(what, remedy)
            }
            _ => Self::runtime(error.to_string(), remedy),
        }
    }
}
