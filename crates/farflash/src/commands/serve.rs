//! `farflash serve`: settings from flags and a file, and then the server.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use directory::Word;
use local_devices::sharing_spec::SharedSpec;
use merge::Merge;
use process_limits::MemoryBound;
use server::{Host, ServeConfig};
use units::ByteLen;
use user_messages::Failure;

use super::membership::{parse_down, usual_discovery};
use super::settings::Settings;
use super::{authentication, membership};

const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 4420);
const API_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7420);
/// Hosts of a tenant's volumes together get half of them.
const CONNECTIONS_MAX_DEFAULT: u32 = 2048;
const CORE_MEMORY_DEFAULT: ByteLen = ByteLen(256 << 20);
/// The whole map of 250 GB and more on each core. Beyond that the rarely used parts are read when needed.
const MAP_MEMORY_DEFAULT: ByteLen = ByteLen(1 << 30);
/// The largest requests need up to 600 KiB of it.
const MAP_MEMORY_MIN: ByteLen = ByteLen(4 << 20);
/// Well within the time that hosts give a command, so that they get an error and stay connected.
const DEVICE_TIMEOUT_DEFAULT: u32 = 15;
/// Seconds after which a Linux host gives a command up and reconnects.
const HOST_TIMEOUT: u32 = 30;
// What is late is noticed up to an eighth later.
const _: () = assert!(DEVICE_TIMEOUT_DEFAULT * 9 / 8 < HOST_TIMEOUT);
/// One connection's share is 16 MiB; below two of these, one would hold up all others.
const CORE_MEMORY_MIN: ByteLen = ByteLen(32 << 20);

pub(super) const EXAMPLES: &str = "\
Examples:
  On a file that `farflash format` has prepared, on this host only:
    farflash serve --device file:/srv/flash.img --cores 0

  On a block device, two cores, for the network (portals 4420 and 4421):
    farflash serve --device file:/dev/nvme0n1 --cores 0,1 --listen 0.0.0.0:4420 \\
        --advertise 192.0.2.7

  On a drive that volumes share under a ceiling (blocks of 4 KiB a second):
    farflash serve --device file:/dev/nvme0n1,reads-per-second=200000,writes-per-second=80000 \\
        --cores 0

  On a modelled drive, in memory, at a tenth of its speed:
    farflash serve --device model:p3700,size=2GiB,scale=0.1 --cores 0

  On two drives (`farflash volume create --device NAME` chooses one):
    farflash serve --device file:/dev/nvme0n1 --device file:/dev/nvme1n1 --cores 0,1

  As one of several hosts, which share etcd (`docs/operations/clusters.md` says how):
    farflash serve --device file:/dev/nvme0n1 --listen 192.0.2.7:4420 --api 192.0.2.7:7420 \\
        --directory etcd://192.0.2.1:2379,192.0.2.2:2379/prod --label rack=r1

  On memory, to try things out, open to every host that reaches it:
    farflash serve --device mem:1GiB --cores 0 --auth off

Configuration file (--config): each flag is a key there, with `_` for `-`; flags win over it.
The keys of --device and --label are `devices` and `labels`.
Flags alone are --config, --create, --take-over and --confirm-down.
Text, sizes and lengths of time are in quotes; numbers, true and false are not; lists are so:
    devices = [\"file:/srv/flash.img\"]
    cores = [0, 1]
    nbd = [\"0.0.0.0:10809\", \"unix:/run/farflash/nbd.sock\"]
    labels = { rack = \"r1\" }
    auth_hashes = [\"sha256\", \"sha384\", \"sha512\"]
    advertise = \"192.0.2.7,10.0.0.7\"
    auth = \"on\"
    api_users = \"/etc/farflash/users.toml\"
    api_tls = \"/var/lib/farflash/tls\"
    audit_log = \"/var/log/farflash/audit.jsonl\"
    core_memory = \"256MiB\"
    fence_after = \"30s\"
    device_timeout = 15
    log_json = false

SIGTERM or SIGINT finishes what is in flight and ends; a second one ends at once.
SIGHUP reads the list of API users and the API's certificate again, and reopens the audit log.
FARFLASH_LOG=debug logs more.";

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// A TOML file with settings (see below); flags win over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    /// With --format-if-blank and size=, make files that are not there yet, or are empty. For a first start only: later a file
    /// that is not there is one whose file system is not mounted
    #[arg(long)]
    create: bool,
    /// Take the devices that are there now from hosts that are gone and did not give them back. Refused if one is seen at the
    /// addresses that it had. A host with --fence-after is waited for until it has stopped; any other one has to be named
    /// by --confirm-down, since it may still serve them unseen
    #[arg(long)]
    take_over: bool,
    /// A host from which --take-over may take devices though it does not stop by itself; repeat for more. By
    /// this you assert that it is down: powered off, or cut off from all hosts that use its volumes. If that
    /// is not so, two hosts serve a volume, and writes are lost. '*' stands for the former host of a device
    /// of which the directory has no record
    #[arg(long, value_name = "HOST", requires = "take_over", value_parser = parse_down)]
    confirm_down: Vec<String>,
}

impl Serve {
    pub(crate) fn run(mut self) -> Result<(), Failure> {
        // First of all: a signal that comes before the server is ready must find someone.
        let host = Host::new()?;
        if let Some(path) = &self.config {
            self.settings.merge(Settings::read(path)?);
        }
        // Dropped before anything is said of a failure.
        let _log = server::logging::start(self.settings.log_json.unwrap_or(false))?;
        host.run(&self.settle()?)
    }

    /// Fills in the defaults, and checks what belongs together.
    fn settle(mut self) -> Result<ServeConfig, Failure> {
        let word = self.take_over.then(|| Word::down(self.confirm_down));
        let cluster = membership::settle(&mut self.settings, word)?;
        let settings = self.settings;
        let authentication = authentication::settle(&settings)?;
        let cores = settings.cores.map_or_else(first_core, |list| list.0);
        if cores.is_empty() {
            let what = "the list of cores is empty";
            return Err(Failure::usage(what, "name at least one core, such as `cores = [0]`"));
        }
        if settings.devices.is_empty() {
            let what = "no device is given, so volumes have nowhere to lie";
            let remedy = "name one with --device file:PATH or --device mem:SIZE";
            return Err(Failure::usage(what, remedy));
        }
        let connections_max = settings.connections_max.unwrap_or(CONNECTIONS_MAX_DEFAULT);
        if !(1..=65_536).contains(&connections_max) {
            let what = format!("connections_max = {connections_max} is out of bounds");
            return Err(Failure::usage(what, "set it between 1 and 65536"));
        }
        let memory_given = (settings.core_memory, settings.map_memory);
        let (core_memory, map_memory) = memory(memory_given, &settings.devices, cores.len())?;
        let device_timeout = settings.device_timeout.unwrap_or(DEVICE_TIMEOUT_DEFAULT);
        if !(1..=3600).contains(&device_timeout) {
            let what = format!("device_timeout = {device_timeout} is out of bounds");
            return Err(Failure::usage(what, "set it between 1 and 3600 (seconds)"));
        }
        let device_wait = settings.device_wait.unwrap_or(0);
        let listen = settings.listen.unwrap_or(LISTEN_DEFAULT);
        let api_open = settings.api_open.unwrap_or(false);
        if api_open && settings.api_users.is_some() {
            let what = "an API that is open to everybody has no list of users";
            return Err(Failure::usage(what, "leave out --api-open, or --api-users"));
        }
        Ok(ServeConfig {
            devices: settings.devices.into(),
            cores,
            listen,
            iscsi: settings.iscsi,
            advertise: settings.advertise,
            api: settings.api.unwrap_or(API_DEFAULT),
            discovery: settings.discovery.unwrap_or_else(|| usual_discovery(listen)),
            nbd: settings.nbd,
            nbd_tls: settings.nbd_tls,
            cluster,
            format_if_blank: settings.format_if_blank.unwrap_or(false),
            create: self.create,
            authentication,
            api_users: settings.api_users,
            api_open,
            api_tls: settings.api_tls,
            audit_log: settings.audit_log,
            connections_max,
            core_memory,
            map_memory,
            device_timeout: Duration::from_secs(device_timeout.into()),
            device_wait: Duration::from_secs(device_wait.into()),
            scrub_every: settings.scrub_every.map(|interval| interval.0),
        })
    }
}

/// Returns the memory for the data of requests and for maps on each core, as given or as the machine or a control group allows.
fn memory(
    (core, map): (Option<ByteLen>, Option<ByteLen>),
    devices: &[SharedSpec],
    cores: usize,
) -> Result<(ByteLen, ByteLen), Failure> {
    let (bound, cores) = (MemoryBound::find(), cores as u64);
    let in_memory = devices.iter().map(|shared| shared.device.memory_bytes());
    let in_memory = in_memory.fold(0, u64::saturating_add);
    let core = core_memory(core, cores, (&bound, in_memory))?;
    let map = map_memory(map, cores, devices.len() as u64, (&bound, in_memory));
    bound.tell(core, map);
    if map.0 / (devices.len() as u64) < MAP_MEMORY_MIN.0 {
        let what = format!("{map} of memory for the maps of a core is too little");
        let remedy = match devices.len() {
            1 => "give --map-memory at least 4MiB".to_owned(),
            count => format!("give --map-memory at least 4MiB for each of the {count} devices"),
        };
        return Err(Failure::usage(what, remedy));
    }
    Ok((core, map))
}

/// Returns the memory for the data of requests on each core: what an operator gives, if it can work, or else a size of which
/// there is twice as much for all of them, besides devices that lie `in_memory`.
fn core_memory(
    given: Option<ByteLen>,
    cores: u64,
    (bound, in_memory): (&MemoryBound, u64),
) -> Result<ByteLen, Failure> {
    let each = |bytes: u64| ByteLen(((bytes / cores) >> 20) << 20);
    let most = each(bound.bytes.0);
    let left = each(bound.bytes.0.saturating_sub(in_memory));
    let usual = || ByteLen(left.0 / 2).clamp(CORE_MEMORY_MIN, CORE_MEMORY_DEFAULT);
    let given = given.unwrap_or_else(usual);
    let what = match given {
        _ if given < CORE_MEMORY_MIN => "is too little to serve with".to_owned(),
        _ if given > most && cores == 1 => format!("is more than the {bound}"),
        _ if given > most => format!("on each of {cores} cores is more than the {bound}"),
        _ => return Ok(given),
    };
    let remedy = match most {
        _ if most < CORE_MEMORY_MIN => "use fewer cores".to_owned(),
        _ => format!("set it between {CORE_MEMORY_MIN} and {most}"),
    };
    Err(Failure::usage(format!("--core-memory (core_memory): {given} {what}"), remedy))
}

/// Memory for the maps on each core: what an operator gives, or else a size of which there is four times as much for all cores.
fn map_memory(
    given: Option<ByteLen>,
    cores: u64,
    devices: u64,
    (bound, in_memory): (&MemoryBound, u64),
) -> ByteLen {
    given.unwrap_or_else(|| {
        let rest = bound.bytes.0.saturating_sub(in_memory);
        let part = ByteLen(((rest / cores / 4) >> 20) << 20);
        part.min(MAP_MEMORY_DEFAULT).max(ByteLen(MAP_MEMORY_MIN.0 * devices))
    })
}

/// The core of a server that is given none.
fn first_core() -> Vec<u32> {
    let first = reactor::allowed_cpus().first().copied().unwrap_or(0);
    vec![u32::try_from(first).unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serve(flags: &str) -> Serve {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            serve: Serve,
        }
        let words = std::iter::once("serve").chain(flags.split_whitespace());
        <Line as clap::Parser>::parse_from(words).serve
    }

    /// These flags beside this file.
    fn settled(flags: &str, file: &str) -> Result<ServeConfig, Failure> {
        let mut serve = serve(flags);
        serve.settings.merge(toml::from_str(file).expect("valid"));
        serve.settle()
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let file = "devices = [\"mem:1GiB\"]\ncores = [1, 0]\nauth = \"off\"\n\
                    listen = \"127.0.0.1:5000\"\napi = \"[::1]:5001\"\nconnections_max = 7";
        let config = settled("--listen 127.0.0.1:6000", file).expect("complete");
        assert_eq!(config.listen.port(), 6000);
        assert_eq!(config.api.port(), 5001);
        assert_eq!((config.cores.as_slice(), config.connections_max), (&[1, 0][..], 7));
        assert_eq!(config.devices.raw[0].to_string(), "mem:1GiB");
        let config = settled("--device mem:2GiB --cores 3", file).expect("complete");
        let device = config.devices.raw[0].to_string();
        assert_eq!((device.as_str(), config.devices.len(), config.cores[0]), ("mem:2GiB", 1, 3));
        let config = settled("--device mem:2GiB --auth on", file).expect("complete");
        assert!(config.authentication.is_some());
        assert!(settled("", file).expect("complete").authentication.is_none());
        let config = settled("--device mem:2GiB", "").expect("complete");
        assert!(
            config.authentication.is_some(),
            "no host is let in without authentication by default"
        );
        assert_eq!((config.listen, config.api), (LISTEN_DEFAULT, API_DEFAULT));
        assert_eq!(config.map_memory, MAP_MEMORY_DEFAULT);
        let (line, file) = ("--device mem:2GiB --auth off", "map_memory = \"1MiB\"");
        let config = settled(&format!("{line} --map-memory 64MiB"), file).expect("complete");
        assert_eq!(config.map_memory, ByteLen(64 << 20));
        assert!(settled(line, file).is_err(), "too little");
        assert_eq!(config.scrub_every, None);
        let file = "auth = \"off\"\nscrub_every = \"30d\"";
        let config = settled("--device mem:2GiB", file).expect("complete");
        assert_eq!(config.scrub_every, Some(Duration::from_secs(30 * 86_400)));
    }

    /// A list of flags takes the place of one in the file: nothing is added to it.
    #[test]
    fn lists_of_flags_take_the_place_of_those_in_the_file() {
        let file = "labels = { rack = \"r1\" }\nnbd = [\"127.0.0.1:10809\"]\nhost_name = \"file\"\n\
                    host_lease = 5\nfence_after = \"30s\"\ndirectory = \"etcd://127.0.0.1:1/file\"\n\
                    auth_groups = [\"null\"]";
        let config = settled("--device mem:2GiB", file).expect("complete");
        assert_eq!((config.cluster.labels["rack"].as_str(), config.nbd.len()), ("r1", 1));
        let flags = "--device mem:2GiB --label row=7 --nbd 127.0.0.1:10810 --host-name flag \
                     --host-lease 7 --fence-after 20s --directory etcd://127.0.0.1:1/flag \
                     --auth-groups ffdhe2048";
        let config = settled(flags, file).expect("complete");
        let labels: Vec<_> = config.cluster.labels.into_iter().collect();
        assert_eq!(labels, [("row".to_owned(), "7".to_owned())]);
        let nbd: Vec<String> = config.nbd.iter().map(ToString::to_string).collect();
        assert_eq!(nbd, ["127.0.0.1:10810"]);
        let directory = config.cluster.directory.expect("given");
        assert_eq!((config.cluster.host_name.as_str(), &*directory.cluster), ("flag", "flag"));
        assert_eq!(config.cluster.lease, Duration::from_secs(7));
        assert_eq!(config.authentication.expect("on").groups, [auth::Group::Ffdhe2048]);
    }

    #[test]
    fn memory_of_cores_is_within_the_machines() {
        let gib = |count: u64| ByteLen(count << 30);
        let bounded =
            |given, cores| core_memory(Some(given), cores, (&MemoryBound::of_machine(gib(8)), 0));
        for (given, cores) in [(CORE_MEMORY_MIN, 1), (gib(8), 1), (gib(2), 4)] {
            assert_eq!(bounded(given, cores).expect("it works"), given);
        }
        for (given, cores, parts) in [
            (ByteLen(CORE_MEMORY_MIN.0 - 1), 1, ["too little", "between 32 MiB and 8 GiB"]),
            (
                ByteLen(gib(8).0 + 1),
                1,
                ["than the 8 GiB of this machine", "between 32 MiB and 8 GiB"],
            ),
            (gib(3), 4, ["on each of 4 cores is more", "between 32 MiB and 2 GiB"]),
            (gib(1), 300, ["on each of 300 cores is more", "fewer cores"]),
        ] {
            let failure = bounded(given, cores).expect_err("it cannot work").to_string();
            for part in ["--core-memory", parts[0], parts[1]] {
                assert!(failure.contains(part), "{failure}");
            }
        }
    }

    /// Defaults work wherever a server can: small machines are not refused for want of a flag.
    #[test]
    fn memory_that_is_not_given_is_within_the_machines() {
        let mib = |count: u64| ByteLen(count << 20);
        let usual =
            |cores, machine| core_memory(None, cores, (&MemoryBound::of_machine(machine), 0));
        for (cores, machine, each) in [
            (1, mib(8192), CORE_MEMORY_DEFAULT),
            (2, mib(1024), CORE_MEMORY_DEFAULT),
            (4, mib(1024), mib(128)),
            (16, mib(512), CORE_MEMORY_MIN),
        ] {
            assert_eq!(usual(cores, machine).expect("it works"), each, "{cores} of {machine}");
        }
        let failure = usual(17, mib(512)).expect_err("it cannot work").to_string();
        for part in ["32 MiB on each of 17 cores is more than the 512 MiB", "fewer cores"] {
            assert!(failure.contains(part), "{failure}");
        }
    }

    /// Memory that is not given is within a limit of a container, devices in memory and maps included.
    #[test]
    fn memory_is_within_the_limit_of_a_control_group() {
        let mib = |count: u64| ByteLen(count << 20);
        let bound =
            MemoryBound { bytes: mib(100), limited_by: Some("/sys/fs/cgroup/memory.max".into()) };
        let usual = |in_memory: u64| core_memory(None, 1, (&bound, in_memory << 20));
        assert_eq!(usual(0).expect("it works"), mib(50));
        assert_eq!(usual(20).expect("it works"), mib(40));
        let map = |given, cores, devices, in_memory: u64| {
            map_memory(given, cores, devices, (&bound, in_memory << 20))
        };
        assert_eq!(map(None, 1, 1, 0), mib(25));
        assert_eq!(map(None, 2, 1, 0), mib(12));
        assert_eq!(map(None, 1, 1, 60), mib(10), "devices in memory take theirs first");
        assert_eq!(map(None, 1, 9, 0), mib(36), "each device has its least");
        assert_eq!(map(Some(mib(70)), 1, 1, 0), mib(70));
        let machine = MemoryBound::of_machine(mib(1 << 20));
        assert_eq!(map_memory(None, 1, 1, (&machine, 0)), MAP_MEMORY_DEFAULT);
        let failure = core_memory(Some(mib(200)), 1, (&bound, 0)).expect_err("it cannot work");
        let failure = failure.to_string();
        for part in ["more than the 100 MiB that /sys/fs/cgroup/memory.max allows", "and 100 MiB"] {
            assert!(failure.contains(part), "{failure}");
        }
    }

    #[test]
    fn flags_switch_on_and_off_what_the_file_says() {
        for (flags, file, expected) in [
            ("", "", false),
            ("", "true", true),
            ("--log-json --format-if-blank", "", true),
            ("--log-json --format-if-blank", "false", true),
            ("--log-json=false --format-if-blank=false", "true", false),
            ("--log-json=true --format-if-blank=true", "false", true),
        ] {
            let mut text = "devices = [\"mem:1GiB\"]\nauth = \"off\"\n".to_owned();
            if !file.is_empty() {
                text += &format!("log_json = {file}\nformat_if_blank = {file}\n");
            }
            let mut serve = serve(flags);
            serve.settings.merge(toml::from_str(&text).expect("valid"));
            assert_eq!(serve.settings.log_json.unwrap_or(false), expected, "{flags}, {text}");
            let config = serve.settle().expect("complete");
            assert_eq!(config.format_if_blank, expected, "{flags}, {text}");
        }
    }

    #[test]
    fn a_device_is_taken_over_where_there_is_a_directory_wherever_that_is_said() {
        let take_over = |flags: &str, file: &str| {
            let config = settled(&format!("--device mem:2GiB {flags}"), file);
            config.map(|config| config.cluster.take_over.is_some()).ok()
        };
        let file = "directory = \"etcd://192.0.2.1:2379/prod\"";
        assert_eq!(take_over("", file), Some(false));
        assert_eq!(take_over("--take-over", file), Some(true));
        assert_eq!(take_over("--take-over --directory etcd://192.0.2.1:2379/prod", ""), Some(true));
        assert_eq!(take_over("--take-over", ""), None);
    }
}
