//! A volume, and requests that wait.

use std::collections::VecDeque;

use farflash_client::{
    BlockData, Data, Error, FailureDomain, Properties, ReadData, Reply, Request, Swap,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::buffers::{copy_in, copy_in_metadata, readable, writable};
use crate::errors::exception;
use crate::lending::{Loan, Rooms};
use crate::numbers::{Length, Offset};
use crate::waiting::{Interrupted, LOOK, drain, outcome, wait};

/// Bytes of one request of those in which a long read or write is done.
const STRIDE: usize = 4 << 20;
/// Such requests that are under way at a time.
const STRIDES_AT_ONCE: usize = 2;

/// An open volume. Usable on any thread; a context manager that closes it.
///
/// Offsets and lengths are in bytes, and multiples of block_size. Get one from farflash.open_volume or
/// Cluster.open_volume.
#[pyclass(frozen, module = "farflash")]
pub(crate) struct Volume(pub(crate) farflash_client::Volume);

/// Returns true if it may change the content of the volume.
fn changes(request: &Request) -> bool {
    !matches!(
        request,
        Request::Read { .. }
            | Request::ReadTo { .. }
            | Request::ReadEx { .. }
            | Request::Compare { .. }
            | Request::CompareEx { .. }
            | Request::Flush
    )
}

/// `(done, offset of the first byte that differs)`
pub(crate) fn swap_tuple(py: Python<'_>, swap: Swap) -> PyResult<Bound<'_, PyTuple>> {
    match swap {
        Swap::Done => (true, None::<u64>).into_pyobject(py),
        Swap::Differs { offset_bytes } => (false, Some(offset_bytes)).into_pyobject(py),
    }
}

impl Volume {
    /// Carries out a request, and waits for it.
    fn run(&self, py: Python<'_>, request: Request) -> PyResult<Reply> {
        let changes = changes(&request);
        match outcome(py, self.0.start(request)) {
            Ok(outcome) => outcome.map_err(|error| exception(py, &error)),
            Err(Interrupted { raised, pending }) => {
                Err(drain(py, raised, Some(pending).filter(|_| changes)))
            }
        }
    }

    fn done(&self, py: Python<'_>, request: Request) -> PyResult<()> {
        self.run(py, request).map(drop)
    }

    fn swap<'py>(&self, py: Python<'py>, request: Request) -> PyResult<Bound<'py, PyAny>> {
        let reply = self.run(py, request)?;
        let swap = if let Reply::Swap(swap) = reply { swap } else { Swap::Done };
        py.import("farflash._swap")?.getattr("Swap")?.call1(swap_tuple(py, swap)?)
    }

    fn properties(&self, py: Python<'_>) -> PyResult<Properties> {
        py.detach(|| self.0.properties()).map_err(|error| exception(py, &error))
    }

    /// Does in strides what is long: `make` makes a request of each, from its offset in the volume and its place
    /// and length, and `each` gets the replies in order, with their places. When this fails the others have
    /// ended, too: what is written next is not written over. A signal does not wait for reads.
    fn in_strides(
        &self,
        py: Python<'_>,
        (offset, len): (u64, usize),
        mut make: impl FnMut(u64, (usize, usize)) -> Request,
        mut each: impl FnMut(usize, Reply),
    ) -> PyResult<()> {
        let mut strides = strides(py, offset, len)?;
        // Each stride is checked when it is carried out. By the last one the first are done.
        if len > STRIDE {
            match outcome(py, self.0.start_check_range(offset, len as u64)) {
                Ok(reaches) => reaches.map_err(|error| exception(py, &error))?,
                Err(interrupted) => return Err(interrupted.raised),
            }
        }
        let (mut started, mut changes) = (VecDeque::new(), false);
        loop {
            while started.len() < STRIDES_AT_ONCE {
                let Some((at, len)) = strides.next() else { break };
                let request = make(offset + at as u64, (at, len));
                changes = self::changes(&request);
                started.push_back((at, self.0.start(request)));
            }
            let Some((at, pending)) = started.pop_front() else { return Ok(()) };
            let (failure, first) = match outcome(py, pending) {
                Ok(Ok(reply)) => {
                    each(at, reply);
                    continue;
                }
                Ok(Err(error)) => (exception(py, &error), None),
                Err(Interrupted { raised, pending }) => (raised, Some(pending)),
            };
            let under_way = first.into_iter().chain(started.into_iter().map(|(_, rest)| rest));
            return Err(if changes { drain(py, failure, under_way) } else { failure });
        }
    }

    /// Reads to where there is room, which is closed at the end, however that comes.
    fn read_to(&self, py: Python<'_>, place: (u64, usize), mut rooms: Rooms<'_>) -> PyResult<()> {
        let read = |offset, (at, len)| Request::ReadTo { offset, landing: rooms.open(at, len) };
        self.in_strides(py, place, read, |_, _| ())
    }

    /// Writes in strides what `make` makes requests of, from places and lengths in what is lent.
    fn write_lent(
        &self,
        py: Python<'_>,
        (offset, len): (u64, usize),
        loan: &Loan,
        make: impl FnMut(u64, (usize, usize)) -> Request,
    ) -> PyResult<usize> {
        let written = self.in_strides(py, (offset, len), make, |_, _| ());
        returned(py, &[loan], written).map(|()| len)
    }

    /// Returns true if the volume reached so far when it was opened. Otherwise the target is asked before memory is
    /// allocated for data that it may not have: by a request that allocates the memory itself.
    pub(crate) fn reaches(&self, offset: u64, len: usize) -> bool {
        let end = offset.checked_add(len as u64);
        end.is_some_and(|end| end <= self.0.opened().size_bytes)
    }

    /// Bytes of metadata that `len` bytes of data have.
    fn metadata_len(&self, len: usize) -> usize {
        len / self.0.block_size() as usize * self.0.metadata_size() as usize
    }
}

/// Waits until what was lent is the caller's again, behind the outcome of the request. What failed may have left
/// something behind, if a signal did not wait for it: it is kept then.
fn returned<T>(py: Python<'_>, loans: &[&Loan], outcome: PyResult<T>) -> PyResult<T> {
    for loan in loans {
        while !loan.wait(py, LOOK) && outcome.is_ok() {
            py.check_signals()?;
        }
    }
    outcome
}

/// Place and length of the parts of a long request.
fn strides(
    py: Python<'_>,
    offset: u64,
    len: usize,
) -> PyResult<impl Iterator<Item = (usize, usize)> + use<>> {
    if offset.checked_add(len as u64).is_none() {
        let error = Error::OutOfRange { offset, len: len as u64 };
        return Err(exception(py, &error));
    }
    // A request for nothing is checked, too.
    let starts = (0..len.max(1)).step_by(STRIDE);
    Ok(starts.map(move |at| (at, STRIDE.min(len - at))))
}

#[pymethods]
impl Volume {
    /// Reads length bytes at offset.
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: Offset,
        length: Length,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (offset, len) = (offset.0, length.0);
        if !self.reaches(offset, len)
            && let Reply::Data(data) = self.run(py, Request::Read { offset, len })?
        {
            return to_bytes(py, &data);
        }
        PyBytes::new_with(py, len, |to| self.read_to(py, (offset, len), Rooms::of_bytes(to)))
    }

    /// Fills a writable buffer of bytes with what is at offset.
    fn readinto(
        &self,
        py: Python<'_>,
        offset: Offset,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let buffer = writable(buffer)?;
        let len = buffer.len_bytes();
        self.read_to(py, (offset.0, len), Rooms::of_buffer(&buffer))?;
        Ok(len)
    }

    /// Writes a bytes-like object to offset. It is durable when this returns.
    fn write(&self, py: Python<'_>, offset: Offset, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let buffer = readable(data)?;
        let len = buffer.len_bytes();
        let loan = Loan::new(py, buffer);
        let write = |offset, (at, len)| Request::Write { offset, data: loan.lend(at, len) };
        self.write_lent(py, (offset.0, len), &loan, write)
    }

    /// Writes a bytes-like object to offset, all or nothing; TooLarge above atomic_write_size.
    fn write_tx(&self, py: Python<'_>, offset: Offset, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let buffer = readable(data)?;
        let len = buffer.len_bytes();
        let loan = Loan::new(py, buffer);
        let written = self.done(py, Request::WriteTx { offset: offset.0, data: loan.lend_whole() });
        returned(py, &[&loan], written).map(|()| len)
    }

    /// Makes a range read as zeroes.
    fn write_zeroes(&self, py: Python<'_>, offset: Offset, length: Length) -> PyResult<()> {
        self.done(py, Request::WriteZeroes { offset: offset.0, len: length.0 as u64 })
    }

    /// Gives a range's space back. It reads as zeroes then.
    fn deallocate(&self, py: Python<'_>, offset: Offset, length: Length) -> PyResult<()> {
        self.done(py, Request::Deallocate { offset: offset.0, len: length.0 as u64 })
    }

    /// Makes all that was written durable, on servers that do not do so at once.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.done(py, Request::Flush)
    }

    /// Returns True if data is what is at offset.
    fn compare(&self, py: Python<'_>, offset: Offset, data: &Bound<'_, PyAny>) -> PyResult<bool> {
        let loan = Loan::new(py, readable(data)?);
        let compared = self.run(py, Request::Compare { offset: offset.0, data: loan.lend_whole() });
        Ok(matches!(returned(py, &[&loan], compared)?, Reply::Equal(true)))
    }

    /// Replaces what is at offset by data if it is expected, at most atomic_write_size bytes.
    ///
    /// True if so. Else its miscompare is the first byte that differs.
    fn compare_and_swap<'py>(
        &self,
        py: Python<'py>,
        offset: Offset,
        expected: &Bound<'py, PyAny>,
        data: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (old, new) = (Loan::new(py, readable(expected)?), Loan::new(py, readable(data)?));
        let (expected, data) = (old.lend_whole(), new.lend_whole());
        let swapped = self.swap(py, Request::CompareAndSwap { offset: offset.0, expected, data });
        returned(py, &[&old, &new], swapped)
    }

    /// Reads the blocks of length bytes of data at offset: their data and their metadata.
    fn read_ex<'py>(
        &self,
        py: Python<'py>,
        offset: Offset,
        length: Length,
    ) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let (offset, len) = (offset.0, length.0);
        if !self.reaches(offset, len)
            && let Reply::Blocks(blocks) = self.run(py, Request::ReadEx { offset, len })?
        {
            return Ok((to_bytes(py, &blocks.data)?, PyBytes::new(py, &blocks.metadata)));
        }
        let mut metadata = Vec::new();
        let data = PyBytes::new_with(py, len, |to| {
            let read = |offset, (_, len)| Request::ReadEx { offset, len };
            self.in_strides(py, (offset, len), read, |at, reply| {
                if let Reply::Blocks(blocks) = reply {
                    blocks.data.copy_to(&mut to[at..at + blocks.data.len()]);
                    metadata.extend(blocks.metadata);
                }
            })
        })?;
        Ok((data, PyBytes::new(py, &metadata)))
    }

    /// Writes data and metadata of blocks to offset; the length of the data.
    fn write_ex(
        &self,
        py: Python<'_>,
        offset: Offset,
        data: &Bound<'_, PyAny>,
        metadata: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let (data, metadata) = (readable(data)?, readable(metadata)?);
        let len = data.len_bytes();
        let fits = self.0.check_metadata(len, metadata.len_bytes());
        fits.map_err(|error| exception(py, &error))?;
        let loan = Loan::new(py, data);
        let write = |offset, (at, len)| {
            let (start, metadata_len) = (self.metadata_len(at), self.metadata_len(len));
            let blocks = BlockData {
                data: loan.lend(at, len),
                metadata: copy_in_metadata(py, &metadata, start, metadata_len),
            };
            Request::WriteEx { offset, blocks }
        };
        self.write_lent(py, (offset.0, len), &loan, write)
    }

    /// Writes data and metadata of blocks to offset, all or nothing; TooLarge above atomic_write_size of data.
    fn write_tx_ex(
        &self,
        py: Python<'_>,
        offset: Offset,
        data: Bound<'_, PyAny>,
        metadata: Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let (loan, blocks) = lent_blocks((data, metadata))?;
        let len = blocks.data.len();
        let written = self.done(py, Request::WriteTxEx { offset: offset.0, blocks });
        returned(py, &[&loan], written).map(|()| len)
    }

    /// Returns True if data and metadata are those of the blocks at offset.
    fn compare_ex(
        &self,
        py: Python<'_>,
        offset: Offset,
        data: Bound<'_, PyAny>,
        metadata: Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let (loan, blocks) = lent_blocks((data, metadata))?;
        let compared = self.run(py, Request::CompareEx { offset: offset.0, blocks });
        Ok(matches!(returned(py, &[&loan], compared)?, Reply::Equal(true)))
    }

    /// Replaces the blocks at offset if they are as expected; both are data and metadata.
    fn compare_and_swap_ex<'py>(
        &self,
        py: Python<'py>,
        offset: Offset,
        expected: Blocks<'py>,
        blocks: Blocks<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let ((old, expected), (new, blocks)) = (lent_blocks(expected)?, lent_blocks(blocks)?);
        let swapped =
            self.swap(py, Request::CompareAndSwapEx { offset: offset.0, expected, blocks });
        returned(py, &[&old, &new], swapped)
    }

    /// Closes the volume. Requests under way fail with Closed.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        wait(py, self.0.start_close())
    }

    /// Its size in bytes, now.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.properties(py)?.size_bytes)
    }

    /// The unit of offsets and lengths, in bytes.
    #[getter]
    fn block_size(&self) -> u32 {
        self.0.block_size()
    }

    /// Bytes of metadata that each block has beside its data.
    #[getter]
    fn metadata_size(&self) -> u32 {
        self.0.metadata_size()
    }

    /// Bytes of the longest write that is wholly there or wholly absent after a power failure.
    #[getter]
    fn atomic_write_size(&self) -> u64 {
        self.0.opened().atomic_write_bytes
    }

    /// Bytes of the longest request that goes to the server in one piece.
    #[getter]
    fn transfer_size_max(&self) -> u64 {
        self.0.opened().transfer_bytes_max
    }

    /// Its id, for life.
    #[getter]
    fn uuid(&self) -> Option<String> {
        self.0.opened().uuid().map(|uuid| uuid.to_string())
    }

    /// The NVMe qualified name of its subsystem.
    #[getter]
    fn nqn(&self) -> String {
        self.0.opened().nqn.to_string()
    }

    /// The address at which it is served now, as ip:port.
    #[getter]
    fn address(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.properties(py)?.address.to_string())
    }

    /// Its location, and the domain it may fail with: host, labels, core, and the device with its model, serial
    /// number and health. None if the target does not report it.
    fn failure_domain<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        domain_dict(py, wait(py, self.0.start_failure_domain())?)
    }

    /// Times that its connection was made again.
    #[getter]
    fn reconnects(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.properties(py)?.reconnects)
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        format!("<farflash.Volume {}>", self.0.opened().nqn)
    }
}

/// The domain a volume may fail with, if the target reports it.
pub(crate) fn domain_dict(
    py: Python<'_>,
    domain: Option<FailureDomain>,
) -> PyResult<Option<Bound<'_, PyDict>>> {
    let Some(domain) = domain else { return Ok(None) };
    let said = PyDict::new(py);
    said.set_item("host", domain.host)?;
    said.set_item("labels", domain.labels)?;
    said.set_item("core", domain.core)?;
    said.set_item("device", domain.device)?;
    said.set_item("model", Some(domain.model).filter(|text| !text.is_empty()))?;
    said.set_item("serial", Some(domain.serial).filter(|text| !text.is_empty()))?;
    said.set_item("health", domain.health.name())?;
    Ok(Some(said))
}

/// All of a bytes-like object.
pub(crate) fn whole(object: &Bound<'_, PyAny>) -> PyResult<Data> {
    let buffer = readable(object)?;
    Ok(copy_in(object.py(), &buffer, 0, buffer.len_bytes()))
}

/// Data and metadata of blocks, two bytes-like objects.
pub(crate) type Blocks<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);

/// All of both.
pub(crate) fn whole_blocks((data, metadata): Blocks<'_>) -> PyResult<BlockData> {
    Ok(BlockData { data: whole(&data)?, metadata: copied_metadata(&metadata)? })
}

/// Both, the data as it is lent.
fn lent_blocks((data, metadata): Blocks<'_>) -> PyResult<(Loan, BlockData)> {
    let metadata = copied_metadata(&metadata)?;
    let loan = Loan::new(data.py(), readable(&data)?);
    let data = loan.lend_whole();
    Ok((loan, BlockData { data, metadata }))
}

/// A copy of the metadata of blocks.
pub(crate) fn copied_metadata(metadata: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let buffer = readable(metadata)?;
    Ok(copy_in_metadata(metadata.py(), &buffer, 0, buffer.len_bytes()))
}

/// Returns the data that was read, as bytes.
pub(crate) fn to_bytes<'py>(py: Python<'py>, data: &ReadData) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, data.len(), |to| {
        data.copy_to(to);
        Ok(())
    })
}
