//! TLS for NBD: the server's certificate, and the authorities whose certificates of clients count.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use control::{ServerNotice, doubts_of_nbd};
use nbd_frontend::NbdTls;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, UnixTime};
use tls_files::{
    CERTIFICATE_FILE, CLIENTS_FILE, Clients, Identity, KEY_FILE, TlsError, trusted_roots,
};
use user_messages::Failure;

/// The certificates that all cores use, which SIGHUP replaces. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Certificates {
    tls: NbdTls,
    /// The files as they were read last.
    shown: Arc<Mutex<Shown>>,
}

/// The content of the files, and the certificate in it with those that vouch for it.
#[derive(Debug)]
struct Shown {
    contents: Vec<u8>,
    chain: Vec<CertificateDer<'static>>,
}

/// The certificates that lie in the directory now.
pub(super) struct Found {
    config: Arc<ServerConfig>,
    shown: Shown,
}

impl Certificates {
    /// Reads what lies in `directory`.
    pub(super) fn open(directory: &Path) -> Result<Self, Failure> {
        let Found { config, shown } = Found::read(directory)?;
        Ok(Self { tls: NbdTls::new(config), shown: Arc::new(Mutex::new(shown)) })
    }

    pub(super) fn tls(&self) -> NbdTls {
        self.tls.clone()
    }

    /// Returns whether they are what was found.
    pub(super) fn are(&self, found: &Found) -> bool {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).contents == found.shown.contents
    }

    /// Returns why clients refuse the certificate now, or soon will.
    pub(super) fn doubts(&self) -> Vec<ServerNotice> {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        doubts_of_nbd(&shown.chain, UnixTime::now())
    }

    /// Uses what was found for all that begin TLS from now on.
    pub(super) fn replace(&self, found: Found) {
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = found.shown;
        self.tls.replace(found.config);
    }
}

impl Found {
    /// Reads what lies in `directory`.
    pub(super) fn read(directory: &Path) -> Result<Self, Failure> {
        let (config, chain) = open(directory).map_err(|error| unusable(&error))?;
        let files = [CERTIFICATE_FILE, KEY_FILE, CLIENTS_FILE].map(|file| directory.join(file));
        let read = |path: &PathBuf| std::fs::read(path).unwrap_or_default();
        let contents = files.iter().flat_map(read).collect();
        Ok(Self { config: Arc::new(config), shown: Shown { contents, chain } })
    }
}

fn open(directory: &Path) -> Result<(ServerConfig, Vec<CertificateDer<'static>>), TlsError> {
    let clients = directory.join(CLIENTS_FILE);
    let clients = match clients.exists() {
        // A client without a certificate may still have what is open to its network.
        true => Clients::Asked(trusted_roots(Some(&clients))?),
        false => Clients::Unasked,
    };
    let identity = Identity::open(directory)?;
    Ok((identity.server_config(clients)?, identity.chain().to_vec()))
}

fn unusable(error: &TlsError) -> Failure {
    let what = format!("TLS for NBD cannot be had: {error}");
    let remedy = format!(
        "put {CERTIFICATE_FILE} and {KEY_FILE}, and for certificates of clients {CLIENTS_FILE}, into \
         the directory of --nbd-tls"
    );
    Failure::runtime(what, remedy)
}
