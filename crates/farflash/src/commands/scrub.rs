//! `farflash scrub`: has a running server read all that lies on a device.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use control::{Scrub as Report, ScrubState, StartScrub};
use units::ByteLen;
use user_messages::Failure;
use user_messages::output::{self as printed, counted};

use super::api;
use super::device::only_device;
use super::status::spoken;
use super::volume::Output;

pub(super) const EXAMPLES: &str = "\
Every block in use is read and compared with its checksum, then it is checked that each has one owner and that counts \
are right, while hosts go on. Blocks that are damaged on the device and whole in memory are rewritten; nothing else is changed.

Examples:
  farflash scrub
  farflash scrub --rate 50MiB --detach
  farflash scrub file:/dev/nvme1n1
  farflash scrub --status --json

Exit codes: 0 nothing is damaged, 1 something is, or it could not be done.";

/// The command that shows the outcome of a change without an answer.
const LOOK: &str = "see `farflash scrub --status`";
const POLL: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(crate) struct Scrub {
    /// The device's name, as `device list` has it [default: the only one]
    device: Option<String>,
    /// Bytes read a second at most, such as 50MiB [default: 200MiB]
    #[arg(long, value_name = "BYTES")]
    rate: Option<ByteLen>,
    /// Do not wait for the end
    #[arg(long, conflicts_with_all = ["status", "stop"])]
    detach: bool,
    /// Only say how far the last one is
    #[arg(long, conflicts_with_all = ["rate", "stop"])]
    status: bool,
    /// End the one that runs
    #[arg(long, conflicts_with = "rate")]
    stop: bool,
    #[command(flatten)]
    output: Output,
}

impl Scrub {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let client = self.output.client()?;
        let device = match &self.device {
            Some(device) => device.clone(),
            None => only_device(&client, "name one behind `farflash scrub`")?,
        };
        let mut report = if self.status {
            client.scrub(&device)?
        } else if self.stop {
            api::change(&client, LOOK, |api| api.stop_scrub(&device))?
        } else {
            let bytes_per_second = self.rate.map(|rate| rate.0);
            let request = StartScrub { bytes_per_second };
            api::change(&client, LOOK, |api| api.start_scrub(&device, &request))?
        };
        if !(self.status || self.stop || self.detach) {
            let mut progress = printed::progress(&format!("scrubbing {device}"));
            while report.state == ScrubState::Running {
                std::thread::sleep(POLL);
                report = client.scrub(&device)?;
                progress(report.checked_bytes, report.total_bytes);
            }
        }
        self.output.print(&report, |out| human(out, &report))?;
        let failed = report.state == ScrubState::Failed;
        if report.damaged == 0 && !failed {
            return Ok(());
        }
        if failed {
            let what = format!("{device} did not do what the scrub asked of it");
            return Err(Failure::runtime(what, "see `farflash status` and the server's log"));
        }
        let damaged = counted(report.damaged, "damaged block");
        Err(Failure::runtime(
            format!("{device} has {damaged}"),
            "rewrite damaged blocks from a copy; see `farflash fsck` for the rest",
        ))
    }
}

fn human(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    let state = match report.state {
        ScrubState::Idle => "none since the server started",
        ScrubState::Running => "running",
        ScrubState::Done => "done",
        ScrubState::Stopped => "stopped",
        ScrubState::Failed => "failed",
    };
    let (checked, total) = (ByteLen(report.checked_bytes), ByteLen(report.total_bytes));
    writeln!(
        out,
        "{state}: {checked} of {total} read, {}",
        counted(report.damaged, "damaged block")
    )?;
    if let (Some(every), Some(next)) = (report.every_seconds, report.next_in_seconds) {
        let (every, next) = (Duration::from_secs(every), Duration::from_secs(next));
        let (every, next) = (spoken(every), spoken(next));
        writeln!(out, "one begins by itself every {every}, the next in {next}")?;
    }
    for place in &report.places {
        write!(out, "{} at byte {}", place.what, place.at_byte)?;
        if let Some(name) = &place.volume_name {
            write!(out, ", volume {name}")?;
        }
        if let Some(byte) = place.volume_byte {
            write!(out, ", byte {byte}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}
