//! An etcd that requires authentication: TLS with certificates on both sides, and users with passwords.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64ct::{Base64, Encoding};
use directory::{
    Claim, Directory, DirectoryError, Etcd, EtcdCredentials, EtcdOptions, Event, HostRecord, Seek,
    Tenure,
};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair,
};
use tempfile::TempDir;
use test_support::etcd::{own_host, two_free_addresses_of};
use uuid::Uuid;

const PATIENCE: Duration = Duration::from_secs(60);
const PASSWORD: &str = "correct horse";

/// A killed child when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Secured {
    files: TempDir,
    address: SocketAddr,
    peer: SocketAddr,
    /// `None` while it is away.
    etcd: Option<Process>,
}

/// An authority, a certificate of etcd's, and one of a host's; and a host's of an authority of its own.
fn make_certificates(files: &Path, host: Ipv4Addr) {
    let write = |name: &str, text: String| std::fs::write(files.join(name), text).expect("written");
    for (authority, names) in [("ca", &["etcd", "host"][..]), ("other-ca", &["stranger"])] {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::<String>::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let signed = params.self_signed(&key).expect("signed");
        write(&format!("{authority}.pem"), signed.pem());
        let issuer = Issuer::new(params, key);
        for name in names {
            let key = KeyPair::generate().expect("a key");
            let mut params = CertificateParams::new([host.to_string()]).expect("a name");
            // etcd takes no certificate with a common name where JSON is spoken.
            params.distinguished_name = DistinguishedName::new();
            params.extended_key_usages =
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
            let signed = params.signed_by(&key, &issuer).expect("signed");
            write(&format!("{name}.pem"), signed.pem());
            write(&format!("{name}-key.pem"), key.serialize_pem());
        }
    }
}

/// Starts etcd for clients at an address, and for no other member at another.
fn start(
    files: &Path,
    (address, peer): (SocketAddr, SocketAddr),
    scheme: &str,
    more: &[String],
) -> Process {
    let mut command = Command::new("etcd");
    command.args([
        "--name=m".to_owned(),
        format!("--data-dir={}", files.join("data").display()),
        format!("--listen-client-urls={scheme}://{address}"),
        format!("--advertise-client-urls={scheme}://{address}"),
        format!("--listen-peer-urls=http://{peer}"),
        format!("--initial-advertise-peer-urls=http://{peer}"),
        format!("--initial-cluster=m=http://{peer}"),
        "--log-level=error".to_owned(),
        // What a killed process wrote survives it, and a slow disk must not end leases.
        "--unsafe-no-fsync".to_owned(),
    ]);
    command.args(more).stdout(Stdio::null()).stderr(Stdio::null());
    Process(command.spawn().expect("etcd is installed (Debian package etcd-server)"))
}

/// Asks etcd without encryption; its answer, once it gives one with status 200.
fn ask(address: SocketAddr, path: &str, body: &str) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let asked = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(address)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let head = format!("POST {path} HTTP/1.0\r\nContent-Length: {}", body.len());
            write!(stream, "{head}\r\n\r\n{body}")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        match asked() {
            Ok(answer) if answer.contains(" 200 ") => return answer,
            other => assert!(Instant::now() < deadline, "{path}: {other:?}"),
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
}

impl Secured {
    /// Starts one without any of it, makes its users, and restarts it with all of it.
    fn start() -> Self {
        let files = tempfile::tempdir().expect("a directory");
        let host = own_host();
        make_certificates(files.path(), host);
        let addresses @ (address, peer) = two_free_addresses_of(host);
        let open = start(files.path(), addresses, "http", &[]);
        let key = |text: &str| Base64::encode_string(text.as_bytes());
        let permission = format!(
            "{{\"name\":\"f\",\"perm\":{{\"permType\":\"READWRITE\",\"key\":\"{}\",\"range_end\":\"{}\"}}}}",
            key("/farflash/"),
            key("/farflash0")
        );
        let user = |name: &str| format!("{{\"name\":\"{name}\",\"password\":\"{PASSWORD}\"}}");
        for (path, body) in [
            ("user/add", user("root").as_str()),
            ("user/grant", "{\"user\":\"root\",\"role\":\"root\"}"),
            ("user/add", user("farflash").as_str()),
            ("user/add", user("roleless").as_str()),
            ("role/add", "{\"name\":\"f\"}"),
            ("role/grant", permission.as_str()),
            ("user/grant", "{\"user\":\"farflash\",\"role\":\"f\"}"),
            ("enable", "{}"),
        ] {
            ask(address, &format!("/v3/auth/{path}"), body);
        }
        drop(open);
        let mut secured = Self { files, address, peer, etcd: None };
        secured.serve();
        secured
    }

    /// Starts etcd with the certificates that there are.
    fn serve(&mut self) {
        let path = |name: &str| self.path(name).display().to_string();
        let more = [
            format!("--cert-file={}", path("etcd.pem")),
            format!("--key-file={}", path("etcd-key.pem")),
            format!("--trusted-ca-file={}", path("ca.pem")),
            "--client-cert-auth".to_owned(),
            // Tokens that expire soon: they are requested again.
            "--auth-token-ttl=2".to_owned(),
        ];
        let more = if supports_ttl() { &more[..] } else { &more[..4] };
        self.etcd = Some(start(self.files.path(), (self.address, self.peer), "https", more));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    fn credentials(&self) -> EtcdCredentials {
        EtcdCredentials {
            authorities: Some(self.path("ca.pem")),
            certificate: Some((self.path("host.pem"), self.path("host-key.pem"))),
            user: Some(("farflash".to_owned(), PASSWORD.to_owned())),
        }
    }

    fn options(&self, credentials: EtcdCredentials) -> EtcdOptions {
        let address = format!("etcds://{}/secured", self.address).parse().expect("an address");
        EtcdOptions {
            address,
            credentials,
            lease: Duration::from_secs(3),
            tenure: Tenure::endless(),
        }
    }
}

fn supports_ttl() -> bool {
    let help = Command::new("etcd").arg("--help").output().expect("etcd is installed");
    let text = [help.stdout, help.stderr].concat();
    String::from_utf8_lossy(&text).contains("--auth-token-ttl")
}

/// A host of a name that no other has: one that lives keeps others of its name out.
fn host() -> HostRecord {
    let id = Uuid::new_v4();
    HostRecord {
        id,
        name: id.to_string(),
        session: Uuid::new_v4(),
        boot: "this".to_owned(),
        version: "0".to_owned(),
        api: "192.0.2.1:1".parse().expect("an address"),
        api_certificate: None,
        portals_also: Vec::new(),
        fence_after_ms: None,
        discovery: None,
        labels: [].into(),
        cores: Vec::new(),
        devices: Vec::new(),
    }
}

fn claim(device: u128) -> Claim {
    let name = "file:/a".to_owned();
    let device = Uuid::from_u128(device);
    Claim { device, name, ..Claim::default() }
}

/// A look for holders that sees none.
fn sees_none() -> Seek {
    Arc::new(|_, _, _| Box::pin(async { None }))
}

/// Returns true if the host is refused for as long as it was patient: it waits for an etcd that does
/// not let it in.
async fn is_not_let_in(options: EtcdOptions) {
    let joined =
        tokio::time::timeout(Duration::from_secs(3), Etcd::join(options, host(), sees_none()))
            .await;
    assert!(!matches!(joined, Ok(Ok(_))), "it is let in");
}

#[tokio::test]
async fn only_users_that_etcd_knows_share_a_directory() {
    let secured = Secured::start();
    let good = secured.credentials();
    let joining = Etcd::join(secured.options(good.clone()), host(), sees_none());
    let etcd = tokio::time::timeout(PATIENCE, joining).await.expect("etcd is there");
    let etcd = etcd.expect("it is let in");
    etcd.claim(claim(1)).await.expect("free");
    let mut changes = etcd.changes();
    let seen = changes.wait_for(|_| etcd.view().claims.len() == 1);
    let seen = tokio::time::timeout(PATIENCE, seen).await.expect("the claim is seen");
    seen.map(drop).expect("the watch is let in, too");
    // Another host with all three is let in: that those below are not is for what they lack.
    let other = Etcd::join(secured.options(good.clone()), host(), sees_none());
    let other = tokio::time::timeout(PATIENCE, other).await.expect("etcd is there");
    other.expect("it is let in").leave().await.expect("it leaves");
    // Without one of the three, or with a wrong one.
    let stranger = Some((secured.path("stranger.pem"), secured.path("stranger-key.pem")));
    let user = |name: &str, password: &str| Some((name.to_owned(), password.to_owned()));
    for credentials in [
        EtcdCredentials { certificate: None, ..good.clone() },
        EtcdCredentials { certificate: stranger, ..good.clone() },
        EtcdCredentials { authorities: Some(secured.path("other-ca.pem")), ..good.clone() },
        EtcdCredentials { authorities: None, ..good.clone() },
        EtcdCredentials { user: None, ..good.clone() },
        EtcdCredentials { user: user("farflash", "wrong"), ..good.clone() },
        EtcdCredentials { user: user("roleless", PASSWORD), ..good.clone() },
    ] {
        is_not_let_in(secured.options(credentials)).await;
    }
    let plain = format!("etcd://{}/secured", secured.address).parse().expect("an address");
    let options = EtcdOptions { address: plain, ..secured.options(good.clone()) };
    let refused = tokio::time::timeout(PATIENCE, Etcd::join(options, host(), sees_none())).await;
    let refused = refused.expect("it is told").err();
    assert!(matches!(refused, Some(DirectoryError::Foreign { .. })), "{refused:?}");
    // Longer than a token lasts, all goes on.
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = etcd.claim(claim(2)).await {
        assert!(Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    etcd.leave().await.expect("it leaves");
}

/// Certificates end, and are replaced, also those of the authority. A host that runs uses the new ones when it connects
/// again.
#[tokio::test]
async fn certificates_are_replaced_while_a_host_runs() {
    let mut secured = Secured::start();
    let joining = Etcd::join(secured.options(secured.credentials()), host(), sees_none());
    let etcd = tokio::time::timeout(PATIENCE, joining).await.expect("etcd is there");
    let etcd = etcd.expect("it is let in");
    let next = async || tokio::time::timeout(PATIENCE, etcd.event()).await.expect("an event comes");
    assert_eq!(next().await, Event::Connected);
    secured.etcd.take();
    assert!(matches!(next().await, Event::CutOff { .. }));
    let SocketAddr::V4(address) = secured.address else { panic!("of the fourth version") };
    make_certificates(secured.files.path(), *address.ip());
    secured.serve();
    assert_eq!(next().await, Event::Connected);
    etcd.claim(claim(1)).await.expect("free");
}
