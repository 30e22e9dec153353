//! Devices as people name them: `file:PATH[,size=S][,flush=auto|always|never]`, `mem:SIZE`, or
//! `model:DRIVE[,size=S][,scale=X][,seed=N]`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use units::{ByteLen, ParseByteLenError};

/// A device as named on a command line or in a configuration file.
#[derive(Clone, Debug, PartialEq)]
pub enum DeviceSpec {
    /// A regular file or a block device.
    File(FileSpec),
    /// Memory of this process; gone when it ends.
    Mem {
        /// Bytes of tenant data that it is to hold.
        size: ByteLen,
    },
    /// Memory that takes as long as a drive would; gone with this process.
    Model(ModelSpec),
}

/// A modelled drive.
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

/// A device in the file system.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FileSpec {
    /// The file or block device.
    pub path: PathBuf,
    /// The size at which a file is created. A file that exists must have it.
    pub size: Option<ByteLen>,
    /// Flushes behind writes.
    pub flush: FlushMode,
}

/// The rule by which writes are followed by a flush before they are acknowledged.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum FlushMode {
    /// As the device says.
    #[default]
    Auto,
    /// Whatever the device says.
    Always,
    /// Never: only for devices that lose nothing with the power.
    Never,
}

/// Why a text names no device.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ParseDeviceError {
    /// No kind stands before the first colon.
    #[error(
        "`{0}` names no kind of device; a file or drive is file:{0}, memory is mem:SIZE, a modelled drive model:DRIVE"
    )]
    NoKind(String),
    /// The kind before the colon is unknown.
    #[error("`{0}:` is no kind of device; there are file:PATH, mem:SIZE and model:DRIVE")]
    UnknownKind(String),
    /// `file:` without a path.
    #[error("`file:` is not followed by a path; write file:PATH, such as file:/srv/flash.img")]
    NoPath,
    /// `mem:` without a size.
    #[error("`mem:` is not followed by a size; write mem:SIZE, such as mem:1GiB")]
    NoSize,
    /// An option behind `mem:`.
    #[error("`{0}` is no option of mem:, which has none but the ceiling that `serve` takes")]
    OptionOfMem(String),
    /// An option that files do not have.
    #[error(
        "`{0}` is no option of file:; there are size=SIZE and flush=auto|always|never, and the ceiling that `serve` takes (a path with a comma in it cannot be used)"
    )]
    UnknownOption(String),
    /// `model:` without a drive.
    #[error(
        "`model:` is not followed by a drive; write model:p3600, model:p3700, model:m2-960 or model:FILE.toml"
    )]
    NoDrive,
    /// An option that modelled drives do not have.
    #[error(
        "`{0}` is no option of model:; there are size=SIZE, scale=FACTOR and seed=NUMBER, and the ceiling that `serve` takes"
    )]
    UnknownOptionOfModel(String),
    /// A speed out of bounds.
    #[error("`scale={0}`: write a factor from 0.0001 to 100")]
    Scale(String),
    /// A seed that is no number.
    #[error("`seed={0}`: write a whole number")]
    Seed(String),
    /// An option is repeated.
    #[error("the option `{0}` is given twice")]
    Twice(&'static str),
    /// A rule for flushes that does not exist.
    #[error("`flush={0}`: flush is auto, always or never")]
    UnknownFlush(String),
    /// A size that cannot be read.
    #[error(transparent)]
    Size(#[from] ParseByteLenError),
    /// A size that is not a multiple of a block.
    #[error("a device of {0} bytes: its size must be a multiple of 4096 bytes, and not zero")]
    NotWholeBlocks(u64),
}

impl FromStr for DeviceSpec {
    type Err = ParseDeviceError;

    fn from_str(text: &str) -> Result<Self, ParseDeviceError> {
        let (kind, rest) =
            text.split_once(':').ok_or_else(|| ParseDeviceError::NoKind(text.to_owned()))?;
        match kind {
            "file" => parse_file(rest).map(Self::File),
            "mem" => parse_mem(rest),
            "model" => parse_model(rest).map(Self::Model),
            _ => Err(ParseDeviceError::UnknownKind(kind.to_owned())),
        }
    }
}

fn parse_mem(text: &str) -> Result<DeviceSpec, ParseDeviceError> {
    if text.is_empty() {
        return Err(ParseDeviceError::NoSize);
    }
    if let Some((_, option)) = text.split_once(',') {
        return Err(ParseDeviceError::OptionOfMem(option.to_owned()));
    }
    Ok(DeviceSpec::Mem { size: parse_size(text)? })
}

fn parse_file(text: &str) -> Result<FileSpec, ParseDeviceError> {
    let mut parts = text.split(',');
    let path = parts.next().filter(|path| !path.is_empty()).ok_or(ParseDeviceError::NoPath)?;
    let (mut size, mut flush) = (None, None);
    for option in parts {
        match option.split_once('=') {
            Some(("size", value)) => {
                let value = parse_size(value)?;
                if size.replace(value).is_some() {
                    return Err(ParseDeviceError::Twice("size"));
                }
            }
            Some(("flush", value)) => {
                if flush.replace(parse_flush(value)?).is_some() {
                    return Err(ParseDeviceError::Twice("flush"));
                }
            }
            _ => return Err(ParseDeviceError::UnknownOption(option.to_owned())),
        }
    }
    Ok(FileSpec { path: path.into(), size, flush: flush.unwrap_or_default() })
}

/// Size of a modelled drive for which none is given.
const MODEL_SIZE_DEFAULT: ByteLen = ByteLen(1 << 30);
/// Seed of one for which none is given.
const MODEL_SEED_DEFAULT: u64 = 1;

fn parse_model(text: &str) -> Result<ModelSpec, ParseDeviceError> {
    let mut parts = text.split(',');
    let drive = parts.next().filter(|drive| !drive.is_empty()).ok_or(ParseDeviceError::NoDrive)?;
    let (mut size, mut scale, mut seed) = (None, None, None);
    for option in parts {
        let twice = match option.split_once('=') {
            Some(("size", value)) => size.replace(parse_size(value)?).map(|_| "size"),
            Some(("scale", value)) => scale.replace(parse_scale(value)?).map(|_| "scale"),
            Some(("seed", value)) => {
                let parsed = value.parse().map_err(|_| ParseDeviceError::Seed(value.to_owned()))?;
                seed.replace(parsed).map(|_: u64| "seed")
            }
            _ => return Err(ParseDeviceError::UnknownOptionOfModel(option.to_owned())),
        };
        if let Some(key) = twice {
            return Err(ParseDeviceError::Twice(key));
        }
    }
    let size = size.unwrap_or(MODEL_SIZE_DEFAULT);
    Ok(ModelSpec { drive: drive.to_owned(), size, scale, seed: seed.unwrap_or(MODEL_SEED_DEFAULT) })
}

fn parse_scale(text: &str) -> Result<f64, ParseDeviceError> {
    let scale = text.parse().ok().filter(|scale| (1e-4..=100.0).contains(scale));
    scale.ok_or_else(|| ParseDeviceError::Scale(text.to_owned()))
}

fn parse_size(text: &str) -> Result<ByteLen, ParseDeviceError> {
    let size: ByteLen = text.parse()?;
    match size.whole_blocks() {
        None | Some(0) => Err(ParseDeviceError::NotWholeBlocks(size.0)),
        Some(_) => Ok(size),
    }
}

fn parse_flush(text: &str) -> Result<FlushMode, ParseDeviceError> {
    match text {
        "auto" => Ok(FlushMode::Auto),
        "always" => Ok(FlushMode::Always),
        "never" => Ok(FlushMode::Never),
        _ => Err(ParseDeviceError::UnknownFlush(text.to_owned())),
    }
}

impl FlushMode {
    /// The engine's setting for the device's cache; `None` asks the device.
    pub fn volatile_cache(self) -> Option<bool> {
        match self {
            Self::Auto => None,
            Self::Always => Some(true),
            Self::Never => Some(false),
        }
    }
}

impl DeviceSpec {
    /// Bytes of memory that it takes of this process, if it lies there.
    pub fn memory_bytes(&self) -> u64 {
        match self {
            Self::File(_) => 0,
            Self::Mem { size } => size.0,
            Self::Model(spec) => spec.size.0,
        }
    }

    /// The device with its options, as it can be given again. The size of a file is left out: it is there.
    pub fn with_options(&self) -> String {
        let mut text = match self {
            Self::Mem { size } => return format!("mem:{}", written_size(*size)),
            Self::File(_) | Self::Model(_) => self.to_string(),
        };
        match self {
            Self::File(FileSpec { flush: FlushMode::Always, .. }) => text += ",flush=always",
            Self::File(FileSpec { flush: FlushMode::Never, .. }) => text += ",flush=never",
            Self::Model(ModelSpec { size, scale, seed, .. }) => {
                if *size != MODEL_SIZE_DEFAULT {
                    text += &format!(",size={}", written_size(*size));
                }
                text += &scale.map(|scale| format!(",scale={scale}")).unwrap_or_default();
                if *seed != MODEL_SEED_DEFAULT {
                    text += &format!(",seed={seed}");
                }
            }
            Self::File(_) | Self::Mem { .. } => {}
        }
        text
    }
}

/// A size such that it is read as the same one: in short if nothing is rounded.
pub fn written_size(size: ByteLen) -> String {
    let short = size.to_string().replace(' ', "");
    if short.parse::<ByteLen>() == Ok(size) { short } else { format!("{}B", size.0) }
}

impl fmt::Display for DeviceSpec {
    /// Kind and place, without options: how the device is called in messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => write!(f, "file:{}", file.path.display()),
            Self::Mem { size } => write!(f, "mem:{}", size.to_string().replace(' ', "")),
            Self::Model(model) => write!(f, "model:{}", model.drive),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_read_as_people_write_them() {
        let file =
            |path: &str, size, flush| DeviceSpec::File(FileSpec { path: path.into(), size, flush });
        let model = |drive: &str, size, scale, seed| {
            let drive = drive.to_owned();
            DeviceSpec::Model(ModelSpec { drive, size: ByteLen(size), scale, seed })
        };
        let gib8 = Some(ByteLen(8 << 30));
        for (text, spec) in [
            ("file:a", file("a", None, FlushMode::Auto)),
            ("file:/x/y:z", file("/x/y:z", None, FlushMode::Auto)),
            ("file:a,size=8GiB", file("a", gib8, FlushMode::Auto)),
            ("file:a,flush=never,size=8GiB", file("a", gib8, FlushMode::Never)),
            ("mem:1GiB", DeviceSpec::Mem { size: ByteLen(1 << 30) }),
            ("model:p3700", model("p3700", 1 << 30, None, 1)),
            ("model:a.toml,seed=7,scale=0.1,size=8GiB", model("a.toml", 8 << 30, Some(0.1), 7)),
        ] {
            assert_eq!(text.parse(), Ok(spec), "{text}");
        }
        let shown = "file:a,size=8GiB".parse::<DeviceSpec>().map(|spec| spec.to_string());
        assert_eq!(shown.as_deref(), Ok("file:a"));
        let shown = "mem:1536MiB".parse::<DeviceSpec>().map(|spec| spec.to_string());
        assert_eq!(shown.as_deref(), Ok("mem:1.5GiB"));
    }

    /// A proposal for a device names the one that was measured.
    #[test]
    fn a_device_is_written_as_it_can_be_given_again() {
        for text in [
            "file:a",
            "file:a,flush=never",
            "file:a,flush=always",
            "mem:1.5GiB",
            "mem:4198400B",
            "model:p3700",
            "model:a.toml,size=8GiB,scale=0.1,seed=7",
        ] {
            let written = text.parse::<DeviceSpec>().map(|spec| spec.with_options());
            assert_eq!(written.as_deref(), Ok(text));
        }
    }

    #[test]
    fn each_mistake_has_its_own_message() {
        use ParseDeviceError::*;
        for (text, error) in [
            ("/dev/sda", NoKind("/dev/sda".into())),
            ("nvme:0", UnknownKind("nvme".into())),
            ("file:", NoPath),
            ("file:,size=1GiB", NoPath),
            ("mem:", NoSize),
            ("mem:1GiB,flush=never", OptionOfMem("flush=never".into())),
            ("file:a,b", UnknownOption("b".into())),
            ("file:a,sise=1GiB", UnknownOption("sise=1GiB".into())),
            ("file:a,size=1GiB,size=2GiB", Twice("size")),
            ("file:a,flush=maybe", UnknownFlush("maybe".into())),
            ("mem:1 elephant", Size(ParseByteLenError::UnknownUnit("elephant".into()))),
            ("mem:0", NotWholeBlocks(0)),
            ("model:", NoDrive),
            ("model:p3700,fast", UnknownOptionOfModel("fast".into())),
            ("model:p3700,scale=0", Scale("0".into())),
            ("model:p3700,seed=x", Seed("x".into())),
            ("model:p3700,seed=1,seed=2", Twice("seed")),
            ("mem:5000", NotWholeBlocks(5000)),
        ] {
            assert_eq!(text.parse::<DeviceSpec>(), Err(error), "{text}");
        }
    }
}
