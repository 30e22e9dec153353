//! Requests that do not wait.

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use farflash_client::{BlockData, Data, Error, Reply, Request, Swap, Volume};

use crate::edge::{Failure, OK, bytes, c_text, check_memory, edge, reference};
use crate::extended::Room;
use crate::structs::{CBlocks, CRequest, CRequestEx};
use crate::volume::differs;

/// `farflash_callback`
pub type Callback = unsafe extern "C" fn(*mut c_void, c_int, u64, *const c_char);

/// The requests with metadata: the first one, the last of the original ones, and one that was added later.
const READ_EX: c_int = 7;
const COMPARE_AND_SWAP_EX: c_int = 10;
const WRITE_TX_EX: c_int = 12;

/// The callback of a request, and the place for data that is read.
struct Caller {
    done: Callback,
    context: *mut c_void,
    room: Room,
}

// SAFETY: by `farflash.h`, the callback is made to be called on a thread of the library with its context, and
// the memory to be read into is the library's until then.
unsafe impl Send for Caller {}

impl Caller {
    fn finish(self, outcome: Result<Reply, Error>) {
        let told = match outcome {
            Ok(Reply::Data(data)) => {
                // SAFETY: a read gives as much data as was asked for, and by `farflash.h` the memory is
                // that long and ours until the callback.
                unsafe { self.room.put_data(0, &data) };
                Ok(())
            }
            Ok(Reply::Blocks(blocks)) => {
                // SAFETY: as above, and `Room::new` has made sure that the metadata of so much data is as
                // long as the memory for it.
                unsafe {
                    self.room.put_data(0, &blocks.data);
                    self.room.put_metadata(0, &blocks.metadata);
                }
                Ok(())
            }
            Ok(Reply::Done | Reply::Equal(true) | Reply::Swap(Swap::Done)) => Ok(()),
            Ok(Reply::Equal(false)) => Err((0, differs())),
            Ok(Reply::Swap(Swap::Differs { offset_bytes })) => Err((offset_bytes, differs())),
            Err(error) => Err((0, Failure::from(error))),
        };
        match told {
            Ok(()) => self.call(OK, 0, std::ptr::null()),
            Err((miscompare, Failure { code, text })) => {
                self.call(code, miscompare, c_text(&text).as_ptr());
            }
        }
    }

    fn call(&self, code: c_int, miscompare: u64, error: *const c_char) {
        // SAFETY: `farflash.h` says how the callback is called; `error` outlives the call.
        unsafe { (self.done)(self.context, code, miscompare, error) }
    }
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_submit(
    volume: *const Volume,
    request: *const CRequest,
    done: Option<Callback>,
    context: *mut c_void,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let (volume, asked) =
            unsafe { (reference(volume, "volume")?, reference(request, "request")?) };
        let done = done.ok_or_else(|| Failure::argument("done is NULL"))?;
        let (request, room) = if matches!(asked.op, READ_EX..=COMPARE_AND_SWAP_EX | WRITE_TX_EX) {
            // SAFETY: the caller's promise; a program that knows of these requests has all the fields.
            unsafe { translate_ex(volume, request.cast()) }?
        } else {
            let room = Room { data: asked.buffer.cast(), ..Room::NONE };
            // SAFETY: the caller's promise.
            (unsafe { translate(asked) }?, room)
        };
        let caller = Caller { done, context, room };
        volume.submit(request, move |outcome| {
            // The whole of it moves in, not its fields: it is what may go to another thread.
            let caller = caller;
            let _ = catch_unwind(AssertUnwindSafe(|| caller.finish(outcome)));
        });
        Ok(())
    })
}

/// The request, with a copy of the data that it brings.
///
/// # Safety
/// Its pointers are null, or as `farflash.h` says.
unsafe fn translate(asked: &CRequest) -> Result<Request, Failure> {
    let CRequest { op, offset, len, buffer, expected } = *asked;
    let data = |pointer: *const c_void, name| {
        // SAFETY: the caller's promise.
        let bytes = unsafe { bytes(pointer.cast(), memory(len, "len")?, name) }?;
        Ok::<_, Failure>(Data::from(bytes))
    };
    Ok(match op {
        0 => {
            check_memory(buffer.cast(), memory(len, "len")?, "buffer")?;
            Request::Read { offset, len: memory(len, "len")? }
        }
        1 => Request::Write { offset, data: data(buffer, "buffer")? },
        2 => Request::WriteZeroes { offset, len },
        3 => Request::Deallocate { offset, len },
        4 => Request::Flush,
        5 => Request::Compare { offset, data: data(buffer, "buffer")? },
        6 => Request::CompareAndSwap {
            offset,
            expected: data(expected, "expected")?,
            data: data(buffer, "buffer")?,
        },
        11 => Request::WriteTx { offset, data: data(buffer, "buffer")? },
        _ => return Err(no_request(op)),
    })
}

/// The request with metadata, with a copy of what it brings, and where what it reads goes.
///
/// # Safety
/// `asked` points to all of a `farflash_request`, whose pointers are null, or as `farflash.h` says.
unsafe fn translate_ex(
    volume: &Volume,
    asked: *const CRequestEx,
) -> Result<(Request, Room), Failure> {
    // SAFETY: the caller's promise.
    let asked = unsafe { reference(asked, "request") }?;
    let CRequest { op, offset, len, buffer, expected } = asked.request;
    let (len, metadata_len) = (memory(len, "len")?, memory(asked.metadata_len, "metadata_len")?);
    let blocks = |data: *const c_void, metadata: *const c_void, names: [&str; 2]| {
        // SAFETY: the caller's promise.
        let (data, metadata) = unsafe {
            (bytes(data.cast(), len, names[0])?, bytes(metadata.cast(), metadata_len, names[1])?)
        };
        Ok::<_, Failure>(BlockData { data: data.into(), metadata: metadata.to_vec() })
    };
    let given = || blocks(buffer, asked.metadata, ["buffer", "metadata"]);
    let request = match op {
        READ_EX => {
            let blocks = CBlocks { data: buffer, len, metadata: asked.metadata, metadata_len };
            return Ok((Request::ReadEx { offset, len }, Room::new(volume, &blocks)?));
        }
        8 => Request::WriteEx { offset, blocks: given()? },
        WRITE_TX_EX => Request::WriteTxEx { offset, blocks: given()? },
        9 => Request::CompareEx { offset, blocks: given()? },
        COMPARE_AND_SWAP_EX => Request::CompareAndSwapEx {
            offset,
            expected: blocks(expected, asked.expected_metadata, ["expected", "expected_metadata"])?,
            blocks: given()?,
        },
        _ => return Err(no_request(op)),
    };
    Ok((request, Room::NONE))
}

/// A length as memory has them.
fn memory(len: u64, name: &str) -> Result<usize, Failure> {
    let too_long = |_| Failure::argument(format!("{name} {len} is more than memory has"));
    usize::try_from(len).map_err(too_long)
}

fn no_request(op: c_int) -> Failure {
    Failure::argument(format!("there is no request {op}"))
}
