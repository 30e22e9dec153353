//! The version of RocksDB's library. A library of another version has other functions and structures behind the
//! same names, and links unnoticed.

use std::path::Path;

/// The version that this program is built for: the library's major and minor number.
const BUILT_FOR: &str = "7.8";

/// Returns the version of the library that is loaded, or the reason why it must not be used.
pub(crate) fn check() -> Result<String, String> {
    let maps = std::fs::read_to_string("/proc/self/maps")
        .map_err(|error| format!("the version of librocksdb cannot be found out: {error}"))?;
    judge(&maps)
}

/// Finds the library among the mapped files. Its links are resolved there, so its name has the whole version.
fn judge(maps: &str) -> Result<String, String> {
    let paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    let names = paths.filter_map(|path| Path::new(path).file_name()?.to_str());
    let mut versions = names.filter_map(|name| name.strip_prefix("librocksdb.so."));
    let version =
        versions.next().ok_or("librocksdb is not loaded as a shared library of a known version")?;
    let fits = version == BUILT_FOR || version.starts_with(&format!("{BUILT_FOR}."));
    if fits {
        Ok(version.to_owned())
    } else {
        Err(format!("librocksdb {version} is loaded, and this program is built for {BUILT_FOR}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_refused() {
        let maps = |name: &str| {
            format!("7f00-7f01 r-xp 00000000 08:01 12  /usr/lib/x86_64-linux-gnu/{name}\n")
        };
        assert_eq!(judge(&maps("librocksdb.so.7.8.3")).as_deref(), Ok("7.8.3"));
        for other in
            ["librocksdb.so.7.9.2", "librocksdb.so.9.10.0", "librocksdb.so.7.80", "libc.so.6"]
        {
            assert!(judge(&maps(other)).is_err(), "{other}");
        }
    }
}
