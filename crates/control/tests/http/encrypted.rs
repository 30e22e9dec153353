//! The API over TLS: clients that trust its certificate are served, and unauthenticated ones hold nothing
//! up.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::support::Api;
use control::{
    ApiClient, ApiError, ApiTls, CERTIFICATE_FILE, Guard, KEY_FILE, Limits, ServerNoticeKind,
    TlsError, doubts_of_nbd,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, SanType};
use rustls::pki_types::UnixTime;

/// A key that nothing else uses.
const P521_KEY: &str = "-----BEGIN PRIVATE KEY-----\n\
     MIHuAgEAMBAGByqGSM49AgEGBSuBBAAjBIHWMIHTAgEBBEIA8vI+BKpJUj1GXEZ5\n\
     yFDgbzvTubAsKe4hONaZMK//GCIDjZYjiBZomzIZY/lTGXsjhD2TDzpRs/7PkuEx\n\
     daoy2z6hgYkDgYYABAEyfmFks86YcoX2XokrtPBkTp0RshjbZkHOlG3flWiVUk3x\n\
     Z/yqQeDM4erwxllbnyBgop7uhL95eGO67U6iA57j1gBtrz1krsh7olnvYQzBO8Yf\n\
     60CGr1MnymAJbBAFXz0moeG3DqjpG4szk18foVJQdT1kvxjI/DO37Fd49B0/Udmp\n\
     vw==\n\
     -----END PRIVATE KEY-----\n";

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
fn a_client_that_trusts_the_certificate_is_served() {
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

/// A certificate as others make it, and its key.
fn put_there(directory: &Path, change: impl FnOnce(&mut CertificateParams)) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(names()).unwrap();
    change(&mut params);
    let made = params.self_signed(&key).unwrap();
    fs::write(directory.join(CERTIFICATE_FILE), made.pem()).unwrap();
    fs::write(directory.join(KEY_FILE), key.serialize_pem()).unwrap();
}

/// The server says of its certificate what clients will refuse. Method: certificates of each kind; a client is given each and refuses
/// those of which there are doubts, and no others.
#[test]
fn what_clients_refuse_is_said_at_the_start() {
    type Change = fn(&mut CertificateParams);
    let cases: [(&str, &str, Change); 5] = [
        ("", "", |_| {}),
        (
            "(CA:TRUE), as `openssl req -x509` makes it",
            "it is one of an authority (CA:TRUE)",
            |params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained),
        ),
        ("expired on 2021-01-01T00:00:00Z", "it has expired on 2021-01-01T00:00:00Z", |params| {
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            params.not_after = rcgen::date_time_ymd(2021, 1, 1);
        }),
        (
            "valid from 4000-01-01T00:00:00Z on",
            "it is valid from 4000-01-01T00:00:00Z on",
            |params| {
                params.not_before = rcgen::date_time_ymd(4000, 1, 1);
                params.not_after = rcgen::date_time_ymd(4001, 1, 1);
            },
        ),
        (
            "for none of the names of this server (127.0.0.1, localhost)",
            "it is for 192.0.2.1, and not for 127.0.0.1",
            |params| {
                params.subject_alt_names = vec![SanType::IpAddress([192, 0, 2, 1].into())];
            },
        ),
    ];
    for (doubt, client_told, change) in cases {
        let directory = tempfile::tempdir().unwrap();
        put_there(directory.path(), change);
        let tls = ApiTls::open(directory.path()).unwrap();
        let doubts = tls.doubts(&["127.0.0.1".to_owned(), "localhost".to_owned()]);
        match doubt {
            "" => assert!(doubts.is_empty(), "{doubts:?}"),
            _ => {
                assert!(doubts.len() == 1 && doubts[0].text.contains(doubt), "{doubt}: {doubts:?}")
            }
        }
        // Clients of NBD all refuse it for its times, and for the rest some do.
        let identity = tls_files::Identity::open(directory.path()).unwrap();
        let of_nbd = doubts_of_nbd(identity.chain(), UnixTime::now());
        let texts: Vec<&str> = of_nbd.iter().map(|notice| &notice.text[..]).collect();
        match ["expired", "valid from"].iter().any(|part| doubt.starts_with(part)) {
            true => {
                let expected = ["the certificate of --nbd-tls", doubt];
                assert!(
                    texts.len() == 1 && expected.iter().all(|it| texts[0].contains(it)),
                    "{texts:?}"
                );
            }
            false => assert!(texts.is_empty(), "{texts:?}"),
        }
        let guard = Guard { tls: Some(tls), ..Guard::default() };
        let api = Api::guarded(guard, Limits::default(), Duration::ZERO);
        let certificate = directory.path().join(CERTIFICATE_FILE);
        let client = ApiClient::trusting(&url(&api), Some(&certificate)).unwrap();
        match client.list() {
            Ok(_) => assert!(doubt.is_empty(), "{doubt}"),
            Err(error) => {
                let told = error.to_string();
                assert!(!doubt.is_empty() && told.contains(client_told), "{client_told}: {told}");
            }
        }
    }
}

/// A certificate is told of before it expires and after, by a server that goes on showing it.
#[test]
fn a_certificate_that_expires_while_it_is_served_is_told_of() {
    let told = |left: Duration| {
        let directory = tempfile::tempdir().unwrap();
        put_there(directory.path(), |params| params.not_after = (SystemTime::now() + left).into());
        ApiTls::open(directory.path()).unwrap()
    };
    let kinds = |tls: &ApiTls| {
        let notices = tls.doubts(&["localhost".to_owned()]);
        notices.iter().map(|notice| notice.kind).collect::<Vec<_>>()
    };
    let day = Duration::from_secs(86_400);
    assert_eq!(kinds(&told(30 * day)), []);
    let soon = told(6 * day);
    assert_eq!(kinds(&soon), [ServerNoticeKind::CertificateExpires]);
    assert!(soon.doubts(&["localhost".to_owned()])[0].text.contains("expires on 2"));
    let served = told(Duration::from_secs(5));
    assert_eq!(kinds(&served), [ServerNoticeKind::CertificateExpires]);
    while kinds(&served) == [ServerNoticeKind::CertificateExpires] {
        std::thread::park_timeout(Duration::from_millis(50));
    }
    assert_eq!(kinds(&served), [ServerNoticeKind::Certificate]);
}

/// Keys that cannot be used are named. Method: as `openssl genpkey` makes them.
#[test]
fn a_key_that_cannot_be_used_is_named() {
    for (says, key) in [
        (
            "an encrypted key",
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIGj\n-----END ENCRYPTED PRIVATE KEY-----\n",
        ),
        (
            "an encrypted key",
            "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nMIGj\n-----END EC PRIVATE KEY-----\n",
        ),
        ("P-521", P521_KEY),
        ("no private key", "nothing"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        put_there(directory.path(), |_| {});
        fs::write(directory.path().join(KEY_FILE), key).unwrap();
        let error = ApiTls::open(directory.path()).err().unwrap().to_string();
        assert!(error.contains(says) && error.contains(KEY_FILE), "{error}");
    }
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
}

/// No client is served without TLS. Method: HTTP as bytes, a change with its body among them, and a client
/// that was given `http://`.
#[test]
fn who_asks_without_tls_is_told_so_and_nothing_is_done() {
    let directory = tempfile::tempdir().unwrap();
    let api = encrypted(directory.path(), Limits::default());
    let body = r#"{"name":"v","size_bytes":4096}"#;
    for (method, path, body) in [
        ("GET", "/v1/volumes", ""),
        ("GET", "/healthz", ""),
        ("POST", "/v1/volumes", body),
        ("POST", "/v1/volumes", &" ".repeat(100 << 10)),
    ] {
        let answer = api.request(method, path, body);
        let (status, code, detail) = answer.problem();
        assert_eq!((status, code.as_str()), (400, "encryption_required"), "{method}: {detail}");
        assert!(answer.head.contains("connection: close"), "{answer:?}");
    }
    let client = ApiClient::new(&api.url()).unwrap().with_token("secret");
    let size = control::VolumeSize::try_from(4096).unwrap();
    let error = client.create(&control::CreateVolume::new("v".parse().unwrap(), size)).unwrap_err();
    assert!(!error.may_have_been_done(), "{error}");
    assert!(error.to_string().contains("without TLS"), "{error}");
    for part in ["https://", "--api-ca", "replace it"] {
        assert!(error.hint().contains(part), "{}", error.hint());
    }
    let certificate = directory.path().join(CERTIFICATE_FILE);
    let client = ApiClient::trusting(&url(&api), Some(&certificate)).unwrap();
    assert!(client.list().unwrap().volumes.is_empty());
}

/// A request comes behind the handshake. Method: a server without TLS, and one that hangs up within it.
#[test]
fn what_fails_within_the_handshake_was_asked_nothing() {
    let directory = tempfile::tempdir().unwrap();
    ApiTls::open_or_make(directory.path(), &names()).unwrap();
    let certificate = directory.path().join(CERTIFICATE_FILE);
    let refusal = |url: &str| {
        let client = ApiClient::trusting(url, Some(&certificate)).unwrap();
        let error = client.delete("v").unwrap_err();
        assert!(matches!(error, ApiError::Unreachable { .. }), "{error}");
        assert!(!error.may_have_been_done(), "{error}");
        error
    };
    let plain = Api::start();
    let error = refusal(&url(&plain));
    assert!(error.to_string().contains("does not speak TLS"), "{error}");
    assert!(error.hint().contains("http://"), "{}", error.hint());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let hangs_up = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 8]).unwrap();
    });
    let error = refusal(&format!("https://{address}"));
    assert!(error.hint().contains("--api-tls"), "{}", error.hint());
    hangs_up.join().unwrap();
}

/// Bytes sent behind the handshake may have arrived. Method: a server that takes a request and hangs up.
#[test]
fn what_fails_behind_the_handshake_may_have_been_done() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let hangs_up = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 8]).unwrap();
    });
    let error = ApiClient::new(&format!("http://{address}")).unwrap().delete("v").unwrap_err();
    assert!(error.may_have_been_done(), "{error}");
    hangs_up.join().unwrap();
}

/// A client that sends nothing, or nonsense, is disconnected; others are served meanwhile.
#[test]
fn a_handshake_that_does_not_come_holds_no_other_client_up() {
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
    assert!(said.starts_with(b"HTTP/1.1 400 "), "{said:?}");
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
