//! Limits of the process and the API's certificate, as the status of a live server tells of them.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use control::{ApiTls, CERTIFICATE_FILE, KEY_FILE};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use units::Lba;

use crate::support::cgroup::ControlGroup;
use crate::support::foreign::places;
use crate::support::host::{connect, filled, on_core};
use crate::support::nbd::Client;
use crate::support::skipped::skipped;
use crate::support::{Files, Server, farflash, run, succeed, until};

/// Sets a limit of the server's process, as `prlimit` does.
fn limit(server: &Server, resource: Resource, value: Option<u64>) {
    let pid = Pid::from_raw(server.pid().try_into().unwrap());
    // That of the server is as that of this process.
    let maximum = getrlimit(resource).maximum;
    prlimit(pid, resource, Rlimit { current: value.or(maximum), maximum }).unwrap();
}

/// A server without descriptors says so when it is asked, and serves those that are connected. Method: connections to the portals
/// of all protocols take them all.
#[test]
fn a_server_without_descriptors_says_so() {
    let more = ["--nbd", "127.0.0.1:0", "--iscsi", "127.0.0.1:0"];
    let server = Server::start_with("mem:256MiB", &more);
    let volume = server.volume_json(&["create", "v", "--size", "16MiB"]);
    server.volume_json(&["restrict", "v", "--nbd-network", "127.0.0.0/8"]);
    let portal: SocketAddr = volume["address"].as_str().unwrap().parse().unwrap();
    let [nbd, iscsi] = ["NBD open", "iSCSI portal open"].map(|message| places(&server, message)[0]);
    let mut client = Client::open(nbd, "v").unwrap();
    limit(&server, Resource::Nofile, Some(server.open_files() as u64 + 8));
    let mut taken = Vec::new();
    until("the status says so", || {
        let places = [portal, nbd, iscsi].into_iter().cycle().take(33);
        taken.extend(places.map(|place| TcpStream::connect(place).unwrap()));
        let status = run(&["status", "--api", &server.api]);
        status.code == Some(1) && status.stderr.contains("descriptors that this process may have")
    });
    server.log_until(|line| line["kind"] == "open_files");
    let metrics = crate::observing::metrics(&server);
    assert!(metrics.contains("farflash_notice{kind=\"open_files\"} 1\n"), "{metrics}");
    assert_eq!(client.read(0, 8), [0; 8]);
    drop(taken);
    until("it is over", || run(&["status", "--api", &server.api]).code == Some(0));
    succeed(&["volume", "create", "w", "--size", "16MiB", "--api", &server.api]);
}

/// A limit on the size of files that comes late is told of before a write meets it, and writes succeed when it is lifted.
#[test]
fn a_late_limit_on_the_size_of_files_is_told_of() {
    let files = Files::new();
    let device = files.device("a");
    succeed(&["format", "--device", &format!("{device},size=128MiB")]);
    let server = Server::start(&device);
    let volume = server.volume_json(&["create", "v", "--size", "64MiB"]);
    limit(&server, Resource::Fsize, Some(1 << 20));
    until("the status says so", || {
        let status = run(&["status", "--api", &server.api]);
        status.code == Some(1) && status.stderr.contains("may write files of 1 MiB")
    });
    let metrics = crate::observing::metrics(&server);
    assert!(metrics.contains("kind=\"file_size_limit\"} 1"), "{metrics}");
    let write = |value| {
        let nqn = nvme_wire::Nqn::new(volume["nqn"].as_str().unwrap()).unwrap();
        let address = volume["address"].as_str().unwrap().parse().unwrap();
        on_core(move |handle| async move {
            connect(&handle, address, &nqn).await.write(Lba(3), filled(value)).await.is_ok()
        })
    };
    assert!(!write(1), "it may not be written");
    limit(&server, Resource::Fsize, None);
    until("it is written", || write(2));
    until("it is told of no more", || {
        !run(&["status", "--api", &server.api]).stderr.contains("may write files of")
    });
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
}

/// Mapped memory is told of before there is none. Method: a limit on it just above what is mapped.
#[test]
fn a_server_near_its_limit_on_memory_says_so() {
    let server = Server::start("mem:256MiB");
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let kib: u64 = size.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    limit(&server, Resource::As, Some((kib << 10) + (16 << 20)));
    until("the status says so", || {
        let status = run(&["status", "--api", &server.api]);
        status.code == Some(1) && status.stderr.contains("nearly all the memory that it may")
    });
    limit(&server, Resource::As, None);
    until("it is over", || run(&["status", "--api", &server.api]).code == Some(0));
}

/// A limit on CPU time ends a server by a signal: one that it may lift is lifted, and one that it may not is told of.
#[test]
fn a_limit_on_cpu_time_is_lifted_or_told_of() {
    let server = Server::start("mem:256MiB");
    let pid = Pid::from_raw(server.pid().try_into().unwrap());
    let set = |current, maximum| prlimit(pid, Resource::Cpu, Rlimit { current, maximum }).unwrap();
    set(Some(1000), None);
    until("it is lifted", || {
        let status = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("Max cpu time")).unwrap();
        !line.contains("1000")
    });
    assert_eq!(run(&["status", "--api", &server.api]).code, Some(0));
    set(Some(1000), Some(2000));
    until("the status says so", || {
        let status = run(&["status", "--api", &server.api]);
        status.code == Some(1)
            && status.stderr.contains("has used 2000 s of CPU time")
            && status.stderr.contains("LimitCPU=")
    });
    let metrics = crate::observing::metrics(&server);
    assert!(metrics.contains("farflash_notice{kind=\"cpu_time\"} 1\n"), "{metrics}");
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
}

/// A certificate that expires soon is a note in the status, until another one is there.
#[test]
fn a_certificate_that_expires_soon_is_noted() {
    let files = Files::new();
    let tls = files.path("tls");
    std::fs::create_dir(&tls).unwrap();
    let (certificate, key) = (tls.join(CERTIFICATE_FILE), tls.join(KEY_FILE));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
    openssl.args(["-nodes", "-subj", "/CN=flash", "-days", "3"]);
    openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    openssl.args(["-addext", "subjectAltName=IP:127.0.0.1"]);
    openssl.arg("-keyout").arg(&key).arg("-out").arg(&certificate);
    if !openssl.output().is_ok_and(|output| output.status.success()) {
        return skipped("there is no openssl that makes certificates");
    }
    let path = tls.to_str().unwrap();
    let options = ["--api-tls", path, "--nbd", "127.0.0.1:0", "--nbd-tls", path];
    let server = Server::start_with("mem:256MiB", &options);
    let status = || {
        let authority = certificate.to_str().unwrap();
        run(&["status", "--api", &server.api, "--api-ca", authority])
    };
    let shown = status();
    for whose in ["the API's certificate", "the certificate of --nbd-tls"] {
        let note = format!("note: {whose} expires on 2");
        assert!(shown.code == Some(0) && shown.stdout.contains(&note), "{shown:?}");
    }
    let other = files.path("other");
    ApiTls::open_or_make(&other, &["127.0.0.1".to_owned()]).unwrap();
    for name in [KEY_FILE, CERTIFICATE_FILE] {
        std::fs::copy(other.join(name), tls.join(name)).unwrap();
    }
    server.signal("HUP");
    until("another one is shown", || {
        let shown = status();
        shown.code == Some(0) && !shown.stdout.contains("certificate")
    });
}

/// A command looks names up where it may make no thread.
#[test]
fn a_command_that_may_make_no_thread_reaches_a_server_by_name() {
    let Some(group) = ControlGroup::new("pids") else {
        return skipped("control groups with a limit on processes take root");
    };
    let server = Server::start("mem:256MiB");
    assert!(group.set("pids.max", "1"));
    let named = server.api.replace("127.0.0.1", "localhost");
    for api in [&server.api, &named] {
        let command = farflash(&["status", "--api", api]);
        let mut limited = Command::new("sh");
        limited.args(group.join()).arg(command.get_program()).args(command.get_args());
        let output = limited.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !stderr.contains("panicked"), "{api}: {stderr}");
    }
}
