//! Errors as exceptions: the classes are `farflash/_errors.py`'s.

use farflash_client::{Error, ErrorKind};
use pyo3::prelude::*;

/// `error` as an exception.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let class = match error {
        Error::Misaligned { .. } => "Misaligned",
        Error::OutOfRange { .. } => "OutOfRange",
        Error::TooLarge { .. } => "TooLarge",
        _ => match error.kind() {
            ErrorKind::InvalidArgument => "InvalidArgument",
            ErrorKind::NotFound => "NotFound",
            ErrorKind::AlreadyExists => "AlreadyExists",
            ErrorKind::PermissionDenied => "PermissionDenied",
            ErrorKind::Unreachable => "Unreachable",
            ErrorKind::Untrusted => "Untrusted",
            ErrorKind::Unproven => "Unproven",
            ErrorKind::NoSpace => "NoSpace",
            ErrorKind::Damaged => "Damaged",
            ErrorKind::Unsupported => "Unsupported",
            ErrorKind::OutcomeUnknown => "OutcomeUnknown",
            ErrorKind::Closed => "Closed",
            ErrorKind::Busy => "Busy",
            ErrorKind::InUse => "InUse",
            ErrorKind::Changed => "Changed",
            ErrorKind::Failed => "Failed",
        },
    };
    of_class(py, class, &error.to_string())
}

/// That a call makes no sense, as it `says`.
pub(crate) fn invalid(py: Python<'_>, says: &str) -> PyErr {
    of_class(py, "InvalidArgument", says)
}

fn of_class(py: Python<'_>, class: &str, says: &str) -> PyErr {
    let made = py
        .import("farflash._errors")
        .and_then(|errors| errors.getattr(class))
        .and_then(|class| class.call_method1("_of", (says,)));
    made.map_or_else(|failure| failure, PyErr::from_value)
}
