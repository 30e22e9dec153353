//! Requests that do not wait, for asyncio: their outcomes are fetched when a pipe says that there are some.

use std::collections::BTreeMap;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farflash_client::{BlockData, Data, Error, FailureDomain, Reply, Request};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyList};

use crate::buffers::{readable, writable};
use crate::errors::exception;
use crate::lending::{Filling, Loan, Reading};
use crate::numbers::{Length, Offset};
use crate::volume::{
    Blocks, Volume, copied_metadata, domain_dict, swap_tuple, to_bytes, whole, whole_blocks,
};

/// The answer to a request.
enum Answer {
    Reply(Reply),
    FailureDomain(Option<FailureDomain>),
}

type Outcome = (u64, Result<Answer, Error>);

/// Shared with the library's thread: nothing of Python's is in it (PYTHON-1).
struct Done {
    outcomes: Vec<Outcome>,
    /// True if there is a byte in the pipe.
    is_told: bool,
    /// Both ends stay until the last request has its outcome: writing to a pipe without a reader may be a signal,
    /// which ends the process.
    pipe: (PipeReader, PipeWriter),
}

/// Python's memory that a request is about.
enum Memory {
    /// A buffer to be read into.
    Filled(Filling),
    /// The bytes that are to be returned.
    Read(Reading),
    /// A buffer that is written from, and kept for that alone.
    Lent { _loan: Loan },
    /// The data to be read is not wanted any more.
    Forgotten,
}

/// The outcome of a request on its way, told when the last that has this drops it: the request itself, which has an
/// outcome then, and what was lent to it.
struct Telling {
    done: Arc<Mutex<Done>>,
    outcome: Mutex<Option<Outcome>>,
}

impl Drop for Telling {
    fn drop(&mut self) {
        if let Some(outcome) = lock(&self.outcome).take() {
            tell(&self.done, outcome);
        }
    }
}

fn tell(done: &Mutex<Done>, outcome: Outcome) {
    let mut done = lock(done);
    done.outcomes.push(outcome);
    // One byte at most, so that this never waits.
    if !done.is_told && done.pipe.1.write(&[1]).is_ok() {
        done.is_told = true;
    }
}

/// Outcomes of requests that do not wait. Internal; see farflash.AsyncVolume.
#[pyclass(frozen, module = "farflash")]
pub(crate) struct Completions {
    done: Arc<Mutex<Done>>,
    /// By the keys of their requests.
    memory: Mutex<BTreeMap<u64, Memory>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Completions {
    fn submit(&self, volume: &Volume, key: u64, request: Request) {
        let done = self.done.clone();
        volume.0.submit(request, move |outcome| tell(&done, (key, outcome.map(Answer::Reply))));
    }

    /// The same for what is written from `buffer`, which is no longer needed when the outcome is told.
    fn submit_lent(
        &self,
        volume: &Volume,
        key: u64,
        loan: Loan,
        make: impl FnOnce(Data) -> Request,
    ) {
        let telling = Telling { done: self.done.clone(), outcome: Mutex::default() };
        let telling = Arc::new(telling);
        let request = make(loan.lend_all(telling.clone()));
        lock(&self.memory).insert(key, Memory::Lent { _loan: loan });
        volume.0.submit(request, move |outcome| {
            *lock(&telling.outcome) = Some((key, outcome.map(Answer::Reply)));
        });
    }

    /// The same for blocks with metadata, which is copied.
    fn submit_blocks(
        &self,
        volume: &Volume,
        key: u64,
        (data, metadata): (&Bound<'_, PyAny>, &Bound<'_, PyAny>),
        make: impl FnOnce(BlockData) -> Request,
    ) -> PyResult<()> {
        let metadata = copied_metadata(metadata)?;
        let loan = Loan::new(data.py(), readable(data)?);
        self.submit_lent(volume, key, loan, |data| make(BlockData { data, metadata }));
        Ok(())
    }

    fn value<'py>(&self, py: Python<'py>, key: u64, answer: Answer) -> PyResult<Bound<'py, PyAny>> {
        let memory = lock(&self.memory).remove(&key);
        let reply = match answer {
            Answer::Reply(reply) => reply,
            Answer::FailureDomain(domain) => return domain_dict(py, domain)?.into_bound_py_any(py),
        };
        Ok(match (reply, memory) {
            (Reply::Done, Some(Memory::Filled(filled))) => {
                filled.len().into_pyobject(py)?.into_any()
            }
            (Reply::Done, Some(Memory::Read(reading))) => reading.finish(py).into_any(),
            (Reply::Done, _) => py.None().into_bound(py),
            (Reply::Data(data), _) => to_bytes(py, &data)?.into_any(),
            (Reply::Blocks(blocks), _) => {
                let data = to_bytes(py, &blocks.data)?;
                (data, PyBytes::new(py, &blocks.metadata)).into_pyobject(py)?.into_any()
            }
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
        Ok(Self { done: Arc::new(Mutex::new(done)), memory: Mutex::default() })
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
            let told = match outcome.and_then(|answer| self.value(py, key, answer)) {
                Ok(value) => (key, true, value),
                Err(failure) => {
                    let memory = lock(&self.memory).remove(&key);
                    drop(memory);
                    (key, false, failure.into_value(py).into_bound(py).into_any())
                }
            };
            list.append(told)?;
        }
        Ok(list)
    }

    /// Lets go of what is read into: nothing is copied there any more. What is written stays where it is.
    fn forget(&self, key: u64) {
        let forgotten = match lock(&self.memory).get_mut(&key) {
            Some(memory @ (Memory::Filled(_) | Memory::Read(_))) => {
                std::mem::replace(memory, Memory::Forgotten)
            }
            _ => return,
        };
        drop(forgotten);
    }

    fn read(
        &self,
        py: Python<'_>,
        volume: &Volume,
        key: u64,
        offset: Offset,
        length: Length,
    ) -> PyResult<()> {
        let (offset, len) = (offset.0, length.0);
        if !volume.reaches(offset, len) {
            self.submit(volume, key, Request::Read { offset, len });
            return Ok(());
        }
        let reading = Reading::new(py, len)?;
        let landing = reading.landing();
        lock(&self.memory).insert(key, Memory::Read(reading));
        self.submit(volume, key, Request::ReadTo { offset, landing });
        Ok(())
    }

    fn readinto(
        &self,
        volume: &Volume,
        key: u64,
        offset: Offset,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let filling = Filling::new(writable(buffer)?);
        let landing = filling.landing();
        lock(&self.memory).insert(key, Memory::Filled(filling));
        self.submit(volume, key, Request::ReadTo { offset: offset.0, landing });
        Ok(())
    }

    fn write(
        &self,
        volume: &Volume,
        key: u64,
        offset: Offset,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let loan = Loan::new(data.py(), readable(data)?);
        self.submit_lent(volume, key, loan, |data| Request::Write { offset: offset.0, data });
        Ok(())
    }

    fn write_tx(
        &self,
        volume: &Volume,
        key: u64,
        offset: Offset,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let loan = Loan::new(data.py(), readable(data)?);
        self.submit_lent(volume, key, loan, |data| Request::WriteTx { offset: offset.0, data });
        Ok(())
    }

    fn write_zeroes(&self, volume: &Volume, key: u64, offset: Offset, length: Length) {
        self.submit(volume, key, Request::WriteZeroes { offset: offset.0, len: length.0 as u64 });
    }

    fn deallocate(&self, volume: &Volume, key: u64, offset: Offset, length: Length) {
        self.submit(volume, key, Request::Deallocate { offset: offset.0, len: length.0 as u64 });
    }

    fn flush(&self, volume: &Volume, key: u64) {
        self.submit(volume, key, Request::Flush);
    }

    fn failure_domain(&self, volume: &Volume, key: u64) {
        let done = self.done.clone();
        volume.0.submit_failure_domain(move |outcome| {
            tell(&done, (key, outcome.map(Answer::FailureDomain)));
        });
    }

    fn compare(
        &self,
        volume: &Volume,
        key: u64,
        offset: Offset,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.submit(volume, key, Request::Compare { offset: offset.0, data: whole(data)? });
        Ok(())
    }

    fn compare_and_swap(
        &self,
        volume: &Volume,
        key: u64,
        offset: Offset,
        expected: &Bound<'_, PyAny>,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (expected, data) = (whole(expected)?, whole(data)?);
        self.submit(volume, key, Request::CompareAndSwap { offset: offset.0, expected, data });
        Ok(())
    }

    fn read_ex(&self, volume: &Volume, key: u64, offset: Offset, length: Length) {
        self.submit(volume, key, Request::ReadEx { offset: offset.0, len: length.0 });
    }

    fn write_ex(
        &self,
        volume: &Volume,
        key: u64,
        offset: Offset,
        data: &Bound<'_, PyAny>,
        metadata: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let request = |blocks| Request::WriteEx { offset: offset.0, blocks };
        self.submit_blocks(volume, key, (data, metadata), request)
    }

    fn write_tx_ex(
        &self,
        volume: &Volume,
        key: u64,
        offset: Offset,
        data: &Bound<'_, PyAny>,
        metadata: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let request = |blocks| Request::WriteTxEx { offset: offset.0, blocks };
        self.submit_blocks(volume, key, (data, metadata), request)
    }

    fn compare_ex(
        &self,
        volume: &Volume,
        key: u64,
        offset: Offset,
        data: Bound<'_, PyAny>,
        metadata: Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let blocks = whole_blocks((data, metadata))?;
        self.submit(volume, key, Request::CompareEx { offset: offset.0, blocks });
        Ok(())
    }

    fn compare_and_swap_ex(
        &self,
        volume: &Volume,
        key: u64,
        offset: Offset,
        expected: Blocks<'_>,
        blocks: Blocks<'_>,
    ) -> PyResult<()> {
        let (expected, blocks) = (whole_blocks(expected)?, whole_blocks(blocks)?);
        self.submit(volume, key, Request::CompareAndSwapEx { offset: offset.0, expected, blocks });
        Ok(())
    }
}
