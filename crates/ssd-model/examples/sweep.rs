//! Throughput and latency of a modelled drive over depth and share of reads.
//!
//! `cargo run --release -p ssd-model --example sweep -- [p3600|p3700|m2-960|FILE.toml] [SECONDS]`

use std::time::Instant as RealInstant;

use ssd_model::{Load, Model, Params, Pattern, Preset, closed_loop};
use units::{Duration, Instant};

/// 100 GiB: small enough for a quick sweep, far larger than any buffer.
const BLOCKS: u64 = 100 << 18;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "p3700".to_owned());
    let seconds = arguments.next().map_or(2.0, |text| text.parse().expect("a number of seconds"));
    let params = match name.parse::<Preset>() {
        Ok(preset) => preset.params(),
        Err(_) => {
            let text = std::fs::read_to_string(&name).expect("a preset's name, or a file");
            Params::from_toml(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
        }
    };
    println!("{name}: random requests of 4 KiB; latencies in µs");
    println!(
        "reads  depth   total/s   reads/s  writes/s | read mean     95 %    99.9 % | write mean     95 %    99.9 %"
    );
    let (started, mut requests) = (RealInstant::now(), 0);
    for read_share in [1.0, 0.7, 0.5, 0.0] {
        for depth in [1, 2, 4, 8, 16, 32, 64, 90, 128, 150, 256] {
            let mut model = Model::new(&params, BLOCKS, 1).expect("a sound description");
            let load = Load {
                depth,
                read_share,
                request_blocks: 1,
                blocks: BLOCKS,
                pattern: Pattern::Random,
                seed: 2,
            };
            let measure = Duration::from_secs_f64(seconds);
            let seen = closed_loop(&mut model, load, Instant(0), measure / 2, measure);
            requests += seen.count() * 3 / 2;
            let us = |latency: Duration| latency.as_secs_f64() * 1e6;
            print!("{:>4.0}%  {depth:>5}  ", read_share * 100.0);
            print!("{:>8.0}  {:>8.0}  {:>8.0}", seen.rate(), seen.read_rate(), seen.write_rate());
            for kind in [&seen.reads, &seen.writes] {
                let quantile = |q| us(kind.quantile(q));
                print!(
                    " |  {:>8.0} {:>8.0}  {:>8.0}",
                    us(kind.mean()),
                    quantile(0.95),
                    quantile(0.999)
                );
            }
            println!();
        }
    }
    let rate =
        f64::from(u32::try_from(requests).unwrap_or(u32::MAX)) / started.elapsed().as_secs_f64();
    println!("computed {:.1} million requests in a second", rate / 1e6);
}
