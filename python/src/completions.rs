//! Requests that do not wait, for asyncio: their outcomes are fetched when a pipe says that there are some.

use std::collections::BTreeMap;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farflash_client::{Error, Reply, Request};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyList};

use crate::buffers::writable;
use crate::errors::exception;
use crate::lending::Filling;
use crate::volume::{Blocks, Volume, swap_tuple, to_bytes, whole, whole_blocks};

type Outcome = (u64, Result<Reply, Error>);

/// Shared with the library's thread: nothing of Python's is in it (P1).
struct Done {
    outcomes: Vec<Outcome>,
    /// Whether there is a byte in the pipe.
    is_told: bool,
    /// Both ends stay until the last request has its outcome: to write to a pipe that nobody can read any more may
    /// be a signal, which ends the process.
    pipe: (PipeReader, PipeWriter),
}

/// Outcomes of requests that do not wait. Internal; see farflash.AsyncVolume.
#[pyclass(frozen, module = "farflash")]
pub(crate) struct Completions {
    done: Arc<Mutex<Done>>,
    /// Where data that is read goes; `None` if it is not wanted any more.
    targets: Mutex<BTreeMap<u64, Option<Filling>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Completions {
    fn submit(&self, volume: &Volume, key: u64, request: Request) {
        let done = self.done.clone();
        volume.0.submit(request, move |outcome| {
            let mut done = lock(&done);
            done.outcomes.push((key, outcome));
            // One byte at most, so that this never waits.
            if !done.is_told && done.pipe.1.write(&[1]).is_ok() {
                done.is_told = true;
            }
        });
    }

    fn value<'py>(&self, py: Python<'py>, key: u64, reply: Reply) -> PyResult<Bound<'py, PyAny>> {
        let target = match lock(&self.targets).remove(&key) {
            Some(None) => return Ok(py.None().into_bound(py)),
            target => target.flatten(),
        };
        Ok(match (reply, target) {
            (Reply::Data(data), _) => to_bytes(py, &data)?.into_any(),
            (Reply::Done, Some(filled)) => filled.len().into_pyobject(py)?.into_any(),
            (Reply::Blocks(blocks), _) => {
                let data = to_bytes(py, &blocks.data)?;
                (data, PyBytes::new(py, &blocks.metadata)).into_pyobject(py)?.into_any()
            }
            (Reply::Done, _) => py.None().into_bound(py),
            (Reply::Equal(equal), _) => PyBool::new(py, equal).to_owned().into_any(),
            (Reply::Swap(swap), _) => swap_tuple(py, swap)?.into_any(),
        })
    }
}

#[pymethods]
impl Completions {
    #[new]
    fn new() -> PyResult<Self> {
        let done = Done { outcomes: Vec::new(), is_told: false, pipe: std::io::pipe()? };
        Ok(Self { done: Arc::new(Mutex::new(done)), targets: Mutex::default() })
    }

    /// Readable when there are outcomes.
    fn fileno(&self) -> i32 {
        lock(&self.done).pipe.0.as_raw_fd()
    }

    /// All outcomes since the last call: (key, whether it succeeded, value or exception).
    fn fetch<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let outcomes = {
            let mut done = lock(&self.done);
            if done.is_told {
                done.pipe.0.read_exact(&mut [0])?;
                done.is_told = false;
            }
            std::mem::take(&mut done.outcomes)
        };
        let list = PyList::empty(py);
        for (key, outcome) in outcomes {
            let outcome = outcome.map_err(|error| exception(py, &error));
            // What fails here fails its own request only: the others are waited for, too.
            let told = match outcome.and_then(|reply| self.value(py, key, reply)) {
                Ok(value) => (key, true, value),
                Err(failure) => {
                    lock(&self.targets).remove(&key);
                    (key, false, failure.into_value(py).into_bound(py).into_any())
                }
            };
            list.append(told)?;
        }
        Ok(list)
    }

    /// Lets go of the buffer that `readinto` was given: nothing is copied to it any more.
    fn forget(&self, key: u64) {
        let buffer = lock(&self.targets).get_mut(&key).and_then(Option::take);
        drop(buffer);
    }

    fn read(&self, volume: &Volume, key: u64, offset: u64, length: usize) {
        self.submit(volume, key, Request::Read { offset, len: length });
    }

    fn readinto(
        &self,
        volume: &Volume,
        key: u64,
        offset: u64,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let filling = Filling::new(writable(buffer)?);
        let landing = filling.landing();
        lock(&self.targets).insert(key, Some(filling));
        self.submit(volume, key, Request::ReadTo { offset, landing });
        Ok(())
    }

    fn write(
        &self,
        volume: &Volume,
        key: u64,
        offset: u64,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.submit(volume, key, Request::Write { offset, data: whole(data)? });
        Ok(())
    }

    fn write_zeroes(&self, volume: &Volume, key: u64, offset: u64, length: u64) {
        self.submit(volume, key, Request::WriteZeroes { offset, len: length });
    }

    fn deallocate(&self, volume: &Volume, key: u64, offset: u64, length: u64) {
        self.submit(volume, key, Request::Deallocate { offset, len: length });
    }

    fn flush(&self, volume: &Volume, key: u64) {
        self.submit(volume, key, Request::Flush);
    }

    fn compare(
        &self,
        volume: &Volume,
        key: u64,
        offset: u64,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.submit(volume, key, Request::Compare { offset, data: whole(data)? });
        Ok(())
    }

    fn compare_and_swap(
        &self,
        volume: &Volume,
        key: u64,
        offset: u64,
        expected: &Bound<'_, PyAny>,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (expected, data) = (whole(expected)?, whole(data)?);
        self.submit(volume, key, Request::CompareAndSwap { offset, expected, data });
        Ok(())
    }
    fn read_ex(&self, volume: &Volume, key: u64, offset: u64, length: usize) {
        self.submit(volume, key, Request::ReadEx { offset, len: length });
    }

    fn write_ex(
        &self,
        volume: &Volume,
        key: u64,
        offset: u64,
        data: Bound<'_, PyAny>,
        metadata: Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let blocks = whole_blocks((data, metadata))?;
        self.submit(volume, key, Request::WriteEx { offset, blocks });
        Ok(())
    }

    fn compare_ex(
        &self,
        volume: &Volume,
        key: u64,
        offset: u64,
        data: Bound<'_, PyAny>,
        metadata: Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let blocks = whole_blocks((data, metadata))?;
        self.submit(volume, key, Request::CompareEx { offset, blocks });
        Ok(())
    }

    fn compare_and_swap_ex(
        &self,
        volume: &Volume,
        key: u64,
        offset: u64,
        expected: Blocks<'_>,
        blocks: Blocks<'_>,
    ) -> PyResult<()> {
        let (expected, blocks) = (whole_blocks(expected)?, whole_blocks(blocks)?);
        self.submit(volume, key, Request::CompareAndSwapEx { offset, expected, blocks });
        Ok(())
    }
}
