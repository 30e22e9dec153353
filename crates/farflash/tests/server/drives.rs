//! The known properties of the drive below a volume: for its tenant, for operators, and for other hosts when
//! its own is gone.
//!
//! Method: a loop device, to which a file system over its directory of sysfs gives a model and a serial number. Only the
//! server sees that, which is in a mount namespace of its own. This takes root.

use std::fs;
use std::path::Path;

use crate::etcd::EtcdProcesses;
use crate::support::cluster::{format, host, listed, membership, row, url};
use crate::support::loop_device::LoopDevice;
use crate::support::skipped::skipped;
use crate::support::{Files, Server, run, succeed, until};
use farflash_client::{Cluster, OpenOptions};
use serde_json::Value;

/// As a drive says it: filled up with spaces.
const MODEL: &str = "FLASH 9000          ";
const SERIAL: &str = "S3R1AL-7    ";

/// A script that shows a drive to the command behind it: from the directory `$1` in the place of the block device `$2`.
const SHOW: &str = "place=/sys/devices/virtual/block/$2; \
    mount -t overlay overlay -o lowerdir=$1:$place $place && shift 2 && exec \"$@\"";

fn said(drive: &Value) -> [&str; 2] {
    ["model", "serial"].map(|name| drive[name].as_str().unwrap_or_default())
}

/// The devices of the host `name`, as `server` lists them, and the host's state.
fn devices(server: &Server, name: &str) -> (Value, String) {
    let hosts = succeed(&["host", "list", "--json", "--api", &server.api]);
    let hosts: Value = serde_json::from_str(&hosts).unwrap();
    let host = hosts["hosts"].as_array().unwrap().iter().find(|host| host["name"] == name);
    let host = host.unwrap_or_else(|| panic!("no {name} in {hosts}"));
    (host["devices"].clone(), host["state"].as_str().unwrap().to_owned())
}

#[test]
fn a_drive_is_known_by_model_and_serial_number_also_when_its_host_is_gone() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let Some(drive) = LoopDevice::new(&files, "image", 256 << 20) else {
        return skipped("no loop device can be made here");
    };
    let sys = files.path("sys");
    fs::create_dir_all(sys.join("device")).unwrap();
    fs::write(sys.join("device/model"), MODEL.to_owned() + "\n").unwrap();
    fs::write(sys.join("device/serial"), SERIAL.to_owned() + "\n").unwrap();
    let device = format!("file:{}", drive.path());
    succeed(&["format", "--device", &device]);
    let directory = url(etcd.address(0), "test-drives");
    let name = Path::new(drive.path()).file_name().unwrap().to_str().unwrap();
    let shown = ["--mount", "sh", "-c", SHOW, "sh", sys.to_str().unwrap(), name];
    let joins = membership(&directory, "b");
    let joins: Vec<&str> = joins.iter().map(String::as_str).collect();
    let b = Server::start_by("unshare", &shown, &device, &joins);
    let a = host(&directory, "a", &format(&files, "a"));
    let names = [MODEL.trim(), SERIAL.trim()];

    // To its tenant: by the API, and by what its target says in the vendor's log page.
    let volume = b.volume_json(&["create", "v", "--size", "64MiB"]);
    assert_eq!(said(&volume["drive"]), names);
    assert_eq!(volume["drive"]["health"], "good");
    let cluster = Cluster::new([b.api.as_str()], None).unwrap();
    let token = volume["token"].as_str().map(str::to_owned);
    let opened = cluster.open("v", &OpenOptions { token, ..OpenOptions::default() }).unwrap();
    let domain = opened.failure_domain().unwrap().expect("a farflash server says it");
    assert_eq!([domain.model.as_str(), domain.serial.as_str()], names);
    assert_eq!(domain.health, farflash_client::DeviceHealth::Good);
    assert_eq!(domain.device_id.to_vec(), id(&volume).as_bytes());
    opened.close().unwrap();
    let text = b.volume(&["show", "v"]).stdout;
    assert!(names.iter().all(|name| text.contains(name)), "{text}");

    // For other hosts, and for clients that ask them.
    until("the other knows it", || {
        let (devices, state) = devices(&a, "b");
        state == "online" && said(&devices[0]) == names && devices[0]["health"] == "good"
    });
    b.signal("KILL");
    b.wait();
    until("it is lost", || devices(&a, "b").1 == "lost");
    let (lost, _) = devices(&a, "b");
    assert_eq!(
        (said(&lost[0]), &lost[0]["health"]),
        (names, &Value::Null),
        "its health is not known"
    );
    assert_eq!(listed(&a), [row("v", "b", "unreachable")]);
    let volume = a.volume_json(&["show", "v"]);
    assert_eq!((said(&volume["drive"]), id(&volume)), (names, id(&lost[0])));
    let hosts = run(&["host", "list", "--api", &a.api]).stdout;
    assert!(hosts.contains("lost"), "{hosts}");
}

/// The id of a drive, or of the drive below a volume.
fn id(document: &Value) -> uuid::Uuid {
    let drive = document.get("drive").unwrap_or(document);
    drive["id"].as_str().unwrap().parse().unwrap()
}
