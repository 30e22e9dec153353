//! The drives of the literature that farflash is compared with.

use std::fmt;
use std::str::FromStr;

use crate::Params;

/// A drive that is known by name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Preset {
    /// Intel DC P3600, 400 GB, as in "Flash Storage Disaggregation" (EuroSys 2016).
    P3600,
    /// Intel DC P3700, 800 GB, as in "Decibel" (NSDI 2017).
    P3700,
    /// The 960 GB M.2 drive of an all-flash array whose read latency was studied to six nines.
    M2960,
}

/// A name that no preset has.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("`{0}` is no modelled drive; there are p3600, p3700 and m2-960")]
pub struct ParsePresetError(String);

impl Preset {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::P3600, Self::P3700, Self::M2960];

    /// The name, as users write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::P3600 => "p3600",
            Self::P3700 => "p3700",
            Self::M2960 => "m2-960",
        }
    }

    /// The drive's description: full and in the steady state of random writes.
    #[must_use]
    pub fn params(self) -> Params {
        match self {
            Self::P3600 => p3600(),
            Self::P3700 => p3700(),
            Self::M2960 => m2_960(),
        }
    }
}

fn p3700() -> Params {
    Params {
        units: 48,
        page_blocks: 4,
        program_blocks: 4,
        programs_per_erase: 256,
        read_us: 80.0,
        program_us: 711.0,
        erase_us: 3_000.0,
        reads_before_program: 4,
        turnaround_us: 180.0,
        read_overhead_us: 12.0,
        write_us: 15.0,
        flush_us: 10.0,
        discard_us: 30.0,
        buffer_programs: 16,
        volatile_buffer: false,
        commands_per_second: 464_000.0,
        read_megabytes_per_second: 2_800.0,
        write_megabytes_per_second: 1_900.0,
        overprovision: 0.28,
        filled: 1.0,
        random: 1.0,
        history_gib: 100.0,
        idle_ms: 100.0,
        reserve_gib: 50.0,
        pause_every_s: 60.0,
        pause_us: 500.0,
        jitter: 0.15,
        tail_share: 0.005,
        tail_us: 20.0,
        tail_shape: 2.5,
        tail_max_us: 2_000.0,
        scale: 1.0,
    }
}

fn p3600() -> Params {
    Params {
        units: 32,
        program_us: 630.0,
        commands_per_second: 252_000.0,
        read_megabytes_per_second: 2_100.0,
        write_megabytes_per_second: 550.0,
        overprovision: 0.1,
        history_gib: 50.0,
        reserve_gib: 10.0,
        ..p3700()
    }
}

fn m2_960() -> Params {
    Params {
        units: 32,
        page_blocks: 4,
        program_blocks: 8,
        programs_per_erase: 256,
        read_us: 15.0,
        program_us: 1_450.0,
        erase_us: 3_500.0,
        reads_before_program: 4,
        turnaround_us: 100.0,
        read_overhead_us: 9.5,
        write_us: 20.0,
        flush_us: 10.0,
        discard_us: 30.0,
        buffer_programs: 4,
        volatile_buffer: false,
        commands_per_second: 161_000.0,
        read_megabytes_per_second: 1_700.0,
        write_megabytes_per_second: 750.0,
        overprovision: 0.1,
        filled: 1.0,
        random: 1.0,
        history_gib: 100.0,
        idle_ms: 100.0,
        reserve_gib: 10.0,
        pause_every_s: 54.0,
        pause_us: 575.0,
        jitter: 0.05,
        tail_share: 0.01,
        tail_us: 3.0,
        tail_shape: 3.0,
        tail_max_us: 65.0,
        scale: 1.0,
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Preset {
    type Err = ParsePresetError;

    fn from_str(text: &str) -> Result<Self, ParsePresetError> {
        let known = Self::ALL.into_iter().find(|preset| preset.name() == text);
        known.ok_or_else(|| ParsePresetError(text.to_owned()))
    }
}
