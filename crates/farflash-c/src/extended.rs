//! Blocks with their metadata, in requests that wait.

use std::ffi::c_int;
use std::ops::ControlFlow;

use farflash_client::{Blocks, ReadData, Volume};

use crate::edge::{Failure, bytes, check_aligned, check_memory, edge, reference};
use crate::structs::CBlocks;
use crate::volume::{differs, swap_outcome};

/// Memory of the caller's to read into. It may never have been set, therefore no slice is made of it.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    pub(crate) data: *mut u8,
    pub(crate) metadata: *mut u8,
}

impl Room {
    /// For requests that read nothing.
    pub(crate) const NONE: Self =
        Self { data: std::ptr::null_mut(), metadata: std::ptr::null_mut() };

    /// For blocks of `volume`, if `blocks` are as long as they can be.
    pub(crate) fn new(volume: &Volume, blocks: &CBlocks) -> Result<Self, Failure> {
        let CBlocks { data, len, metadata, metadata_len } = *blocks;
        check_memory(data.cast(), len, "data")?;
        check_memory(metadata.cast(), metadata_len, "metadata")?;
        volume.check_metadata(len, metadata_len)?;
        Ok(Self { data: data.cast(), metadata: metadata.cast() })
    }

    /// Puts data that was read to byte `at`.
    ///
    /// # Safety
    /// There is room for it from there, which is ours to write.
    pub(crate) unsafe fn put_data(self, mut at: usize, read: &ReadData) {
        for piece in read.pieces() {
            // SAFETY: the caller's promise; a buffer of ours cannot overlap the caller's memory.
            unsafe { self.data.add(at).copy_from_nonoverlapping(piece.as_ptr(), piece.len()) };
            at += piece.len();
        }
    }

    /// Puts metadata that was read to byte `at`.
    ///
    /// # Safety
    /// As of [`Room::put_data`].
    pub(crate) unsafe fn put_metadata(self, at: usize, read: &[u8]) {
        if read.is_empty() {
            return;
        }
        // SAFETY: as above.
        unsafe { self.metadata.add(at).copy_from_nonoverlapping(read.as_ptr(), read.len()) };
    }
}

/// The data at `pointer`, to be written or compared.
///
/// # Safety
/// `pointer` is null or as `farflash.h` says, for `'a`.
unsafe fn blocks<'a>(pointer: *const CBlocks, name: &str) -> Result<Blocks<'a>, Failure> {
    // SAFETY: the caller's promise.
    let CBlocks { data, len, metadata, metadata_len } = *unsafe { reference(pointer, name) }?;
    // SAFETY: the caller's promise.
    let (data, metadata) = unsafe {
        (bytes(data.cast(), len, "data")?, bytes(metadata.cast(), metadata_len, "metadata")?)
    };
    Ok(Blocks { data, metadata })
}

/// Carries out a request about blocks of the caller's.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
unsafe fn with_blocks(
    volume: *const Volume,
    blocks: *const CBlocks,
    request: impl FnOnce(&Volume, Blocks<'_>) -> Result<(), Failure>,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let (volume, blocks) =
            unsafe { (reference(volume, "volume")?, self::blocks(blocks, "blocks")?) };
        request(volume, blocks)
    })
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_read_ex(
    volume: *const Volume,
    blocks: *const CBlocks,
    offset: u64,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let (volume, blocks) =
            unsafe { (reference(volume, "volume")?, reference(blocks, "blocks")?) };
        let (room, mut at_metadata) = (Room::new(volume, blocks)?, 0);
        volume.read_ex_with(offset, blocks.len, |at, read| {
            // SAFETY: what is handed out adds up to `len` bytes and their metadata, and `Room::new` has
            // made sure that this is as long as the memory that the caller promises.
            unsafe {
                room.put_data(at, &read.data);
                room.put_metadata(at_metadata, &read.metadata);
            }
            at_metadata += read.metadata.len();
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
pub unsafe extern "C" fn farflash_write_ex(
    volume: *const Volume,
    blocks: *const CBlocks,
    offset: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with_blocks(volume, blocks, |volume, blocks| Ok(volume.write_ex(blocks, offset)?)) }
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_write_tx_ex(
    volume: *const Volume,
    blocks: *const CBlocks,
    offset: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with_blocks(volume, blocks, |volume, blocks| Ok(volume.write_tx_ex(blocks, offset)?)) }
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_compare_ex(
    volume: *const Volume,
    blocks: *const CBlocks,
    offset: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with_blocks(volume, blocks, |volume, blocks| {
            if volume.compare_ex(blocks, offset)? { Ok(()) } else { Err(differs()) }
        })
    }
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_compare_and_swap_ex(
    volume: *const Volume,
    expected: *const CBlocks,
    blocks: *const CBlocks,
    offset: u64,
    miscompare: *mut u64,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let (volume, expected, blocks) = unsafe {
            (
                reference(volume, "volume")?,
                self::blocks(expected, "expected")?,
                self::blocks(blocks, "blocks")?,
            )
        };
        check_aligned(miscompare, "miscompare")?;
        let swap = volume.compare_and_swap_ex(offset, expected, blocks)?;
        // SAFETY: the caller's promise.
        unsafe { swap_outcome(swap, miscompare) }
    })
}
