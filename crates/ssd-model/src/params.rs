//! Parameters of a drive, and reading them from a file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use toml_mistake::TomlMistake;

use crate::Preset;

/// A drive's description. Times are those of `scale = 1`; `docs/ssd-model.md` says how to choose them.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Flash units that work at the same time, each on one operation.
    pub units: u32,
    /// Consecutive blocks in one unit, and blocks that one flash read yields.
    pub page_blocks: u32,
    /// Blocks that one program operation of a unit stores.
    pub program_blocks: u32,
    /// Program operations of a unit for each erase.
    pub programs_per_erase: u32,
    /// Time of a unit for a flash read, µs.
    pub read_us: f64,
    /// Time of a unit for a program operation, µs.
    pub program_us: f64,
    /// Time of a unit for an erase, µs.
    pub erase_us: f64,
    /// Reads that may go ahead of a waiting program, collection or erase on their unit.
    pub reads_before_program: u32,
    /// Extra time of a unit for the first read behind a program, collection or erase, µs.
    pub turnaround_us: f64,
    /// Latency of a read beside its unit's time, µs.
    pub read_overhead_us: f64,
    /// Latency of a write that the buffer takes at once, µs.
    pub write_us: f64,
    /// Latency of a flush with nothing to do, µs.
    pub flush_us: f64,
    /// Latency of a discard, µs.
    pub discard_us: f64,
    /// The buffer's size: program operations per unit that it holds, those under way included.
    pub buffer_programs: u32,
    /// True if buffered writes are lost with the power, so that a flush has to store them.
    pub volatile_buffer: bool,
    /// Commands that the controller takes in a second.
    pub commands_per_second: f64,
    /// Bytes read in a second at most, in 10^6.
    pub read_megabytes_per_second: f64,
    /// Bytes written in a second at most, in 10^6.
    pub write_megabytes_per_second: f64,
    /// Flash that the host does not see, as a share of what it sees.
    pub overprovision: f64,
    /// Share of the drive that holds data at the start.
    pub filled: f64,
    /// Share of random writes in the drive's past at the start.
    pub random: f64,
    /// GiB of writes by which a drive adapts to a new pattern.
    pub history_gib: f64,
    /// Idle time before the drive begins to erase ahead, ms.
    pub idle_ms: f64,
    /// GiB that an idle drive erases ahead at most.
    pub reserve_gib: f64,
    /// Time from one housekeeping pause to the next, s; zero for none.
    pub pause_every_s: f64,
    /// Length of a housekeeping pause, µs.
    pub pause_us: f64,
    /// Variation of each flash operation, as a share of its time, up and down.
    pub jitter: f64,
    /// Share of requests with an extra delay.
    pub tail_share: f64,
    /// Least extra delay, µs.
    pub tail_us: f64,
    /// Exponent of a power law: how quickly longer extra delays become rare.
    pub tail_shape: f64,
    /// Longest extra delay, µs.
    pub tail_max_us: f64,
    /// The drive's speed relative to the description: at 0.1, everything takes ten times as long.
    pub scale: f64,
}

/// Why a description is none.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ParamsError {
    /// The text is no TOML, or what it says of a key makes no sense: the message has the line and the key.
    #[error("{0}")]
    Text(TomlMistake),
    /// A value is out of range, in parameters that are not from a text.
    #[error("`{key}` is {value}, but must be {expected}")]
    Value {
        /// The key.
        key: &'static str,
        /// Its value.
        value: f64,
        /// The values that are allowed.
        expected: &'static str,
    },
}

/// The longest operation, in µs: 100 s.
const TIME_US_MAX: f64 = 1e8;

impl Params {
    /// Reads a description: all keys, or `like = "PRESET"` and those that differ.
    pub fn from_toml(text: &str) -> Result<Self, ParamsError> {
        let mistake = |error: toml::de::Error| ParamsError::Text(TomlMistake::new(text, &error));
        let written: Written = toml::from_str(text).map_err(mistake)?;
        let params: Self =
            toml::from_str(&whole(text, &written).map_err(ParamsError::Text)?).map_err(mistake)?;
        params.validate().map_err(|error| {
            let ParamsError::Value { key, .. } = &error else { return error };
            TomlMistake::of_key(text, key, error.to_string()).map_or(error, ParamsError::Text)
        })?;
        Ok(params)
    }

    /// The description as [`Params::from_toml`] reads it.
    #[must_use]
    pub fn to_toml(&self) -> String {
        self.to_table().to_string()
    }

    fn to_table(&self) -> toml::Table {
        toml::Table::try_from(self).expect("numbers and booleans are TOML")
    }

    /// Checks that every value makes sense; the error names the first key that does not.
    pub fn validate(&self) -> Result<(), ParamsError> {
        self.validate_counts()?;
        self.validate_times()?;
        self.validate_shares()
    }

    fn validate_counts(&self) -> Result<(), ParamsError> {
        let counts = [
            ("units", self.units, 4096, "a whole number from 1 to 4096"),
            ("page_blocks", self.page_blocks, 1024, "a whole number from 1 to 1024"),
            ("program_blocks", self.program_blocks, 1024, "a whole number from 1 to 1024"),
            ("programs_per_erase", self.programs_per_erase, 65_536, "from 1 to 65536"),
            ("buffer_programs", self.buffer_programs, 65_536, "from 1 to 65536"),
        ];
        for (key, value, max, expected) in counts {
            check(key, f64::from(value), 1.0..=f64::from(max), expected)?;
        }
        Ok(())
    }

    fn validate_times(&self) -> Result<(), ParamsError> {
        let positive = [
            ("read_us", self.read_us),
            ("program_us", self.program_us),
            ("write_us", self.write_us),
        ];
        for (key, value) in positive {
            check(key, value, 0.001..=TIME_US_MAX, "a time from 0.001 µs to 100 s")?;
        }
        let times = [
            ("erase_us", self.erase_us),
            ("turnaround_us", self.turnaround_us),
            ("read_overhead_us", self.read_overhead_us),
            ("flush_us", self.flush_us),
            ("discard_us", self.discard_us),
            ("idle_ms", self.idle_ms),
            ("pause_us", self.pause_us),
            ("tail_us", self.tail_us),
            ("tail_max_us", self.tail_max_us),
        ];
        for (key, value) in times {
            check(key, value, 0.0..=TIME_US_MAX, "a time, zero or more, up to 100 s")?;
        }
        check("pause_every_s", self.pause_every_s, 0.0..=1e6, "from 0 (never) to 1000000 s")?;
        if self.pause_every_s > 0.0 && self.pause_every_s * 1e6 <= 2.0 * self.pause_us {
            return Err(ParamsError::Value {
                key: "pause_every_s",
                value: self.pause_every_s,
                expected: "zero, or more than twice as long as `pause_us`",
            });
        }
        if self.tail_max_us < self.tail_us {
            return Err(ParamsError::Value {
                key: "tail_max_us",
                value: self.tail_max_us,
                expected: "at least `tail_us`",
            });
        }
        Ok(())
    }

    fn validate_shares(&self) -> Result<(), ParamsError> {
        let rates = [
            ("commands_per_second", self.commands_per_second),
            ("read_megabytes_per_second", self.read_megabytes_per_second),
            ("write_megabytes_per_second", self.write_megabytes_per_second),
        ];
        for (key, value) in rates {
            check(key, value, 1.0..=1e9, "a rate from 1 to 10^9")?;
        }
        let shares =
            [("filled", self.filled), ("random", self.random), ("tail_share", self.tail_share)];
        for (key, value) in shares {
            check(key, value, 0.0..=1.0, "a share from 0 to 1")?;
        }
        check("jitter", self.jitter, 0.0..=0.9, "a share from 0 to 0.9")?;
        check("overprovision", self.overprovision, 0.01..=10.0, "a share from 0.01 to 10")?;
        check("history_gib", self.history_gib, 0.001..=1e6, "from 0.001 to 1000000 GiB")?;
        check("reserve_gib", self.reserve_gib, 0.0..=1e6, "from 0 to 1000000 GiB")?;
        check("tail_shape", self.tail_shape, 0.5..=100.0, "an exponent from 0.5 to 100")?;
        check("scale", self.scale, 1e-4..=100.0, "a factor from 0.0001 to 100")
    }
}

/// The values of a text, with their positions.
type Written = BTreeMap<String, toml::Spanned<toml::Value>>;

/// The text with all keys: in place of `like` a blank, and what it stands for at the end, so that lines stay what they are.
fn whole(text: &str, written: &Written) -> Result<String, TomlMistake> {
    let Some(like) = written.get("like") else { return Ok(text.to_owned()) };
    let preset = like.get_ref().as_str().and_then(|name| name.parse::<Preset>().ok());
    let Some(preset) = preset else {
        let like = like.get_ref();
        let message = format!("`like` is {like}, but names one of p3600, p3700, m2-960");
        return Err(TomlMistake::of_key(text, "like", message).expect("it is there"));
    };
    let (before, behind) = text.split_at(like.span().end);
    let line = text[..like.span().start].rfind('\n').map_or(0, |end| end + 1);
    let blank = before[line..].replace(|c| c != '\n', " ");
    let mut base = preset.params().to_table();
    base.retain(|key, _| !written.contains_key(key));
    Ok(format!("{}{blank}{behind}\n{base}", &before[..line]))
}

fn check(
    key: &'static str,
    value: f64,
    range: std::ops::RangeInclusive<f64>,
    expected: &'static str,
) -> Result<(), ParamsError> {
    if range.contains(&value) { Ok(()) } else { Err(ParamsError::Value { key, value, expected }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_survives_its_own_text() {
        for preset in Preset::ALL {
            let params = preset.params();
            params.validate().expect("a preset makes sense");
            assert_eq!(Params::from_toml(&params.to_toml()), Ok(params));
        }
    }

    #[test]
    fn a_file_may_name_only_what_differs() {
        let params = Params::from_toml("like = \"p3700\"\nunits = 7\nread_us = 50\nscale = 0.1\n");
        let expected = Params { units: 7, read_us: 50.0, scale: 0.1, ..Preset::P3700.params() };
        assert_eq!(params, Ok(expected));
    }

    /// Every refusal is one line, and names line and key.
    #[test]
    fn refusals_name_line_and_key() {
        for (text, words) in [
            ("units = ", "line 1: `units`: "),
            ("units = 7", "line 1: missing field"),
            ("like = \"p3700\"\nunis = 7", "line 2: unknown field `unis`"),
            ("# mine\nlike = \"p3700\" # but\n\nread_us = \"fast\"", "line 4: `read_us`: "),
            ("like = \"p3700\"\nunits = -1", "line 2: `units`: "),
            ("units = -1\nlike = \"p3700\"", "line 1: `units`: "),
            ("like = \"p3700\"\n[units]\na = 1", "line 2: "),
            (
                "like = \"p3700\"\nunits = 0",
                "line 2: `units` is 0, but must be a whole number from 1 to 4096",
            ),
            ("like = \"p3700\"\nread_us = nan", "line 2: `read_us` is NaN"),
            ("like = \"p3700\"\nread_us = -4", "line 2: `read_us` is -4"),
            ("like = \"p3700\"\njitter = 1", "`jitter` is 1, but must be a share from 0 to 0.9"),
            ("like = \"p3700\"\nscale = 0", "line 2: `scale` is 0"),
            ("like = \"p3700\"\noverprovision = 0", "`overprovision` is 0"),
            ("like = \"p3700\"\npause_every_s = 0.0001\npause_us = 90", "`pause_every_s`"),
            ("like = \"p3700\"\ntail_max_us = 0\ntail_us = 1", "line 2: `tail_max_us` is 0"),
            ("like = \"p3700\"\ntail_us = 9e7", "`tail_max_us` is "),
            ("like = \"p3800\"", "line 1: `like` is \"p3800\", but names one of p3600"),
            ("\nlike = 3", "line 2: `like` is 3"),
        ] {
            let error = Params::from_toml(text).expect_err(text).to_string();
            assert!(error.contains(words), "{text:?} gave {error:?}");
            assert_eq!(error.lines().count(), 1, "{text:?} gave {error:?}");
        }
    }
}
