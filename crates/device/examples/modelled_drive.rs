//! A modelled drive in real time, on one core, beside the same load in the model's own time: what the
//! machine's clock, timers and tasks add.
//!
//! `cargo run --release -p device --example modelled_drive -- [PRESET] [SCALE]`

use std::cell::RefCell;
use std::rc::Rc;

use device::{MemDevice, ModelDevice, SharedModel};
use io_traits::{Buffer, Clock, Device, Spawn};
use reactor::{CoreConfig, Handle, IdlePolicy, run_on_current_thread};
use ssd_model::{Load, Model, Params, Pattern, Preset, closed_loop};
use units::{Duration, Instant, Pba};

/// 256 MiB.
const BLOCKS: u64 = 1 << 16;
const MEASURE: Duration = Duration::from_secs(2);

fn main() {
    let mut arguments = std::env::args().skip(1);
    let preset = arguments.next().unwrap_or_else(|| "p3700".to_owned());
    let preset: Preset = preset.parse().expect("the name of a preset");
    let scale = arguments.next().map_or(0.1, |text| text.parse().expect("a factor"));
    let params = Params { scale, ..preset.params() };
    println!("{preset} at scale {scale}, random reads of 4 KiB: reads/s, and mean latency in µs");
    println!("depth   model alone         in real time, polling and sleeping");
    for depth in [1, 8, 32, 128] {
        print!("{depth:>5}");
        let mut model = Model::new(&params, BLOCKS, 1).expect("a sound description");
        let load = Load {
            depth,
            read_share: 1.0,
            request_blocks: 1,
            blocks: BLOCKS,
            pattern: Pattern::Random,
            seed: 2,
        };
        let seen = closed_loop(&mut model, load, Instant(0), Duration::ZERO, MEASURE);
        print!("  {:>8.0} {:>8.0}", seen.rate(), seen.mean().as_secs_f64() * 1e6);
        for idle in [IdlePolicy::Spin, IdlePolicy::Sleep] {
            let config = CoreConfig { idle, ..CoreConfig::default() };
            let model = Model::new(&params, BLOCKS, 1).expect("a sound description");
            let run = |handle| in_real_time(handle, SharedModel::new(model), depth);
            let latencies = run_on_current_thread(&config, run).expect("io_uring");
            let count = latencies.len() as f64;
            let mean_ns = latencies.iter().sum::<u64>() as f64 / count.max(1.0);
            print!("  {:>8.0} {:>8.0}", count / MEASURE.as_secs_f64(), mean_ns / 1e3);
        }
        println!();
    }
}

/// The latencies of reads by `depth` tasks over the time of measuring.
async fn in_real_time(handle: Handle, model: SharedModel, depth: u32) -> Vec<u64> {
    let memory = MemDevice::new(BLOCKS).expect("memory");
    let device = ModelDevice::new(memory, handle.clone(), model);
    let latencies = Rc::new(RefCell::new(Vec::new()));
    let end = handle.precise_now() + MEASURE;
    for task in 0..u64::from(depth) {
        let (handle, device, latencies) = (handle.clone(), device.clone(), latencies.clone());
        handle.clone().spawn(async move {
            let mut state = task;
            while handle.precise_now() < end {
                state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(task + 1);
                let begin = handle.precise_now();
                let read = device.read(Pba((state >> 33) % BLOCKS), Buffer::new(1)).await;
                read.expect("within the device");
                latencies.borrow_mut().push((handle.precise_now() - begin).as_nanos() as u64);
            }
        });
    }
    handle.sleep_until(end).await;
    latencies.take()
}
