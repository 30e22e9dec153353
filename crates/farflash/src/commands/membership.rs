//! The membership of `farflash serve` in a service of several hosts, from its settings.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use directory::{EtcdCredentials, Tenure, Term, Word};
use server::{ClusterConfig, Discovery};
use user_messages::Failure;

use super::settings::Settings;
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

/// Takes the settings of the cluster out of `settings`. `word` is the operator's permission to take devices over.
pub(super) fn settle(
    settings: &mut Settings,
    word: Option<Word>,
) -> Result<ClusterConfig, Failure> {
    let credentials = credentials(settings)?;
    let directory = settings.directory.take();
    match &directory {
        Some(address) => credentials.check(address).map_err(|error| {
            let what = format!("the directory cannot be asked: {error}");
            Failure::usage(what, "look at --directory (etcds:// encrypts) and --directory-*")
        })?,
        None if word.is_some() => {
            let what = "without a directory there is no host to take a device from";
            return Err(Failure::usage(what, "leave --take-over out, or give --directory"));
        }
        None if credentials == EtcdCredentials::default() => {}
        None => {
            let what = "it is said how etcd lets this host in, but not where etcd is";
            return Err(Failure::usage(what, "give its address with --directory"));
        }
    }
    let host_name = settings.host_name.take().unwrap_or_else(system_name);
    if !is_name(&host_name) {
        let what = format!("`{}` is no name of a host", host_name.escape_debug());
        let remedy = "give --host-name 1 to 63 of a-z, A-Z, 0-9, `.`, `_` and `-`";
        return Err(Failure::usage(what, remedy));
    }
    let host_lease = settings.host_lease.unwrap_or(HOST_LEASE_DEFAULT);
    if !HOST_LEASE_SECONDS.contains(&host_lease) {
        let what = format!("host_lease = {host_lease} is out of bounds");
        return Err(Failure::usage(what, "set it between 2 and 600 (seconds)"));
    }
    let lease = Duration::from_secs(host_lease.into());
    let fence_after = settings.fence_after.map(|Interval(after)| after);
    let tenure = tenure(fence_after, lease, directory.is_some())?;
    let labels = std::mem::take(&mut settings.labels).into_iter().collect();
    Ok(ClusterConfig { directory, credentials, host_name, labels, take_over: word, lease, tenure })
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

/// Takes out the credentials for etcd.
fn credentials(settings: &mut Settings) -> Result<EtcdCredentials, Failure> {
    let user = match (settings.directory_user.take(), settings.directory_password_file.take()) {
        (None, None) => None,
        (None, Some(path)) => {
            let what = format!("{} is for no user of the directory", path.display());
            return Err(Failure::usage(what, "name the user with --directory-user"));
        }
        (Some(name), Some(path)) => Some((name, password_in(&path)?)),
        (Some(name), None) => match std::env::var("FARFLASH_DIRECTORY_PASSWORD") {
            Ok(password) if !password.is_empty() => Some((name, password)),
            _ => {
                let what = format!("the password of `{name}` is not given");
                let remedy = "name its file with --directory-password-file, or set \
                              FARFLASH_DIRECTORY_PASSWORD";
                return Err(Failure::usage(what, remedy));
            }
        },
    };
    let certificate = (settings.directory_certificate.take(), settings.directory_key.take());
    let certificate = match certificate {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some((certificate, key)),
        _ => {
            let what = "a certificate for the directory without its key, or a key without it";
            let remedy = "give both, --directory-certificate and --directory-key";
            return Err(Failure::usage(what, remedy));
        }
    };
    Ok(EtcdCredentials { authorities: settings.directory_ca.take(), certificate, user })
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

pub(super) fn parse_label(text: &str) -> Result<(String, String), String> {
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

    fn settings() -> Settings {
        Settings {
            directory: Some("etcd://127.0.0.1:1/prod".parse().expect("an address")),
            ..Settings::default()
        }
    }

    fn settled(mut given: Settings) -> Result<ClusterConfig, Failure> {
        settle(&mut given, None)
    }

    #[test]
    fn a_host_takes_part_as_it_is_told() {
        let mut given = Settings {
            host_name: Some("flash-1".to_owned()),
            labels: vec![parse_label("rack=r1").expect("a label")],
            host_lease: Some(7),
            ..settings()
        };
        let word = Word::down(["gone"]);
        let config = settle(&mut given, Some(word.clone())).expect("complete");
        assert_eq!(config.directory.map(|address| address.cluster).as_deref(), Some("prod"));
        assert_eq!((config.host_name.as_str(), config.labels["rack"].as_str()), ("flash-1", "r1"));
        assert_eq!((config.take_over, config.lease), (Some(word), Duration::from_secs(7)));
        for wrong in [
            Settings { host_name: Some("a b".to_owned()), ..settings() },
            Settings { host_lease: Some(1), ..settings() },
            Settings { directory_ca: Some("/ca.pem".into()), ..Settings::default() },
        ] {
            settled(wrong).expect_err("refused");
        }
    }

    #[test]
    fn a_fence_is_no_shorter_than_the_lease_and_needs_a_directory() {
        let after = |after: &str| Settings {
            host_lease: Some(5),
            fence_after: Some(after.parse().expect("a length of time")),
            ..settings()
        };
        let term = |given| settled(given).expect("complete").tenure.term();
        let is = |seconds| Some(Term::new(Duration::from_secs(seconds)));
        assert_eq!(term(Settings::default()), None, "off by default");
        assert_eq!((term(after("30s")), term(after("5s"))), (is(30), is(5)));
        for wrong in [after("4s"), after("2d"), Settings { directory: None, ..after("30s") }] {
            settled(wrong).expect_err("refused");
        }
    }

    #[test]
    fn what_lets_a_host_in_is_whole() {
        let password = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(password.path(), "hunter2\n").expect("written");
        let given = || Settings {
            directory_user: Some("flash".to_owned()),
            directory_password_file: Some(password.path().to_owned()),
            ..settings()
        };
        let user = settled(given()).expect("complete").credentials.user;
        assert_eq!(user, Some(("flash".to_owned(), "hunter2".to_owned())));
        let far = "etcd://10.0.0.1:1/prod".parse().ok();
        for wrong in [
            Settings { directory: far, ..given() },
            Settings { directory: None, ..given() },
            Settings { directory_user: None, ..given() },
            Settings { directory_key: Some("/key.pem".into()), ..given() },
            Settings { directory_password_file: Some("/nowhere".into()), ..given() },
        ] {
            let refused = settled(wrong).expect_err("refused");
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
