//! `farflash device …`: how a running server's devices are shared.

use clap::{Args, Subcommand};
use control::{ApiClient, ChangeDevice, Device, DeviceHealth};
use local_devices::sharing_spec::{parse_latency, parse_write_cost};
use report::{Align, Table};
use schedule::{CostModel, POLICIES, policy_names};
use units::ByteLen;
use user_messages::Failure;
use uuid::Uuid;

use super::api;
use super::membership::parse_down;
use super::volume::Output;

const SET_EXAMPLES: &str = "\
Examples:
  farflash device set --reads-per-second 140000 --writes-per-second 60000 --latency-target 500us
  farflash device set file:/dev/nvme0n1 --policy sts
  farflash device set --write-cost 4.6
  farflash device set --no-ceiling";

/// Text below the options of `device forget`.
const FORGET_HELP: &str = "\
By this you assert that the device is gone for good. The names of its volumes are free then, and they \
count in no quota. It is refused while a host has the device that lives or is seen, \
or that may serve it unseen (--confirm-down). Nothing is done to the \
device: should it be served again, its volumes are there again.";

/// Text below the options of `device grow`.
const GROW_HELP: &str = "\
The server goes on: requests of hosts wait meanwhile, usually for less than a second. Volumes and their data stay; a power \
cut leaves the former size or the new one. Of a server that does not run, `farflash grow` does the same.

Examples:
  truncate --size 16G /var/lib/farflash/flash.img
  farflash device grow file:/var/lib/farflash/flash.img";

/// Text below the options of `device set`.
fn set_help() -> String {
    let policies = POLICIES.iter().map(|policy| format!("  {}  {}\n", policy.name, policy.about));
    format!(
        "What is set holds until the server ends; to keep it, write it behind --device of `farflash \
         serve`.\nI/O goes on meanwhile.\n\nPolicies:\n{}\n{SET_EXAMPLES}",
        policies.collect::<String>()
    )
}

#[derive(Debug, Subcommand)]
pub(crate) enum DeviceCommand {
    /// List devices: space, health, ceiling and policy
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Forget a device that is gone for good, with its volumes
    #[command(after_help = FORGET_HELP)]
    Forget {
        /// Its id, as `host list --json` or `volume show --json` has it
        #[arg(value_parser = parse_id)]
        device: Uuid,
        /// Its host, which does not stop by itself: by this you assert that it is down, powered off or cut
        /// off from all hosts that use its volumes
        #[arg(long, value_name = "HOST", value_parser = parse_down)]
        confirm_down: Option<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Use all of a device whose file or drive was made larger
    #[command(after_help = GROW_HELP)]
    Grow {
        /// Its name, as `device list` has it [default: the only one]
        device: Option<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Change a device's ceiling or policy
    #[command(after_help = set_help())]
    Set(Set),
}

#[derive(Debug, Args)]
pub(crate) struct Set {
    /// Its name, as `device list` has it [default: the only one]
    device: Option<String>,
    /// Blocks of 4 KiB read a second at most
    #[arg(long, value_name = "RATE", value_parser = clap::value_parser!(u64).range(1..))]
    reads_per_second: Option<u64>,
    /// Blocks of 4 KiB written a second at most
    #[arg(long, value_name = "RATE", value_parser = clap::value_parser!(u64).range(1..))]
    writes_per_second: Option<u64>,
    /// The latency at which it does so, such as 500us: sets how much is under way
    #[arg(long, value_name = "TIME")]
    latency_target: Option<String>,
    #[arg(long, value_name = "NAME", help = format!("Whose request goes next: {}", policy_names()))]
    policy: Option<String>,
    /// Cost of a write in reads, such as 4.5: both then share the ceiling of the reads; `apart` gives each
    /// its own again
    #[arg(long, value_name = "READS")]
    write_cost: Option<String>,
    /// Take the ceiling away: requests then go as they come
    #[arg(long, conflicts_with_all = ["reads_per_second", "writes_per_second"])]
    no_ceiling: bool,
    #[command(flatten)]
    output: Output,
}

fn parse_id(text: &str) -> Result<Uuid, &'static str> {
    let wanted =
        "the id of a device is wanted, not its name: `farflash host list --json` has those of all";
    text.parse().map_err(|_| wanted)
}

impl DeviceCommand {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            Self::List { output } => {
                let list = output.client()?.devices()?;
                output.print(&list, |out| write!(out, "{}", table(&list.devices).to_text()))
            }
            Self::Forget { device, confirm_down, output } => {
                let look = "see whether `farflash host list --json` has it still";
                output.change(look, |api| api.forget_device(device, confirm_down.as_deref()))?;
                let document = serde_json::json!({ "forgotten": device });
                let done = "it is forgotten all the same";
                output.print_done(done, &document, |out| writeln!(out, "{device} is forgotten"))
            }
            Self::Grow { device, output } => grow(device, &output),
            Self::Set(set) => set.run(),
        }
    }
}

fn grow(device: Option<String>, output: &Output) -> Result<(), Failure> {
    let client = output.client()?;
    let name = match device {
        Some(name) => name,
        None => only_device(&client, "name one behind `farflash device grow`")?,
    };
    let look = "see `farflash device list`";
    let grown = api::change(&client, look, |api| api.grow_device(&name))?;
    output.print(&grown, |out| {
        let [before, after] = [grown.before_bytes, grown.after_bytes].map(ByteLen);
        match before == after {
            true => writeln!(out, "{name} has {after} as before: nothing to use"),
            false => writeln!(out, "{name} has {after} now; before {before}"),
        }
    })
}

impl Set {
    fn run(self) -> Result<(), Failure> {
        let latency = self.latency_target.as_deref().map(parse_latency).transpose();
        let latency =
            latency.map_err(|error| Failure::usage(error.to_string(), "mend --latency-target"))?;
        let write_cost = self.write_cost.as_deref().map(parse_write_cost).transpose();
        let write_cost =
            write_cost.map_err(|error| Failure::usage(error.to_string(), "mend --write-cost"))?;
        let write_cost_per_mille = write_cost.map(|cost| match cost {
            CostModel::Separate => 0,
            CostModel::WriteCosts { per_mille } => per_mille,
        });
        let change = ChangeDevice {
            reads_per_second: self.reads_per_second,
            writes_per_second: self.writes_per_second,
            latency_target_us: latency
                .map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX)),
            policy: self.policy,
            write_cost_per_mille,
            no_ceiling: self.no_ceiling,
        };
        if change == ChangeDevice::default() {
            let what = "it is not said what is to change";
            return Err(Failure::usage(what, "see `farflash device set --help`"));
        }
        let client = self.output.client()?;
        let name = match self.device {
            Some(name) => name,
            None => only_device(&client, "name one behind `farflash device set`")?,
        };
        let look = "see `farflash device list`";
        let device = api::change(&client, look, |api| api.change_device(&name, &change))?;
        self.output
            .print(&device, |out| write!(out, "{}", table(std::slice::from_ref(&device)).to_text()))
    }
}

/// Returns the device of a server that has one; a user of a server with several is told to name one.
pub(super) fn only_device(client: &ApiClient, remedy: &str) -> Result<String, Failure> {
    let devices = client.devices()?.devices;
    let mut names: Vec<String> = devices.into_iter().map(|device| device.name).collect();
    match names.len() {
        1 => Ok(names.remove(0)),
        _ => {
            let what = format!("the server has several devices: {}", names.join(", "));
            Err(Failure::usage(what, remedy))
        }
    }
}

fn table(devices: &[Device]) -> Table {
    let mut table = Table::new(&[
        ("DEVICE", Align::Left),
        ("CAPACITY", Align::Right),
        ("FREE", Align::Right),
        ("HEALTH", Align::Left),
        ("WRITE CACHE", Align::Left),
        ("POLICY", Align::Left),
        ("READS/S", Align::Right),
        ("WRITES/S", Align::Right),
        ("WRITE COST", Align::Right),
        ("LATENCY", Align::Right),
        ("UNPROMISED", Align::Right),
    ]);
    for device in devices {
        let ceiling = device.sharing.ceiling;
        let rate = |rate: Option<u64>| {
            rate.map_or_else(|| "no ceiling".to_owned(), |rate| rate.to_string())
        };
        let health = match device.health {
            DeviceHealth::Good => "good",
            DeviceHealth::Degraded => "degraded",
            DeviceHealth::Failed => "failed",
        };
        let left = (
            device.sharing.unpromised_reads_per_second,
            device.sharing.unpromised_writes_per_second,
        );
        table.row([
            device.name.clone(),
            ByteLen(device.capacity_bytes).to_string(),
            ByteLen(device.free_bytes).to_string(),
            health.to_owned(),
            if device.volatile_write_cache { "flushed" } else { "none" }.to_owned(),
            device.sharing.policy.clone(),
            rate(ceiling.map(|ceiling| ceiling.reads_per_second)),
            rate(ceiling.map(|ceiling| ceiling.writes_per_second)),
            match device.sharing.write_cost_per_mille {
                None => "apart".to_owned(),
                Some(per_mille) => format!("{} reads", f64::from(per_mille) / 1000.0),
            },
            ceiling.map_or_else(String::new, |ceiling| {
                report::duration_ns(ceiling.latency_target_us as f64 * 1e3)
            }),
            match left {
                (Some(reads), None) => format!("{reads} r/s"),
                (Some(reads), Some(writes)) => format!("{reads} r/s {writes} w/s"),
                _ => String::new(),
            },
        ]);
    }
    table
}
