//! The configuration file of `farflash serve`: its keys, and what a mistake in it is called.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use local_devices::sharing_spec::SharedSpec;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use server::Advertised;
use server::Discovery;
use server::NbdAddress;
use toml_mistake::TomlMistake;
use units::ByteLen;
use user_messages::Failure;

use super::auth_args::{Auth, WrittenAuth};
use super::membership::{Written, parse_discovery};
use crate::address::parse_address;
use crate::core_list::CoreList;
use crate::interval::Interval;

/// Longest configuration file that is read.
const CONFIG_BYTES_MAX: ByteLen = ByteLen(1 << 20);

/// The configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ConfigFile {
    #[serde(deserialize_with = "device_specs")]
    pub(super) devices: Vec<SharedSpec>,
    #[serde(deserialize_with = "core_list")]
    pub(super) cores: Option<CoreList>,
    #[serde(deserialize_with = "address")]
    pub(super) listen: Option<SocketAddr>,
    #[serde(deserialize_with = "address")]
    pub(super) iscsi: Option<SocketAddr>,
    #[serde(deserialize_with = "advertised")]
    pub(super) advertise: Option<Advertised>,
    #[serde(deserialize_with = "address")]
    pub(super) api: Option<SocketAddr>,
    #[serde(deserialize_with = "discovery")]
    pub(super) discovery: Option<Discovery>,
    #[serde(deserialize_with = "nbd_addresses")]
    pub(super) nbd: Vec<NbdAddress>,
    pub(super) nbd_tls: Option<PathBuf>,
    directory: Option<String>,
    directory_ca: Option<PathBuf>,
    directory_certificate: Option<PathBuf>,
    directory_key: Option<PathBuf>,
    directory_user: Option<String>,
    directory_password_file: Option<PathBuf>,
    host_name: Option<String>,
    #[serde(deserialize_with = "labels")]
    labels: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "seconds")]
    host_lease: Option<u32>,
    #[serde(deserialize_with = "interval")]
    fence_after: Option<Interval>,
    #[serde(deserialize_with = "auth")]
    auth: Option<Auth>,
    #[serde(deserialize_with = "names")]
    auth_hashes: Option<Vec<String>>,
    #[serde(deserialize_with = "names")]
    auth_groups: Option<Vec<String>>,
    pub(super) api_users: Option<PathBuf>,
    #[serde(deserialize_with = "flag")]
    pub(super) api_open: Option<bool>,
    pub(super) api_tls: Option<PathBuf>,
    pub(super) audit_log: Option<PathBuf>,
    #[serde(deserialize_with = "flag")]
    pub(super) format_if_blank: Option<bool>,
    #[serde(deserialize_with = "count")]
    pub(super) connections_max: Option<u32>,
    #[serde(deserialize_with = "size")]
    pub(super) core_memory: Option<ByteLen>,
    #[serde(deserialize_with = "size")]
    pub(super) map_memory: Option<ByteLen>,
    #[serde(deserialize_with = "seconds")]
    pub(super) device_timeout: Option<u32>,
    #[serde(deserialize_with = "seconds")]
    pub(super) device_wait: Option<u32>,
    #[serde(deserialize_with = "interval")]
    pub(super) scrub_every: Option<Interval>,
    #[serde(deserialize_with = "flag")]
    pub(super) log_json: Option<bool>,
}

impl ConfigFile {
    /// Reads the file at `path`.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let text = text_of(path)?;
        toml::from_str(&text).map_err(|error| {
            let what = format!("{}, {}", path.display(), TomlMistake::new(&text, &error));
            Failure::usage(what, "mend the file; `farflash serve --help` lists its keys")
        })
    }

    /// Takes out how the host takes part in a service of several.
    pub(super) fn cluster(&mut self) -> Written {
        Written {
            directory: self.directory.take(),
            directory_ca: self.directory_ca.take(),
            directory_certificate: self.directory_certificate.take(),
            directory_key: self.directory_key.take(),
            directory_user: self.directory_user.take(),
            directory_password_file: self.directory_password_file.take(),
            host_name: self.host_name.take(),
            labels: self.labels.take(),
            host_lease: self.host_lease,
            fence_after: self.fence_after,
        }
    }

    /// Takes out what is asked of hosts.
    pub(super) fn auth(&mut self) -> WrittenAuth {
        WrittenAuth {
            auth: self.auth,
            auth_hashes: self.auth_hashes.take(),
            auth_groups: self.auth_groups.take(),
        }
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

fn labels<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<BTreeMap<String, String>>, D::Error> {
    written(deserializer, "a table, such as { rack = \"r1\" }").map(Some)
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
            let error = toml::from_str::<ConfigFile>(&text).expect_err(line);
            let mistake = TomlMistake::new(&text, &error).to_string();
            assert!(mistake.starts_with("line 3: ") && mistake.contains(told), "{line}: {mistake}");
        }
    }
}
