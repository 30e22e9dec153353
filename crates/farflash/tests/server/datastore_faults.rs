//! Faults of the Flash below a datastore: damaged blocks, and no space. Clients get errors that say what is wrong, and nothing else
//! is lost.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::Value;

use crate::attach::World;
use crate::datastore::{SYNCED, Stack};
use crate::support::datastore::{Client, Reply, is_built};
use crate::support::library::{cluster, with_token};
use crate::support::{succeed, until};

const BLOCK: usize = 4096;
const KEYS: u64 = 200;
/// The one whose value is damaged.
const DAMAGED: u64 = 42;

/// A value that fills at least two whole blocks of any file with its own name.
fn value(key: u64) -> String {
    format!("needle-{key:03}-").repeat(3 * BLOCK / 11)
}

fn set(client: &mut Client, key: &str, value: &str) -> Reply {
    let words = ["SET", key, value].map(|word| word.as_bytes().to_vec());
    assert!(client.send(&[words.to_vec()]));
    client.reply().unwrap()
}

fn ok() -> Reply {
    Reply::Line("OK".to_owned())
}

fn error(reply: &Reply) -> String {
    reply.error().unwrap_or_else(|| panic!("no error: {reply:?}")).to_owned()
}

/// Flips a byte in each block of the device that holds nothing but a part of this value.
fn damage(device: &Path, value: &str) -> usize {
    let image = fs::read(device).unwrap();
    let file = File::options().write(true).open(device).unwrap();
    let whole = (value.to_owned() + value).into_bytes();
    let starts: Vec<&[u8]> = (0..11).map(|start| &whole[start..][..BLOCK]).collect();
    let blocks = image.chunks(BLOCK).enumerate().filter(|(_, block)| starts.contains(block));
    let blocks: Vec<usize> = blocks.map(|(index, _)| index * BLOCK).collect();
    for at in &blocks {
        file.write_all_at(&[image[at + 100] ^ 0x10], (at + 100) as u64).unwrap();
    }
    blocks.len()
}

/// A damaged block below a table costs the keys in it: requests for them get an error that names the file, and others are served. A
/// compaction that comes upon it makes RocksDB refuse writes, which is said in the reply, in the log and in the figures; reads go
/// on.
///
/// Method: write keys, have the log turned into a table by a restart, stop all, flip a byte of each block of the device that has a
/// part of one value, and start all again. Then write until a compaction reads the table.
#[test]
fn a_damaged_block_costs_its_keys_and_is_told() {
    let Some(mut stack) = Stack::new() else { return };
    stack.mount();
    stack.start(SYNCED);
    let mut client = stack.store().client();
    for key in 0..KEYS {
        assert_eq!(set(&mut client, &format!("key-{key}"), &value(key)), ok());
    }
    stack.end_store();
    stack.start(SYNCED);
    stack.end_store();
    stack.unmount();
    until("it is detached", || stack.world.try_detach("v").code == Some(0));
    stack.world.kill_server();
    assert!(damage(&stack.world.files.path("image"), &value(DAMAGED)) > 0);
    stack.world.start_server();
    assert!(stack.attach());
    stack.mount();
    stack.start(SYNCED);
    let store = stack.store();
    let mut client = store.client();

    let says = ["IOERR ", ".sst", "Input/output error"];
    let refused = error(&client.ask(&format!("GET key-{DAMAGED}")));
    assert!(says.iter().all(|part| refused.contains(part)), "{refused}");
    assert!(error(&client.ask(&format!("MGET key-1 key-{DAMAGED}"))).starts_with("IOERR "));
    others_are_served(&mut client);
    let told = store.line_with("a request failed: ");
    assert!(says.iter().all(|part| told.contains(part)), "{told}");
    assert_eq!(client.info("store_errors_total_io"), "2");
    assert_eq!(client.info("last_store_error"), refused);
    assert_eq!(client.info("writes_refused"), "0");
    // Written again, the key has a value; the damage stays below it.
    assert_eq!(set(&mut client, &format!("key-{DAMAGED}"), "new"), ok());
    assert_eq!(client.ask(&format!("GET key-{DAMAGED}")), Reply::Value(Some(b"new".to_vec())));

    let filler = "f".repeat(50_000);
    let refusal = (0..2_000).map(|n| set(&mut client, &format!("filler-{}", n % 200), &filler));
    let refusal = refusal.into_iter().find(|reply| *reply != ok()).expect("a compaction fails");
    let refusal = error(&refusal);
    assert!(says.iter().all(|part| refusal.contains(part)), "{refusal}");
    let told = store.line_with("all writes are refused: ");
    assert!(told.contains(&refusal), "{told}");
    assert_eq!(client.info("writes_refused"), "1");
    assert_eq!(client.info("refusal"), refusal);
    others_are_served(&mut client);
    let address = store.address.to_string();
    let top = ["top", "--datastore", &address, "--once", "--interval", "0.2"];
    let told = format!("{address}: writes are refused: {refusal}");
    assert!(succeed(&top).contains(&told), "{told}");
    let json: Value = serde_json::from_str(&succeed(&[&top[..], &["--json"]].concat())).unwrap();
    assert_eq!(json["datastores"][0]["refusal"], refusal.as_str(), "{json}");
    stack.end();
}

/// Checks that a key has its value.
fn expect(client: &mut Client, key: u64) {
    let found = client.ask(&format!("GET key-{key}"));
    let is_there = found == Reply::Value(Some(value(key).into_bytes()));
    // Values are too long to be shown.
    assert!(is_there, "key {key}: {:?}", found.error());
}

fn others_are_served(client: &mut Client) {
    for key in (0..KEYS).filter(|key| *key != DAMAGED) {
        expect(client, key);
    }
}

/// Writes are refused with an error, and reads go on, while the Flash below the file system has no space left. With
/// space, after the file system was mounted again, all that was acknowledged is there, and writes go on.
///
/// Method: another volume takes all blocks of the device.
#[test]
fn flash_without_space_refuses_writes_and_keeps_what_was_synced() {
    if !is_built() {
        return;
    }
    let Some(world) = World::on("256MiB", &[]) else { return };
    let Some(mut stack) = Stack::over(world) else { return };
    stack.mount();
    stack.start(SYNCED);
    let mut client = stack.store().client();
    let write = |client: &mut Client, key| set(client, &format!("key-{key}"), &value(key));
    for key in 0..KEYS {
        assert_eq!(write(&mut client, key), ok());
    }
    take_all_space(&stack.world);
    let mut acknowledged = KEYS;
    let refused = loop {
        let reply = write(&mut client, acknowledged);
        if reply != ok() {
            break error(&reply);
        }
        acknowledged += 1;
        assert!(acknowledged < 10_000, "all fits into nothing");
    };
    // The loop device tells the file system of a failure, whatever its cause.
    assert!(refused.starts_with("IOERR ") || refused.starts_with("READONLY "), "{refused}");
    let told = stack.store().line_with("all writes are refused: ");
    assert!(told.contains("IOERR ") || told.contains("READONLY "), "{told}");
    (0..acknowledged).for_each(|key| expect(&mut client, key));
    assert_eq!(client.info("writes_refused"), "1");

    stack.world.server().volume(&["delete", "w", "--lose-data"]);
    stack.end_store();
    stack.unmount();
    until("it is detached", || stack.world.try_detach("v").code == Some(0));
    assert!(stack.attach());
    stack.mount();
    stack.start(SYNCED);
    let mut client = stack.store().client();
    (0..acknowledged).for_each(|key| expect(&mut client, key));
    assert_eq!(set(&mut client, "after", "1"), ok());
    stack.end();
}

/// Writes to a new volume until the device has no space.
fn take_all_space(world: &World) {
    let made = world.server().volume_json(&["create", "w", "--size", "1GiB"]);
    let token = with_token(made["token"].as_str().unwrap());
    let volume = cluster(world.server()).open("w", &token).unwrap();
    let piece = vec![7; 1 << 20];
    let full = (0..1024).map(|n| volume.write_at(&piece, n << 20)).find_map(Result::err);
    let full = full.expect("the device is full before the volume is");
    assert_eq!(full.kind(), farflash_client::ErrorKind::NoSpace, "{full}");
    // The rest, block by block.
    let left = (1023 << 20..1024 << 20).step_by(BLOCK);
    let full = left.map(|at| volume.write_at(&piece[..BLOCK], at)).find_map(Result::err);
    full.expect("a last block");
}
