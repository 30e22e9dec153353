//! The API over TLS: who is believed, who is served, and what strangers can hold up.

#![allow(missing_docs, unreachable_pub, dead_code)]

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use control::{ApiClient, ApiError, ApiTls, CERTIFICATE_FILE, Guard, KEY_FILE, Limits, TlsError};
use support::Api;

fn names() -> Vec<String> {
    vec!["localhost".to_owned(), "127.0.0.1".to_owned()]
}

fn encrypted(directory: &Path, limits: Limits) -> Api {
    let tls = ApiTls::open_or_make(directory, &names()).unwrap();
    Api::guarded(Guard { tls: Some(tls), ..Guard::default() }, limits, Duration::ZERO)
}

fn url(api: &Api) -> String {
    api.url().replace("http://", "https://")
}

#[test]
fn whoever_has_the_certificate_is_served() {
    let directory = tempfile::tempdir().unwrap();
    let (certificate, key) =
        (directory.path().join(CERTIFICATE_FILE), directory.path().join(KEY_FILE));
    let api = encrypted(directory.path(), Limits::default());
    let client = ApiClient::trusting(&url(&api), Some(&certificate)).unwrap();
    assert!(client.list().unwrap().volumes.is_empty());
    // With a limit of its own, by the same certificate.
    assert!(matches!(client.show("nothing"), Err(ApiError::Refused(_))));
    let by_name = url(&api).replace("127.0.0.1", "localhost");
    assert!(ApiClient::trusting(&by_name, Some(&certificate)).unwrap().list().is_ok());
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    // Another start keeps what is there, so clients keep believing it.
    let before = fs::read(&certificate).unwrap();
    drop(api);
    let api = encrypted(directory.path(), Limits::default());
    assert_eq!(fs::read(&certificate).unwrap(), before);
    assert!(ApiClient::trusting(&url(&api), Some(&certificate)).unwrap().list().is_ok());
}

#[test]
fn a_server_that_cannot_be_believed_is_told_nothing() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let api = encrypted(one.path(), Limits::default());
    ApiTls::open_or_make(other.path(), &names()).unwrap();
    let foreign = other.path().join(CERTIFICATE_FILE);
    for trusted in [None, Some(foreign.as_path())] {
        let client = ApiClient::trusting(&url(&api), trusted).unwrap().with_token("secret");
        let error = client.list().unwrap_err();
        assert!(matches!(error, ApiError::Untrusted { .. }), "{error}");
        assert!(!error.may_have_been_done());
        assert!(error.to_string().contains("not trusted by its certificate"), "{error}");
        assert!(error.hint().contains("--api-ca"), "{}", error.hint());
    }
    // A name that is not in the certificate.
    let elsewhere = tempfile::tempdir().unwrap();
    ApiTls::open_or_make(elsewhere.path(), &["192.0.2.1".to_owned()]).unwrap();
    let certificate = elsewhere.path().join(CERTIFICATE_FILE);
    let misnamed = encrypted(elsewhere.path(), Limits::default());
    let error = ApiClient::trusting(&url(&misnamed), Some(&certificate)).unwrap().list();
    let error = error.unwrap_err();
    assert!(matches!(error, ApiError::Untrusted { .. }), "{error}");
    assert!(error.to_string().contains("192.0.2.1"), "{error}");
    // Nobody is served without TLS.
    let plain = ApiClient::new(&api.url()).unwrap().list().unwrap_err();
    assert!(matches!(plain, ApiError::Unreachable { .. }), "{plain}");
}

/// Whoever says nothing, or nonsense, is cut off; others are served meanwhile.
#[test]
fn a_handshake_that_does_not_come_holds_nobody_up() {
    let directory = tempfile::tempdir().unwrap();
    let limits =
        Limits { head_timeout: Duration::from_secs(3), connections_max: 4, ..Limits::default() };
    let api = encrypted(directory.path(), limits);
    let address = url(&api).replace("https://", "");
    let mut silent: Vec<TcpStream> =
        (0..3).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let mut wrong = TcpStream::connect(&address).unwrap();
    wrong.write_all(b"GET /v1/volumes HTTP/1.1\r\n\r\n").unwrap();
    let mut said = Vec::new();
    let _ = wrong.read_to_end(&mut said);
    assert!(!said.starts_with(b"HTTP/"), "{said:?}");
    let certificate = directory.path().join(CERTIFICATE_FILE);
    let client = ApiClient::trusting(&url(&api), Some(&certificate)).unwrap();
    assert!(client.list().is_ok());
    for stream in &mut silent {
        assert!(matches!(stream.read(&mut [0; 64]), Ok(0) | Err(_)), "it is closed");
    }
}

#[test]
fn what_lies_in_the_directory_is_never_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let (certificate, key) =
        (directory.path().join(CERTIFICATE_FILE), directory.path().join(KEY_FILE));
    let refusal = || ApiTls::open_or_make(directory.path(), &names()).err().unwrap();
    fs::write(&key, "mine").unwrap();
    assert!(matches!(refusal(), TlsError::Half { .. }));
    fs::write(&certificate, "mine, too").unwrap();
    let error = refusal();
    assert!(matches!(error, TlsError::Content { .. }), "{error}");
    assert!(error.to_string().contains(CERTIFICATE_FILE), "{error}");
    assert_eq!(fs::read(&key).unwrap(), b"mine");
    // The key of another.
    let other = tempfile::tempdir().unwrap();
    ApiTls::open_or_make(other.path(), &names()).unwrap();
    fs::remove_file(&certificate).unwrap();
    fs::remove_file(&key).unwrap();
    ApiTls::open_or_make(directory.path(), &names()).unwrap();
    fs::copy(other.path().join(KEY_FILE), &key).unwrap();
    let error = refusal();
    assert!(error.to_string().contains(KEY_FILE), "{error}");
}
