//! `farflash format`: makes a device ours.

use std::path::Path;

use clap::Args;
use device::kind::{DeviceSpec, FileSpec};
use local_devices::contents::{self, Contents, Look};
use local_devices::remembered;
use local_devices::storage;
use units::{BLOCK_SIZE, ByteLen};
use user_messages::Failure;
use user_messages::output::{self, Voice};
use user_messages::shell;

pub(super) const EXAMPLES: &str = "\
Examples:
  Create a sparse file of 8 GiB and format it:
    farflash format --device file:/srv/flash.img,size=8GiB

  Format a whole drive, whatever is on it:
    farflash format --device file:/dev/nvme0n1 --force";

#[derive(Debug, Args)]
pub(crate) struct Format {
    /// Device to format: file:PATH[,size=S]; a file that is not there is created at size S
    #[arg(long, value_name = "DEVICE")]
    device: DeviceSpec,
    /// Format it even though something lies on it; all of that is lost
    #[arg(long)]
    force: bool,
    /// Look for data in samples only, instead of reading all of a block device
    #[arg(long, conflicts_with = "force")]
    sample: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Format {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let Some(spec) = self.device.file() else {
            let what = format!("{} needs no format: memory begins empty", self.device);
            let remedy = format!(
                "serve it as it is: `farflash serve --device {}`",
                shell::word(&self.device.with_options().to_string())
            );
            return Err(Failure::usage(what, remedy));
        };
        let made = storage::create_if_missing(spec, 1)?;
        let formatted = self.format(spec);
        if formatted.is_err() {
            made.undo(&spec.path);
        }
        let bytes = formatted?;
        let path = spec.path.display();
        output::print("the device is formatted all the same", |out| {
            if self.json {
                let device = format!("file:{path}");
                let document = serde_json::json!({ "device": device, "size_bytes": bytes });
                return writeln!(out, "{}", serde_json::to_string_pretty(&document)?);
            }
            writeln!(out, "{path} is formatted ({})", ByteLen(bytes))?;
            writeln!(
                out,
                "serve it with:\n  farflash serve --device {}",
                shell::word(&self.device.with_options().to_string())
            )
        })
    }

    /// Formats the device if nothing forbids it; its size in bytes.
    fn format(&self, spec: &FileSpec) -> Result<u64, Failure> {
        let device = storage::open(spec, Voice::Notes)?;
        if !self.force {
            self.check_blank(&spec.path, &device)?;
        }
        storage::format(&spec.path, &device)?;
        forget(&spec.path);
        Ok(device.limits().blocks * BLOCK_SIZE as u64)
    }

    fn check_blank(&self, path: &Path, device: &reactor::OwnedDevice) -> Result<(), Failure> {
        let look = if self.sample { Look::Samples } else { Look::Everywhere };
        let occupant = match contents::look_at(path, device, look, Voice::Notes)? {
            Contents::Blank => return Ok(()),
            Contents::Ours(superblock) => match superblock.cluster {
                None => return Err(keep(path, "a farflash format")),
                Some(cluster) => {
                    let what = format!(
                        "a farflash format, and belongs to the cluster {cluster}, whose hosts may be serving it"
                    );
                    return Err(keep(path, &what));
                }
            },
            Contents::NotServed { what, .. } => return Err(keep(path, &what)),
            Contents::Other(occupant) => occupant,
        };
        Err(Failure::runtime(format!("{} holds {occupant}", path.display()), contents::GIVE_UP))
    }
}

/// Forgets the device that a server has noted at the path, since it is not to be found there again.
fn forget(path: &Path) {
    match remembered::forget(path) {
        Ok(None) => {}
        Ok(Some(noted)) => output::note(&format!(
            "{noted} was served from there; the server takes this one instead"
        )),
        Err(error) => output::note(&format!(
            "a server that has noted another device there refuses this one while it is empty, and says what to do: {error}"
        )),
    }
}

/// Refuses a device that holds what may be volumes. The way to destroy them is not said in passing.
fn keep(path: &Path, what: &str) -> Failure {
    let device = shell::device(path);
    Failure::runtime(
        format!("{} holds {what}", path.display()),
        format!(
            "name another --device; what is there is served by `farflash serve`, or looked at by `farflash fsck --device \
             {device}`. How to give it up is in `farflash format --help`"
        ),
    )
}
