//! CPU costs, measured beside a figure with its own servers and datastores.

use std::thread;
use std::time::Duration;

use reproduce::CpuCosts;
use reproduce::eurosys::real_time::costs::{READ_BYTES, Samples, Used};
use user_messages::Failure;

use super::load::{Load, childrens_cpu_ns, cpu_ns, finished};
use super::made::failed;
use super::world::{OUTSTANDING, SETTLE, World};

/// Measured time of each cost, if the experiment takes its whole time.
const WHOLE_SECONDS: f64 = 20.0;
/// Bytes of what is read to measure a read.
const VOLUME_BYTES: u64 = 64 << 20;
const DEPTH: &str = "32";
const NAME: &str = "costs";

/// Measures the costs of the datastore and of the way to remote Flash.
pub(super) fn measure(world: &mut World, load: &Load<'_>) -> Result<CpuCosts, Failure> {
    let duration = load.seconds(WHOLE_SECONDS);
    let mut samples = Samples::default();
    if let (Some(process), addresses) = (world.datastore(), world.addresses(0)) {
        // Compactions after the figure's sets are not the cost of a get.
        thread::sleep(SETTLE);
        let queries = |gets| -> Result<Used, Failure> {
            // What comes before the measured time is counted on both sides.
            let whole = duration + load.setup(addresses[0], gets, duration).warm_up;
            let before = cpu_ns(process)?;
            let rates = load.closed(&addresses[..1], gets, duration)?;
            let requests = rates[0].per_second * whole.as_secs_f64();
            Ok(Used { cpu_ns: cpu_ns(process)? - before, requests })
        };
        (samples.gets, samples.sets) = (queries(1.0)?, queries(0.0)?);
    } else {
        // Without datastores what is stated of them stays.
        let stated = |ns: u64| Used { cpu_ns: ns as f64, requests: 1.0 };
        samples.gets = stated(CpuCosts::STATED.get_ns);
        samples.sets = stated(CpuCosts::STATED.set_ns);
    }
    let volume = world.volume(NAME, VOLUME_BYTES)?;
    let target = volume.target();
    written(world, &target)?;
    let server = world.server();
    for (used, bytes) in samples.server.iter_mut().zip(READ_BYTES) {
        let before = cpu_ns(server)?;
        let requests = read(world, &target, bytes, duration, load)?;
        *used = Used { cpu_ns: cpu_ns(server)? - before, requests };
    }
    let local = world.path("costs.img");
    let file = std::fs::File::create_new(&local).and_then(|file| file.set_len(VOLUME_BYTES));
    file.map_err(|error| failed(format!("{local} cannot be made: {error}")))?;
    let local = format!("file:{local}");
    written(world, &local)?;
    let before = childrens_cpu_ns()?;
    let requests = read(world, &local, READ_BYTES[0], duration, load)?;
    samples.local = Used { cpu_ns: childrens_cpu_ns()? - before, requests };

    let path = world.attach(NAME, OUTSTANDING)?;
    let process = world.attached(NAME)?;
    let used = || Ok::<_, Failure>(childrens_cpu_ns()? + cpu_ns(process)?);
    let before = used()?;
    let requests = read(world, &format!("file:{path}"), READ_BYTES[0], duration, load)?;
    samples.attached = Used { cpu_ns: used()? - before, requests };
    samples.costs().map_err(|error| Failure::runtime(error.to_string(), "give a larger --time"))
}

/// Writes all of a target, so that every read is one of its device.
fn written(world: &World, target: &str) -> Result<(), Failure> {
    let all = VOLUME_BYTES.to_string();
    let write = ["--rw", "write", "--bs", "128KiB", "--qd", "4", "--overwrite", "--bytes", &all];
    finished(
        world.start(
            &[&["bench", "--json", "--quiet", "--target", target], write.as_slice()].concat(),
        )?,
    )
    .map(drop)
}

/// Reads in random places for a while; returns the number of reads.
fn read(
    world: &World,
    target: &str,
    bytes: u64,
    duration: Duration,
    load: &Load<'_>,
) -> Result<f64, Failure> {
    load.go_on()?;
    let (bytes, seconds) = (bytes.to_string(), duration.as_secs_f64().to_string());
    let read = ["--rw", "randread", "--bs", &bytes, "--qd", DEPTH, "--seconds", &seconds];
    let child = world
        .start(&[&["bench", "--json", "--quiet", "--target", target], read.as_slice()].concat())?;
    Ok(finished(child)?.requests as f64)
}
