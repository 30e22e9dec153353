//! Functions that tests of the Rust library for ordinary threads share.

use farflash_client::{Cluster, Error, ErrorKind, NewVolume, OpenOptions, Volume};

use crate::support::Server;

pub const BLOCK: usize = 4096;
pub const MIB: u64 = 1 << 20;

pub fn api(server: &Server) -> String {
    format!("http://{}", server.api.trim_start_matches("http://"))
}

pub fn cluster(server: &Server) -> Cluster {
    Cluster::new([api(server)], None).unwrap()
}

pub fn with_token(token: &str) -> OpenOptions {
    OpenOptions { token: Some(token.to_owned()), ..OpenOptions::default() }
}

/// A new volume, opened with its token.
pub fn opened(cluster: &Cluster, name: &str, size: u64) -> Volume {
    made_and_opened(cluster, &NewVolume::new(name, size))
}

/// The same, with metadata of its blocks.
pub fn opened_with_metadata(
    cluster: &Cluster,
    name: &str,
    size: u64,
    metadata_size: u32,
) -> Volume {
    made_and_opened(cluster, &NewVolume { metadata_size, ..NewVolume::new(name, size) })
}

pub fn made_and_opened(cluster: &Cluster, new: &NewVolume) -> Volume {
    let token = cluster.create(new).unwrap().tokens.token;
    cluster.open(&new.name, &with_token(&token)).unwrap()
}

/// Data and metadata of `count` blocks, all different.
pub fn filled(count: usize, metadata_size: u32, stamp: u8) -> (Vec<u8>, Vec<u8>) {
    let byte = |at: usize| ((at * 31) >> 7) as u8 ^ stamp;
    let metadata = (0..count * metadata_size as usize).map(|at| byte(at * 67).wrapping_add(1));
    ((0..count * BLOCK).map(byte).collect(), metadata.collect())
}

#[track_caller]
pub fn fails<T: std::fmt::Debug>(outcome: Result<T, Error>, kind: ErrorKind, says: &str) {
    let error = outcome.expect_err("a refusal");
    assert_eq!(error.kind(), kind, "{error:?}");
    assert!(error.to_string().contains(says), "{error}");
}
