//! The settings of `farflash serve`, which are flags and keys of its configuration file, and messages for mistakes in the file.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use directory::EtcdAddress;
use local_devices::sharing_spec::SharedSpec;
use merge::Merge;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use server::Advertised;
use server::Discovery;
use server::NbdAddress;
use toml_mistake::TomlMistake;
use units::ByteLen;
use user_messages::Failure;

use super::authentication::Auth;
use super::membership::{parse_discovery, parse_label};
use crate::address::parse_address;
use crate::core_list::CoreList;
use crate::interval::Interval;

/// Longest configuration file that is read.
const CONFIG_BYTES_MAX: ByteLen = ByteLen(1 << 20);

fn devices_help() -> String {
    format!(
        "Devices that volumes lie on, once for each: {}. Each takes a ceiling: \
         `,reads-per-second=N,writes-per-second=N[,latency-target=500us][,policy=drr|sts|fcfs]`",
        device::kind::forms(true)
    )
}

/// The settings of a server: each is a flag, and a key of the configuration file with `_` for `-`.
#[derive(Debug, Default, Args, Deserialize, Merge)]
#[serde(deny_unknown_fields, default)]
#[merge(strategy = merge::option::overwrite_none)]
pub(super) struct Settings {
    #[arg(long = "device", value_name = "DEVICE", help = devices_help())]
    #[serde(deserialize_with = "device_specs")]
    #[merge(strategy = merge::vec::overwrite_empty)]
    pub(super) devices: Vec<SharedSpec>,
    /// CPUs to serve on, such as 0 or 0,2 or 0-3; each gets a thread and a portal
    /// [default: the first that this process may use]
    #[arg(long, value_name = "LIST")]
    #[serde(deserialize_with = "core_list")]
    pub(super) cores: Option<CoreList>,
    /// Address to which hosts connect; the portal of the n-th core has the port plus n
    /// [default: 127.0.0.1:4420]
    #[arg(long, value_name = "IP:PORT", value_parser = parse_address)]
    #[serde(deserialize_with = "address")]
    pub(super) listen: Option<SocketAddr>,
    /// Serve iSCSI, too, there; the n-th core has the port plus n [default: no iSCSI]
    #[arg(long, value_name = "IP:PORT", value_parser = parse_address)]
    #[serde(deserialize_with = "address")]
    pub(super) iscsi: Option<SocketAddr>,
    /// The addresses that hosts are told, where they differ from the one listened on; discovery tells each
    /// host the nearest, everything else the first
    #[arg(long, value_name = "IP[,IP...]")]
    #[serde(deserialize_with = "advertised")]
    pub(super) advertise: Option<Advertised>,
    /// Address of the REST API [default: 127.0.0.1:7420]
    #[arg(long, value_name = "IP:PORT", value_parser = parse_address)]
    #[serde(deserialize_with = "address")]
    pub(super) api: Option<SocketAddr>,
    /// One more place that answers NVMe discovery, or `off`; every portal does anyhow
    /// [default: port 8009 beside the portals, if it is free]
    #[arg(long, value_name = "IP:PORT|off", value_parser = parse_discovery)]
    #[serde(deserialize_with = "discovery")]
    pub(super) discovery: Option<Discovery>,
    /// Serve NBD at this place, such as 127.0.0.1:10809 or unix:/run/farflash/nbd.sock; give it again for one of the
    /// other kind. The n-th core has the port plus n, or the path with `.n` behind it. A volume is there only if
    /// `farflash volume restrict` says for which clients [default: nowhere]
    #[arg(long, value_name = "IP:PORT|unix:PATH")]
    #[serde(deserialize_with = "nbd_addresses")]
    #[merge(strategy = merge::vec::overwrite_empty)]
    pub(super) nbd: Vec<NbdAddress>,
    /// Let clients of NBD begin TLS with certificate.pem and key.pem of this directory; with clients.pem, the certificates of the
    /// authorities for clients, `farflash volume restrict --nbd-certificate` names those that may open a volume
    #[arg(long, value_name = "DIRECTORY")]
    pub(super) nbd_tls: Option<PathBuf>,
    /// The directory in which the hosts of one service agree: `etcd://HOST:PORT[,HOST:PORT]/CLUSTER`, or
    /// `etcds://…` over TLS. Devices belong to that cluster from then on, until `farflash leave-cluster`
    /// [default: this host is a service by itself]
    #[arg(long, value_name = "URL")]
    #[serde(deserialize_with = "directory")]
    pub(super) directory: Option<EtcdAddress>,
    /// The certificates of the authorities that etcd's certificate is believed for, in PEM
    /// [default: those that this machine trusts]
    #[arg(long, value_name = "FILE")]
    pub(super) directory_ca: Option<PathBuf>,
    /// A certificate by which etcd knows this host, in PEM
    #[arg(long, value_name = "FILE")]
    pub(super) directory_certificate: Option<PathBuf>,
    /// The key of that certificate, in PEM
    #[arg(long, value_name = "FILE")]
    pub(super) directory_key: Option<PathBuf>,
    /// A user of etcd. The password is in --directory-password-file, or in $FARFLASH_DIRECTORY_PASSWORD
    #[arg(long, value_name = "NAME")]
    pub(super) directory_user: Option<String>,
    /// A file with that user's password
    #[arg(long, value_name = "FILE")]
    pub(super) directory_password_file: Option<PathBuf>,
    /// This host's name in the service [default: the system's host name]
    #[arg(long, value_name = "NAME")]
    pub(super) host_name: Option<String>,
    /// Failure domain that this host shares with others, such as rack=r1; repeat for more
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    #[serde(deserialize_with = "labels")]
    #[merge(strategy = merge::vec::overwrite_empty)]
    pub(super) labels: Vec<(String, String)>,
    /// Seconds after which a host that is not heard of counts as gone [default: 10]
    #[arg(long, value_name = "SECONDS")]
    #[serde(deserialize_with = "seconds")]
    pub(super) host_lease: Option<u32>,
    /// Stop serving when the directory has not confirmed this host for so long, such as 30s, until it does
    /// again. Other hosts see that, and need no --confirm-down to take devices of a host that has stopped. At
    /// least as long as the lease; three times that rides out an election of etcd [default: serve on]
    #[arg(long, value_name = "INTERVAL")]
    #[serde(deserialize_with = "interval")]
    pub(super) fence_after: Option<Interval>,
    /// Require that hosts know a volume's token (`farflash volume create` shows it) to open it
    /// [default: on]
    #[arg(long, value_enum)]
    #[serde(deserialize_with = "auth")]
    pub(super) auth: Option<Auth>,
    /// Hash functions that a host may prove its token with, the first that it knows being taken; new tokens
    /// are made for the first of all [default: sha256,sha384,sha512]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    #[serde(deserialize_with = "names")]
    pub(super) auth_hashes: Option<Vec<String>>,
    /// Diffie-Hellman groups that it may use for that, in the same way; without `null` it has to use one
    /// [default: null,ffdhe2048,ffdhe3072,ffdhe4096,ffdhe6144,ffdhe8192]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    #[serde(deserialize_with = "names")]
    pub(super) auth_groups: Option<Vec<String>>,
    /// Users of the API: a TOML file of operators and tenants (see `farflash api-token --help`)
    /// [default: root and the user this server runs as, on this host]
    #[arg(long, value_name = "FILE")]
    pub(super) api_users: Option<PathBuf>,
    /// Let every caller that reaches the API do everything
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[serde(deserialize_with = "flag")]
    pub(super) api_open: Option<bool>,
    /// Encrypt the API (https) with certificate.pem and key.pem of this directory. If neither is there,
    /// they are made, for this machine's name and the API's address [default: plain HTTP]
    #[arg(long, value_name = "DIRECTORY")]
    pub(super) api_tls: Option<PathBuf>,
    /// Append a line for each change that the API is asked for: the user, the change, the time and the
    /// outcome
    #[arg(long, value_name = "FILE")]
    pub(super) audit_log: Option<PathBuf>,
    /// Format a device that is all zeroes instead of refusing it
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[serde(deserialize_with = "flag")]
    pub(super) format_if_blank: Option<bool>,
    /// Host connections that each core serves at a time; a tenant's volumes together, or a volume without a
    /// tenant, get half of them [default: 2048]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    #[serde(deserialize_with = "count")]
    pub(super) connections_max: Option<u32>,
    /// Memory for the data of requests, on each core: at least 32MiB, and with all cores together no more than the machine has
    /// or its control group allows [default: 256MiB, or with all cores half of that if it is less]
    #[arg(long, value_name = "SIZE")]
    #[serde(deserialize_with = "size")]
    pub(super) core_memory: Option<ByteLen>,
    /// Memory for the maps of volumes, on each core, divided equally among the devices; at least 4MiB
    /// for each. What does not fit is read when it is needed. All of a map takes up to 0.4 % of the data, 0.6 % where
    /// single blocks were deallocated all over it [default: 1GiB, or with all cores a quarter of what the machine has or its
    /// control group allows if that is less]
    #[arg(long, value_name = "SIZE")]
    #[serde(deserialize_with = "size")]
    pub(super) map_memory: Option<ByteLen>,
    /// Seconds after which a request to a file or drive that is not answered fails [default: 15]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3600))]
    #[serde(deserialize_with = "seconds")]
    pub(super) device_timeout: Option<u32>,
    /// Seconds that the start waits for a device that is not there, where the server cannot start without [default: 0]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=86_400))]
    #[serde(deserialize_with = "seconds")]
    pub(super) device_wait: Option<u32>,
    /// Interval of scrubs of each device, which read and check all that lies on it, such as 7d or 12h (see
    /// `farflash scrub`); the first begins an hour after the start [default: never]
    #[arg(long, value_name = "INTERVAL")]
    #[serde(deserialize_with = "interval")]
    pub(super) scrub_every: Option<Interval>,
    /// Log one JSON object a line
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[serde(deserialize_with = "flag")]
    pub(super) log_json: Option<bool>,
}

impl Settings {
    /// Reads the file at `path`.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let text = text_of(path)?;
        toml::from_str(&text).map_err(|error| {
            let what = format!("{}, {}", path.display(), TomlMistake::new(&text, &error));
            Failure::usage(what, "mend the file; `farflash serve --help` says how flags are keys")
        })
    }
}

/// Reads a setting as the file has it, or says what to write: TOML's names of types tell an operator little.
fn written<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
    form: &str,
) -> Result<T, D::Error> {
    T::deserialize(deserializer).map_err(|_| D::Error::custom(format_args!("write {form}")))
}

fn device_specs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SharedSpec>, D::Error> {
    let form = "a list of devices, such as [\"file:/srv/flash.img\"]";
    let texts: Vec<String> = written(deserializer, form)?;
    let specs = texts.iter().map(|text| text.parse());
    specs.collect::<Result<_, _>>().map_err(D::Error::custom)
}

fn nbd_addresses<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<NbdAddress>, D::Error> {
    let form = "a list of addresses, such as [\"127.0.0.1:10809\"]";
    let texts: Vec<String> = written(deserializer, form)?;
    let addresses = texts.iter().map(|text| text.parse());
    addresses.collect::<Result<_, _>>().map_err(D::Error::custom)
}

fn core_list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<CoreList>, D::Error> {
    let cores = written(deserializer, "a list of CPUs, such as [0, 1]")?;
    CoreList::new(cores).map(Some).map_err(D::Error::custom)
}

fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text: String = written(deserializer, "IP:PORT in quotes, such as \"127.0.0.1:4420\"")?;
    parse_address(&text).map(Some).map_err(D::Error::custom)
}

fn advertised<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Advertised>, D::Error> {
    let text: String =
        written(deserializer, "addresses in quotes, such as \"192.0.2.7,10.0.0.7\"")?;
    text.parse().map(Some).map_err(D::Error::custom)
}

fn interval<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Interval>, D::Error> {
    let text: String = written(deserializer, "a length of time in quotes, such as \"12h\"")?;
    text.parse().map(Some).map_err(D::Error::custom)
}

fn discovery<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Discovery>, D::Error> {
    let text: String = written(deserializer, "\"off\", or IP:PORT in quotes")?;
    parse_discovery(&text).map(Some).map_err(D::Error::custom)
}

fn directory<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<EtcdAddress>, D::Error> {
    let form = "etcd[s]://HOST:PORT[,HOST:PORT]/CLUSTER in quotes";
    let text: String = written(deserializer, form)?;
    text.parse().map(Some).map_err(|error| D::Error::custom(format_args!("{error}; write {form}")))
}

fn labels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, String)>, D::Error> {
    let table: BTreeMap<_, _> = written(deserializer, "a table, such as { rack = \"r1\" }")?;
    Ok(table.into_iter().collect())
}

fn auth<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Auth>, D::Error> {
    let form = "\"on\" or \"off\"";
    let text: String = written(deserializer, form)?;
    let known = Auth::from_str(&text, false);
    known.map(Some).map_err(|_| D::Error::custom(format_args!("write {form}, not \"{text}\"")))
}

fn names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    written(deserializer, "a list of names, each in quotes").map(Some)
}

fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ByteLen>, D::Error> {
    let text: String = written(deserializer, "a size in quotes, such as \"256MiB\"")?;
    text.parse().map(Some).map_err(D::Error::custom)
}

fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    written(deserializer, "a whole number without quotes, such as 2048").map(Some)
}

fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    written(deserializer, "seconds as a whole number without quotes, such as 15").map(Some)
}

fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<bool>, D::Error> {
    written(deserializer, "true or false, without quotes").map(Some)
}

/// Returns the content of the file, if it ends, and soon.
fn text_of(path: &Path) -> Result<String, Failure> {
    let shown = path.display();
    let unreadable = |error: std::io::Error| {
        let what = format!("the configuration file {shown} cannot be read: {error}");
        Failure::runtime(what, "name a file that is there and readable with --config")
    };
    let refused = |what: &str| {
        let what = format!("the configuration file {shown} {what}");
        Failure::usage(what, "name a TOML file with --config")
    };
    // Without waiting: a pipe or a terminal would keep the server from ever starting.
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = std::fs::OpenOptions::new().read(true).custom_flags(nonblocking).open(path);
    let file = file.map_err(unreadable)?;
    if !file.metadata().map_err(unreadable)?.is_file() {
        return Err(refused("is no regular file"));
    }
    let mut text = String::new();
    // One byte more than allowed tells a file that is too long, whatever its length says.
    file.take(CONFIG_BYTES_MAX.0 + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > CONFIG_BYTES_MAX.0 {
        return Err(refused(&format!("is larger than {CONFIG_BYTES_MAX}")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message tells the line, the key and a valid value.
    #[test]
    fn each_mistake_is_told_with_its_key_and_what_to_write() {
        for (line, told) in [
            ("device = \"mem:1GiB\"", "unknown field `device`, expected one of `devices`"),
            ("devices = \"mem:1GiB\"", "`devices`: write a list of devices"),
            ("devices = [\"mem:\"]", "`devices`: `mem:` is not followed by a size"),
            ("devices = [\"/srv/a\"]", "a file or drive is file:/srv/a"),
            ("cores = 0", "`cores`: write a list of CPUs, such as [0, 1]"),
            ("cores = [0, 0]", "`cores`: core 0 is listed twice"),
            ("listen = 4420", "`listen`: write IP:PORT in quotes"),
            ("listen = \"localhost:4420\"", "`listen`: `localhost:4420` is no address"),
            ("advertise = [\"192.0.2.7\"]", "`advertise`: write addresses in quotes"),
            ("advertise = \"flash-1\"", "`advertise`: `flash-1` is no IP address"),
            ("fence_after = 30", "`fence_after`: write a length of time in quotes"),
            ("scrub_every = \"3\"", "`scrub_every`: `3` is no length of time"),
            ("api = \"127.0.0.1\"", "`api`: `127.0.0.1` is no address; write IP:PORT"),
            ("discovery = false", "`discovery`: write \"off\", or IP:PORT"),
            ("discovery = \"on\"", "`discovery`: `on` is no address"),
            ("directory = \"http://a:1/x\"", "write etcd[s]://HOST:PORT[,HOST:PORT]/CLUSTER"),
            ("labels = \"rack=r1\"", "`labels`: write a table, such as { rack = \"r1\" }"),
            ("auth = true", "`auth`: write \"on\" or \"off\""),
            ("auth = \"yes\"", "`auth`: write \"on\" or \"off\", not \"yes\""),
            ("auth_hashes = \"sha256\"", "`auth_hashes`: write a list of names"),
            ("core_memory = 256", "`core_memory`: write a size in quotes, such as \"256MiB\""),
            ("core_memory = \"256 elephants\"", "`core_memory`: `elephants` is no unit"),
            ("connections_max = \"many\"", "`connections_max`: write a whole number"),
            ("connections_max = -1", "`connections_max`: write a whole number"),
            ("host_lease = \"10s\"", "`host_lease`: write seconds as a whole number"),
            ("device_timeout = 1.5", "`device_timeout`: write seconds as a whole number"),
            ("format_if_blank = 1", "`format_if_blank`: write true or false"),
        ] {
            let text = format!("log_json = false\n\n{line}\n");
            let error = toml::from_str::<Settings>(&text).expect_err(line);
            let mistake = TomlMistake::new(&text, &error).to_string();
            assert!(mistake.starts_with("line 3: ") && mistake.contains(told), "{line}: {mistake}");
        }
    }
}
