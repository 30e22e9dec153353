//! The forms of the command line on which scripts rely, as they are written.

use crate::support::{Files, Server, own_host, succeed};
use serde_json::Value;

/// Method: word for word, but for the address, the path, a shorter run, and a log that the test can read.
#[test]
fn the_forms_that_scripts_rely_on_work_as_written() {
    let files = Files::new();
    let path = files.path("flash.img").display().to_string();
    let Some(core) = crate::support::cores(1) else { panic!("there is no core") };
    succeed(&["format", "--device", &format!("file:{path},size=8GiB")]);
    let ip = own_host();
    let (listen, api) = (format!("{ip}:4420"), format!("{ip}:7420"));
    let url = format!("http://{api}");
    for device in [format!("file:{path}"), "mem:1GiB".to_owned()] {
        let serve = ["serve", "--device", &device, "--cores", &core];
        let at = ["--listen", &listen, "--api", &api, "--auth", "off"];
        let _server = Server::from_arguments(&[&serve[..], &at, &["--log-json"]].concat());

        let create = ["volume", "create", "db-1", "--size", "1GiB", "--api", &url, "--json"];
        let made: Value = serde_json::from_str(&succeed(&create)).unwrap();
        let field = |name: &str| made[name].as_str().unwrap_or_else(|| panic!("{name}: {made}"));
        assert_eq!(field("address"), listen);
        assert!(field("nqn").ends_with(field("id")), "{made}");

        let target = format!("tcp://{}/{}", field("address"), field("nqn"));
        let bench = ["bench", "--target", &target, "--rw", "randread", "--bs", "4KiB", "--qd"];
        let bench = [&bench[..], &["32", "--connections", "1", "--seconds", "1", "--json"]];
        let result: Value = serde_json::from_str(&succeed(&bench.concat())).unwrap();
        assert_eq!((&result["qd"], &result["connections"]), (&32.into(), &1.into()), "{result}");
    }
}

/// Method: as many cores as there are, up to two.
#[test]
fn each_core_has_the_port_of_the_base_and_its_index() {
    let count = reactor::allowed_cpus().len().min(2);
    let cores = crate::support::cores(count).unwrap();
    let ip = own_host();
    let listen = format!("{ip}:4420");
    let server = Server::start_on("mem:256MiB", &listen, "127.0.0.1:0", &["--cores", &cores]);
    let expected = (4420..).take(count).map(|port| format!("{ip}:{port}"));
    assert!(server.portals.iter().map(ToString::to_string).eq(expected), "{:?}", server.portals);
}
