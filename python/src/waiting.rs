//! Waiting for outcomes, and the signals that come meanwhile (PYTHON-2).

use std::time::Duration;

use farflash_client::{Error, Pending};
use pyo3::prelude::*;

use crate::errors::exception;

/// Longest time for which a signal, such as Ctrl-C, goes unnoticed.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// The exception of a signal's handler, and the request that is still under way.
pub(crate) struct Interrupted<T> {
    pub(crate) raised: PyErr,
    pub(crate) pending: Pending<T>,
}

/// Waits for what changes something (PYTHON-2): a signal waits for it, too, and a second one does not.
pub(crate) fn wait_to_the_end<T: Send + 'static>(
    py: Python<'_>,
    pending: Pending<T>,
) -> PyResult<T> {
    match outcome(py, pending) {
        Ok(outcome) => outcome.map_err(|error| exception(py, &error)),
        Err(Interrupted { raised, pending }) => Err(drain(py, raised, [pending])),
    }
}

/// Waits for an outcome (PYTHON-2). For what changes nothing: a signal does not wait for it.
pub(crate) fn wait<T: Send + 'static>(py: Python<'_>, pending: Pending<T>) -> PyResult<T> {
    let outcome = outcome(py, pending).map_err(|interrupted| interrupted.raised)?;
    outcome.map_err(|error| exception(py, &error))
}

/// The same, but only signals are exceptions.
pub(crate) fn outcome<T: Send + 'static>(
    py: Python<'_>,
    mut pending: Pending<T>,
) -> Result<Result<T, Error>, Interrupted<T>> {
    loop {
        match py.detach(|| pending.wait_timeout(LOOK)) {
            Ok(outcome) => return Ok(outcome),
            Err(still) => pending = still,
        }
        if let Err(raised) = py.check_signals() {
            return Err(Interrupted { raised, pending });
        }
    }
}

/// Waits for the requests under way, so that none of them is carried out after the caller has handled `raised`, the
/// exception of a signal's handler; returns the exception to raise. Another signal does not wait.
pub(crate) fn drain<T: Send + 'static>(
    py: Python<'_>,
    raised: PyErr,
    under_way: impl IntoIterator<Item = Pending<T>>,
) -> PyErr {
    for pending in under_way {
        if let Err(again) = outcome(py, pending) {
            return again.raised;
        }
    }
    raised
}
