//! `file:PATH[,size=S][,flush=auto|always|never]`: a regular file or a block device.

use std::fmt;
use std::path::PathBuf;

use reactor::{FileDevice, FlushPolicy, Handle, OwnedDevice};
use units::ByteLen;

use super::{
    Attach, Backing, Kind, KindError, Opened, ParseDeviceError, no_option, no_value, once,
    parse_size,
};
use crate::layer::{Fenced, TimeoutDevice};

/// Options, for a message about another one.
const OPTIONS: &str = "; there are size=SIZE and flush=auto|always|never, and the ceiling that `serve` takes (a path with a comma \
                       in it cannot be used)";

/// A device in the file system.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FileSpec {
    /// The file or block device.
    pub path: PathBuf,
    /// The size at which a file is created. A file that exists must have it.
    pub size: Option<ByteLen>,
    /// Flushes behind writes. Never: only for devices that lose nothing with the power.
    pub flush: FlushPolicy,
}

impl FileSpec {
    /// Returns the engine's setting for the device's cache; `None` asks the device.
    #[must_use]
    pub fn volatile_cache(&self) -> Option<bool> {
        match self.flush {
            FlushPolicy::Auto => None,
            FlushPolicy::Always => Some(true),
            FlushPolicy::Never => Some(false),
        }
    }
}

impl fmt::Display for FileSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}

impl Kind for FileSpec {
    const SCHEME: &'static str = "file";
    const FORM: &'static str = "file:PATH";
    const USAGE: &'static str = "file:PATH[,size=S][,flush=auto|always|never]";
    const NOUN: &'static str = "a file or drive";

    type Source = OwnedDevice;
    /// Behind the fence, too, when its turn has come: what waits for room passed the one before that.
    type Device = TimeoutDevice<Fenced<FileDevice>, Handle>;

    fn parse(text: &str) -> Result<Self, ParseDeviceError> {
        let no_path = ParseDeviceError::NoPlace {
            scheme: Self::SCHEME,
            wanted: "a path; write file:PATH, such as file:/srv/flash.img",
        };
        let mut parts = text.split(',');
        let path = parts.next().filter(|path| !path.is_empty()).ok_or(no_path)?;
        let (mut size, mut flush) = (None, None);
        for option in parts {
            match option.split_once('=') {
                Some(("size", value)) => once("size", &mut size, parse_size(value)?)?,
                Some(("flush", value)) => once("flush", &mut flush, parse_flush(value)?)?,
                _ => return Err(no_option::<Self>(option, OPTIONS)),
            }
        }
        Ok(Self { path: path.into(), size, flush: flush.unwrap_or_default() })
    }

    /// The size is left out: it is there.
    fn with_options(&self) -> String {
        let flush = match self.flush {
            FlushPolicy::Auto => "",
            FlushPolicy::Always => ",flush=always",
            FlushPolicy::Never => ",flush=never",
        };
        format!("{self}{flush}")
    }

    fn backing(&self) -> Backing<'_> {
        Backing::File(self)
    }

    fn open(&self, backing: Opened) -> Result<OwnedDevice, KindError> {
        Ok(backing.into_file())
    }

    fn file(source: &OwnedDevice) -> Option<&OwnedDevice> {
        Some(source)
    }

    fn attach(source: &OwnedDevice, core: &Attach<'_>) -> Self::Device {
        core.fence.watch(source.attach(core.handle), core.handle, core.timeout)
    }

    fn renewed(device: &Self::Device, file: Fenced<FileDevice>) -> Option<Self::Device> {
        Some(device.renewed(file))
    }
}

fn parse_flush(text: &str) -> Result<FlushPolicy, ParseDeviceError> {
    match text {
        "auto" => Ok(FlushPolicy::Auto),
        "always" => Ok(FlushPolicy::Always),
        "never" => Ok(FlushPolicy::Never),
        _ => Err(no_value("flush", text, "flush is auto, always or never")),
    }
}
