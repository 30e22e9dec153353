//! Python's buffers.

#![allow(unsafe_code, reason = "bytes that Python lends are only to be had by pointer")]

use std::ptr::NonNull;

use farflash_client::Data;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

/// The bytes of a contiguous buffer, whatever its elements are.
pub(crate) struct Bytes(PyUntypedBuffer);

impl Bytes {
    fn get(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        // Some, as those of ctypes, leave out what a view of them adds.
        let buffer = PyUntypedBuffer::get(object)
            .or_else(|_| PyUntypedBuffer::get(PyMemoryView::from(object)?.as_any()))?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the buffer is not contiguous"));
        }
        // Their bytes are addresses of this process.
        if buffer.format().to_bytes().contains(&b'O') {
            return Err(PyBufferError::new_err("the buffer holds Python objects, not their bytes"));
        }
        Ok(Self(buffer))
    }

    /// Returns their place, which stays for as long as this is kept.
    pub(crate) fn memory(&self) -> NonNull<[u8]> {
        // One without elements may be nowhere.
        let start = NonNull::new(self.0.buf_ptr().cast::<u8>()).unwrap_or(NonNull::dangling());
        NonNull::slice_from_raw_parts(start, self.0.len_bytes())
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.0.len_bytes()
    }

    pub(crate) fn readonly(&self) -> bool {
        self.0.readonly()
    }
}

/// A buffer that can be read.
pub(crate) fn readable(object: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    Bytes::get(object)
}

/// A buffer that can be written.
pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    let buffer = readable(object)?;
    if buffer.readonly() {
        return Err(PyBufferError::new_err("the buffer is read-only"));
    }
    Ok(buffer)
}

/// A copy of `len` bytes of `buffer` from byte `at`.
pub(crate) fn copy_in(_py: Python<'_>, buffer: &Bytes, at: usize, len: usize) -> Data {
    let mut data = Data::zeroed(len);
    copy_to(buffer, at, data.as_mut_bytes());
    data
}

/// The same, as metadata goes.
pub(crate) fn copy_in_metadata(_py: Python<'_>, buffer: &Bytes, at: usize, len: usize) -> Vec<u8> {
    let mut metadata = vec![0; len];
    copy_to(buffer, at, &mut metadata);
    metadata
}

/// Fills `to`, which is memory of our own, from byte `at` of `buffer`. The interpreter is held.
fn copy_to(buffer: &Bytes, at: usize, to: &mut [u8]) {
    let memory = buffer.memory();
    assert!(at + to.len() <= memory.len(), "within the buffer");
    // SAFETY: a buffer keeps its memory where it is, and `to.len()` bytes from `at` are within it. No other
    // code writes to it meanwhile, since that takes the interpreter, which is held.
    unsafe {
        let from = memory.as_ptr().cast::<u8>().add(at);
        from.copy_to_nonoverlapping(to.as_mut_ptr(), to.len());
    }
}
