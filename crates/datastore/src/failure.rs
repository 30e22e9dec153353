//! Errors of RocksDB, as a client gets them.

/// The reply to a request that RocksDB refused with `message`. The first word is a code for programs.
#[must_use]
pub fn error_reply(message: &str) -> String {
    let is = |part: &str| message.contains(part);
    if is("No space left on device") || is("NoSpace") || is("Disk quota exceeded") {
        "NOSPACE the file system of the data has no space left; free some, and writes go on by themselves".to_owned()
    } else if message.starts_with("Corruption") {
        format!("CORRUPT the data is damaged: {message}; stop the server, and restore or repair it")
    } else if is("Read-only file system") {
        "READONLY the file system of the data was mounted read-only, most likely after an error of its device".to_owned()
    } else if is("File too large") {
        "IOERR the data needs a larger file than this process may write; raise that limit (ulimit -f, a unit's LimitFSIZE=, a \
         container's --ulimit fsize=), and start the server again"
            .to_owned()
    } else if message.starts_with("IO error") {
        format!("IOERR the data cannot be reached: {message}")
    } else {
        format!("ERR RocksDB: {message}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_to_do() {
        let full = "IO error: No space left on device: While appending to file: /d/000004.log: No space left on device";
        assert!(error_reply(full).starts_with("NOSPACE "));
        let large = "IO error: While appending to file: /d/000004.log: File too large";
        assert!(error_reply(large).contains("LimitFSIZE="));
        assert!(error_reply("Corruption: block checksum mismatch").starts_with("CORRUPT "));
        assert!(error_reply("IO error: While fsync: a: Input/output error").starts_with("IOERR "));
        assert!(error_reply("Invalid argument: x").starts_with("ERR "));
    }
}
