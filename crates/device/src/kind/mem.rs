//! `mem:SIZE`: memory of this process.

use std::fmt;

use units::ByteLen;

use super::{
    Attach, Backing, Kind, KindError, Opened, ParseDeviceError, no_option, parse_size, written_size,
};
use crate::MemDevice;

/// Memory of this process; gone when it ends.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MemSpec {
    /// Bytes of tenant data that it is to hold.
    pub size: ByteLen,
}

impl fmt::Display for MemSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.size.to_string().replace(' ', ""))
    }
}

impl Kind for MemSpec {
    const SCHEME: &'static str = "mem";
    const FORM: &'static str = "mem:SIZE";
    const USAGE: &'static str = "mem:SIZE";
    const NOUN: &'static str = "memory";

    type Source = MemDevice;
    type Device = MemDevice;

    fn parse(text: &str) -> Result<Self, ParseDeviceError> {
        if text.is_empty() {
            let wanted = "a size; write mem:SIZE, such as mem:1GiB";
            return Err(ParseDeviceError::NoPlace { scheme: Self::SCHEME, wanted });
        }
        if let Some((_, option)) = text.split_once(',') {
            let known = ", which has none but the ceiling that `serve` takes";
            return Err(no_option::<Self>(option, known));
        }
        Ok(Self { size: parse_size(text)? })
    }

    fn with_options(&self) -> String {
        written_size(self.size)
    }

    fn backing(&self) -> Backing<'_> {
        Backing::Memory(self.size)
    }

    fn open(&self, backing: Opened) -> Result<MemDevice, KindError> {
        Ok(backing.into_memory())
    }

    fn attach(source: &MemDevice, _: &Attach<'_>) -> MemDevice {
        source.attach()
    }
}
