//! `farflash leave-cluster`: a device whose cluster is gone for good.

use std::path::PathBuf;

use clap::Args;
use control::Deed;
use device::kind::DeviceSpec;
use local_devices::belonging;
use local_devices::contents;
use local_devices::storage;
use server::recorded;
use user_messages::Failure;
use user_messages::output::{self, Voice};

pub(super) const EXAMPLES: &str = "\
A device that was served with --directory belongs to that cluster, and is refused elsewhere: its hosts may be \
serving it, and two that do destroy all that lies on it. Nothing here can see whether one does. What lies on the \
device stays; the host that serves it next has it, and the cluster is not told.

Examples:
  Serve a device by itself, whose cluster is gone for good:
    farflash leave-cluster --device file:/dev/nvme0n1
    farflash serve --device file:/dev/nvme0n1

  Give a device to another cluster, when the host that served it was stopped:
    farflash leave-cluster --device file:/dev/nvme0n1
    farflash serve --device file:/dev/nvme0n1 --directory etcd://192.0.2.9:2379/other";

#[derive(Debug, Args)]
pub(crate) struct LeaveCluster {
    /// Device that is to belong to no cluster: file:PATH. By this you assert that no host of its cluster
    /// serves it, or a copy of it
    #[arg(long, value_name = "DEVICE")]
    device: DeviceSpec,
    /// Append to this file what is done, as a server does: without a line it is not done
    #[arg(long, value_name = "FILE")]
    audit_log: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl LeaveCluster {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let Some(spec) = self.device.file() else {
            let what = format!("{} belongs to no cluster: it ends with its server", self.device);
            return Err(Failure::usage(what, "name a file or block device: --device file:PATH"));
        };
        storage::check_is_there(&spec.path, "name a device that a server has served")?;
        let device = storage::open(spec, Voice::Notes)?;
        contents::refuse_overwritten(&spec.path, &device)?;
        let path = spec.path.display();
        let audit = self.audit_log.as_deref().map(recorded::open).transpose()?;
        let deed = Deed {
            by: "leave-cluster",
            what: "LEAVE-CLUSTER",
            to: format!("file:{path}"),
            change: serde_json::Value::Null,
        };
        let left =
            recorded::recorded(audit.as_ref(), deed, || belonging::leave(&spec.path, &device))?;
        output::print("it is done all the same", |out| {
            if self.json {
                let document =
                    serde_json::json!({ "device": format!("file:{path}"), "left": left });
                return writeln!(out, "{}", serde_json::to_string_pretty(&document)?);
            }
            match left {
                Some(cluster) => writeln!(
                    out,
                    "{path} belongs to the cluster {cluster} no more: see that none of its hosts is started with it"
                ),
                None => writeln!(out, "{path} belongs to no cluster"),
            }
        })
    }
}
