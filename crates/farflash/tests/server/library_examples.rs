//! The examples of the Rust libraries, against a real server.

use crate::support::Server;
use crate::support::library::{BLOCK, MIB, api, cluster, with_token};
use farflash_client::{Cluster, CreatedVolume, NewVolume};

/// Returns the output of an example, which cargo builds with the tests of all crates; it ends well.
fn said_by_example(
    (package, name): (&str, &str),
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> String {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_farflash"))
        .with_file_name(format!("examples/{name}"));
    let mut command = std::process::Command::new(&program);
    let output = command.args(arguments).envs(environment.iter().copied()).output();
    let outcome = crate::support::Outcome::from(output.unwrap_or_else(|error| {
        let hint = format!("build it with `cargo build -p {package} --example {name}`");
        panic!("{}: {error}; {hint}", program.display())
    }));
    assert_eq!(outcome.code, Some(0), "{arguments:?}: {outcome:?}");
    outcome.stdout
}

#[test]
fn the_asynchronous_example_does_what_it_says() {
    // The example has no place for a token.
    let server = Server::start_with("mem:256MiB", &["--auth", "off"]);
    let volume = cluster(&server).create(&NewVolume::new("v", MIB)).unwrap().volume;
    let (address, nqn) = (volume.address.to_string(), volume.nqn.to_string());
    let said = |arguments: &[&str]| said_by_example(("client", "volume"), arguments, &[]);
    let offered = said(&[&address]);
    assert!(offered.contains(&format!("{address}  {nqn}\n")), "{offered}");
    let tour = said(&[&address, &nqn]);
    assert!(tour.starts_with("256 blocks of 4096 bytes; "), "{tour}");
    assert!(tour.contains(" commands in ") && tour.ends_with(" chunks\n"), "{tour}");
}

/// Returns the output of an example of the library for ordinary threads about a new volume, named `v`: by
/// name and token, both from the environment.
fn said_of_a_volume(example: &str) -> (Server, Cluster, CreatedVolume, String) {
    let server = Server::start_with("mem:256MiB", &["--auth", "on"]);
    let cluster = cluster(&server);
    let created = cluster.create(&NewVolume::new("v", MIB)).unwrap();
    let (api, token) = (api(&server), created.tokens.token.as_str());
    let environment = [("FARFLASH_API", api.as_str()), ("FARFLASH_TOKEN", token)];
    let said = said_by_example(("farflash-client", example), &["v"], &environment);
    (server, cluster, created, said)
}

/// The example leaves on the volume what it has printed.
#[test]
fn the_example_for_ordinary_threads_does_what_it_says() {
    let (_server, cluster, created, said) = said_of_a_volume("counter");
    let lines = [
        format!("v: 1048576 bytes at {}", created.volume.address),
        "reads what was written: true".to_owned(),
        "4 threads counted to 64".to_owned(),
    ];
    assert_eq!(said, lines.join("\n") + "\n");
    let mut blocks = vec![0xff; 2 * BLOCK];
    cluster.open("v", &with_token(&created.tokens.token)).unwrap().read_at(&mut blocks, 0).unwrap();
    let mut left = vec![0; 2 * BLOCK];
    (left[0], left[BLOCK]) = (b'v', 64);
    assert!(blocks == left);
}

/// The same for the one that awaits.
#[test]
fn the_example_that_awaits_does_what_it_says() {
    let (_server, cluster, created, said) = said_of_a_volume("awaited");
    let lines = [
        format!("v: 1048576 bytes at {}", created.volume.address),
        "64 of 64 blocks read what was written".to_owned(),
    ];
    assert_eq!(said, lines.join("\n") + "\n");
    let mut block = [0; BLOCK];
    let volume = cluster.open("v", &with_token(&created.tokens.token)).unwrap();
    volume.read_at(&mut block, 63 * BLOCK as u64).unwrap();
    assert_eq!(block, [63; BLOCK]);
}
