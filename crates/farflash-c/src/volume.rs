//! Volumes, and requests that wait.

use std::ffi::{c_char, c_int, c_void};
use std::ops::ControlFlow;

use farflash_client::{Cluster, Error, OpenOptions, Swap, Target, Volume};

use crate::edge::{
    Failure, MISCOMPARE, bytes, check_aligned, check_memory, check_place, edge, optional_reference,
    put, reference, take_back, text,
};
use crate::structs::{CFailureDomain, COpenOptions, CProperties};

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_open(
    cluster: *const Cluster,
    target: *const c_char,
    options: *const COpenOptions,
    volume: *mut *mut Volume,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let Opening { cluster, target, options } =
            unsafe { Opening::of(cluster, target, options, volume) }?;
        let opened = match cluster {
            Some(cluster) => cluster.open(target, &options),
            None => farflash_client::open(target, &options),
        };
        // SAFETY: the caller's promise.
        unsafe { put(volume, "volume", Box::into_raw(Box::new(opened?))) }
    })
}

/// The volume to be opened, and the options for that.
pub(crate) struct Opening<'a> {
    /// The API to ask; `None`: the one in the environment, or none.
    pub(crate) cluster: Option<&'a Cluster>,
    pub(crate) target: &'a str,
    pub(crate) options: OpenOptions,
}

impl<'a> Opening<'a> {
    /// The arguments of the caller, with a place to put the volume to.
    ///
    /// # Safety
    /// Pointers are null or as `farflash.h` says, for `'a`.
    pub(crate) unsafe fn of(
        cluster: *const Cluster,
        target: *const c_char,
        options: *const COpenOptions,
        volume: *mut *mut Volume,
    ) -> Result<Self, Failure> {
        // SAFETY: the caller's promise; null is allowed for two of them.
        let (cluster, target, options) = unsafe {
            (
                optional_reference(cluster, "cluster")?,
                text(target, "target")?,
                optional_reference(options, "options")?,
            )
        };
        let options = match options {
            None => OpenOptions::from_env(),
            // SAFETY: the caller's promise.
            Some(options) => unsafe { options.options() }?,
        };
        check_place(volume, "volume")?;
        let parsed = target.parse::<Target>().map_err(farflash_client::Error::from)?;
        let cluster = cluster.filter(|_| matches!(parsed, Target::Name(_)));
        Ok(Self { cluster, target, options })
    }
}

/// See `farflash.h`.
///
/// # Safety
/// `volume` is null, or from `farflash_open` and no longer used by any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_close(volume: *mut Volume) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let Some(open) = unsafe { optional_reference(volume, "volume") }? else { return Ok(()) };
        let closed = match open.close() {
            // Nothing is closed: the handle is the caller's as before.
            Err(error @ Error::WithinCallback) => return Err(error.into()),
            closed => closed,
        };
        // SAFETY: made by `Box::into_raw`, and by the caller's promise given back once.
        drop(unsafe { take_back(volume, "volume") }?);
        Ok(closed?)
    })
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_properties(
    volume: *const Volume,
    properties: *mut CProperties,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let now = unsafe { reference(volume, "volume") }?.properties()?;
        // SAFETY: the caller's promise.
        unsafe { put(properties, "properties", CProperties::new(&now)) }
    })
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_failure_domain(
    volume: *const Volume,
    domain: *mut CFailureDomain,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let volume = unsafe { reference(volume, "volume") }?;
        // SAFETY: the caller's promise.
        unsafe { CFailureDomain::check(domain) }?;
        let said = volume.failure_domain()?.ok_or_else(Failure::no_failure_domain)?;
        // SAFETY: the caller's promise.
        unsafe { put(domain, "domain", CFailureDomain::new(&said)) }
    })
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_read(
    volume: *const Volume,
    buffer: *mut c_void,
    len: usize,
    offset: u64,
) -> c_int {
    edge(|| {
        let buffer = buffer.cast::<u8>();
        check_memory(buffer, len, "buffer")?;
        // SAFETY: the caller's promise.
        let volume = unsafe { reference(volume, "volume") }?;
        volume.read_with(offset, len, |at, bytes| {
            // SAFETY: `read_with` hands out bytes within `len`, so that this stays within the memory
            // that the caller promises; a buffer of ours cannot overlap it. The memory may never have
            // been set, therefore no slice is made of it.
            unsafe { buffer.add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            ControlFlow::Continue(())
        })?;
        Ok(())
    })
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_write(
    volume: *const Volume,
    buffer: *const c_void,
    len: usize,
    offset: u64,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let (volume, data) =
            unsafe { (reference(volume, "volume")?, bytes(buffer.cast(), len, "buffer")?) };
        Ok(volume.write_at(data, offset)?)
    })
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_write_tx(
    volume: *const Volume,
    buffer: *const c_void,
    len: usize,
    offset: u64,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let (volume, data) =
            unsafe { (reference(volume, "volume")?, bytes(buffer.cast(), len, "buffer")?) };
        Ok(volume.write_tx(data, offset)?)
    })
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_write_zeroes(
    volume: *const Volume,
    len: u64,
    offset: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    edge(|| Ok(unsafe { reference(volume, "volume") }?.write_zeroes(offset, len)?))
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_deallocate(
    volume: *const Volume,
    len: u64,
    offset: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    edge(|| Ok(unsafe { reference(volume, "volume") }?.deallocate(offset, len)?))
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_flush(volume: *const Volume) -> c_int {
    // SAFETY: the caller's promise.
    edge(|| Ok(unsafe { reference(volume, "volume") }?.flush()?))
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_compare(
    volume: *const Volume,
    buffer: *const c_void,
    len: usize,
    offset: u64,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let (volume, data) =
            unsafe { (reference(volume, "volume")?, bytes(buffer.cast(), len, "buffer")?) };
        if volume.compare(data, offset)? { Ok(()) } else { Err(differs()) }
    })
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_compare_and_swap(
    volume: *const Volume,
    expected: *const c_void,
    data: *const c_void,
    len: usize,
    offset: u64,
    miscompare: *mut u64,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let (volume, expected, data) = unsafe {
            (
                reference(volume, "volume")?,
                bytes(expected.cast(), len, "expected")?,
                bytes(data.cast(), len, "data")?,
            )
        };
        check_aligned(miscompare, "miscompare")?;
        let swap = volume.compare_and_swap(offset, expected, data)?;
        // SAFETY: the caller's promise.
        unsafe { swap_outcome(swap, miscompare) }
    })
}

/// The result of a swap, with the byte that differs put to `miscompare`.
///
/// # Safety
/// `miscompare` is null, or points to memory that is the caller's to write.
pub(crate) unsafe fn swap_outcome(swap: Swap, miscompare: *mut u64) -> Result<(), Failure> {
    match swap {
        Swap::Done => Ok(()),
        Swap::Differs { offset_bytes } => {
            if !miscompare.is_null() {
                // SAFETY: the caller's promise.
                unsafe { put(miscompare, "miscompare", offset_bytes) }?;
            }
            Err(differs())
        }
    }
}

/// The failure of a comparison: the volume holds other data than expected.
pub(crate) fn differs() -> Failure {
    let text = "what is there is not what was expected".to_owned();
    Failure { code: MISCOMPARE, text }
}
