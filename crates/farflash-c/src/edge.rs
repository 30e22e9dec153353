//! The edge: pointers in, codes out.

use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use farflash_client::{Error, ErrorKind};

pub(crate) const OK: c_int = 0;
pub(crate) const MISCOMPARE: c_int = -13;
const INVALID_ARGUMENT: c_int = -1;
const FAILED: c_int = -12;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// A call that failed: its code, and words.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: c_int,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self { code: INVALID_ARGUMENT, text: text.into() }
    }

    pub(crate) fn no_failure_domain() -> Self {
        let text = "the target does not say with what it may fail".to_owned();
        Self { code: code_of(ErrorKind::Unsupported), text }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { code: code_of(error.kind()), text: error.to_string() }
    }
}

fn code_of(kind: ErrorKind) -> c_int {
    match kind {
        ErrorKind::InvalidArgument => INVALID_ARGUMENT,
        ErrorKind::NotFound => -2,
        ErrorKind::AlreadyExists => -3,
        ErrorKind::PermissionDenied => -4,
        ErrorKind::Unreachable => -5,
        ErrorKind::NoSpace => -6,
        ErrorKind::Damaged => -7,
        ErrorKind::Unsupported => -8,
        ErrorKind::OutcomeUnknown => -9,
        ErrorKind::Closed => -10,
        ErrorKind::Busy => -11,
        ErrorKind::Failed => FAILED,
        ErrorKind::Untrusted => -14,
        ErrorKind::Unproven => -15,
        ErrorKind::InUse => -16,
        ErrorKind::Changed => -17,
    }
}

/// Words as C takes them.
pub(crate) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

/// Runs a function's body (FFI-1), and keeps the words of its failure.
pub(crate) fn edge(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        Err(Failure { code: FAILED, text: "the library broke a promise to itself".to_owned() })
    });
    let Err(Failure { code, text }) = outcome else { return OK };
    // While the thread ends there is no place for words any more.
    let _ = LAST.try_with(|last| last.replace(c_text(&text)));
    code
}

/// Checks that a `T` can be at `pointer`, which may be null.
pub(crate) fn check_aligned<T>(pointer: *const T, name: &str) -> Result<(), Failure> {
    if pointer.is_aligned() {
        return Ok(());
    }
    Err(Failure::argument(format!(
        "{name} is not aligned: no such structure can be at {pointer:p}"
    )))
}

/// Checks that a `T` can be at `pointer`.
pub(crate) fn check_place<T>(pointer: *const T, name: &str) -> Result<(), Failure> {
    if pointer.is_null() { Err(is_null(name)) } else { check_aligned(pointer, name) }
}

/// Returns a reference to the `T` at `pointer`.
///
/// # Safety
/// `pointer` is null or not aligned, or points to a `T` that outlives `'a` and is not changed meanwhile.
pub(crate) unsafe fn reference<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { optional_reference(pointer, name) }?.ok_or_else(|| is_null(name))
}

/// Returns a reference to the `T` at `pointer`; `None` if `pointer` is null.
///
/// # Safety
/// As of [`reference`].
pub(crate) unsafe fn optional_reference<'a, T>(
    pointer: *const T,
    name: &str,
) -> Result<Option<&'a T>, Failure> {
    check_aligned(pointer, name)?;
    // SAFETY: the caller's promise; it is aligned.
    Ok(unsafe { pointer.as_ref() })
}

/// Gives a handle back to the library; `None` if it is null.
///
/// # Safety
/// `handle` is null or not aligned, or was made by `Box::into_raw`, and is given back this once.
pub(crate) unsafe fn take_back<T>(handle: *mut T, name: &str) -> Result<Option<Box<T>>, Failure> {
    check_aligned(handle, name)?;
    // SAFETY: the caller's promise; it is aligned.
    Ok((!handle.is_null()).then(|| unsafe { Box::from_raw(handle) }))
}

/// Puts `value` to `pointer`.
///
/// # Safety
/// `pointer` is null or not aligned, or points to memory for a `T` that is the caller's to write.
pub(crate) unsafe fn put<T>(pointer: *mut T, name: &str, value: T) -> Result<(), Failure> {
    check_place(pointer, name)?;
    // SAFETY: the caller's promise; it is aligned, and not null. What was there before is not dropped: it may never have been set.
    unsafe { pointer.write(value) };
    Ok(())
}

/// The string at `pointer`; `None` if that is null.
///
/// # Safety
/// `pointer` is null, or points to a string that ends in a zero and stays as it is for `'a`.
pub(crate) unsafe fn optional_text<'a>(
    pointer: *const c_char,
    name: &str,
) -> Result<Option<&'a str>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) }.to_str();
    text.map(Some).map_err(|_| Failure::argument(format!("{name} is not UTF-8")))
}

/// The path at `pointer`, which to the system is bytes; `None` if that is null.
///
/// # Safety
/// As of [`optional_text`].
pub(crate) unsafe fn optional_path<'a>(pointer: *const c_char) -> Option<&'a Path> {
    // SAFETY: the caller's promise.
    let path = (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) })?;
    Some(Path::new(OsStr::from_bytes(path.to_bytes())))
}

/// The elements of the list at `pointer`, which are separated by commas; `None` if that is null.
///
/// # Safety
/// As of [`optional_text`].
pub(crate) unsafe fn optional_list(
    pointer: *const c_char,
    name: &str,
) -> Result<Option<Vec<String>>, Failure> {
    // SAFETY: the caller's promise.
    let text = unsafe { optional_text(pointer, name) }?;
    let elements = |text: &str| {
        let elements = text.split(',').map(str::trim);
        elements.filter(|element| !element.is_empty()).map(str::to_owned).collect()
    };
    Ok(text.map(elements))
}

/// The string at `pointer`.
///
/// # Safety
/// As of [`optional_text`].
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    unsafe { optional_text(pointer, name) }?.ok_or_else(|| is_null(name))
}

/// The `len` bytes at `pointer`, which may be null if there are none.
///
/// # Safety
/// `pointer` is null, or points to `len` bytes that are set and stay as they are for `'a`.
pub(crate) unsafe fn bytes<'a>(
    pointer: *const u8,
    len: usize,
    name: &str,
) -> Result<&'a [u8], Failure> {
    check_memory(pointer, len, name)?;
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: the caller's promise; not null, and no longer than an object can be.
    Ok(unsafe { std::slice::from_raw_parts(pointer, len) })
}

/// Checks that `len` bytes can be at `pointer`.
pub(crate) fn check_memory(pointer: *const u8, len: usize, name: &str) -> Result<(), Failure> {
    if pointer.is_null() && len > 0 {
        return Err(is_null(name));
    }
    if isize::try_from(len).is_err() {
        return Err(Failure::argument(format!("{len} bytes of {name} are more than memory has")));
    }
    Ok(())
}

pub(crate) fn is_null(name: &str) -> Failure {
    Failure::argument(format!("{name} is NULL"))
}

/// See `farflash.h`.
#[unsafe(no_mangle)]
pub extern "C" fn farflash_error() -> *const c_char {
    // The words stay where they are until the thread's next failure replaces them.
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// See `farflash.h`.
#[unsafe(no_mangle)]
pub extern "C" fn farflash_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("a version has no zero in it"),
        };
    VERSION.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Programs compare with the names in the header; each kind has one there, and no two have the same number.
    #[test]
    fn every_kind_of_failure_has_its_code_in_the_header() {
        let header = include_str!("../include/farflash.h");
        let codes: Vec<(&str, c_int)> = header
            .lines()
            .filter_map(|line| line.strip_prefix("#define FARFLASH_")?.split_once(" (-"))
            .map(|(name, rest)| (name, -rest.split(')').next().unwrap().parse::<c_int>().unwrap()))
            .collect();
        let mut kinds = vec![("MISCOMPARE".to_owned(), MISCOMPARE)];
        for kind in [
            ErrorKind::InvalidArgument,
            ErrorKind::NotFound,
            ErrorKind::AlreadyExists,
            ErrorKind::PermissionDenied,
            ErrorKind::Unreachable,
            ErrorKind::NoSpace,
            ErrorKind::Damaged,
            ErrorKind::Unsupported,
            ErrorKind::OutcomeUnknown,
            ErrorKind::Closed,
            ErrorKind::Busy,
            ErrorKind::Failed,
            ErrorKind::Untrusted,
            ErrorKind::Unproven,
            ErrorKind::InUse,
            ErrorKind::Changed,
        ] {
            let mut name = String::new();
            for letter in format!("{kind:?}").chars() {
                if letter.is_uppercase() && !name.is_empty() {
                    name.push('_');
                }
                name.push(letter.to_ascii_uppercase());
            }
            kinds.push((name, code_of(kind)));
        }
        let mut named: Vec<(&str, c_int)> =
            kinds.iter().map(|(name, code)| (name.as_str(), *code)).collect();
        named.sort_by_key(|(_, code)| -code);
        let mut codes = codes;
        codes.sort_by_key(|(_, code)| -code);
        assert_eq!(codes, named);
        assert!(codes.windows(2).all(|two| two[0].1 != two[1].1), "{codes:?}");
    }
}
