//! `model:DRIVE[,size=S][,scale=X][,seed=N]`: memory that takes as long as a drive would.

use std::fmt;

use io_traits::Device;
use reactor::Handle;
use ssd_model::{Model, Params, ParamsError, Preset};
use units::{BLOCK_SIZE, ByteLen};

use super::{
    Attach, Backing, Kind, KindError, Opened, ParseDeviceError, no_option, no_value, once,
    parse_size, written_size,
};
use crate::{MemDevice, ModelDevice, SharedModel};

/// Options, for a message about another one.
const OPTIONS: &str =
    "; there are size=SIZE, scale=FACTOR and seed=NUMBER, and the ceiling that `serve` takes";
/// Size of a modelled drive for which none is given.
const SIZE_DEFAULT: ByteLen = ByteLen(1 << 30);
/// Seed of one for which none is given.
const SEED_DEFAULT: u64 = 1;

/// A modelled drive; gone with this process.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// A preset or a TOML file.
    pub drive: String,
    /// Bytes of tenant data that it is to hold.
    pub size: ByteLen,
    /// Speed relative to the description, if it is not to be the description's.
    pub scale: Option<f64>,
    /// Seed of all that is random in it.
    pub seed: u64,
}

impl ModelSpec {
    /// Reads the description of the drive: a preset, or a file.
    fn params(&self) -> Result<Params, KindError> {
        let mut params = match self.drive.parse::<Preset>() {
            Ok(preset) => preset.params(),
            Err(error) if !self.drive.ends_with(".toml") => {
                let remedy =
                    "name one of these, or a file with the drive's description: model:FILE.toml";
                return Err(KindError { what: error.to_string(), remedy, is_usage: true });
            }
            Err(_) => self.read()?,
        };
        if let Some(scale) = self.scale {
            params.scale = scale;
        }
        Ok(params)
    }

    /// The drive's times alone, without its data.
    ///
    /// # Errors
    /// There is no such drive.
    pub fn model(&self) -> Result<Model, KindError> {
        let blocks = self.size.0 / BLOCK_SIZE as u64;
        let model = Model::new(&self.params()?, blocks, self.seed);
        model.map_err(|error| self.undescribed(&error))
    }

    fn read(&self) -> Result<Params, KindError> {
        let text = std::fs::read_to_string(&self.drive).map_err(|error| KindError {
            what: format!("the description {} cannot be read: {error}", self.drive),
            remedy: "name a file that is there and readable",
            is_usage: false,
        })?;
        Params::from_toml(&text).map_err(|error| self.undescribed(&error))
    }

    fn undescribed(&self, error: &ParamsError) -> KindError {
        let drive = &self.drive;
        let what = match error {
            ParamsError::Text(mistake) => format!("{drive}, {mistake}"),
            ParamsError::Value { .. } => format!("{drive} describes no drive: {error}"),
        };
        let remedy = "mend it; docs/ssd-model.md explains every key";
        KindError { what, remedy, is_usage: true }
    }
}

impl fmt::Display for ModelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.drive)
    }
}

impl Kind for ModelSpec {
    const SCHEME: &'static str = "model";
    const FORM: &'static str = "model:DRIVE";
    const USAGE: &'static str = "model:p3600|p3700|m2-960|FILE.toml[,size=S][,scale=X][,seed=N]";
    const NOUN: &'static str = "a modelled drive";

    type Source = (MemDevice, SharedModel);
    type Device = ModelDevice<MemDevice, Handle>;

    fn parse(text: &str) -> Result<Self, ParseDeviceError> {
        let no_drive = ParseDeviceError::NoPlace {
            scheme: Self::SCHEME,
            wanted: "a drive; write model:p3600, model:p3700, model:m2-960 or model:FILE.toml",
        };
        let mut parts = text.split(',');
        let drive = parts.next().filter(|drive| !drive.is_empty()).ok_or(no_drive)?;
        let (mut size, mut scale, mut seed) = (None, None, None);
        for option in parts {
            match option.split_once('=') {
                Some(("size", value)) => once("size", &mut size, parse_size(value)?)?,
                Some(("scale", value)) => once("scale", &mut scale, parse_scale(value)?)?,
                Some(("seed", value)) => once("seed", &mut seed, parse_seed(value)?)?,
                _ => return Err(no_option::<Self>(option, OPTIONS)),
            }
        }
        let (size, seed) = (size.unwrap_or(SIZE_DEFAULT), seed.unwrap_or(SEED_DEFAULT));
        Ok(Self { drive: drive.to_owned(), size, scale, seed })
    }

    fn with_options(&self) -> String {
        let mut text = self.drive.clone();
        if self.size != SIZE_DEFAULT {
            text += &format!(",size={}", written_size(self.size));
        }
        text += &self.scale.map(|scale| format!(",scale={scale}")).unwrap_or_default();
        if self.seed != SEED_DEFAULT {
            text += &format!(",seed={}", self.seed);
        }
        text
    }

    fn backing(&self) -> Backing<'_> {
        Backing::Memory(self.size)
    }

    fn open(&self, backing: Opened) -> Result<Self::Source, KindError> {
        let memory = backing.into_memory();
        let model = Model::new(&self.params()?, memory.limits().blocks, self.seed);
        let model = model.map_err(|error| self.undescribed(&error))?;
        Ok((memory, SharedModel::new(model)))
    }

    fn attach((memory, model): &Self::Source, core: &Attach<'_>) -> Self::Device {
        ModelDevice::new(memory.attach(), core.handle.clone(), model.clone())
    }
}

fn parse_scale(text: &str) -> Result<f64, ParseDeviceError> {
    let scale = text.parse().ok().filter(|scale| (1e-4..=100.0).contains(scale));
    scale.ok_or_else(|| no_value("scale", text, "write a factor from 0.0001 to 100"))
}

fn parse_seed(text: &str) -> Result<u64, ParseDeviceError> {
    text.parse().map_err(|_| no_value("seed", text, "write a whole number"))
}
