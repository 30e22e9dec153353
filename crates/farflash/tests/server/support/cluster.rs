//! Several servers that are one service by a directory: how they are started, and what they say of themselves.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::LazyLock;

use control::{ApiClient, ApiError, CreateVolume, HostState, ProblemCode, VolumeSize};
use nvme_wire::Nqn;
use serde_json::Value;

use super::{Files, Outcome, Server, own_host, run, succeed, until};

pub const LEASE: &str = "3";

/// Takes the devices of the host `a`, of which it is said that it is down.
pub const FROM_A: [&str; 3] = ["--take-over", "--confirm-down", "a"];

/// The URL of a cluster's directory.
pub fn url(etcd: SocketAddr, cluster: &str) -> String {
    format!("etcd://{etcd}/{cluster}")
}

pub fn format(files: &Files, name: &str) -> String {
    let device = files.device(name);
    succeed(&["format", "--device", &format!("{device},size=256MiB")]);
    device
}

/// A copy of a device, byte by byte.
pub fn copy(files: &Files, from: &str, to: &str) -> String {
    std::fs::copy(files.path(from), files.path(to)).unwrap();
    files.device(to)
}

/// Options that make a server the host `name`.
pub fn membership(directory: &str, name: &str) -> Vec<String> {
    ["--directory", directory, "--host-name", name, "--host-lease", LEASE, "--label"]
        .map(str::to_owned)
        .into_iter()
        .chain([format!("rack=of-{name}")])
        .collect()
}

/// The address of all hosts' APIs. No process of another test takes a port of it when a host is gone, which is asked then
/// whether it still serves.
static HOST: LazyLock<Ipv4Addr> = LazyLock::new(own_host);

pub fn host_with(directory: &str, name: &str, device: &str, more: &[&str]) -> Server {
    let membership = membership(directory, name);
    let membership: Vec<&str> = membership.iter().map(String::as_str).collect();
    let api = format!("{}:0", *HOST);
    Server::start_on(device, "127.0.0.1:0", &api, &[&membership[..], more].concat())
}

pub fn host(directory: &str, name: &str, device: &str) -> Server {
    host_with(directory, name, device, &[])
}

/// Waits until a server knows of the host `name`, which hosts that were there before it are told of.
pub fn knows(server: &Server, name: &str) {
    until("the host is known", || {
        let hosts = client(server).hosts().unwrap().hosts;
        hosts.iter().any(|host| host.name == name && host.state == HostState::Online)
    });
}

/// A server that must not start.
pub fn refused(directory: &str, name: &str, device: &str, more: &[&str]) -> Outcome {
    let membership = membership(directory, name);
    let membership: Vec<&str> = membership.iter().map(String::as_str).collect();
    let serve = ["serve", "--device", device, "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"];
    let outcome = run(&[&serve[..], &membership[..], more].concat());
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    outcome
}

/// Waits until the host that had `device` counts as gone.
pub fn lease_ends(directory: &str, heir: &str, device: &str) {
    until("the lease ends", || {
        refused(directory, heir, device, &[]).stderr.contains("is gone but did not give it back")
    });
}

pub fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap()
}

/// Names, hosts and states of all volumes, as a server lists them.
pub fn listed(server: &Server) -> Vec<(String, String, String)> {
    let list = server.volume_json(&["list"]);
    let volumes = list["volumes"].as_array().unwrap().clone();
    let row = |volume: &Value| {
        let field = |name: &str| text(volume, name).to_owned();
        (field("name"), field("host"), field("state"))
    };
    volumes.iter().map(row).collect()
}

pub fn row(name: &str, host: &str, state: &str) -> (String, String, String) {
    (name.to_owned(), host.to_owned(), state.to_owned())
}

/// The volumes that a server's discovery offers to any host.
pub fn discovered(server: &Server) -> String {
    succeed(&["discover", &server.portals[0].to_string()])
}

/// The line of it that says where a volume is.
pub fn offer(volume: &Value) -> String {
    format!("{}  {}", text(volume, "address"), text(volume, "nqn"))
}

pub fn client(server: &Server) -> ApiClient {
    ApiClient::new(&server.api).unwrap()
}

pub fn creation(name: &str) -> CreateVolume {
    CreateVolume::new(name.parse().unwrap(), VolumeSize::try_from(64 << 20).unwrap())
}

pub fn code<T>(refused: Result<T, ApiError>) -> ProblemCode {
    match refused {
        Err(ApiError::Refused(problem)) => problem.code,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("not refused"),
    }
}

pub fn nqn(volume: &Value) -> Nqn {
    text(volume, "nqn").parse().unwrap()
}

pub fn portal(volume: &Value) -> SocketAddr {
    text(volume, "address").parse().unwrap()
}
