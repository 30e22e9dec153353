//! Gives the shared library its SONAME.

/// The number of the interface, not of the version: it goes up when programs that were built with an older
/// `farflash.h` no longer run, which is also when the Debian package of the library gets another name
/// (`packaging/build-library-debs`).
const INTERFACE: u32 = 0;

fn main() {
    // tidy: allow(print) this is how a build script tells cargo what to do
    println!("cargo::rerun-if-changed=build.rs");
    // tidy: allow(print) this tells cargo, too
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libfarflash.so.{INTERFACE}");
}
