//! Options of a core that serves iSCSI.

use iscsi_target::Limits;

/// Options of a core that serves iSCSI.
#[derive(Clone, Debug)]
pub struct IscsiOptions {
    /// The limits of connections.
    pub limits: Limits,
    /// Initiators have to prove by CHAP that they know a token of the volume.
    pub authenticates: bool,
    /// Product revision, at most four characters.
    pub revision: String,
}

impl Default for IscsiOptions {
    fn default() -> Self {
        let revision = env!("CARGO_PKG_VERSION").chars().take(4).collect();
        Self { limits: Limits::default(), authenticates: false, revision }
    }
}
