//! Requests that do not wait.

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use farflash_client::{Data, Error, Reply, Request, Swap, Volume};

use crate::edge::{Failure, OK, bytes, c_text, check_memory, edge, reference};
use crate::structs::CRequest;
use crate::volume::differs;

/// `farflash_callback`
pub type Callback = unsafe extern "C" fn(*mut c_void, c_int, u64, *const c_char);

/// Whom to tell, and where data that is read goes.
struct Caller {
    done: Callback,
    context: *mut c_void,
    buffer: *mut u8,
    len: usize,
}

// SAFETY: by `farflash.h`, the callback is made to be called on a thread of the library with its context, and
// the memory to be read into is the library's until then.
unsafe impl Send for Caller {}

impl Caller {
    fn finish(self, outcome: Result<Reply, Error>) {
        let told = match outcome {
            Ok(Reply::Data(data)) => {
                debug_assert_eq!(data.len(), self.len);
                let mut at = 0;
                for piece in data.pieces() {
                    // SAFETY: the pieces of a read add up to `len` bytes, and by `farflash.h` the
                    // memory is that long and ours until the callback; a buffer of ours cannot
                    // overlap it.
                    unsafe {
                        self.buffer.add(at).copy_from_nonoverlapping(piece.as_ptr(), piece.len());
                    }
                    at += piece.len();
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
        // SAFETY: the caller's promise.
        let request = unsafe { translate(asked) }?;
        let len = usize::try_from(asked.len).unwrap_or(usize::MAX);
        let caller = Caller { done, context, buffer: asked.buffer.cast(), len };
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
    let memory = || {
        let too_long = || Failure::argument(format!("len {len} is more than memory has"));
        usize::try_from(len).map_err(|_| too_long())
    };
    let data = |pointer: *const c_void, name| {
        // SAFETY: the caller's promise.
        Ok::<_, Failure>(Data::from(unsafe { bytes(pointer.cast(), memory()?, name) }?))
    };
    Ok(match op {
        0 => {
            check_memory(buffer.cast(), memory()?, "buffer")?;
            Request::Read { offset, len: memory()? }
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
        _ => return Err(Failure::argument(format!("there is no request {op}"))),
    })
}
