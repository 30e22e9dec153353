//! Scrubs that come by themselves.

use std::time::{Duration, Instant};

use control::{ScrubRequest, ScrubState, StartScrub};
use units::DeviceIndex;

use super::ServeConfig;
use super::service::Volumes;

/// Time from the start to the first one, if not sooner. The server does not remember when the last one was;
/// one which is often restarted would otherwise never come to it.
const FIRST_AFTER: Duration = Duration::from_secs(3600);

/// When scrubs begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScrubPlan {
    pub(super) every: Duration,
    pub(super) next: Instant,
}

/// Begins scrubs of all devices every so often, if that is wanted.
pub(super) fn start(volumes: &Volumes, config: &ServeConfig) {
    if let Some(every) = config.scrub_every {
        for device in config.devices.keys() {
            let keeping = volumes.clone();
            let tasks = &volumes.state().tasks;
            tasks.keep("planned scrubs", move || keep(keeping.clone(), device, every));
        }
    }
}

/// Begins a scrub of a device every so often, for as long as the server runs. One that still runs goes on instead.
async fn keep(volumes: Volumes, device: DeviceIndex, every: Duration) {
    let mut pause = every.min(FIRST_AFTER);
    loop {
        volumes.plan_scrub(device, ScrubPlan { every, next: Instant::now() + pause });
        tokio::time::sleep(pause).await;
        pause = every;
        let shown = volumes.state().scrub(device, ScrubRequest::Show).await;
        if shown.is_ok_and(|scrub| scrub.state == ScrubState::Running) {
            let device = volumes.state().devices[device].name();
            tracing::warn!(
                device,
                "the last scrub still runs; give it more bytes a second, or more time"
            );
            continue;
        }
        if volumes.state().is_absent(device) {
            continue;
        }
        if volumes.state().scrub(device, ScrubRequest::Start(StartScrub::default())).await.is_err()
        {
            // A core has ended, and the server is about to.
            return;
        }
    }
}
