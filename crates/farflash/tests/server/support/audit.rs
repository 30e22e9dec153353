//! Entries of an audit log.

use std::path::Path;

use serde_json::Value;

/// The lines about actions past the API, from this machine itself.
pub fn deeds(log: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(log).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["role"] == "machine").collect()
}
