//! `farflash grow`: a device whose file or drive was made larger.

use clap::Args;
use device::kind::DeviceSpec;
use local_devices::contents;
use local_devices::storage;
use units::{BLOCK_SIZE, ByteLen};
use user_messages::Failure;
use user_messages::output::{self, Voice};

pub(super) const EXAMPLES: &str = "\
A device keeps the size with which it was formatted, until this command gives it all that its file or drive has \
now. No server has the device meanwhile: of one that is served, `farflash device grow` does the same. Volumes and their \
data stay.

Examples:
  Make a file larger, and use what was added:
    truncate --size 16G /var/lib/farflash/flash.img
    farflash grow --device file:/var/lib/farflash/flash.img";

#[derive(Debug, Args)]
pub(crate) struct Grow {
    /// The device that was made larger: file:PATH
    #[arg(long, value_name = "DEVICE")]
    device: DeviceSpec,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Grow {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let Some(spec) = self.device.file() else {
            let what = format!("{} cannot grow: it ends with its server", self.device);
            return Err(Failure::usage(what, "name a file or block device: --device file:PATH"));
        };
        storage::check_is_there(&spec.path, "name a device that `farflash format` has prepared")?;
        let device = storage::open(spec, Voice::Notes)?;
        contents::refuse_overwritten(&spec.path, &device)?;
        let (before, after) = storage::grow(&spec.path, &device)?;
        let path = spec.path.display();
        let [before, after] = [before, after].map(|it| it.blocks * BLOCK_SIZE as u64);
        output::print("it is done all the same", |out| {
            if self.json {
                let document = serde_json::json!({
                    "device": format!("file:{path}"),
                    "before_bytes": before,
                    "after_bytes": after,
                });
                return writeln!(out, "{}", serde_json::to_string_pretty(&document)?);
            }
            match before == after {
                true => writeln!(out, "{path} has {} as before: nothing to use", ByteLen(after)),
                false => {
                    writeln!(out, "{path} has {} now; before {}", ByteLen(after), ByteLen(before))
                }
            }
        })
    }
}
