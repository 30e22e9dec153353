//! The presets beside the figures that the papers print; `docs/ssd-model.md` has the table.
//!
//! Method: closed loops in the model's own time, on a fixed seed. `--nocapture` shows the rows.

use ssd_model::{Load, Measured, Model, Params, Pattern, Preset, closed_loop};
use units::{Duration, Instant};

/// 100 GiB.
const BLOCKS: u64 = 100 << 18;
/// Tolerance of a figure.
const TOLERANCE: f64 = 0.1;

fn random(depth: u32, read_share: f64) -> Load {
    let pattern = Pattern::Random;
    Load { depth, read_share, request_blocks: 1, blocks: BLOCKS, pattern, seed: 7 }
}

fn sequential(read_share: f64) -> Load {
    // 128 KiB, as data sheets have it.
    let (pattern, request_blocks) = (Pattern::Sequential, 32);
    Load { pattern, request_blocks, ..random(32, read_share) }
}

fn run_params(params: &Params, load: Load, measure: Duration) -> Measured {
    let mut model = Model::new(params, BLOCKS, 11).expect("a sound description");
    closed_loop(&mut model, load, Instant(0), Duration::from_millis(300), measure)
}

fn run(preset: Preset, load: Load) -> Measured {
    run_params(&preset.params(), load, Duration::from_millis(1500))
}

/// Megabytes (10^6 bytes) in a second.
fn megabytes(seen: &Measured, load: Load) -> f64 {
    seen.rate() * load.request_blocks as f64 * 4096.0 / 1e6
}

fn us(latency: Duration) -> f64 {
    latency.as_secs_f64() * 1e6
}

#[track_caller]
fn agrees(what: &str, paper: f64, model: f64) {
    let off = model / paper - 1.0;
    println!("{what:<58} paper {paper:>9.0}  model {model:>9.0}  {:>+5.1} %", off * 100.0);
    assert!(off.abs() <= TOLERANCE, "{what}: paper {paper}, model {model}");
}

#[test]
fn p3700_is_that_of_decibel() {
    let run = |depth, read_share| run(Preset::P3700, random(depth, read_share));
    for depth in [128, 256] {
        agrees(&format!("random reads/s, depth {depth}"), 460e3, run(depth, 1.0).rate());
        agrees(&format!("random writes/s, depth {depth}"), 100e3, run(depth, 0.0).rate());
        agrees(&format!("requests/s at 70/30, depth {depth}"), 200e3, run(depth, 0.7).rate());
    }
    // Figure 13: three clients with 30 requests each.
    agrees("requests/s at 70/30, depth 90", 180e3, run(90, 0.7).rate());
    // Table 2, local: a quarter of four drives. Little's law gives the depths.
    let reads = run(86, 1.0);
    agrees("random reads/s, depth 86", 425e3, reads.rate());
    agrees("mean latency of them, µs", 203.0, us(reads.mean()));
    let mixed = run(79, 0.7);
    agrees("requests/s at 70/30, depth 79", 187.5e3, mixed.rate());
    agrees("mean latency of them, µs", 422.0, us(mixed.mean()));
}

/// "Two or three times" as fast when fresh, in section 4 of Decibel.
#[test]
fn a_fresh_p3700_writes_two_to_three_times_as_fast() {
    let steady = Preset::P3700.params();
    let fresh = Params { filled: 0.0, random: 0.0, ..steady.clone() };
    let rate = |params| run_params(params, random(128, 0.0), Duration::from_secs(1)).rate();
    let ratio = rate(&fresh) / rate(&steady);
    println!("fresh to steady state: {ratio:.2}");
    assert!((2.0..=3.0).contains(&ratio), "{ratio}");
}

/// "Well past their rated write throughput for almost a minute following a period of idleness".
#[test]
fn a_rested_p3700_writes_faster_for_about_a_minute() {
    let mut model = Model::new(&Preset::P3700.params(), BLOCKS, 11).expect("sound");
    let second = Duration::from_secs(1);
    let rested = Instant(0) + 3600 * second;
    let mut at = |start, warm_up| closed_loop(&mut model, random(128, 0.0), start, warm_up, second);
    let early = at(rested, 40 * second);
    assert!(early.rate() > 200e3, "{}", early.rate());
    let late = at(early.end, 20 * second);
    agrees("random writes/s, a minute after idleness", 100e3, late.rate());
}

#[test]
fn p3600_is_that_of_flash_storage_disaggregation() {
    for depth in [128, 256] {
        let reads = run(Preset::P3600, random(depth, 1.0));
        agrees(&format!("random reads/s, depth {depth}"), 250e3, reads.rate());
    }
    // "Latencies in the 10s of µs": below 100 µs for a lone read.
    assert!(run(Preset::P3600, random(1, 1.0)).mean() < Duration::from_micros(100));
}

#[test]
fn m2_960_is_that_of_the_array_paper() {
    let run = |load| run(Preset::M2960, load);
    agrees("mean latency of a lone read, µs", 25.0, us(run(random(1, 1.0)).mean()));
    agrees("random reads/s, depth 128", 160e3, run(random(128, 1.0)).rate());
    agrees("random writes/s, depth 128", 30e3, run(random(128, 0.0)).rate());
    let reads = megabytes(&run(sequential(1.0)), sequential(1.0));
    agrees("sequential reads, MB/s", 1700.0, reads);
    let params = Params { random: 0.0, ..Preset::M2960.params() };
    let seen = run_params(&params, sequential(0.0), Duration::from_millis(1500));
    agrees("sequential writes, MB/s", 750.0, megabytes(&seen, sequential(0.0)));
}

/// Section IV-E: 600 µs at worst with housekeeping, 90 µs without, over two minutes at depth 1.
#[test]
fn m2_960_has_the_worst_cases_of_the_array_paper() {
    let with = Preset::M2960.params();
    let without = Params { pause_every_s: 0.0, ..with.clone() };
    let run = |params| run_params(params, random(1, 1.0), Duration::from_secs(120));
    let (with, without) = (run(&with), run(&without));
    agrees("longest read with housekeeping, µs", 600.0, us(with.reads.max()));
    agrees("longest read without, µs", 90.0, us(without.reads.max()));
    // The pauses show at the sixth nine only, as in figures 9 and 11.
    let nines = |seen: &Measured, share| us(seen.reads.quantile(share));
    assert!((nines(&with, 0.99999) / nines(&without, 0.99999) - 1.0).abs() < 0.1);
    assert!(nines(&with, 0.99999) < 60.0);
}

/// Figures 7 and 8 of Decibel: a single latency class, which rises with the depth.
#[test]
fn throughput_and_latency_rise_with_depth() {
    for preset in Preset::ALL {
        for read_share in [1.0, 0.7, 0.0] {
            let (mut rate, mut mean) = (0.0, Duration::ZERO);
            for depth in [1, 4, 16, 64, 128, 256] {
                let seen = run(preset, random(depth, read_share));
                let what = format!("{preset}, depth {depth}, reads {read_share}");
                assert!(seen.rate() > rate * 0.97, "{what}: {} after {rate}", seen.rate());
                assert!(
                    seen.mean() > mean.mul_f64(0.99),
                    "{what}: {:?} after {mean:?}",
                    seen.mean()
                );
                (rate, mean) = (seen.rate(), seen.mean());
            }
        }
    }
}

/// Reads behind writes wait: their tail is far longer than their mean, already at a low load.
#[test]
fn writes_lengthen_the_tail_of_reads() {
    let alone = run(Preset::P3700, random(4, 1.0));
    let beside = run(Preset::P3700, random(4, 0.7));
    assert!(beside.reads.quantile(0.95) > 3 * alone.reads.quantile(0.95));
    assert!(beside.reads.quantile(0.5) < 2 * alone.reads.quantile(0.5));
}

/// Everything takes ten times as long at a tenth of the scale, and the shape stays.
#[test]
fn scale_stretches_time_and_nothing_else() {
    for (share, depth) in [(1.0, 128), (0.7, 90), (0.0, 32)] {
        let params = Preset::P3700.params();
        let full = run_params(&params, random(depth, share), Duration::from_secs(1));
        let scaled = Params { scale: 0.1, ..params };
        let slow = run_params(&scaled, random(depth, share), Duration::from_secs(10));
        let what = format!("reads {share}, depth {depth}");
        let ratio = full.rate() / slow.rate();
        assert!((9.8..10.2).contains(&ratio), "{what}: {ratio}");
        let ratio = us(slow.mean()) / us(full.mean());
        assert!((9.8..10.2).contains(&ratio), "{what}: {ratio}");
    }
}
