//! Builds programs in C with the header and the shared library of this crate.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The name by which a program asks for the library when it starts.
pub(crate) const SONAME: &str = "libfarflash.so.0";

/// The directory in which cargo puts what it builds in this profile.
pub(crate) fn build_directory() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().to_path_buf()
}

/// The shared library. Tests lie beside the libraries that they depend on.
pub(crate) fn library() -> PathBuf {
    build_directory().join("deps/libfarflash.so")
}

pub(crate) fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Builds a C program in `directory`, warnings being errors. The library is found there by its SONAME, as if it
/// were installed.
pub(crate) fn compile(path: &str, directory: &Path) -> PathBuf {
    let program = directory.join("program");
    let status = Command::new("cc")
        .args([
            "-std=c99",
            "-D_GNU_SOURCE",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-missing-field-initializers",
        ])
        .arg(source(path))
        .arg("-I")
        .arg(source("include"))
        .arg("-L")
        .arg(library().parent().unwrap())
        .args(["-Wl,--as-needed", "-lfarflash", "-lpthread", "-o"])
        .arg(&program)
        .arg(format!("-Wl,-rpath,{}", directory.display()))
        .status();
    assert!(status.expect("a C compiler (`cc`)").success(), "{path} compiles");
    symlink(library(), directory.join(SONAME)).unwrap();
    program
}
