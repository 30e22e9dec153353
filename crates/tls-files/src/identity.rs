//! A certificate and its key, in a directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::certificates;

/// The certificate, and those that vouch for it, in PEM.
pub const CERTIFICATE_FILE: &str = "certificate.pem";
/// Its private key, in PEM.
pub const KEY_FILE: &str = "key.pem";
/// Authorities that issue certificates of clients, in PEM.
pub const CLIENTS_FILE: &str = "clients.pem";
/// Largest file that is taken for a certificate or key.
const PEM_BYTES_MAX: u64 = 1 << 20;
/// The object identifier of the curve P-521, in DER.
const P521: [u8; 7] = [0x06, 0x05, 0x2B, 0x81, 0x04, 0x00, 0x23];

/// Why TLS cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or written.
    #[error("{}: {error}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{} holds {why}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The fault of the file.
        why: String,
    },
    /// One file without the other.
    #[error("{} is there, but {} is not", .there.display(), .missing.display())]
    Half {
        /// The file that is there.
        there: PathBuf,
        /// The file that is not.
        missing: PathBuf,
    },
}

/// A certificate and its key.
pub struct Identity {
    certificate_file: PathBuf,
    key_file: PathBuf,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Reads the certificate and key in `directory`. If neither is there, they are made: a key, and a certificate for `names`
    /// (host names and addresses) that the key itself has signed, for clients that are given the certificate. It is called
    /// `common_name`, which says what it is for.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn open_or_make(
        directory: &Path,
        names: &[String],
        common_name: &str,
    ) -> Result<Self, TlsError> {
        let (certificate, key) = (directory.join(CERTIFICATE_FILE), directory.join(KEY_FILE));
        match (certificate.exists(), key.exists()) {
            (true, true) => {}
            (false, false) => make((&certificate, &key), names, common_name)?,
            (true, false) => return Err(TlsError::Half { there: certificate, missing: key }),
            (false, true) => return Err(TlsError::Half { there: key, missing: certificate }),
        }
        Self::open(directory)
    }

    /// Reads the certificate and key in `directory`.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn open(directory: &Path) -> Result<Self, TlsError> {
        Self::of_files(&directory.join(CERTIFICATE_FILE), &directory.join(KEY_FILE))
    }

    /// Reads a certificate and its key.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn of_files(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let chain = certificates(certificate)?;
        let private = private_key(key, &read(key)?)?;
        let (certificate_file, key_file) = (certificate.to_owned(), key.to_owned());
        Ok(Self { certificate_file, key_file, chain, key: private })
    }

    /// The certificate, and those that vouch for it: at least one.
    #[must_use]
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// The error of a key that is not that of the certificate.
    pub(crate) fn mismatch(&self, error: &rustls::Error) -> TlsError {
        let certificate = self.certificate_file.file_name().unwrap_or_default().display();
        content(&self.key_file, format!("no key of {certificate} ({error})"))
    }

    /// The file of the authorities of clients, beside the certificate.
    pub(crate) fn clients_file(&self) -> PathBuf {
        self.certificate_file.with_file_name(CLIENTS_FILE)
    }

    pub(crate) fn parts(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        (self.chain.clone(), self.key.clone_key())
    }
}

/// Returns the names by which clients may know this machine, for a certificate that is made here: its host name, those of
/// the loopback interface, and `addresses`, but for those that stand for all.
#[must_use]
pub fn own_names(addresses: &[IpAddr]) -> Vec<String> {
    let mut names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    // Other names could not stand in a certificate.
    let is_name =
        |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b));
    if !host.is_empty() && is_name(&host) {
        names.push(host);
    }
    let told = addresses.iter().filter(|address| !address.is_unspecified());
    names.extend(told.map(IpAddr::to_string));
    names.sort();
    names.dedup();
    names
}

/// The key in a file, if TLS can use it here.
fn private_key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    let has = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    if has(pem, b"BEGIN ENCRYPTED PRIVATE KEY") || has(pem, b"Proc-Type: 4,ENCRYPTED") {
        let why = "an encrypted key, for which this server has no passphrase: decrypt it with `openssl pkey -in key.pem -out \
                   NEW`, where its owner alone can read it";
        return Err(content(path, why.to_owned()));
    }
    let key = PrivateKeyDer::from_pem_slice(pem)
        .map_err(|error| content(path, format!("no private key in PEM ({error})")))?;
    if has(key.secret_der(), &P521) {
        let why = "a key on the curve P-521, which neither this server nor its clients use: make one on P-256 or P-384 \
                   (`openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256`), and a certificate for it";
        return Err(content(path, why.to_owned()));
    }
    Ok(key)
}

/// Makes a key, and a certificate signed by it. It does not expire: a client that trusts it trusts this
/// file.
fn make(
    (certificate, key): (&Path, &Path),
    names: &[String],
    common_name: &str,
) -> Result<(), TlsError> {
    let pair = KeyPair::generate().map_err(|error| content(key, error.to_string()))?;
    let mut params = CertificateParams::new(names)
        .map_err(|error| content(certificate, format!("a name that none may have ({error})")))?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(9999, 12, 31);
    let signed = params
        .self_signed(&pair)
        .map_err(|error| content(certificate, format!("nothing ({error})")))?;
    // The certificate comes last: where it is, its key is, too.
    write_new(key, 0o600, pair.serialize_pem().as_bytes())?;
    write_new(certificate, 0o644, signed.pem().as_bytes())
}

pub(crate) fn content(path: &Path, why: String) -> TlsError {
    TlsError::Content { path: path.to_owned(), why }
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let read = || {
        let mut bytes = Vec::new();
        let limit = PEM_BYTES_MAX + 1;
        io::Read::read_to_end(&mut io::Read::take(File::open(path)?, limit), &mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|error| TlsError::File { path: path.to_owned(), error })?;
    if bytes.len() as u64 > PEM_BYTES_MAX {
        return Err(content(path, "too much for a certificate or key".to_owned()));
    }
    Ok(bytes)
}

fn write_new(path: &Path, mode: u32, bytes: &[u8]) -> Result<(), TlsError> {
    let write = || {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|error| TlsError::File { path: path.to_owned(), error })
}
