//! Devices of this host: their names on a command line, opening and locking, contents, owners, formatting and checks.

pub mod belonging;
pub mod blank;
pub mod contents;
pub mod not_opened;
pub mod owner;
pub mod remembered;
pub mod sharing_spec;
pub mod storage;
