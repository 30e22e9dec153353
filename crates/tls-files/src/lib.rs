//! TLS by files: the certificate and key that a server shows, the authorities by which a peer is believed, and the faults of a
//! certificate in words.
//!
//! - TLS-FILE-1: a key that is made here can be read by its owner only, from its first byte on.
//! - TLS-FILE-2: what lies in the directory is never replaced; one of two files without the other is an error.

mod config;
mod doubts;
mod identity;
mod trouble;
mod utc;

pub use config::{
    Clients, certificates_in, client_config, provider, roots, trusted, trusted_roots,
};
pub use doubts::{Doubt, ShownCertificate, Words};
pub use identity::{CERTIFICATE_FILE, CLIENTS_FILE, Identity, KEY_FILE, TlsError, own_names};
pub use trouble::{connection_trouble, trouble_of_certificate};
pub use utc::utc;
