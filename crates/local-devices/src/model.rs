//! Modelled drives, as they are named on command lines.

use device::SharedModel;
use ssd_model::{Model, Params, ParamsError, Preset};
use units::{BLOCK_SIZE, ByteLen};
use user_messages::Failure;

use crate::device_spec::ModelSpec;

/// The description of a drive: a preset, or a file.
pub fn params(spec: &ModelSpec) -> Result<Params, Failure> {
    let mut params = match spec.drive.parse::<Preset>() {
        Ok(preset) => preset.params(),
        Err(error) if !spec.drive.ends_with(".toml") => {
            let remedy =
                "name one of these, or a file with the drive's description: model:FILE.toml";
            return Err(Failure::usage(error.to_string(), remedy));
        }
        Err(_) => read(&spec.drive)?,
    };
    if let Some(scale) = spec.scale {
        params.scale = scale;
    }
    Ok(params)
}

fn read(path: &str) -> Result<Params, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let what = format!("the description {path} cannot be read: {error}");
        Failure::runtime(what, "name a file that is there and readable")
    })?;
    Params::from_toml(&text).map_err(|error| undescribed(path, &error))
}

fn undescribed(drive: &str, error: &ParamsError) -> Failure {
    let remedy = "mend it; docs/ssd-model.md explains every key";
    let what = match error {
        ParamsError::Text(mistake) => format!("{drive}, {mistake}"),
        ParamsError::Value { .. } => format!("{drive} describes no drive: {error}"),
    };
    Failure::usage(what, remedy)
}

/// A drive of `len` for all cores.
pub fn shared(spec: &ModelSpec, len: ByteLen) -> Result<SharedModel, Failure> {
    let model = Model::new(&params(spec)?, len.0 / BLOCK_SIZE as u64, spec.seed);
    Ok(SharedModel::new(model.map_err(|error| undescribed(&spec.drive, &error))?))
}
