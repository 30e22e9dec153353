//! `farflash format`: makes a device ours.

use std::path::Path;

use clap::Args;
use units::{BLOCK_SIZE, ByteLen};

use crate::device_spec::{DeviceSpec, FileSpec};
use crate::failure::Failure;
use crate::storage::{self, Contents};

pub(super) const EXAMPLES: &str = "\
Examples:
  Create a sparse file of 8 GiB and format it:
    farflash format --device file:/srv/flash.img,size=8GiB

  Format a whole drive, whatever is on it:
    farflash format --device file:/dev/nvme0n1 --force";

#[derive(Debug, Args)]
pub(crate) struct Format {
    /// What to format: file:PATH[,size=S]; a file that is not there is created at size S
    #[arg(long, value_name = "DEVICE")]
    device: DeviceSpec,
    /// Format it even though something lies on it; all of that is lost
    #[arg(long)]
    force: bool,
}

impl Format {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let DeviceSpec::File(spec) = &self.device else {
            let what = format!("{} needs no format: memory begins empty", self.device);
            return Err(Failure::usage(what, "start it with `farflash serve --device mem:SIZE`"));
        };
        let created = storage::create_if_missing(spec)?;
        let formatted = self.format(spec);
        if created && formatted.is_err() {
            // A file that was made for this is of no use now; the first error is the one to tell.
            let _ = std::fs::remove_file(&spec.path);
        }
        let bytes = formatted?;
        let path = spec.path.display();
        println!("{path} is formatted ({})", ByteLen(bytes));
        println!("serve it with:\n  farflash serve --device file:{path} --cores 0 --auth off");
        Ok(())
    }

    /// Formats the device if nothing forbids it; its size in bytes.
    fn format(&self, spec: &FileSpec) -> Result<u64, Failure> {
        let device = storage::open(spec)?;
        if !self.force {
            self.check_blank(&spec.path, &device)?;
        }
        storage::format(&spec.path, &device)?;
        Ok(device.geometry().blocks * BLOCK_SIZE as u64)
    }

    fn check_blank(&self, path: &Path, device: &reactor::OwnedDevice) -> Result<(), Failure> {
        let occupant = match storage::contents(path, device)? {
            Contents::Blank => return Ok(()),
            Contents::Ours => "a farflash format".to_owned(),
            Contents::Other(occupant) => occupant,
        };
        let path = path.display();
        Err(Failure::runtime(
            format!("{path} holds {occupant}"),
            format!("to lose all of it: `farflash format --device file:{path} --force`"),
        ))
    }
}
