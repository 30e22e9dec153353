//! Python's buffers.

#![allow(unsafe_code, reason = "bytes that Python lends are only to be had by pointer")]

use farflash_client::Data;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

/// A buffer of bytes that can be read.
pub(crate) fn readable(object: &Bound<'_, PyAny>) -> PyResult<PyBuffer<u8>> {
    let buffer = PyBuffer::get(object)?;
    if buffer.as_slice_ptr().is_none() {
        return Err(PyBufferError::new_err("the buffer is not contiguous"));
    }
    Ok(buffer)
}

/// A buffer of bytes that can be written.
pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<PyBuffer<u8>> {
    let buffer = readable(object)?;
    if buffer.readonly() {
        return Err(PyBufferError::new_err("the buffer is read-only"));
    }
    Ok(buffer)
}

/// A copy of `len` bytes of `buffer` from byte `at`.
pub(crate) fn copy_in(_py: Python<'_>, buffer: &PyBuffer<u8>, at: usize, len: usize) -> Data {
    let mut data = Data::zeroed(len);
    copy_to(buffer, at, data.as_mut_bytes());
    data
}

/// The same, as metadata goes.
pub(crate) fn copy_in_metadata(
    _py: Python<'_>,
    buffer: &PyBuffer<u8>,
    at: usize,
    len: usize,
) -> Vec<u8> {
    let mut metadata = vec![0; len];
    copy_to(buffer, at, &mut metadata);
    metadata
}

/// Fills `to`, which is memory of our own, from byte `at` of `buffer`. The interpreter is held.
fn copy_to(buffer: &PyBuffer<u8>, at: usize, to: &mut [u8]) {
    let Some(memory) = buffer.as_slice_ptr() else { return };
    assert!(at + to.len() <= memory.len(), "within the buffer");
    // SAFETY: a `PyBuffer` keeps its memory where it is, and `to.len()` bytes from `at` are within it. No other
    // code writes to it meanwhile, since that takes the interpreter, which is held.
    unsafe {
        let from = memory.as_ptr().cast::<u8>().add(at);
        from.copy_to_nonoverlapping(to.as_mut_ptr(), to.len());
    }
}
