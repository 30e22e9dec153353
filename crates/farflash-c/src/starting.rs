//! Provisioning that does not wait.

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use farflash_client::{Cluster, Error, Pending, Volume};

use crate::cluster::{auth_change, promised, resize_options, restrictions};
use crate::edge::{Failure, OK, c_text, check_aligned, edge, put, reference, text};
use crate::structs::{CCutOff, CNewVolume, COpenOptions, CTokens};
use crate::submit::Callback;
use crate::volume::Opening;

/// The callback of a request, and the place for its result.
pub(crate) struct Caller<R> {
    done: Callback,
    context: *mut c_void,
    /// Null if it is not wanted.
    result: *mut R,
}

// SAFETY: by `farflash.h`, the callback is made to be called on a thread of the library with its context, and the memory for
// the result is the library's until then.
unsafe impl<R> Send for Caller<R> {}

impl<R> Caller<R> {
    pub(crate) fn new(
        done: Option<Callback>,
        context: *mut c_void,
        result: *mut R,
    ) -> Result<Self, Failure> {
        let done = done.ok_or_else(|| Failure::argument("done is NULL"))?;
        Ok(Self { done, context, result })
    }

    /// Is told the outcome of `pending`, which `give` makes what is put to the caller's memory.
    pub(crate) fn wait_for<T: Send + 'static>(self, pending: Pending<T>, give: fn(T) -> R)
    where
        R: 'static,
    {
        pending.on_done(move |outcome| {
            // The whole of it moves in, not its fields: it is what may go to another thread.
            let caller = self;
            let _ = catch_unwind(AssertUnwindSafe(|| caller.finish(outcome, give)));
        });
    }

    fn finish<T>(self, outcome: Result<T, Error>, give: fn(T) -> R) {
        match outcome {
            Ok(_) if self.result.is_null() => self.call(OK, std::ptr::null()),
            Ok(made) => {
                // SAFETY: by `farflash.h` the memory is the library's until the callback.
                let _ = unsafe { put(self.result, "result", give(made)) };
                self.call(OK, std::ptr::null());
            }
            Err(error) => {
                let Failure { code, text } = Failure::from(error);
                self.call(code, c_text(&text).as_ptr());
            }
        }
    }

    fn call(&self, code: c_int, error: *const c_char) {
        // SAFETY: `farflash.h` says how the callback is called; `error` outlives the call.
        unsafe { (self.done)(self.context, code, 0, error) }
    }
}

/// Begins a change of a volume, of which the caller is told no more than that it is done.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
unsafe fn change<T: Send + 'static>(
    cluster: *const Cluster,
    volume: *const c_char,
    (done, context): (Option<Callback>, *mut c_void),
    start: impl FnOnce(&Cluster, &str) -> Result<Pending<T>, Failure>,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let (cluster, volume) =
            unsafe { (reference(cluster, "cluster")?, text(volume, "volume")?) };
        let caller = Caller::new(done, context, std::ptr::null_mut())?;
        caller.wait_for(start(cluster, volume)?, drop);
        Ok(())
    })
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_start_create(
    cluster: *const Cluster,
    volume: *const CNewVolume,
    tokens: *mut CTokens,
    done: Option<Callback>,
    context: *mut c_void,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let (cluster, volume) =
            unsafe { (reference(cluster, "cluster")?, reference(volume, "volume")?) };
        // SAFETY: the caller's promise.
        let new = unsafe { volume.new_volume() }?;
        let caller = Caller::new(done, context, tokens)?;
        caller.wait_for(cluster.start_create(&new), |made| {
            CTokens::new(&made.volume.id.to_string(), &made.tokens)
        });
        Ok(())
    })
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_start_delete(
    cluster: *const Cluster,
    volume: *const c_char,
    done: Option<Callback>,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        change(cluster, volume, (done, context), |cluster, volume| Ok(cluster.start_delete(volume)))
    }
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_start_delete_with_data(
    cluster: *const Cluster,
    volume: *const c_char,
    done: Option<Callback>,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        change(cluster, volume, (done, context), |cluster, volume| {
            Ok(cluster.start_delete_with_data(volume))
        })
    }
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_start_resize(
    cluster: *const Cluster,
    volume: *const c_char,
    size_bytes: u64,
    cut_off: *mut CCutOff,
    done: Option<Callback>,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { farflash_start_resize_with(cluster, volume, size_bytes, 0, 0, cut_off, done, context) }
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_start_resize_with(
    cluster: *const Cluster,
    volume: *const c_char,
    size_bytes: u64,
    if_size_bytes: u64,
    lose_data: c_int,
    cut_off: *mut CCutOff,
    done: Option<Callback>,
    context: *mut c_void,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let (cluster, volume) =
            unsafe { (reference(cluster, "cluster")?, text(volume, "volume")?) };
        check_aligned(cut_off, "cut_off")?;
        let caller = Caller::new(done, context, cut_off)?;
        let options = resize_options(if_size_bytes, lose_data);
        let pending = cluster.start_resize_with(volume, size_bytes, &options);
        caller.wait_for(pending, |record| CCutOff::of(&record));
        Ok(())
    })
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_start_set_slo(
    cluster: *const Cluster,
    volume: *const c_char,
    share: u32,
    reads_per_second: u64,
    writes_per_second: u64,
    done: Option<Callback>,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        change(cluster, volume, (done, context), |cluster, volume| {
            let slo = promised(share, reads_per_second, writes_per_second)?;
            Ok(cluster.start_set_slo(volume, slo))
        })
    }
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_start_change_auth(
    cluster: *const Cluster,
    volume: *const c_char,
    cut: c_int,
    grace_seconds: u32,
    tokens: *mut CTokens,
    done: Option<Callback>,
    context: *mut c_void,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let (cluster, volume) =
            unsafe { (reference(cluster, "cluster")?, text(volume, "volume")?) };
        let change = auth_change(cut, grace_seconds, tokens)?;
        let caller = Caller::new(done, context, tokens)?;
        let pending = cluster.start_change_auth(volume, &change);
        caller.wait_for(pending, |made| CTokens::new("", &made));
        Ok(())
    })
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_start_restrict(
    cluster: *const Cluster,
    volume: *const c_char,
    hosts: *const c_char,
    networks: *const c_char,
    interfaces: *const c_char,
    done: Option<Callback>,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        change(cluster, volume, (done, context), |cluster, volume| {
            let restrictions = restrictions(hosts, networks, interfaces)?;
            Ok(cluster.start_restrict(volume, &restrictions))
        })
    }
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_start_open(
    cluster: *const Cluster,
    target: *const c_char,
    options: *const COpenOptions,
    volume: *mut *mut Volume,
    done: Option<Callback>,
    context: *mut c_void,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let Opening { cluster, target, options } =
            unsafe { Opening::of(cluster, target, options, volume) }?;
        let caller = Caller::new(done, context, volume)?;
        let pending = match cluster {
            Some(cluster) => cluster.start_open(target, &options),
            None => farflash_client::start_open(target, &options),
        };
        caller.wait_for(pending, |opened| Box::into_raw(Box::new(opened)));
        Ok(())
    })
}
