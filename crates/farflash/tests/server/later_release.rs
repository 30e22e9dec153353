//! A device with a volume that only a later release knows: refused with advice, unchanged, and of no harm to others.
//!
//! Method: the descriptor of a volume gets a flag that has no meaning yet, and all checksums above it are made right.

use std::path::Path;

use units::BLOCK_SIZE;

use crate::support::host::{connect, filled, on_core};
use crate::support::{Files, Server, refused, run, succeed};
use serde_json::Value;
use units::Lba;

const ADVICE: &str = "the release of farflash that made the volume, or a later one";

/// The block of the owner mark, which is no part of a device's content: a server writes it before it reads the rest.
const OWNER_MARK: usize = 130;

/// Changes a block of an image, and whatever holds its checksum, and so on.
fn forge(image: &mut [u8], at: usize, change: &dyn Fn(&mut [u8])) {
    let was = image[at..at + BLOCK_SIZE].to_vec();
    let mut block = was.clone();
    change(&mut block);
    for seal in [4, 8] {
        let crc = |bytes: &[u8]| checksum::crc32c(&bytes[seal + 4..]).to_le_bytes();
        if was[seal..seal + 4] == crc(&was) {
            let crc = crc(&block);
            block[seal..seal + 4].copy_from_slice(&crc);
        }
    }
    image[at..at + BLOCK_SIZE].copy_from_slice(&block);
    let (old, new) = (checksum::crc32c(&was).to_le_bytes(), checksum::crc32c(&block).to_le_bytes());
    for holder in (0..image.len()).step_by(BLOCK_SIZE).filter(|holder| *holder != at) {
        let bytes = &image[holder..holder + BLOCK_SIZE];
        // All that holds checksums of others begins with a signature.
        let found = bytes.windows(4).position(|bytes| bytes == old).filter(|_| bytes[0] == b'F');
        if let Some(found) = found {
            forge(image, holder, &move |block| block[found..found + 4].copy_from_slice(&new));
        }
    }
}

/// Gives the volume on the device at `path` a flag that is not known.
fn make_later(path: &Path) {
    let mut image = std::fs::read(path).unwrap();
    let mut blocks = (0..image.len()).step_by(BLOCK_SIZE);
    let descriptor = blocks.find(|at| image[*at..].starts_with(b"FVD1")).expect("a volume");
    forge(&mut image, descriptor, &|block| block[45] |= 0x40);
    std::fs::write(path, image).unwrap();
}

fn devices(server: &Server) -> Vec<Value> {
    let client = control::ApiClient::new(&server.api).unwrap();
    let document = serde_json::to_value(client.server().unwrap()).unwrap();
    document["devices"].as_array().unwrap().clone()
}

#[test]
fn a_volume_of_a_later_release_is_refused_with_advice_and_harms_no_other_device() {
    let files = Files::new();
    let [later, other] = ["later", "other"].map(|name| {
        let device = files.device(name);
        succeed(&["format", "--device", &format!("{device},size=64MiB")]);
        device
    });
    let server = Server::start(&later);
    server.volume_json(&["create", "new", "--size", "1MiB"]);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    make_later(&files.path("later"));
    let before = std::fs::read(files.path("later")).unwrap();

    let serve = ["serve", "--device", &later, "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"];
    let outcome = run(&serve);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let told = "is of a later release of farflash: it has flags that";
    assert!(outcome.stderr.contains(told) && outcome.stderr.contains(ADVICE), "{outcome:?}");
    refused(&["fsck", "--device", &later], 1, "1 fault", ADVICE);
    for options in [&["--repair"][..], &["--repair", "--accept-data-loss"]] {
        let outcome = run(&[&["fsck", "--device", &later], options].concat());
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
        assert!(outcome.stderr.contains("leaving: shard ") && outcome.stderr.contains(ADVICE));
    }

    let server = Server::start_with(&later, &["--device", &other]);
    let found = devices(&server);
    assert_eq!(found.len(), 2, "{found:?}");
    let trouble = found[0]["trouble"].as_str().unwrap_or_default().to_owned();
    assert!(trouble.contains("later release") && trouble.contains(ADVICE), "{trouble}");
    assert_eq!(found[1]["trouble"], Value::Null, "{found:?}");
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let mut after = std::fs::read(files.path("later")).unwrap();
    let mark = OWNER_MARK * BLOCK_SIZE..(OWNER_MARK + 1) * BLOCK_SIZE;
    after[mark.clone()].copy_from_slice(&before[mark]);
    assert!(after == before, "it is as it was");

    // Beside it the other device's volumes are served as ever.
    let server = Server::start(&other);
    let made = server.volume_json(&["create", "old", "--size", "1MiB"]);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let server = Server::start_with(&other, &["--device", &later]);
    let nqn: nvme_wire::Nqn = made["nqn"].as_str().unwrap().parse().unwrap();
    let portal = server.portals[0];
    on_core(move |handle| async move {
        let volume = connect(&handle, portal, &nqn).await;
        volume.write(Lba(3), filled(7)).await.unwrap();
        assert_eq!(volume.read(Lba(3), 1).await.unwrap().as_bytes(), filled(7).as_bytes());
    });
}
