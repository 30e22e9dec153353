//! `farflash status`: whether a server is well, for people and for what watches it.

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use control::{ApiClient, ApiError, Core, Device, DeviceHealth, HostState, Server, VolumeState};
use local_devices::not_opened::RAISE_FILE_SIZE;
use report::{Align, Table};
use serde::Serialize;
use units::ByteLen;
use user_messages::Failure;
use user_messages::output::counted;

use super::volume::Output;

pub(super) const EXAMPLES: &str = "\
Exit code 0: all is well. 1: no server answers, or something is wrong; the last line says what.

Examples:
  farflash status
  farflash status --json | jq '.devices[].health'
  farflash status --api https://flash-1:7420 --api-ca certificate.pem";

/// By this a failure is known that the size of a file caused.
const FILE_SIZE_WORDS: &str = "limit on the size of files";

/// A device with less left of it is worth a word.
const FREE_PART_MIN: f64 = 0.05;

#[derive(Debug, Args)]
pub(crate) struct Status {
    #[command(flatten)]
    output: Output,
}

impl Status {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let client = self.output.client()?;
        let server = client.server()?;
        let missing = Missing::of(&client, &server)?;
        let report = Report { server: &server, missing: &missing };
        self.output.print(&report, |out| show(out, &server))?;
        let wrong = || server.notices.iter().filter(|notice| notice.kind.is_wrong());
        let notices = wrong().map(|notice| notice.text.clone());
        let complaints = server.devices.iter().filter_map(complaint);
        let own: Vec<String> = notices.chain(complaints).collect();
        let remedy = match own.is_empty() {
            true => MISSING_REMEDY,
            false if wrong().all(|notice| notice.kind.refuses_changes()) => remedy(&server.devices),
            false => "do what is said there",
        };
        let wrong: Vec<String> = own.into_iter().chain(missing.complaint()).collect();
        if wrong.is_empty() {
            return Ok(());
        }
        Err(Failure::runtime(wrong.join("; "), remedy))
    }
}

/// Advice if nothing is wrong but with other hosts.
const MISSING_REMEDY: &str = "start a host for the devices: their own, or another one that has them now; see \
                              `farflash host list`, and `farflash volume list` for which volumes it is";

/// Parts of the service that are missing beyond the host that answers.
#[derive(Debug, Default, Serialize)]
struct Missing {
    /// Names of the hosts that are lost.
    lost_hosts: Vec<String>,
    /// Volumes that cannot be opened, on them or elsewhere.
    unreachable_volumes: usize,
}

/// The state of the server, and of the service that it is a part of.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    server: &'a Server,
    #[serde(flatten)]
    missing: &'a Missing,
}

impl Missing {
    /// Asks about the others, if `server` has others.
    fn of(client: &ApiClient, server: &Server) -> Result<Self, ApiError> {
        if server.directory.address.is_none() {
            return Ok(Self::default());
        }
        let lost = client.hosts()?.hosts.into_iter().filter(|host| host.state == HostState::Lost);
        let lost_hosts = lost.map(|host| host.name).collect();
        let volumes = client.list()?.volumes;
        let unreachable = volumes.iter().filter(|volume| volume.state == VolumeState::Unreachable);
        Ok(Self { lost_hosts, unreachable_volumes: unreachable.count() })
    }

    fn complaint(&self) -> Option<String> {
        let volumes = counted(self.unreachable_volumes as u64, "volume");
        let are = if self.unreachable_volumes == 1 { "is" } else { "are" };
        let unreachable = format!("{volumes} {are} unreachable");
        match (&self.lost_hosts[..], self.unreachable_volumes) {
            ([], 0) => None,
            ([], _) => Some(unreachable),
            ([lost], _) => Some(format!("the host {lost} is lost, and {unreachable}")),
            (lost, _) => Some(format!("the hosts {} are lost, and {unreachable}", lost.join(", "))),
        }
    }
}

/// Advice for devices with a fault.
fn remedy(devices: &[Device]) -> &'static str {
    let wrong = || devices.iter().filter(|device| complaint(device).is_some());
    let is_told = |device: &Device| device.notices.iter().any(|notice| notice.kind.is_wrong());
    let failed = || wrong().filter(|device| device.failure.is_some() && !is_told(device));
    let by_limit = |failure: &String| failure.contains(FILE_SIZE_WORDS);
    if failed().any(|device| device.failure.as_ref().is_some_and(by_limit)) {
        return RAISE_FILE_SIZE;
    }
    if failed().next().is_some() {
        return "make room in the file system if that is full, else see the kernel's log (dmesg) for what ails the drive; \
                it is read back by itself as soon as it works";
    }
    if wrong().any(is_told) {
        return "do what is said there; the server notices by itself when it is done";
    }
    if wrong().any(|device| device.is_abandoned) {
        return "leave the device to the server that has it now; to have it back here, stop that one, and start this server \
                again";
    }
    let worst = |one: &DeviceHealth| *one as u8;
    match wrong().map(|device| device.health).max_by_key(worst) {
        Some(DeviceHealth::Failed) => "it is used again by itself as soon as that is mended",
        Some(DeviceHealth::Degraded) => {
            "see the server's log, and `farflash scrub` for what is damaged"
        }
        Some(DeviceHealth::Good) => "delete or trim something",
        None => "do what is said there; changes are made again by themselves when it is done",
    }
}

/// The fault of a device, if there is one.
fn complaint(device: &Device) -> Option<String> {
    let name = &device.name;
    if let Some(why) = &device.trouble {
        return Some(format!("{name}: {why}"));
    }
    if let Some(notice) = device.notices.iter().find(|notice| notice.kind.is_wrong()) {
        return Some(format!("{name}: {}", notice.text));
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
    writeln!(out, "{}", counted(volumes, "volume"))?;
    for notice in server.notices.iter().filter(|notice| !notice.kind.is_wrong()) {
        writeln!(out, "note: {}", notice.text)?;
    }
    writeln!(out)?;
    let mut cores = Table::new(&[
        ("CORE", Align::Right),
        ("PORTAL", Align::Left),
        ("VOLUMES", Align::Right),
        ("CONNECTIONS", Align::Left),
    ]);
    for core in &server.cores {
        cores.row([
            core.core.to_string(),
            core.portal.address.to_string(),
            core.volumes.to_string(),
            connections(core),
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

/// The connections of a core: `5 (3 nvme, 2 iscsi)`.
fn connections(core: &Core) -> String {
    let open = core.protocols.iter().filter(|one| one.connections > 0);
    let parts: Vec<_> = open.map(|one| format!("{} {}", one.connections, one.protocol)).collect();
    match parts[..] {
        [] => core.connections.to_string(),
        _ => format!("{} ({})", core.connections, parts.join(", ")),
    }
}

/// The note on a device of which this part is free.
fn note(device: &Device, free_part: f64) -> String {
    let notice = device.notices.first().map(|notice| &notice.text);
    match device.trouble.as_ref().or(device.failure.as_ref()).or(notice) {
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
    use control::{DeviceNotice, NoticeKind};

    use super::*;

    /// A scrub finds damage, and is no help for a device that is missing or full.
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
        let notice = |kind| {
            let notices = vec![DeviceNotice { kind, text: "raise the limit".to_owned() }];
            Device { notices, ..unwritable.clone() }
        };
        let range = units::PbaRange::new(units::Pba(0), 1);
        let error = io_traits::DeviceError::Io { range, errno: io_traits::ERRNO_FILE_SIZE };
        let too_long = Device { failure: Some(error.to_string()), ..unwritable.clone() };
        for (devices, part) in [
            (vec![notice(NoticeKind::FileSizeLimit)], "do what is said there"),
            (vec![too_long], "LimitFSIZE="),
            (vec![notice(NoticeKind::UnusedSpace)], "dmesg"),
            (vec![good.clone()], "do what is said there"),
            (vec![device("good", 0)], "trim"),
            (vec![good, device("degraded", 4)], "farflash scrub"),
            (vec![device("degraded", 4), unwritable.clone()], "dmesg"),
            (vec![away.clone()], "by itself as soon as that is mended"),
            (vec![Device { is_abandoned: true, ..away.clone() }], "start this server again"),
        ] {
            assert!(remedy(&devices).contains(part), "{devices:?}");
        }
        assert_eq!(complaint(&unwritable).as_deref(), Some("file:a has failed: a flush failed"));
        let notes = [&unwritable, &away, &device("good", 0), &device("good", 4)];
        let notes = notes.map(|device| note(device, device.free_bytes as f64 / 8.0));
        assert_eq!(notes, ["a flush failed", "it is not there (plug it in)", "nearly full", ""]);
    }

    #[test]
    fn what_is_missing_is_named_and_counted() {
        let complaint = |lost: &[&str], unreachable_volumes| {
            let lost_hosts = lost.iter().map(ToString::to_string).collect();
            Missing { lost_hosts, unreachable_volumes }.complaint()
        };
        assert_eq!(complaint(&[], 0), None);
        let told = [complaint(&[], 1), complaint(&["b"], 0), complaint(&["b", "c"], 2)];
        let expected = [
            "1 volume is unreachable",
            "the host b is lost, and 0 volumes are unreachable",
            "the hosts b, c are lost, and 2 volumes are unreachable",
        ];
        assert_eq!(told, expected.map(|text| Some(text.to_owned())));
    }

    #[test]
    fn times_are_told_in_two_units_at_most() {
        let cases = [(5, "5 s"), (61, "1 min"), (7_260, "2 h 1 min"), (100_000, "1 d 3 h")];
        for (seconds, text) in cases {
            assert_eq!(spoken(Duration::from_secs(seconds)), text);
        }
    }
}
