//! Figures of each step of the study, for choosing parameters.
//!
//! `cargo run --release -p array-model --example steps -- [DRIVES] [SECONDS] [SEED]`

use array_model::{Column, Density, DriveLatencies, Layout, OverDrives, Params, Tuning, World};
use units::Duration;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<f64>().expect("a number"));
    let drives = arguments.next().unwrap_or(8.0) as usize;
    let seconds = arguments.next().unwrap_or(120.0);
    let seed = arguments.next().unwrap_or(1.0) as u64;
    let steps = [
        ("default", Tuning::DEFAULT, Density::Four),
        ("chrt", Tuning::CHRT, Density::Four),
        ("isolcpus", Tuning::ISOLCPUS, Density::Four),
        ("irq (13a)", Tuning::IRQ, Density::Four),
        ("firmware", Tuning::FIRMWARE, Density::Four),
        ("13b", Tuning::IRQ, Density::Two),
        ("13c", Tuning::IRQ, Density::One),
        ("13d", Tuning::IRQ, Density::Alone),
    ];
    for (name, tuning, density) in steps {
        let begin = std::time::Instant::now();
        let layout = Layout::new(density, drives);
        let mut all: Vec<DriveLatencies> = Vec::new();
        for run in 0..layout.runs() {
            let params = Params::default();
            let mut world = World::new(&params, tuning, &layout, run, seed).expect("a drive");
            world.run_until(Duration::from_secs_f64(seconds), &mut |_| ());
            all.extend_from_slice(world.latencies());
        }
        print!("{name:10}");
        for column in Column::ALL {
            let OverDrives { mean_us, deviation_us } = OverDrives::of(&all, column);
            print!(" {mean_us:7.1} ±{deviation_us:6.1}");
        }
        let requests: u64 = all.iter().map(DriveLatencies::count).sum();
        println!("  {:.0} ns", begin.elapsed().as_nanos() as f64 / requests as f64);
    }
}
