//! Kinds of devices: one file for each, and one line in the list of [`device_kinds!`](crate::device_kinds).
//!
//! A kind is described by its specification, as users write it: `SCHEME:PLACE[,OPTION=VALUE…]`. It stands on a
//! [`Backing`]: a file or drive that is opened by its path, or memory of this process. How it is parsed, opened,
//! attached to a core and explained to users is in its implementation of [`Kind`]; the macro makes the types of all
//! kinds, the rows of [`KindRow`] and all forwarding from one list. `docs/device-kinds.md` shows how one is added.

mod error;
mod file;
mod macros;
mod mem;
mod model;

use std::fmt::{Debug, Display};

use reactor::{FileDevice, Handle, OwnedDevice};
use units::{ByteLen, Duration};

pub use error::{KindError, ParseDeviceError};
pub use file::FileSpec;
pub use mem::MemSpec;
pub use model::ModelSpec;

use crate::MemDevice;
use crate::layer::{Fence, Fenced};

crate::device_kinds! {
    /// A device as named on a command line or in a configuration file.
    pub enum DeviceSpec;
    /// A device that is open, from which each core makes its own. Clones are the same device.
    pub enum DeviceSource;
    /// A device of any kind as one core sees it, so that one core can serve several kinds. Cheap to clone; all clones
    /// are the same.
    pub enum AnyDevice;
    File: FileSpec,
    Mem: MemSpec,
    Model: ModelSpec,
}

/// A kind of devices, implemented by its specification. [`Display`] writes the place behind the colon, without
/// options: with the scheme it is the device's name in messages.
pub trait Kind: Clone + Debug + Display + PartialEq + Sized + 'static {
    /// The word before the colon.
    const SCHEME: &'static str;
    /// The specification in short, such as `mem:SIZE`.
    const FORM: &'static str;
    /// The specification with all options.
    const USAGE: &'static str;
    /// The kind in a few words, such as `memory`.
    const NOUN: &'static str;

    /// A device that is open, for all cores.
    type Source: Clone + Send + 'static;
    /// A device as one core sees it, layers included.
    type Device: io_traits::Device;

    /// Reads the text behind the colon.
    ///
    /// # Errors
    /// A mistake of the user that wrote it.
    fn parse(text: &str) -> Result<Self, ParseDeviceError>;

    /// Returns the text behind the colon with all options that are not the default, as it can be given again.
    fn with_options(&self) -> String;

    /// Returns the backing that the device stands on.
    fn backing(&self) -> Backing<'_>;

    /// Makes the device of its backing, which is open. That is of the kind which [`Kind::backing`] says.
    ///
    /// # Errors
    /// The device cannot be as it is described.
    fn open(&self, backing: Opened) -> Result<Self::Source, KindError>;

    /// Returns the file or drive below, if there is one.
    fn file(source: &Self::Source) -> Option<&OwnedDevice> {
        let _ = source;
        None
    }

    /// Returns the device for one core, with the layers that belong to its kind.
    fn attach(source: &Self::Source, core: &Attach<'_>) -> Self::Device;

    /// Returns the device by another way, if it stands on a file or drive that was opened again.
    fn renewed(device: &Self::Device, file: Fenced<FileDevice>) -> Option<Self::Device> {
        let _ = (device, file);
        None
    }
}

/// The place where the data of a device lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Backing<'a> {
    /// A file or drive, which outlives its server. It can be formatted, checked and grown, and may go and come back.
    File(&'a FileSpec),
    /// Memory of this process, for so many bytes of tenants' data; gone when the process ends.
    Memory(ByteLen),
}

/// A backing that is open.
#[derive(Clone)]
pub enum Opened {
    /// A file or drive.
    File(OwnedDevice),
    /// Memory.
    Memory(MemDevice),
}

impl Opened {
    /// Returns the file or drive. Panics for memory: a kind whose backing is a file is opened with one.
    #[must_use]
    pub fn into_file(self) -> OwnedDevice {
        match self {
            Self::File(file) => file,
            Self::Memory(_) => panic!("a kind is opened with the backing that it asks for"),
        }
    }

    /// Returns the memory. Panics for a file, likewise.
    #[must_use]
    pub fn into_memory(self) -> MemDevice {
        match self {
            Self::Memory(memory) => memory,
            Self::File(_) => panic!("a kind is opened with the backing that it asks for"),
        }
    }
}

/// A core that a device is attached to, and the layers before the device.
#[derive(Clone, Copy)]
pub struct Attach<'a> {
    /// The core.
    pub handle: &'a Handle,
    /// The fence, for kinds whose requests may have to wait between the core and the device.
    pub fence: &'a Fence,
    /// The longest time of a request, for kinds that may stop answering.
    pub timeout: Duration,
}

/// A row of the registry: a kind as users are told of it, and its parser.
#[derive(Clone, Copy, Debug)]
pub struct KindRow<S> {
    /// [`Kind::SCHEME`].
    pub scheme: &'static str,
    /// [`Kind::FORM`].
    pub form: &'static str,
    /// [`Kind::USAGE`].
    pub usage: &'static str,
    /// [`Kind::NOUN`].
    pub noun: &'static str,
    /// [`Kind::parse`].
    pub parse: fn(&str) -> Result<S, ParseDeviceError>,
}

impl<S> KindRow<S> {
    /// Returns the row of kind `K`; `parse` is its parser with the specification among those of all kinds.
    #[must_use]
    pub const fn new<K: Kind>(parse: fn(&str) -> Result<S, ParseDeviceError>) -> Self {
        Self { scheme: K::SCHEME, form: K::FORM, usage: K::USAGE, noun: K::NOUN, parse }
    }

    /// Reads a whole specification, by the row of its scheme.
    ///
    /// # Errors
    /// No row has the scheme, or its kind refuses the rest.
    pub fn parse_any(rows: &[Self], text: &str) -> Result<S, ParseDeviceError> {
        let Some((scheme, rest)) = text.split_once(':') else {
            // Most likely it is a path.
            let form = |row: &Self| row.form.replace("PATH", text);
            let nouns = rows.iter().map(|row| format!("{} is {}", row.noun, form(row)));
            let kinds = nouns.collect::<Vec<_>>().join(", ");
            return Err(ParseDeviceError::NoKind { text: text.to_owned(), kinds });
        };
        match rows.iter().find(|row| row.scheme == scheme) {
            Some(row) => (row.parse)(rest),
            None => {
                let forms = listed(rows.iter().map(|row| row.form.to_owned()), "and");
                Err(ParseDeviceError::UnknownKind { scheme: scheme.to_owned(), forms })
            }
        }
    }
}

/// Returns the specifications of all kinds, with or without their options, for a help text.
#[must_use]
pub fn forms(with_options: bool) -> String {
    let rows = DeviceSpec::KINDS.iter();
    let forms = rows.map(|row| format!("`{}`", if with_options { row.usage } else { row.form }));
    listed(forms, "or")
}

/// Joins words to a list as it is written in a sentence.
fn listed(words: impl Iterator<Item = String>, last: &str) -> String {
    let words: Vec<String> = words.collect();
    match &words[..] {
        [] => String::new(),
        [word] => word.clone(),
        [first @ .., word] => format!("{} {last} {word}", first.join(", ")),
    }
}

/// Returns a size such that it is read as the same one: in short if nothing is rounded.
#[must_use]
pub fn written_size(size: ByteLen) -> String {
    let short = size.to_string().replace(' ', "");
    if short.parse::<ByteLen>() == Ok(size) { short } else { format!("{}B", size.0) }
}

/// Reads the size of a device.
///
/// # Errors
/// No size, or no whole number of blocks.
pub fn parse_size(text: &str) -> Result<ByteLen, ParseDeviceError> {
    let size: ByteLen = text.parse()?;
    match size.whole_blocks() {
        None | Some(0) => Err(ParseDeviceError::NotWholeBlocks(size.0)),
        Some(_) => Ok(size),
    }
}

/// Takes an option's value, which may be given once.
fn once<T>(key: &'static str, place: &mut Option<T>, value: T) -> Result<(), ParseDeviceError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(ParseDeviceError::Twice(key)),
    }
}

/// An option that kind `K` does not have, and those that it has.
fn no_option<K: Kind>(option: &str, known: &'static str) -> ParseDeviceError {
    ParseDeviceError::UnknownOption { option: option.to_owned(), scheme: K::SCHEME, known }
}

/// A value that an option does not take.
fn no_value(key: &'static str, value: &str, wanted: &'static str) -> ParseDeviceError {
    ParseDeviceError::Value { key, value: value.to_owned(), wanted }
}

#[cfg(test)]
mod tests;
