//! Numbers of Python's as positions and lengths. One that cannot be is an `InvalidArgument`, which is a `ValueError`: by itself
//! Python would call it an `OverflowError`.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::errors::invalid;

/// A position in a volume, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offset(pub(crate) u64);

/// Length of a request, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Length(pub(crate) usize);

impl<'py> FromPyObject<'_, 'py> for Offset {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let found = object.extract::<u64>();
        found.map(Self).map_err(|error| unless_too_large(object, error, "an offset"))
    }
}

impl<'py> FromPyObject<'_, 'py> for Length {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let found = object.extract::<usize>();
        // Python has no longer bytes.
        let found = found.and_then(|length| match isize::try_from(length) {
            Ok(_) => Ok(Self(length)),
            Err(_) => Err(PyOverflowError::new_err("too long")),
        });
        found.map_err(|error| unless_too_large(object, error, "a length"))
    }
}

/// `error` as it is, unless it says that the number `object` is below 0 or too large for `what`.
fn unless_too_large(object: Borrowed<'_, '_, PyAny>, error: PyErr, what: &str) -> PyErr {
    let py = object.py();
    if !error.is_instance_of::<PyOverflowError>(py) {
        return error;
    }
    invalid(
        py,
        &format!("{} is not {what} in a volume: give bytes, from 0 up to its size", *object),
    )
}
