//! A bound on all memory, the page cache of the data included.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::support::{PATIENCE, Server, command, skipped};

const MIB: u64 = 1 << 20;
const TOTAL: u64 = 96 * MIB;
/// Twice as much as there is memory.
const DATA: u64 = 2 * TOTAL;
const BOUNDED: [&str; 8] = [
    "--memory-total",
    "96MiB",
    "--request-memory",
    "4MiB",
    "--value-max",
    "1MiB",
    "--compression",
    "none",
];

/// Writes more than fits into memory, and reads it.
fn write_and_read(server: &Server) {
    let mut client = server.client();
    let value = "x".repeat(MIB as usize - 100);
    for key in 0..DATA / MIB {
        assert_eq!(client.text(&format!("SET key-{key} {value}")), "OK");
    }
    for key in 0..DATA / MIB {
        assert_eq!(client.text(&format!("STRLEN key-{key}")), value.len().to_string());
    }
}

/// The text of a field of `INFO`.
fn field(server: &Server, name: &str) -> String {
    let info = server.client().text("INFO memory");
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {info}")).trim().to_owned()
}

/// Memory and page cache together stay within the bound, by a group of the server's own. An end in order removes the group; the next
/// server removes one that a kill has left behind.
#[test]
fn a_control_group_bounds_memory_and_page_cache() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = Server::start(directory.path(), &BOUNDED);
    let bound = field(&server, "memory_bound");
    let Some(group) = bound.strip_prefix("control group ").map(PathBuf::from) else {
        return skipped("a control group for memory, which takes root and the controller");
    };
    let groups = fs::read_to_string(format!("/proc/{}/cgroup", server.pid())).expect("it runs");
    let name = group.file_name().expect("a name").to_str().expect("of letters").to_owned();
    assert!(groups.contains(&name), "{groups}");
    write_and_read(&server);
    let number = |file: &str| -> Option<u64> {
        fs::read_to_string(group.join(file)).ok()?.trim().parse().ok()
    };
    let limit = number("memory.limit_in_bytes").or_else(|| number("memory.max"));
    assert_eq!(limit, Some(TOTAL));
    let peak = number("memory.max_usage_in_bytes").or_else(|| number("memory.peak"));
    // Older kernels keep no peak.
    let used: u64 = field(&server, "memory_total_used_bytes").parse().expect("a number");
    assert!(used <= TOTAL && peak.unwrap_or(used) <= TOTAL, "{used} now, at most {peak:?}");
    assert!(used > TOTAL / 2, "{used}: the page cache is used");
    assert!(server.stop().success() && !group.exists(), "{}", group.display());

    let server = Server::start(directory.path(), &BOUNDED);
    let left = PathBuf::from(field(&server, "memory_bound").replace("control group ", ""));
    server.kill();
    assert!(left.exists());
    // What was killed leaves its group in its own time.
    let begin = std::time::Instant::now();
    while left.exists() {
        assert!(begin.elapsed() < PATIENCE, "{}", left.display());
        assert!(Server::start(directory.path(), &BOUNDED).stop().success());
    }
}

/// Nothing of the data is in the page cache where no group can be made.
#[test]
fn without_a_control_group_data_goes_past_the_page_cache() {
    let directory = tempfile::tempdir().expect("a directory");
    let hide = "umount --recursive --lazy /sys/fs/cgroup 2>/dev/null; exec \"$@\"";
    let inner = command(directory.path(), &BOUNDED);
    let mut hidden = Command::new("unshare");
    hidden
        .args(["--mount", "sh", "-c", hide, "sh"])
        .arg(inner.get_program())
        .args(inner.get_args());
    if !Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|it| it.success()) {
        return skipped("a mount namespace without control groups, which takes root");
    }
    let server = Server::spawn(&mut hidden);
    assert_eq!(field(&server, "memory_bound"), "direct I/O");
    write_and_read(&server);
    let cached = cached_bytes_of_tables(directory.path());
    assert!(cached < MIB, "{cached} bytes of tables are in the page cache");
}

fn cached_bytes_of_tables(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).expect("a directory").flatten().map(|entry| entry.path());
    let tables: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|it| it == "sst")).collect();
    assert!(!tables.is_empty());
    let mut fincore = Command::new("fincore");
    let output =
        fincore.args(["--bytes", "--noheadings", "--output", "RES"]).args(&tables).output();
    let text = String::from_utf8(output.expect("fincore runs").stdout).expect("numbers");
    text.split_whitespace().map(|number| number.parse::<u64>().expect("a number")).sum()
}
