//! Errors of RocksDB: their kinds, and the text that a client gets.

/// The kind of an error of RocksDB.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum StoreErrorKind {
    /// The file system has no space left. Writes go on by themselves when there is some.
    NoSpace,
    /// A checksum does not match.
    Corrupt,
    /// The file system was mounted read-only.
    ReadOnly,
    /// A file would be larger than the process may write.
    FileLimit,
    /// The device or its file system failed a request.
    Io,
    /// Any other.
    Other,
}

impl StoreErrorKind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::NoSpace, Self::Corrupt, Self::ReadOnly, Self::FileLimit, Self::Io, Self::Other];

    /// The kind of an error with this message.
    #[must_use]
    pub fn of(message: &str) -> Self {
        let is = |part: &str| message.contains(part);
        if is("No space left on device") || is("NoSpace") || is("Disk quota exceeded") {
            Self::NoSpace
        } else if message.starts_with("Corruption") {
            Self::Corrupt
        } else if is("Read-only file system") {
            Self::ReadOnly
        } else if is("File too large") {
            Self::FileLimit
        } else if message.starts_with("IO error") {
            Self::Io
        } else {
            Self::Other
        }
    }

    /// The name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoSpace => "no_space",
            Self::Corrupt => "corrupt",
            Self::ReadOnly => "read_only",
            Self::FileLimit => "file_limit",
            Self::Io => "io",
            Self::Other => "other",
        }
    }

    /// The reply to a request that RocksDB refused with `message`. The first word is a code for programs.
    #[must_use]
    pub fn reply(self, message: &str) -> String {
        match self {
            Self::NoSpace => {
                "NOSPACE the file system of the data has no space left; free some, and writes go on by themselves".to_owned()
            }
            Self::Corrupt => {
                format!("CORRUPT the data is damaged: {message}; stop the server, and restore or repair it")
            }
            Self::ReadOnly => {
                "READONLY the file system of the data was mounted read-only, most likely after an error of its device".to_owned()
            }
            Self::FileLimit => {
                "IOERR the data needs a larger file than this process may write; raise that limit (ulimit -f, a unit's LimitFSIZE=, a \
                 container's --ulimit fsize=), and start the server again"
                    .to_owned()
            }
            Self::Io => format!(
                "IOERR the device of the data, or its file system, failed: {message}; see the kernel's log"
            ),
            Self::Other => format!("ERR RocksDB: {message}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_to_do() {
        let error_reply = |message: &str| StoreErrorKind::of(message).reply(message);
        let full = "IO error: No space left on device: While appending to file: /d/000004.log: No space left on device";
        assert!(error_reply(full).starts_with("NOSPACE "));
        let large = "IO error: While appending to file: /d/000004.log: File too large";
        assert!(error_reply(large).contains("LimitFSIZE="));
        assert!(error_reply("Corruption: block checksum mismatch").starts_with("CORRUPT "));
        assert!(error_reply("IO error: While fsync: a: Input/output error").starts_with("IOERR "));
        assert!(error_reply("Invalid argument: x").starts_with("ERR "));
    }

    #[test]
    fn kinds_have_names_of_their_own() {
        let names = StoreErrorKind::ALL.map(StoreErrorKind::name);
        let different: std::collections::BTreeSet<_> = names.into_iter().collect();
        assert_eq!(different.len(), names.len());
    }
}
