//! From measurements of a drive to its description.

use units::Instant;

use crate::{Load, Model, Params, ParamsError, Pattern, Preset, closed_loop};

/// Blocks of the drive on which a fit is tried: large enough for every unit to be in use.
const BLOCKS: u64 = 1 << 20;
/// Requests that are outstanding at the limit.
const DEPTH: u32 = 256;
const ROUNDS: usize = 6;
const TIME: units::Duration = units::Duration::from_millis(300);

/// Measurements of random requests of one block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observed {
    /// Mean latency of one read at a time, µs.
    pub read_us: f64,
    /// Reads a second at their most.
    pub reads_per_second: f64,
    /// Mean latency of one write at a time, µs.
    pub write_us: f64,
    /// Writes a second at their most, kept up for long.
    pub writes_per_second: f64,
}

impl Observed {
    /// Measures a model in the same way.
    ///
    /// # Errors
    /// The description makes no sense.
    pub fn of(params: &Params) -> Result<Self, ParamsError> {
        let measure = |read_share, depth| {
            let mut model = Model::new(params, BLOCKS, 1)?;
            let pattern = Pattern::Random;
            let load =
                Load { depth, read_share, request_blocks: 1, blocks: BLOCKS, pattern, seed: 1 };
            let time = TIME.mul_f64(1.0 / params.scale.min(1.0));
            Ok(closed_loop(&mut model, load, Instant(0), time / 2, time))
        };
        let us = |share, depth| -> Result<f64, ParamsError> {
            Ok(measure(share, depth)?.all().mean().as_secs_f64() * 1e6)
        };
        Ok(Self {
            read_us: us(1.0, 1)?,
            reads_per_second: measure(1.0, DEPTH)?.rate(),
            write_us: us(0.0, 1)?,
            writes_per_second: measure(0.0, DEPTH)?.rate(),
        })
    }
}

/// Proposes a description: the P3700's habits, with the speed that was measured.
///
/// # Errors
/// Nothing that can be described was measured.
pub fn fit(observed: &Observed) -> Result<Params, ParamsError> {
    let base = Preset::P3700.params();
    let mut params = Params {
        read_overhead_us: base.read_overhead_us.min(observed.read_us * 0.15),
        commands_per_second: observed.reads_per_second,
        read_megabytes_per_second: base
            .read_megabytes_per_second
            .max(observed.reads_per_second * 0.01),
        write_megabytes_per_second: base
            .write_megabytes_per_second
            .max(observed.writes_per_second * 0.01),
        write_us: observed.write_us.max(0.001),
        ..base
    };
    params.read_us = (observed.read_us - params.read_overhead_us).max(0.001);
    // So many that the controller, and not they, bound the reads, as in most drives.
    let units = observed.reads_per_second * params.read_us / 1e6 * 1.3;
    params.units = (units.ceil() as u32).clamp(1, 4096);
    for _ in 0..ROUNDS {
        params.validate()?;
        let shown = Observed::of(&params)?;
        let missing = |wanted: f64, shown: f64| (wanted / shown.max(1.0)).clamp(0.2, 5.0);
        params.program_us /= missing(observed.writes_per_second, shown.writes_per_second);
        params.read_us =
            (params.read_us + (observed.read_us - shown.read_us)).max(params.read_us * 0.2);
        params.write_us =
            (params.write_us + (observed.write_us - shown.write_us)).max(params.write_us * 0.2);
        let reads = missing(observed.reads_per_second, shown.reads_per_second);
        if reads > 1.02 {
            params.units = ((f64::from(params.units) * reads).ceil() as u32).min(4096);
        }
    }
    params.validate()?;
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Method: fit what a preset shows of itself, and look at what the fit shows.
    #[test]
    fn a_fit_shows_what_was_measured() {
        for preset in [Preset::P3700, Preset::P3600] {
            let wanted = Observed::of(&preset.params()).expect("a preset");
            let params = fit(&wanted).expect("measured on a drive");
            let shown = Observed::of(&params).expect("a description");
            for (name, wanted, shown) in [
                ("read latency", wanted.read_us, shown.read_us),
                ("reads", wanted.reads_per_second, shown.reads_per_second),
                ("write latency", wanted.write_us, shown.write_us),
                ("writes", wanted.writes_per_second, shown.writes_per_second),
            ] {
                let off = (shown / wanted - 1.0).abs();
                assert!(off < 0.1, "{preset:?}, {name}: {shown} and not {wanted}");
            }
        }
    }
}
