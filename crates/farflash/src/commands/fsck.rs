//! `farflash fsck`: checks a device that no server uses, and repairs it if told to.

use std::io::Write;
use std::time::Instant;

use clap::Args;
use device::kind::{DeviceSpec, FileSpec};
use local_devices::contents;
use local_devices::not_opened::LATER_RELEASE;
use local_devices::storage;
use reactor::OwnedDevice;
use units::{BLOCK_SIZE, ByteLen};
use user_messages::Failure;
use user_messages::output::{self, Voice, counted};
use volume::{Fault, Finding, FsckReport, OpenError, Problem, Repair, Repaired};

pub(super) const EXAMPLES: &str = "\
Examples:
  Check everything, the data of tenants included; nothing is written:
    farflash fsck --device file:/srv/flash.img

  Check only what leads to the data, which is much quicker:
    farflash fsck --device file:/srv/flash.img --no-data

  Mend what can be mended without loss; what is done about each fault is said before:
    farflash fsck --device file:/srv/flash.img --repair

Exit codes: 0 nothing is wrong (any more), 1 something is, 2 asked for something that makes no sense.";

#[derive(Debug, Args)]
pub(crate) struct Fsck {
    /// Device to check: file:PATH
    #[arg(long, value_name = "DEVICE")]
    device: DeviceSpec,
    /// Leave the data of tenants unread
    #[arg(long)]
    no_data: bool,
    /// Mend what can be mended without losing anything
    #[arg(long)]
    repair: bool,
    /// With --repair, give up what cannot be read and what goes with it, as was said before
    #[arg(long, requires = "repair")]
    accept_data_loss: bool,
    /// Take it for the farflash device that it was, though its start looks like something else's: with --repair,
    /// that start is lost
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Fsck {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let Some(spec) = self.device.file() else {
            let what =
                format!("{} has nothing to check: memory is gone with its server", self.device);
            return Err(Failure::usage(what, "name a file or block device: --device file:PATH"));
        };
        storage::check_is_there(&spec.path, "name the device that is to be checked")?;
        // One hold of the device from the first look to the last: what is said is what is done.
        let device = match self.repair {
            true => storage::open(spec, Voice::Notes)?,
            false => storage::open_read_only(spec, Voice::Notes)?,
        };
        if !self.force {
            contents::refuse_overwritten(&spec.path, &device)?;
        }
        contents::find_superblock(&spec.path, &device, self.repair, self.force)?;
        let begin = Instant::now();
        let before = self.check(spec, &device)?;
        let elapsed = begin.elapsed().as_secs_f64();
        let mut after = None;
        if self.repair {
            before.faults.iter().for_each(|fault| output::note(&self.plan_of(fault)));
        }
        if self.repair && before.faults.iter().any(|fault| self.repair_of(fault).is_some()) {
            if let Some(cluster) = before.cluster {
                let path = spec.path.display();
                output::note(&format!(
                    "{path} belongs to the cluster {cluster}: no host of it may serve it now"
                ));
            }
            let repaired = storage::repair(&spec.path, &device, self.accept_data_loss)?;
            after = Some((repaired, self.check(spec, &device)?));
        }
        drop(device);
        let left = after.as_ref().map_or(&before, |(_, report)| report);
        let (left_over, path) = (left.faults.len() as u64, spec.path.display());
        output::print("look again with `farflash fsck`", |out| {
            if self.json {
                let document = document(&before, after.as_ref(), elapsed);
                return writeln!(out, "{}", serde_json::to_string_pretty(&document)?);
            }
            print_report(out, &before, after.as_ref(), elapsed)
        })?;
        if left_over == 0 {
            return Ok(());
        }
        let mendable = self.unused_consent(left);
        Err(Failure::runtime(format!("{path} has {}", counted(left_over, "fault")), mendable))
    }

    fn check(&self, spec: &FileSpec, device: &OwnedDevice) -> Result<FsckReport, Failure> {
        storage::check(&spec.path, device, !self.no_data)
    }

    /// Returns the repair that will be made for a fault, if there is one.
    fn repair_of(&self, fault: &Fault) -> Option<Repair> {
        let repair = fault.problem.repair();
        repair.filter(|repair| self.accept_data_loss || !repair.loses_data())
    }

    /// A fault, and what will become of it.
    fn plan_of(&self, fault: &Fault) -> String {
        let line = line_of(fault);
        if matches!(fault.problem, Problem::Check(Finding::LeftOut { .. })) {
            return format!("not listed: {line}, each treated as they are");
        }
        match (self.repair_of(fault), fault.problem.repair()) {
            (Some(repair), _) => format!("repairing: {line}: will {repair}"),
            (None, Some(repair)) => {
                format!("leaving: {line}: --accept-data-loss would {repair}")
            }
            (None, None) => format!("leaving: {line}: it has no repair of its own"),
        }
    }

    fn unused_consent(&self, report: &FsckReport) -> &'static str {
        let is_later =
            |fault: &Fault| matches!(fault.problem, Problem::Unopened(OpenError::Later { .. }));
        if report.faults.iter().any(is_later) {
            return LATER_RELEASE;
        }
        let mut repairs = report.faults.iter().filter_map(|fault| fault.problem.repair());
        if !self.repair && repairs.clone().any(|repair| !repair.loses_data()) {
            "mend what can be mended with --repair"
        } else if !self.accept_data_loss && repairs.any(Repair::loses_data) {
            "restore from a copy, or give up what cannot be read: --repair --accept-data-loss"
        } else if report.faults.iter().any(|fault| fault.problem.is_beyond_repair()) {
            "copy what can be read to another device; what is found here has no repair"
        } else if report.faults.iter().all(|fault| matches!(fault.problem, Problem::Root { .. })) {
            "serve the device: its start rewrites the root"
        } else {
            "rewrite damaged blocks from a copy; all else on the device is sound"
        }
    }
}

fn print_report(
    out: &mut dyn Write,
    before: &FsckReport,
    after: Option<&(Repaired, FsckReport)>,
    seconds: f64,
) -> std::io::Result<()> {
    let bytes = |blocks: u64| ByteLen(blocks * BLOCK_SIZE as u64);
    writeln!(
        out,
        "{}, {}, {} of data, {} of metadata, checked in {seconds:.1} s",
        counted(before.shards as u64, "shard"),
        counted(before.volumes as u64, "volume"),
        bytes(before.data),
        bytes(before.metadata)
    )?;
    if let Some(cluster) = before.cluster {
        writeln!(out, "belongs to the cluster {cluster}")?;
    }
    before.faults.iter().try_for_each(|fault| writeln!(out, "{}", line_of(fault)))?;
    if let Some((repaired, report)) = after {
        writeln!(
            out,
            "repaired: {} copies rewritten, {} shards, {} nodes given up, {} volumes, {} journals cut",
            repaired.copies,
            repaired.shards,
            repaired.nodes_given_up,
            repaired.volumes_given_up,
            repaired.journals_cut
        )?;
        for fault in &report.faults {
            writeln!(out, "left: {}", line_of(fault))?;
        }
    }
    if before.faults.is_empty() {
        writeln!(out, "nothing is wrong")?;
    }
    Ok(())
}

fn line_of(fault: &Fault) -> String {
    let mut line = String::new();
    if let Some(shard) = fault.shard {
        line += &format!("shard {shard}: ");
    }
    if let Some((id, name)) = &fault.volume {
        line += &format!("volume {name} ({id}): ");
    }
    line += &fault.problem.to_string();
    if let Some(pba) = fault.pba.filter(|pba| !line.contains(&pba.to_string())) {
        line += &format!(" at {pba}");
    }
    line
}

fn document(
    before: &FsckReport,
    after: Option<&(Repaired, FsckReport)>,
    seconds: f64,
) -> serde_json::Value {
    let faults = |report: &FsckReport| -> Vec<serde_json::Value> {
        report.faults.iter().map(fault_document).collect()
    };
    let mut document = serde_json::json!({
        "seconds": seconds,
        "shards": before.shards,
        "volumes": before.volumes,
        "cluster": before.cluster,
        "data_bytes": before.data * BLOCK_SIZE as u64,
        "metadata_bytes": before.metadata * BLOCK_SIZE as u64,
        "faults": faults(before),
    });
    if let Some((repaired, report)) = after {
        document["repaired"] = serde_json::json!({
            "copies": repaired.copies,
            "shards": repaired.shards,
            "nodes_given_up": repaired.nodes_given_up,
            "volumes_given_up": repaired.volumes_given_up,
            "journals_cut": repaired.journals_cut,
        });
        document["left"] = faults(report).into();
    }
    document
}

fn fault_document(fault: &Fault) -> serde_json::Value {
    let lba = match &fault.problem {
        Problem::Check(finding) => finding.lba(),
        _ => None,
    };
    serde_json::json!({
        "what": fault.problem.to_string(),
        "at_byte": fault.pba.map(|pba| pba.0 * BLOCK_SIZE as u64),
        "shard": fault.shard,
        "volume_id": fault.volume.as_ref().map(|(id, _)| id.to_string()),
        "volume_name": fault.volume.as_ref().map(|(_, name)| name),
        "volume_byte": lba.map(|lba| lba.0 * BLOCK_SIZE as u64),
        "repair": fault.problem.repair().map(|repair| repair.to_string()),
    })
}
