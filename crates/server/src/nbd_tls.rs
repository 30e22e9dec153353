//! TLS for NBD: the server's certificate, and the authorities whose certificates of clients count.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nbd_frontend::NbdTls;
use rustls::ServerConfig;
use tls_files::{
    CERTIFICATE_FILE, CLIENTS_FILE, Clients, Identity, KEY_FILE, TlsError, trusted_roots,
};
use user_messages::Failure;

/// The certificates that all cores use, which SIGHUP replaces. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Certificates {
    tls: NbdTls,
    /// The files as they were read last.
    contents: Arc<Mutex<Vec<u8>>>,
}

/// The certificates that lie in the directory now.
pub(super) struct Found {
    config: Arc<ServerConfig>,
    contents: Vec<u8>,
}

impl Certificates {
    /// Reads what lies in `directory`.
    pub(super) fn open(directory: &Path) -> Result<Self, Failure> {
        let Found { config, contents } = Found::read(directory)?;
        let contents = Arc::new(Mutex::new(contents));
        Ok(Self { tls: NbdTls::new(config), contents })
    }

    pub(super) fn tls(&self) -> NbdTls {
        self.tls.clone()
    }

    /// Returns whether they are what was found.
    pub(super) fn are(&self, found: &Found) -> bool {
        *self.contents.lock().unwrap_or_else(PoisonError::into_inner) == found.contents
    }

    /// Uses what was found for all that begin TLS from now on.
    pub(super) fn replace(&self, found: Found) {
        *self.contents.lock().unwrap_or_else(PoisonError::into_inner) = found.contents;
        self.tls.replace(found.config);
    }
}

impl Found {
    /// Reads what lies in `directory`.
    pub(super) fn read(directory: &Path) -> Result<Self, Failure> {
        let config = Arc::new(open(directory).map_err(|error| unusable(&error))?);
        let files = [CERTIFICATE_FILE, KEY_FILE, CLIENTS_FILE].map(|file| directory.join(file));
        let read = |path: &PathBuf| std::fs::read(path).unwrap_or_default();
        Ok(Self { config, contents: files.iter().flat_map(read).collect() })
    }
}

fn open(directory: &Path) -> Result<ServerConfig, TlsError> {
    let clients = directory.join(CLIENTS_FILE);
    let clients = match clients.exists() {
        // A client without a certificate may still have what is open to its network.
        true => Clients::Asked(trusted_roots(Some(&clients))?),
        false => Clients::Unasked,
    };
    Identity::open(directory)?.server_config(clients)
}

fn unusable(error: &TlsError) -> Failure {
    let what = format!("TLS for NBD cannot be had: {error}");
    let remedy = format!(
        "put {CERTIFICATE_FILE} and {KEY_FILE}, and for certificates of clients {CLIENTS_FILE}, into \
         the directory of --nbd-tls"
    );
    Failure::runtime(what, remedy)
}
