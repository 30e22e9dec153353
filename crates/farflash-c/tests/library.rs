//! The shared library as the linker sees it: its name, and what it exports.

#![allow(missing_docs)]

mod building;

use std::path::Path;
use std::process::Command;

use building::{SONAME, compile, library, source};

/// Returns the output of a tool of binutils about `file`.
fn told(tool: &str, arguments: &[&str], file: &Path) -> String {
    let output = Command::new(tool).args(arguments).arg(file).output();
    let output = output.unwrap_or_else(|error| panic!("{tool}, of binutils: {error}"));
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The names in the dynamic section of `file` with this tag, such as `NEEDED`.
fn dynamic(file: &Path, tag: &str) -> Vec<String> {
    let section = told("readelf", &["--dynamic", "--wide"], file);
    let tagged = section.lines().filter(|line| line.contains(&format!("({tag})")));
    let name = |line: &str| Some(line.split_once('[')?.1.strip_suffix(']')?.to_owned());
    tagged.map(|line| name(line).unwrap_or_else(|| panic!("{line}"))).collect()
}

/// A program finds the library wherever it is installed, and no later one that it could not run with.
///
/// Method: the example is linked against the library where cargo has put it, which is an absolute path.
#[test]
fn programs_ask_for_the_library_by_its_soname() {
    assert_eq!(dynamic(&library(), "SONAME"), [SONAME]);
    let directory = tempfile::tempdir().unwrap();
    let needed = dynamic(&compile("examples/volume.c", directory.path()), "NEEDED");
    let ours: Vec<&String> = needed.iter().filter(|name| name.contains("farflash")).collect();
    assert_eq!(ours, [SONAME], "of {needed:?}");
}

/// The library brings nothing that a machine without Rust lacks.
#[test]
fn the_library_needs_the_c_library_alone() {
    let known = ["libc.so.", "libm.so.", "libgcc_s.so.", "ld-linux-"];
    for name in dynamic(&library(), "NEEDED") {
        assert!(known.iter().any(|known| name.starts_with(known)), "{name} is needed");
    }
}

/// The header is written by hand: it and the library have the same functions, and nothing of what the library is made
/// of, such as an allocator or cryptography, can take the place of what a program brings.
#[test]
fn the_library_exports_what_the_header_declares_and_nothing_else() {
    let symbols = told("nm", &["--dynamic", "--defined-only", "--format=posix"], &library());
    let mut exported: Vec<&str> =
        symbols.lines().filter_map(|line| line.split(' ').next()).collect();
    let header = std::fs::read_to_string(source("include/farflash.h")).unwrap();
    let mut declared: Vec<&str> = header
        .lines()
        .filter(|line| !line.starts_with([' ', '/', '#', '}']) && !line.starts_with("typedef"))
        .filter_map(|line| line.split_once('(').map(|(before, _)| before))
        .filter_map(|before| before.split([' ', '*']).next_back())
        .filter(|name| name.starts_with("farflash_"))
        .collect();
    exported.sort_unstable();
    declared.sort_unstable();
    assert!(declared.len() >= 20);
    assert_eq!(declared, exported);
}
