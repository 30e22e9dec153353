//! `farflash cost --from-usage` against a server that is used.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::Value;

use crate::support::library::{api, cluster, with_token};
use crate::support::{Files, Server, refused, run, succeed};

const BLOCK: usize = 4096;
/// Blocks that hold data.
const BLOCKS: u64 = 100;

/// Capacity and rate of the plan are those of the service: the sizes of its volumes, and the requests that it served in the sampled
/// time.
///
/// Method: a thread writes as fast as it is answered, and counts; the requests that the command saw are no more than were sent
/// while it ran.
#[test]
fn the_requirement_of_a_running_service_is_measured() {
    let files = Files::new();
    let device = files.device("a");
    succeed(&["format", "--device", &format!("{device},size=256MiB")]);
    let server = Server::start(&device);
    let made = server.volume_json(&["create", "a", "--size", "64MiB"]);
    server.volume_json(&["create", "b", "--size", "1GiB"]);
    let volume = cluster(&server).open("a", &with_token(made["token"].as_str().unwrap())).unwrap();
    let write = |number: u64| {
        let at = number % BLOCKS * BLOCK as u64;
        volume.write_at(&[number as u8; BLOCK], at).unwrap();
    };
    (0..BLOCKS).for_each(write);
    let (count, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let plan = files.path("plan.toml");
    std::fs::write(&plan, succeed(&["cost", "--template"])).unwrap();
    let plan = plan.to_str().unwrap();
    let words =
        ["cost", plan, "--from-usage", "--sample", "2s", "--api", &api(&server)].map(str::to_owned);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (printed, sent) = std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0_u64.. {
                if stop.load(Ordering::Acquire) {
                    return;
                }
                write(number);
                count.fetch_add(1, Ordering::AcqRel);
            }
        });
        let before = count.load(Ordering::Acquire);
        let outcome = run(&[&words[..], &["--json"]].concat());
        let sent = count.load(Ordering::Acquire) - before + 1;
        stop.store(true, Ordering::Release);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        (outcome.stdout, sent)
    });
    let answer: Value = serde_json::from_str(&printed).unwrap();
    let usage = &answer["usage"];
    let number = |name: &str| usage[name].as_f64().unwrap_or_else(|| panic!("{name}: {usage}"));
    assert_eq!(usage["volumes"], 2, "{usage}");
    let provisioned = ((64_u64 << 20) + (1 << 30)) as f64 / 1e9;
    assert!((number("provisioned_gb") - provisioned).abs() < 1e-9, "{usage}");
    let allocated = (BLOCKS * BLOCK as u64) as f64 / 1e9;
    assert!((allocated / 2.0..64.0 * allocated).contains(&number("allocated_gb")), "{usage}");
    assert!(number("seconds") >= 2.0, "{usage}");
    let seen = number("requests_per_second") * number("seconds");
    assert!(seen >= 1.0 && seen <= sent as f64, "{seen} seen of {sent}: {usage}");
    let requirement = &answer["plan"]["requirement"];
    assert_eq!(requirement["capacity_gb"], usage["provisioned_gb"], "{answer}");
    assert_eq!(requirement["iops"], usage["requests_per_second"], "{answer}");
    // In words, of a service that is idle now.
    let words: Vec<&str> =
        words.iter().map(|word| if *word == "2s" { "1s" } else { word }).collect();
    let text = succeed(&words);
    assert!(text.contains("Measured: 2 volumes of 1.1 GB"), "{text}");
    refused(&["cost", plan, "--from-usage", "--api", "http://127.0.0.1:1"], 1, "127.0.0.1:1", "");
}
