//! The membership of `farflash serve` in a service of several hosts, from flags and a file.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use directory::{EtcdAddress, EtcdCredentials, Tenure, Term, Word};
use server::{ClusterConfig, Discovery};
use user_messages::Failure;

use crate::address::parse_address;
use crate::commands::token_file;
use crate::interval::Interval;

/// The port that NVMe discovery has by the specification.
const DISCOVERY_PORT: u16 = 8009;
/// Long enough for etcd to elect a leader, short enough not to show hosts as there that are not.
const HOST_LEASE_DEFAULT: u32 = 10;
/// Bounds of the lease: the least that etcd takes, and the longest that still is a sign of life.
const HOST_LEASE_SECONDS: std::ops::RangeInclusive<u32> = 2..=600;
/// The longest time before a fence; a host that would serve for longer has no use for one.
const FENCE_MAX: Duration = Duration::from_secs(86_400);

#[derive(Debug, Default, Args)]
pub(super) struct ClusterArgs {
    /// The directory in which the hosts of one service agree: `etcd://HOST:PORT[,HOST:PORT]/CLUSTER`, or
    /// `etcds://…` over TLS. Devices belong to that cluster from then on, until `farflash leave-cluster`
    /// [default: this host is a service by itself]
    #[arg(long, value_name = "URL")]
    directory: Option<EtcdAddress>,
    /// The certificates of the authorities that etcd's certificate is believed for, in PEM
    /// [default: those that this machine trusts]
    #[arg(long, value_name = "FILE")]
    directory_ca: Option<PathBuf>,
    /// A certificate by which etcd knows this host, in PEM
    #[arg(long, value_name = "FILE")]
    directory_certificate: Option<PathBuf>,
    /// The key of that certificate, in PEM
    #[arg(long, value_name = "FILE")]
    directory_key: Option<PathBuf>,
    /// A user of etcd. The password is in --directory-password-file, or in $FARFLASH_DIRECTORY_PASSWORD
    #[arg(long, value_name = "NAME")]
    directory_user: Option<String>,
    /// A file with that user's password
    #[arg(long, value_name = "FILE")]
    directory_password_file: Option<PathBuf>,
    /// This host's name in the service [default: the system's host name]
    #[arg(long, value_name = "NAME")]
    host_name: Option<String>,
    /// Failure domain that this host shares with others, such as rack=r1; repeat for more
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    labels: Vec<(String, String)>,
    /// Seconds after which a host that is not heard of counts as gone [default: 10]
    #[arg(long, value_name = "SECONDS")]
    host_lease: Option<u32>,
    /// Stop serving when the directory has not confirmed this host for so long, such as 30s, until it does
    /// again. Other hosts see that, and need no --confirm-down to take devices of a host that has stopped. At
    /// least as long as the lease; three times that rides out an election of etcd [default: serve on]
    #[arg(long, value_name = "INTERVAL")]
    fence_after: Option<Interval>,
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

/// The same settings, as the configuration file has them.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) directory: Option<String>,
    pub(super) directory_ca: Option<PathBuf>,
    pub(super) directory_certificate: Option<PathBuf>,
    pub(super) directory_key: Option<PathBuf>,
    pub(super) directory_user: Option<String>,
    pub(super) directory_password_file: Option<PathBuf>,
    pub(super) host_name: Option<String>,
    pub(super) labels: Option<BTreeMap<String, String>>,
    pub(super) host_lease: Option<u32>,
    pub(super) fence_after: Option<Interval>,
}

impl ClusterArgs {
    /// Flags over file over defaults.
    pub(super) fn settle(self, file: Written) -> Result<ClusterConfig, Failure> {
        let credentials = self.credentials(&file)?;
        let directory = match (self.directory, file.directory) {
            (Some(address), _) => Some(address),
            (None, Some(text)) => Some(text.parse().map_err(|error| {
                let what = format!("directory = \"{text}\": {error}");
                Failure::usage(what, "give it as etcd[s]://HOST:PORT[,HOST:PORT]/CLUSTER")
            })?),
            (None, None) => None,
        };
        match &directory {
            Some(address) => credentials.check(address).map_err(|error| {
                let what = format!("the directory cannot be asked: {error}");
                Failure::usage(what, "look at --directory (etcds:// encrypts) and --directory-*")
            })?,
            None if self.take_over => {
                let what = "without a directory there is no host to take a device from";
                return Err(Failure::usage(what, "leave --take-over out, or give --directory"));
            }
            None if credentials == EtcdCredentials::default() => {}
            None => {
                let what = "it is said how etcd lets this host in, but not where etcd is";
                return Err(Failure::usage(what, "give its address with --directory"));
            }
        }
        let labels = match self.labels.is_empty() {
            true => file.labels.unwrap_or_default(),
            false => self.labels.into_iter().collect(),
        };
        let host_name = self.host_name.or(file.host_name).unwrap_or_else(system_name);
        if !is_name(&host_name) {
            let what = format!("`{}` is no name of a host", host_name.escape_debug());
            let remedy = "give --host-name 1 to 63 of a-z, A-Z, 0-9, `.`, `_` and `-`";
            return Err(Failure::usage(what, remedy));
        }
        let host_lease = self.host_lease.or(file.host_lease).unwrap_or(HOST_LEASE_DEFAULT);
        if !HOST_LEASE_SECONDS.contains(&host_lease) {
            let what = format!("host_lease = {host_lease} is out of bounds");
            return Err(Failure::usage(what, "set it between 2 and 600 (seconds)"));
        }
        let take_over = self.take_over.then(|| Word::down(self.confirm_down));
        let lease = Duration::from_secs(host_lease.into());
        let fence_after = self.fence_after.or(file.fence_after).map(|Interval(after)| after);
        let tenure = tenure(fence_after, lease, directory.is_some())?;
        Ok(ClusterConfig { directory, credentials, host_name, labels, take_over, lease, tenure })
    }
}

/// For how long the host serves without the directory.
fn tenure(after: Option<Duration>, lease: Duration, is_shared: bool) -> Result<Tenure, Failure> {
    let Some(after) = after else { return Ok(Tenure::endless()) };
    if !is_shared {
        let what = "without a directory nothing confirms that this host may serve";
        return Err(Failure::usage(what, "leave --fence-after out, or give --directory"));
    }
    if !(lease..=FENCE_MAX).contains(&after) {
        let what = format!("fence_after = {}s is out of bounds", after.as_secs());
        let lease = lease.as_secs();
        let remedy =
            format!("set it between host_lease ({lease}s) and 1d; 3 times host_lease is usual");
        return Err(Failure::usage(what, remedy));
    }
    Ok(Tenure::limited(Term::new(after)))
}

impl ClusterArgs {
    /// Returns the credentials for etcd: flags over file.
    fn credentials(&self, file: &Written) -> Result<EtcdCredentials, Failure> {
        let path = |flag: &Option<PathBuf>, written: &Option<PathBuf>| {
            flag.clone().or_else(|| written.clone())
        };
        let password_file = path(&self.directory_password_file, &file.directory_password_file);
        let user = self.directory_user.as_ref().or(file.directory_user.as_ref());
        let user = match (user, password_file) {
            (None, None) => None,
            (None, Some(path)) => {
                let what = format!("{} is for no user of the directory", path.display());
                return Err(Failure::usage(what, "name the user with --directory-user"));
            }
            (Some(name), Some(path)) => Some((name.clone(), password_in(&path)?)),
            (Some(name), None) => match std::env::var("FARFLASH_DIRECTORY_PASSWORD") {
                Ok(password) if !password.is_empty() => Some((name.clone(), password)),
                _ => {
                    let what = format!("the password of `{name}` is not given");
                    let remedy = "name its file with --directory-password-file, or set \
                                  FARFLASH_DIRECTORY_PASSWORD";
                    return Err(Failure::usage(what, remedy));
                }
            },
        };
        let certificate = path(&self.directory_certificate, &file.directory_certificate);
        let certificate = match (certificate, path(&self.directory_key, &file.directory_key)) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate, key)),
            _ => {
                let what = "a certificate for the directory without its key, or a key without it";
                let remedy = "give both, --directory-certificate and --directory-key";
                return Err(Failure::usage(what, remedy));
            }
        };
        let authorities = path(&self.directory_ca, &file.directory_ca);
        Ok(EtcdCredentials { authorities, certificate, user })
    }
}

fn password_in(path: &Path) -> Result<String, Failure> {
    token_file::read_password(path).map_err(|error| {
        let what = format!("the directory's password in {}: {error}", path.display());
        Failure::usage(what, "name a readable file that holds it with --directory-password-file")
    })
}

fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=63).contains(&text.len()) && text.chars().all(fits)
}

/// The system's name for this host.
fn system_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if is_name(name) { name.to_owned() } else { "localhost".to_owned() }
}

/// The name of a host that is down.
pub(super) fn parse_down(text: &str) -> Result<String, &'static str> {
    match is_name(text) || text == Word::UNKNOWN_HOST {
        true => Ok(text.to_owned()),
        false => Err("the name of a host is wanted, as `farflash host list` has it, or '*'"),
    }
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if is_name(key) && !value.is_empty() => {
            Ok((key.to_owned(), value.to_owned()))
        }
        _ => Err("a label is KEY=VALUE, such as rack=r1".to_owned()),
    }
}

pub(super) fn parse_discovery(text: &str) -> Result<Discovery, String> {
    if text == "off" {
        return Ok(Discovery::Off);
    }
    let address = parse_address(text).map(Discovery::At);
    address.map_err(|error| format!("{error}, or `off`"))
}

/// The usual setting of discovery, if none is given. Portals on any free port are for trials: no host looks
/// for those on a well-known port.
pub(super) fn usual_discovery(listen: SocketAddr) -> Discovery {
    match listen.port() {
        0 | DISCOVERY_PORT => Discovery::Off,
        _ => Discovery::IfFree(SocketAddr::new(listen.ip(), DISCOVERY_PORT)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_win_over_the_file() {
        let file = || Written {
            directory: Some("etcd://a:1/file".to_owned()),
            host_name: Some("file".to_owned()),
            labels: Some([("rack".to_owned(), "r1".to_owned())].into()),
            host_lease: Some(5),
            ..Written::default()
        };
        let config = ClusterArgs::default().settle(file()).expect("complete");
        assert_eq!(config.directory.map(|address| address.cluster).as_deref(), Some("file"));
        assert_eq!((config.host_name.as_str(), config.labels["rack"].as_str()), ("file", "r1"));
        assert_eq!(config.lease, Duration::from_secs(5));
        let flags = ClusterArgs {
            directory: Some("etcd://a:1/flag".parse().expect("an address")),
            host_name: Some("flag".to_owned()),
            labels: vec![parse_label("row=7").expect("a label")],
            host_lease: Some(7),
            take_over: true,
            confirm_down: vec!["gone".to_owned()],
            ..ClusterArgs::default()
        };
        let config = flags.settle(file()).expect("complete");
        assert_eq!(config.directory.map(|address| address.cluster).as_deref(), Some("flag"));
        assert_eq!((config.host_name.as_str(), config.labels.len()), ("flag", 1));
        assert_eq!(config.take_over, Some(Word::down(["gone"])));
        assert_eq!(config.lease, Duration::from_secs(7));
        let wrong = [
            Written { directory: Some("http://a:1/x".to_owned()), ..Written::default() },
            Written { host_name: Some("a b".to_owned()), ..Written::default() },
            Written { host_lease: Some(1), ..Written::default() },
            Written { directory_ca: Some("/ca.pem".into()), ..Written::default() },
        ];
        for written in wrong {
            ClusterArgs::default().settle(written).expect_err("refused");
        }
    }

    #[test]
    fn a_fence_is_no_shorter_than_the_lease_and_needs_a_directory() {
        let file = |after: &str| Written {
            directory: Some("etcd://a:1/file".to_owned()),
            host_lease: Some(5),
            fence_after: Some(after.parse().expect("a length of time")),
            ..Written::default()
        };
        let term = |flags: ClusterArgs, file| flags.settle(file).expect("complete").tenure.term();
        let is = |seconds| Some(Term::new(Duration::from_secs(seconds)));
        assert_eq!(term(ClusterArgs::default(), Written::default()), None, "off by default");
        assert_eq!(term(ClusterArgs::default(), file("30s")), is(30));
        let flag = ClusterArgs { fence_after: "5s".parse().ok(), ..ClusterArgs::default() };
        assert_eq!(term(flag, file("30s")), is(5));
        let wrong = [file("4s"), file("2d"), Written { directory: None, ..file("30s") }];
        for written in wrong {
            ClusterArgs::default().settle(written).expect_err("refused");
        }
    }

    #[test]
    fn what_lets_a_host_in_comes_from_flags_and_file_and_is_whole() {
        let password = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(password.path(), "hunter2\n").expect("written");
        let file = || Written {
            directory: Some("etcd://127.0.0.1:1/file".to_owned()),
            directory_user: Some("file".to_owned()),
            directory_password_file: Some(password.path().to_owned()),
            ..Written::default()
        };
        let user = |flags: ClusterArgs| flags.settle(file()).expect("complete").credentials.user;
        let is = |name: &str| Some((name.to_owned(), "hunter2".to_owned()));
        assert_eq!(user(ClusterArgs::default()), is("file"));
        let flag =
            ClusterArgs { directory_user: Some("flag".to_owned()), ..ClusterArgs::default() };
        assert_eq!(user(flag), is("flag"));
        let far = Some("etcd://10.0.0.1:1/file".to_owned());
        let key = Some("/key.pem".into());
        let wrong = [
            Written { directory: far, ..file() },
            Written { directory: None, ..file() },
            Written { directory_user: None, ..file() },
            Written { directory_key: key, ..file() },
            Written { directory_password_file: Some("/nowhere".into()), ..file() },
        ];
        for written in wrong {
            let refused = ClusterArgs::default().settle(written).expect_err("refused");
            assert!(!format!("{refused:?}").contains("hunter2"), "{refused:?}");
        }
    }

    #[test]
    fn discovery_has_its_port_where_portals_have_theirs() {
        let listen = |text: &str| usual_discovery(text.parse().expect("an address"));
        let usual = Discovery::IfFree("10.0.0.1:8009".parse().expect("an address"));
        assert_eq!(listen("10.0.0.1:4420"), usual);
        assert_eq!(listen("10.0.0.1:0"), Discovery::Off);
        assert_eq!(parse_discovery("off"), Ok(Discovery::Off));
        parse_discovery("8009").expect_err("no address");
    }
}
