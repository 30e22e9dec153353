//! Hosts that come and go at a real server while the tokens of their volume and its restrictions change.

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::support::host::{filled, on_core};
use crate::support::{Server, until};
use auth::Secret;
use client::{Client, ConnectError, Credentials, Options, Reconnect};
use control::{ApiClient, ChangeAuth, ChangeRestrictions};
use nvme_wire::Nqn;
use reactor::Handle;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use units::Lba;

/// Hosts, of which the first stays connected for as long as it may.
const HOSTS: usize = 3;
/// Times that all kinds of changes are made.
const ROUNDS: usize = 8;
const VOLUME: &str = "v";

/// A way to the server on which each connection comes from an address of its own. An exchange that a change
/// spoils counts as a guess, and a source that guesses is rate-limited.
struct Ways {
    address: SocketAddr,
}

impl Ways {
    fn to(portal: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for (host, source) in listener.incoming().zip(u32::from(Ipv4Addr::new(127, 1, 0, 1))..)
            {
                // Its host may have gone, or the server refuse it.
                let _ = host.and_then(|host| pass(host, source.into(), portal));
            }
        });
        Self { address }
    }
}

fn pass(host: TcpStream, source: Ipv4Addr, portal: SocketAddr) -> io::Result<()> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddr::from((source, 0)))?;
    connect(&socket, &portal)?;
    let server = TcpStream::from(socket);
    for (mut from, mut to) in [(host.try_clone()?, server.try_clone()?), (server, host)] {
        from.set_nodelay(true)?;
        std::thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
        });
    }
    Ok(())
}

/// The conditions under which the volume is opened.
#[derive(Clone, Debug)]
struct Terms {
    secret: Secret,
    /// The restrictions admit the hosts.
    is_open: bool,
    /// Changes that were asked for, and that were answered.
    asked: u64,
    answered: u64,
    /// The same of those that end connections.
    cuts_asked: u64,
    cuts_answered: u64,
}

impl Terms {
    fn is_settled(&self) -> bool {
        self.asked == self.answered
    }
}

struct Scene {
    portal: SocketAddr,
    nqn: Nqn,
    terms: Mutex<Terms>,
    stop: AtomicBool,
    /// Number of writes and reads that each host has done.
    done: [AtomicU64; HOSTS],
    refused: AtomicU32,
}

fn options(secret: Secret) -> Options {
    let credentials = Some(Credentials { secret, controller_secret: None });
    Options { credentials, reconnect: Reconnect::Never, ..Options::for_host([7; 16]) }
}

impl Scene {
    fn terms(&self) -> Terms {
        self.terms.lock().unwrap().clone()
    }

    async fn connect(
        &self,
        handle: &Handle,
        secret: Secret,
    ) -> Result<Client<Handle>, ConnectError> {
        Client::connect(handle.clone(), self.portal, &self.nqn, options(secret)).await
    }

    /// Returns true if a host with `secret` gets in.
    fn opens(self: &Arc<Self>, secret: Secret) -> bool {
        let scene = self.clone();
        on_core(|handle| async move { scene.connect(&handle, secret).await.is_ok() })
    }

    /// Comes and goes as host `number`, and holds the server to its answers.
    async fn come_and_go(&self, handle: Handle, number: usize) {
        while !self.stop.load(Ordering::Relaxed) {
            let came = self.terms();
            let made = self.connect(&handle, came.secret.clone()).await;
            let is_known = came.is_settled() && self.terms().asked == came.asked;
            match made {
                Ok(client) => {
                    assert!(came.is_open || !is_known, "it is let in, and restricted: {came:?}");
                    self.use_it(&client, number, &came).await;
                    // Some take leave, and some just go.
                    if number.is_multiple_of(2) {
                        client.close().await;
                    }
                }
                Err(error) => {
                    assert!(!came.is_open || !is_known, "its token is good: {error:?}, {came:?}");
                    self.refused.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Writes and reads for as long as a visit lasts, or until it is cut.
    async fn use_it(&self, client: &Client<Handle>, number: usize, came: &Terms) {
        let (stays, connected) = (number == 0, self.terms());
        let mut visit = 0;
        while !self.stop.load(Ordering::Relaxed) && (stays || visit < 4) {
            visit += 1;
            let before = self.terms();
            let Err(error) = self.write_and_read(client, number).await else {
                assert!(
                    before.cuts_answered <= connected.cuts_asked,
                    "it is to be cut: {connected:?}"
                );
                self.done[number].fetch_add(1, Ordering::Relaxed);
                continue;
            };
            let now = self.terms();
            assert!(now.cuts_asked > came.cuts_answered, "{error}: {came:?}, {now:?}");
            return;
        }
    }

    async fn write_and_read(&self, client: &Client<Handle>, number: usize) -> Result<(), String> {
        let volume = client.volume().await.map_err(|error| format!("{error:?}"))?;
        let count = self.done[number].load(Ordering::Relaxed);
        let (lba, wanted) = (Lba(number as u64), filled(count));
        volume.write(lba, wanted.clone()).await.map_err(|error| format!("{error:?}"))?;
        let read = volume.read(lba, 1).await.map_err(|error| format!("{error:?}"))?;
        assert!(read.as_bytes() == wanted.as_bytes(), "host {number} reads what it wrote");
        Ok(())
    }

    /// Has a change made that ends connections or does not: what it makes the secret, if it does, and whether the volume is open then.
    fn change(&self, cuts: bool, is_open: bool, make: impl FnOnce() -> Option<Secret>) {
        {
            let mut terms = self.terms.lock().unwrap();
            terms.asked += 1;
            terms.cuts_asked += u64::from(cuts);
        }
        let secret = make();
        let mut terms = self.terms.lock().unwrap();
        terms.secret = secret.unwrap_or(terms.secret.clone());
        terms.is_open = is_open;
        terms.answered += 1;
        terms.cuts_answered += u64::from(cuts);
    }

    fn rotate(&self, api: &ApiClient, grace_seconds: Option<u32>, cut: bool) {
        self.change(cut, true, || {
            let tokens = api.change_auth(VOLUME, &ChangeAuth { cut, grace_seconds }).unwrap();
            Some(tokens.token.parse().unwrap())
        });
    }

    fn restrict(&self, api: &ApiClient, hosts: &[Nqn], is_open: bool) {
        self.change(!is_open, is_open, || {
            let hosts = Some(hosts.iter().map(Nqn::to_string).collect());
            let change = ChangeRestrictions { hosts, ..ChangeRestrictions::default() };
            api.restrict(VOLUME, &change).unwrap();
            None
        });
    }

    fn all_go_on(&self) {
        let before = self.done.each_ref().map(|done| done.load(Ordering::Relaxed));
        until("all hosts go on", || {
            let mut pairs = self.done.iter().zip(before);
            pairs.all(|(done, before)| done.load(Ordering::Relaxed) > before + 2)
        });
    }
}

/// NVME-AUTH-5 and NVME-AUTH-7, at a real server: after the answer to a change an old token lets no host in, a
/// good one is refused to none, and connections end for the reasons that are to end them and for no other.
///
/// Method: hosts connect, write, read and leave all the time, and one stays; each knows what was asked for and answered when it came.
#[test]
fn tokens_are_replaced_beside_hosts_that_come_and_go() {
    let server = Server::start_with("mem:256MiB", &["--auth", "on"]);
    let volume = server.volume_json(&["create", VOLUME, "--size", "64MiB"]);
    let text = |field: &str| volume[field].as_str().unwrap();
    let secret: Secret = text("token").parse().unwrap();
    let terms =
        Terms { secret, is_open: true, asked: 0, answered: 0, cuts_asked: 0, cuts_answered: 0 };
    let scene = Arc::new(Scene {
        portal: Ways::to(text("address").parse().unwrap()).address,
        nqn: text("nqn").parse().unwrap(),
        terms: Mutex::new(terms),
        stop: AtomicBool::new(false),
        done: Default::default(),
        refused: AtomicU32::new(0),
    });
    let hosts: Vec<_> = (0..HOSTS)
        .map(|number| {
            let scene = scene.clone();
            std::thread::spawn(move || {
                on_core(|handle| async move { scene.come_and_go(handle, number).await });
            })
        })
        .collect();
    let api = ApiClient::new(&server.api).unwrap();
    let (own, other) = (Nqn::from_uuid(&[7; 16]), Nqn::from_uuid(&[8; 16]));
    for _ in 0..ROUNDS {
        scene.all_go_on();
        let first = scene.terms().secret;
        scene.rotate(&api, None, false);
        assert!(!scene.opens(first.clone()), "it was replaced");
        scene.all_go_on();
        let second = scene.terms().secret;
        scene.rotate(&api, Some(3600), false);
        assert!(scene.opens(second.clone()) && !scene.opens(first), "the grace is for one");
        scene.all_go_on();
        scene.rotate(&api, None, true);
        assert!(!scene.opens(second), "its grace has ended");
        scene.all_go_on();
        scene.restrict(&api, &[own], true);
        scene.all_go_on();
        scene.restrict(&api, &[other], false);
        assert!(!scene.opens(scene.terms().secret), "the volume is another's");
        let before = scene.refused.load(Ordering::Relaxed);
        until("all are refused", || scene.refused.load(Ordering::Relaxed) > before + 10);
        scene.restrict(&api, &[], true);
    }
    scene.all_go_on();
    scene.stop.store(true, Ordering::Relaxed);
    hosts.into_iter().for_each(|host| host.join().unwrap());
    until("nothing is left of them", || {
        let cores = api.server().unwrap().cores;
        cores.iter().all(|core| core.connections == 0)
    });
    assert!(scene.opens(scene.terms().secret));
    api.delete_with_data(VOLUME).unwrap();
}
