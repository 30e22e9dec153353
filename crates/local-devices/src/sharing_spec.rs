//! The sharing of a device, as users write it behind its name:
//! `file:PATH,reads-per-second=N,writes-per-second=N[,latency-target=TIME][,policy=NAME]
//! [,write-cost=READS]`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schedule::{Ceiling, CostModel, PolicyKind, UnknownPolicy};

use device::kind::{DeviceSpec, ParseDeviceError};

/// The latency target of a device for which none is given.
pub const LATENCY_DEFAULT: Duration = Duration::from_micros(500);

/// A device that is served, and how it is shared.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedSpec {
    /// The device.
    pub device: DeviceSpec,
    /// The rules by which volumes share it.
    pub sharing: SharingSpec,
}

/// The sharing of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharingSpec {
    /// The order of requests.
    pub policy: PolicyKind,
    /// The most that the device is asked for, if there is a bound.
    pub ceiling: Option<Ceiling>,
    /// The latency target.
    pub latency: Duration,
    /// The cost of a write.
    pub cost_model: CostModel,
}

impl Default for SharingSpec {
    fn default() -> Self {
        let (policy, cost_model) = (PolicyKind::default(), CostModel::default());
        Self { policy, ceiling: None, latency: LATENCY_DEFAULT, cost_model }
    }
}

/// Names of a server's devices, each of them unique: devices in memory may look alike.
pub fn device_names(devices: &[SharedSpec]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for shared in devices {
        let name = shared.device.to_string();
        let more = (2..).map(|n| format!("{name}#{n}"));
        let free = std::iter::once(name.clone()).chain(more).find(|name| !names.contains(name));
        names.extend(free);
    }
    names
}

/// Why a text names no shared device.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ParseSharedError {
    /// The device itself.
    #[error(transparent)]
    Device(#[from] ParseDeviceError),
    /// A policy that does not exist.
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    /// A rate that is no number, or zero.
    #[error("`{key}={value}`: write a number of blocks of 4 KiB a second, at least 1")]
    Rate {
        /// The option.
        key: &'static str,
        /// The text behind it.
        value: String,
    },
    /// A latency target out of bounds.
    #[error("`latency-target={0}`: write a time such as 500us or 2ms, up to 10s")]
    Latency(String),
    /// A cost of writes out of bounds.
    #[error(
        "`write-cost={0}`: write how many reads a write is worth, such as 4.5, up to 1000; or apart"
    )]
    WriteCost(String),
    /// An option is repeated.
    #[error("the option `{0}` is given twice")]
    Twice(&'static str),
    /// A rate of reads without one of writes, or the reverse.
    #[error(
        "a ceiling has two sides: give both reads-per-second=N and writes-per-second=N, or neither"
    )]
    HalfCeiling,
}

impl FromStr for SharedSpec {
    type Err = ParseSharedError;

    fn from_str(text: &str) -> Result<Self, ParseSharedError> {
        let mut device = Vec::new();
        let (mut reads, mut writes, mut latency, mut policy) = (None, None, None, None);
        let mut write_cost = None;
        for (place, part) in text.split(',').enumerate() {
            match part.split_once('=').filter(|_| place > 0) {
                Some(("reads-per-second", value)) => {
                    once("reads-per-second", &mut reads, rate("reads-per-second", value)?)?;
                }
                Some(("writes-per-second", value)) => {
                    once("writes-per-second", &mut writes, rate("writes-per-second", value)?)?;
                }
                Some(("latency-target", value)) => {
                    once("latency-target", &mut latency, parse_latency(value)?)?;
                }
                Some(("write-cost", value)) => {
                    once("write-cost", &mut write_cost, parse_write_cost(value)?)?;
                }
                Some(("policy", value)) => once("policy", &mut policy, value.parse()?)?,
                _ => device.push(part),
            }
        }
        let ceiling = match (reads, writes) {
            (None, None) => None,
            (Some(reads_per_second), Some(writes_per_second)) => {
                Some(Ceiling { reads_per_second, writes_per_second })
            }
            _ => return Err(ParseSharedError::HalfCeiling),
        };
        let sharing = SharingSpec {
            policy: policy.unwrap_or_default(),
            ceiling,
            latency: latency.unwrap_or(LATENCY_DEFAULT),
            cost_model: write_cost.unwrap_or_default(),
        };
        Ok(Self { device: device.join(",").parse()?, sharing })
    }
}

fn once<T>(key: &'static str, place: &mut Option<T>, value: T) -> Result<(), ParseSharedError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(ParseSharedError::Twice(key)),
    }
}

fn rate(key: &'static str, value: &str) -> Result<u64, ParseSharedError> {
    let rate = value.parse().ok().filter(|rate| *rate >= 1);
    rate.ok_or_else(|| ParseSharedError::Rate { key, value: value.to_owned() })
}

/// Reads a time such as `500us`, `0.5ms` or `1s`.
pub fn parse_latency(text: &str) -> Result<Duration, ParseSharedError> {
    let refused = || ParseSharedError::Latency(text.to_owned());
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(refused)?;
    let (number, unit) = text.split_at(unit_at);
    let scale_us = match unit.trim() {
        "us" | "µs" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        _ => return Err(refused()),
    };
    let time_us = number.parse::<f64>().map_err(|_| refused())? * scale_us;
    if !(1.0..=1e7).contains(&time_us) {
        return Err(refused());
    }
    Ok(Duration::from_nanos((time_us * 1e3) as u64))
}

/// Reads what a write costs: so many reads, or `apart` if the two have ceilings of their own.
pub fn parse_write_cost(text: &str) -> Result<CostModel, ParseSharedError> {
    if text == "apart" {
        return Ok(CostModel::Separate);
    }
    let per_mille = text.parse::<f64>().map_or(0.0, |reads| (reads * 1000.0).round());
    if !(1.0..=1e6).contains(&per_mille) {
        return Err(ParseSharedError::WriteCost(text.to_owned()));
    }
    Ok(CostModel::WriteCosts { per_mille: per_mille as u32 })
}

impl fmt::Display for SharedSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.device.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ceiling_is_written_behind_the_device() {
        let text = "file:/x/y,size=8GiB,reads-per-second=70000,policy=sts,flush=never,\
                    latency-target=0.5ms,writes-per-second=30000,write-cost=2.33";
        let spec: SharedSpec = text.parse().expect("sound");
        assert_eq!(Ok(spec.device), "file:/x/y,size=8GiB,flush=never".parse());
        let ceiling = Ceiling { reads_per_second: 70_000, writes_per_second: 30_000 };
        assert_eq!(spec.sharing.ceiling, Some(ceiling));
        assert_eq!(spec.sharing.latency, Duration::from_micros(500));
        assert_eq!(spec.sharing.policy.name, "sts");
        assert_eq!(spec.sharing.cost_model, CostModel::WriteCosts { per_mille: 2_330 });
        let plain: SharedSpec = "mem:1GiB".parse().expect("sound");
        assert_eq!(plain.sharing, SharingSpec::default());
    }

    #[test]
    fn each_mistake_has_its_own_message() {
        use ParseSharedError::*;
        let rate = |value: &str| Rate { key: "reads-per-second", value: value.to_owned() };
        for (options, error) in [
            ("reads-per-second=5", HalfCeiling),
            ("reads-per-second=0", rate("0")),
            ("reads-per-second=many", rate("many")),
            ("policy=sts,policy=drr", Twice("policy")),
            ("policy=best", Policy(UnknownPolicy { name: "best".to_owned() })),
            ("latency-target=5", Latency("5".to_owned())),
            ("latency-target=0us", Latency("0us".to_owned())),
            ("latency-target=1h", Latency("1h".to_owned())),
            ("write-cost=0", WriteCost("0".to_owned())),
            ("write-cost=much", WriteCost("much".to_owned())),
        ] {
            let text = format!("mem:1GiB,{options}");
            assert_eq!(text.parse::<SharedSpec>(), Err(error), "{text}");
        }
        assert!(matches!("mem:".parse::<SharedSpec>(), Err(Device(_))));
    }
}
