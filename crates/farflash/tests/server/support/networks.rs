//! Networks of their own for a server and a host.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{Server, farflash};

/// Two network namespaces, a host's and a server's, joined by a pair of interfaces and a VXLAN over
/// it. Gone when dropped.
pub struct Networks {
    pub server: String,
    pub host: String,
}

impl Networks {
    pub fn new() -> Self {
        /// Several tests may have theirs at the same time.
        static MADE: AtomicU64 = AtomicU64::new(0);
        let id = format!("{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let networks = Self { server: format!("ff-server-{id}"), host: format!("ff-host-{id}") };
        let Self { server, host } = &networks;
        for line in [
            format!("netns add {server}"),
            format!("netns add {host}"),
            format!("-n {server} link add wire type veth peer name wire netns {host}"),
            format!("-n {server} address add 10.77.0.1/24 dev wire"),
            format!("-n {host} address add 10.77.0.2/24 dev wire"),
            format!("-n {server} link set wire up"),
            format!("-n {host} link set wire up"),
            format!(
                "-n {server} link add vxlan42 type vxlan id 42 dstport 4789 remote 10.77.0.2 dev wire"
            ),
            format!(
                "-n {host} link add vxlan42 type vxlan id 42 dstport 4789 remote 10.77.0.1 dev wire"
            ),
            format!("-n {server} address add 10.78.0.1/24 dev vxlan42"),
            format!("-n {host} address add 10.78.0.2/24 dev vxlan42"),
            format!("-n {server} address add fd77::1/64 dev wire nodad"),
            format!("-n {host} address add fd77::2/64 dev wire nodad"),
            format!("-n {server} address add fd78::1/64 dev vxlan42 nodad"),
            format!("-n {host} address add fd78::2/64 dev vxlan42 nodad"),
            format!("-n {server} link set vxlan42 up"),
            format!("-n {host} link set vxlan42 up"),
            format!("-n {server} link set lo up"),
        ] {
            ip(&line);
        }
        networks
    }

    /// The output of `farflash volume … --json` beside the server.
    pub fn volume_json(&self, server: &Server, arguments: &[&str]) -> serde_json::Value {
        let arguments = [&["volume"], arguments, &["--json", "--api", &server.api]].concat();
        let output = within(&self.server, &farflash(&arguments)).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Networks {
    /// Has all that this thread begins from now on be in the server's namespace.
    pub fn enter_server(&self) {
        let namespace = File::open(format!("/run/netns/{}", self.server)).unwrap();
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        for namespace in [&self.server, &self.host] {
            let _ = Command::new("ip").args(["netns", "delete", namespace]).status();
        }
    }
}

pub fn ip(line: &str) {
    let status = Command::new("ip").args(line.split(' ')).status().expect("iproute2 is installed");
    assert!(status.success(), "ip {line}");
}

/// `command` in a namespace.
pub fn within(namespace: &str, command: &Command) -> Command {
    let mut inside = Command::new("ip");
    inside.args(["netns", "exec", namespace]).arg(command.get_program()).args(command.get_args());
    inside
}
