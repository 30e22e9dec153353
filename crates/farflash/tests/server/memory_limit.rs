//! A server in a control group with a limit on memory.

use serde_json::Value;

use crate::support::cgroup::ControlGroup;
use crate::support::skipped::skipped;
use crate::support::{Files, Outcome, Server, farflash};

/// By default a server has no more than its control group allows, and says so.
///
/// Method: hosts keep so much under way that a server with the memory for it that it has elsewhere is killed.
#[test]
fn a_server_keeps_within_the_limit_of_its_control_group() {
    let Some(group) = ControlGroup::new("memory") else {
        return skipped("control groups with a limit on memory take root");
    };
    let has = ["memory.limit_in_bytes", "memory.max"].map(|file| group.set(file, "104857600"));
    assert!(has.contains(&true), "one of the versions has it");
    let files = Files::new();
    let device = format!("{},size=2GiB", files.device("flash"));
    let words = group.join();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let flags = ["--format-if-blank", "--create", "--auth", "off"];
    let server = Server::start_by("sh", &words, &device, &flags);
    let told = server.starting.iter().map(|line| &line["fields"]).find(|line| {
        line["message"].as_str().is_some_and(|text| text.starts_with("memory is limited by "))
    });
    let told = told.expect("it says so");
    assert_eq!((&told["core_memory"], &told["map_memory"]), (&"50 MiB".into(), &"25 MiB".into()));
    let loads = ["a", "b", "c", "d"].map(|name| {
        let volume: Value = server.volume_json(&["create", name, "--size", "256MiB"]);
        let text = |field: &str| volume[field].as_str().unwrap().to_owned();
        let target = format!("tcp://{}/{}", text("address"), text("nqn"));
        let words =
            ["bench", "--target", &target, "--rw", "randwrite", "--bs", "1MiB", "--qd", "128"];
        let more = ["--connections", "4", "--bytes", "512MiB", "--overwrite", "--quiet"];
        let mut load = farflash(&[&words[..], &more].concat());
        std::thread::spawn(move || Outcome::from(load.output().unwrap()))
    });
    for load in loads {
        let outcome = load.join().unwrap();
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
    }
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
}
