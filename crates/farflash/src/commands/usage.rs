//! The requirement that a running service meets now, for `farflash cost --from-usage`.

use std::fmt;
use std::time::{Duration, Instant};

use control::{ApiClient, Stats};
use serde::Serialize;
use user_messages::Failure;
use user_messages::output;

/// Measured use of a service.
#[derive(Debug, Serialize)]
pub(super) struct Usage {
    /// Volumes of all hosts of the service.
    pub volumes: u64,
    /// Their sizes together, in gigabytes.
    pub provisioned_gb: f64,
    /// Device space that they hold, in gigabytes.
    pub allocated_gb: f64,
    /// Requests per second of the volumes of the host that was asked.
    pub requests_per_second: f64,
    /// Seconds over which they were counted.
    pub seconds: f64,
}

impl Usage {
    /// Asks the service, and counts its requests for `sample`.
    pub(super) fn measure(client: &ApiClient, sample: Duration) -> Result<Self, Failure> {
        let list = client.list()?;
        let gigabytes = |bytes: u64| bytes as f64 / 1e9;
        let before = (Instant::now(), requests(&client.stats()?));
        let mut progress = output::progress("requests are counted");
        while before.0.elapsed() < sample {
            let left = sample.saturating_sub(before.0.elapsed());
            std::thread::sleep(left.min(Duration::from_millis(500)));
            progress(before.0.elapsed().as_millis() as u64, sample.as_millis() as u64);
        }
        let after = requests(&client.stats()?);
        let seconds = before.0.elapsed().as_secs_f64();
        Ok(Self {
            volumes: list.volumes.len() as u64,
            provisioned_gb: list.volumes.iter().map(|volume| gigabytes(volume.size_bytes)).sum(),
            allocated_gb: list.volumes.iter().map(|volume| gigabytes(volume.allocated_bytes)).sum(),
            requests_per_second: after.saturating_sub(before.1) as f64 / seconds,
            seconds,
        })
    }
}

/// Requests of all volumes since the server started.
fn requests(stats: &Stats) -> u64 {
    stats.volumes.iter().map(|volume| volume.flow.requests).sum()
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { volumes, provisioned_gb, allocated_gb, requests_per_second, seconds } = self;
        write!(
            f,
            "Measured: {volumes} volumes of {provisioned_gb:.1} GB, {allocated_gb:.1} GB of which hold \
             data; {requests_per_second:.0} requests a second over {seconds:.0} s. Capacity and IOPS \
             of the plan are replaced by these."
        )
    }
}
