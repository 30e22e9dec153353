//! `farflash status`: whether a server is well, for people and for what watches it.

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use control::{Device, DeviceHealth, Server};
use report::{Align, Table};
use units::ByteLen;

use super::volume::Output;
use crate::failure::Failure;
use crate::output::counted;

pub(super) const EXAMPLES: &str = "\
Exit code 0: all is well. 1: nobody answers, or something is wrong; the last line says what.

Examples:
  farflash status
  farflash status --json | jq '.devices[].health'
  farflash status --api https://flash-1:7420 --api-ca certificate.pem";

/// A device with less left of it is worth a word.
const FREE_PART_MIN: f64 = 0.05;

#[derive(Debug, Args)]
pub(crate) struct Status {
    #[command(flatten)]
    output: Output,
}

impl Status {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let server = self.output.client()?.server()?;
        self.output.print(&server, |out| show(out, &server))?;
        let away = server.directory.cut_off.iter();
        let away =
            away.map(|why| format!("the directory is away, and nothing can be changed: {why}"));
        let fence = server.directory.fence_after_seconds.filter(|_| server.directory.is_fenced);
        let fenced = fence.map(|after| {
            format!(
                "no volume is served until the directory confirms what is this host's (--fence-after {after}s)"
            )
        });
        let away = fenced.into_iter().chain(away);
        let wrong: Vec<String> = away.chain(server.devices.iter().filter_map(complaint)).collect();
        if wrong.is_empty() {
            return Ok(());
        }
        Err(Failure::runtime(wrong.join("; "), remedy(&server.devices)))
    }
}

/// What to do about what is wrong.
fn remedy(devices: &[Device]) -> &'static str {
    let wrong = || devices.iter().filter(|device| complaint(device).is_some());
    if wrong().any(|device| device.failure.is_some()) {
        return "make room in the file system if that is full, else see the kernel's log (dmesg) for what ails the drive; \
                it is read back by itself as soon as it works";
    }
    let worst = |one: &DeviceHealth| *one as u8;
    match wrong().map(|device| device.health).max_by_key(worst) {
        Some(DeviceHealth::Failed) => "it is used again by itself as soon as that is mended",
        Some(DeviceHealth::Degraded) => {
            "see the server's log, and `farflash scrub` for what is damaged"
        }
        Some(DeviceHealth::Good) => "delete or trim something",
        None => "bring etcd back, and the way to it",
    }
}

/// What is wrong with a device, if anything.
fn complaint(device: &Device) -> Option<String> {
    let name = &device.name;
    if let Some(why) = &device.trouble {
        return Some(format!("{name}: {why}"));
    }
    match device.health {
        DeviceHealth::Failed => {
            let why = device.failure.as_deref().unwrap_or("nothing can be written there");
            Some(format!("{name} has failed: {why}"))
        }
        DeviceHealth::Degraded => {
            Some(format!("{name} is degraded: blocks were found damaged, or requests failed"))
        }
        DeviceHealth::Good if device.free_bytes == 0 => Some(format!("{name} is full")),
        DeviceHealth::Good => None,
    }
}

fn show(out: &mut dyn Write, server: &Server) -> io::Result<()> {
    let up = Duration::from_secs(server.uptime_seconds);
    let hosts = if server.authentication { "hosts need tokens" } else { "open to any host" };
    let volumes: u64 = server.cores.iter().map(|core| core.volumes).sum();
    writeln!(out, "farflash {}, up {}, {hosts}", server.version, spoken(up))?;
    writeln!(out, "{}\n", counted(volumes, "volume"))?;
    let mut cores = Table::new(&[
        ("CORE", Align::Right),
        ("PORTAL", Align::Left),
        ("VOLUMES", Align::Right),
        ("CONNECTIONS", Align::Right),
    ]);
    for core in &server.cores {
        cores.row([
            core.core.to_string(),
            core.portal.address.to_string(),
            core.volumes.to_string(),
            core.connections.to_string(),
        ]);
    }
    writeln!(out, "{}", cores.to_text())?;
    let mut devices = Table::new(&[
        ("DEVICE", Align::Left),
        ("HEALTH", Align::Left),
        ("CAPACITY", Align::Right),
        ("FREE", Align::Right),
        ("", Align::Left),
    ]);
    for device in &server.devices {
        let part = device.free_bytes as f64 / device.capacity_bytes.max(1) as f64;
        devices.row([
            device.name.clone(),
            health(device.health).to_owned(),
            ByteLen(device.capacity_bytes).to_string(),
            format!("{} ({:.0} %)", ByteLen(device.free_bytes), part * 100.0),
            note(device, part),
        ]);
    }
    write!(out, "{}", devices.to_text())
}

/// What there is to say of a device of which this part is free.
fn note(device: &Device, free_part: f64) -> String {
    match device.trouble.as_ref().or(device.failure.as_ref()) {
        Some(why) => why.clone(),
        None if free_part < FREE_PART_MIN => "nearly full".to_owned(),
        None => String::new(),
    }
}

pub(super) fn health(health: DeviceHealth) -> &'static str {
    match health {
        DeviceHealth::Good => "good",
        DeviceHealth::Degraded => "degraded",
        DeviceHealth::Failed => "failed",
    }
}

/// A long time as people say it.
pub(super) fn spoken(time: Duration) -> String {
    let seconds = time.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A scrub finds what is damaged, and helps nobody whose directory is away or whose device is full.
    #[test]
    fn advice_is_about_what_is_wrong() {
        let device = |health: &str, free_bytes: u64| -> Device {
            let document = serde_json::json!({
                "name": "file:a", "capacity_bytes": 8, "free_bytes": free_bytes, "health": health,
                "trouble": null, "volatile_write_cache": true, "sharing": { "policy": "drr",
                "ceiling": null, "write_cost_per_mille": null, "unpromised_reads_per_second": null,
                "unpromised_writes_per_second": null },
            });
            serde_json::from_value(document).expect("a device")
        };
        let good = device("good", 4);
        let failure = Some("a flush failed".to_owned());
        let unwritable = Device { failure, ..device("failed", 4) };
        let trouble = Some("it is not there (plug it in)".to_owned());
        let away = Device { trouble, ..device("failed", 0) };
        for (devices, part) in [
            (vec![good.clone()], "etcd"),
            (vec![device("good", 0)], "trim"),
            (vec![good, device("degraded", 4)], "farflash scrub"),
            (vec![device("degraded", 4), unwritable.clone()], "dmesg"),
            (vec![away.clone()], "by itself as soon as that is mended"),
        ] {
            assert!(remedy(&devices).contains(part), "{devices:?}");
        }
        assert_eq!(complaint(&unwritable).as_deref(), Some("file:a has failed: a flush failed"));
        let notes = [&unwritable, &away, &device("good", 0), &device("good", 4)];
        let notes = notes.map(|device| note(device, device.free_bytes as f64 / 8.0));
        assert_eq!(notes, ["a flush failed", "it is not there (plug it in)", "nearly full", ""]);
    }

    #[test]
    fn times_are_told_in_two_units_at_most() {
        let cases = [(5, "5 s"), (61, "1 min"), (7_260, "2 h 1 min"), (100_000, "1 d 3 h")];
        for (seconds, text) in cases {
            assert_eq!(spoken(Duration::from_secs(seconds)), text);
        }
    }
}
