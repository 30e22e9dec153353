//! The Rust library for ordinary threads, against a real server: placement of new volumes, and the API that
//! is asked.

use crate::support::library::{BLOCK, MIB, cluster, fails, made_and_opened, opened};
use crate::support::{Files, Server};
use farflash_client::{
    Cluster, ClusterOptions, DeviceHealth, ErrorKind, NewVolume, OpenOptions, Slo,
};

/// The API and the volume's target report the same failure domain, and neither reports properties of an
/// unknown drive.
#[test]
fn a_volume_says_with_what_it_may_fail() {
    let labels = ["--host-name", "flash-1", "--label", "rack=r1", "--label", "row=7"];
    let server = Server::start_with("mem:256MiB", &labels);
    let cluster = cluster(&server);
    let volume = opened(&cluster, "v", MIB);
    let record = cluster.show("v").unwrap();
    let said = volume.failure_domain().unwrap().expect("a farflash server says it");
    assert_eq!((said.host.as_str(), said.labels["rack"].as_str()), ("flash-1", "r1"));
    assert_eq!((&said.labels, &said.host), (&record.labels, &record.host));
    assert_eq!((said.core, &said.device), (record.portal.core, &record.device));
    assert_eq!(said.device_id, *record.drive.id.as_bytes());
    assert!(!record.drive.id.is_nil() && said.host_id != [0; 16]);
    assert_eq!((said.model.as_str(), said.serial.as_str()), ("", ""), "memory is no drive");
    assert_eq!((record.drive.model, record.drive.serial), (None, None));
    assert_eq!(said.health, DeviceHealth::Good);
    assert_eq!(record.drive.health.as_deref(), Some("good"));
    let shown = server.volume(&["show", "v"]).stdout;
    assert!(shown.contains("drive      good\n") && shown.contains("rack=r1"), "{shown}");
}

/// Placement, service level and owner of a new volume, with all options that there are.
#[test]
fn a_volume_goes_where_it_was_told() {
    let labels = ["--host-name", "flash-1", "--label", "rack=r1"];
    let smaller = "mem:128MiB,reads-per-second=10000,writes-per-second=5000";
    let server = Server::start_with("mem:256MiB", &[&labels[..], &["--device", smaller]].concat());
    let cluster = cluster(&server);
    let new = |name: &str, on: &str, device: &str| NewVolume {
        on: Some(on.to_owned()),
        device: Some(device.to_owned()),
        ..NewVolume::new(name, MIB)
    };
    let invalid = ErrorKind::InvalidArgument;
    fails(cluster.create(&new("v", "rack=r2", "mem:256MiB")), invalid, "rack=r2");
    let on = ["create", "v", "--size", "1MiB", "--on", "rack=r2"];
    let nowhere = server.volume(&on).stderr;
    assert!(nowhere.contains("name one of flash-1, or one of their labels rack=r1"), "{nowhere}");
    fails(cluster.create(&new("v", "rack=r1", "mem:1MiB")), invalid, "mem:1MiB");
    for (name, on, device) in [("a", "rack=r1", "mem:256MiB"), ("b", "flash-1", "mem:128MiB")] {
        let volume = made_and_opened(&cluster, &new(name, on, device));
        let said = volume.failure_domain().unwrap().expect("a farflash server says it");
        assert_eq!((said.host.as_str(), said.device.as_str()), ("flash-1", device));
    }
    let slo = Slo::Rate { reads_per_second: 6000, writes_per_second: 10 };
    let promised = NewVolume { slo: Some(slo), ..new("c", "flash-1", "mem:128MiB") };
    assert_eq!(cluster.create(&promised).unwrap().volume.slo, slo);
    assert_eq!(cluster.set_slo("c", Slo::Share(7)).unwrap().slo, Slo::Share(7));
}

/// By the certificate that it has made. One that is not believed is told nothing, and the next one asked.
#[test]
fn a_server_is_believed_by_its_certificate() {
    let files = Files::new();
    let start = |name: &str| {
        let tls = files.path(name);
        Server::start_with("mem:256MiB", &["--api-tls", tls.to_str().unwrap()])
    };
    let (server, other) = (start("own"), start("other"));
    assert!(server.api.starts_with("https://") && other.api.starts_with("https://"));
    let trusting = |servers: &[&Server], ca: &str| {
        let urls = servers.iter().map(|server| server.api.clone()).collect();
        let api_ca = Some(files.path(ca));
        Cluster::with(&ClusterOptions { urls, api_ca, ..ClusterOptions::default() })
    };
    let foreign = trusting(&[&server], "other/certificate.pem").unwrap();
    let says = "not trusted by its certificate: it ";
    fails(foreign.create(&NewVolume::new("v", MIB)), ErrorKind::Untrusted, says);
    fails(foreign.open("v", &OpenOptions::default()), ErrorKind::Untrusted, says);
    fails(Cluster::new([&server.api], None).unwrap().list(), ErrorKind::Untrusted, says);
    let invalid = ErrorKind::InvalidArgument;
    fails(trusting(&[&server], "nowhere.pem"), invalid, "nowhere.pem");
    fails(trusting(&[&server], "own/key.pem"), invalid, "no certificate in PEM");

    let cluster = trusting(&[&other, &server], "own/certificate.pem").unwrap();
    assert!(cluster.list().unwrap().is_empty());
    let volume = opened(&cluster, "v", MIB);
    volume.write_at(&[7; BLOCK], 0).unwrap();
    assert!(volume.compare(&[7; BLOCK], 0).unwrap());
    cluster.delete_with_data("v").unwrap();
    assert!(trusting(&[&other], "other/certificate.pem").unwrap().list().unwrap().is_empty());
}
