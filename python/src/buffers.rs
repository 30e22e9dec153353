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
    let Some(memory) = buffer.as_slice_ptr() else { return data };
    assert!(at + len <= memory.len(), "within the buffer");
    // SAFETY: a `PyBuffer` keeps its memory where it is, and `at..at + len` is within it. Nobody writes to
    // it meanwhile, since that takes the interpreter, which is held. `data` is memory of our own.
    unsafe {
        let from = memory.as_ptr().cast::<u8>().add(at);
        from.copy_to_nonoverlapping(data.as_mut_bytes().as_mut_ptr(), len);
    }
    data
}

/// Copies `bytes` to `buffer`, which is writable, from byte `at`.
pub(crate) fn copy_out(_py: Python<'_>, bytes: &[u8], buffer: &PyBuffer<u8>, at: usize) {
    let Some(memory) = buffer.as_slice_ptr() else { return };
    assert!(at + bytes.len() <= memory.len() && !buffer.readonly(), "within a writable buffer");
    // SAFETY: as above; and `writable` has let through only buffers that can be written.
    unsafe {
        let to = memory.as_ptr().cast::<u8>().add(at);
        to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
    }
}
