use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};

use directory::{CoreRecord, HostRecord};
use nvme_wire::pdu::IcResp;

use super::*;

/// More than any answer takes.
const LONG: Duration = Duration::from_secs(60);
/// Time limit for a probe without an answer, which need not be long.
const SHORT: Duration = Duration::from_millis(200);
const DEVICE: Uuid = Uuid::from_u128(0xd);

/// A listener that answers whatever it is told with `what`, if anything, and then keeps the connection or closes it.
fn listener(what: Option<Vec<u8>>, closes: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(what.as_deref().unwrap_or_default());
            if closes {
                // Closing with bytes unread would reset the connection.
                let _ = stream.shutdown(Shutdown::Write);
                let _ = stream.read_to_end(&mut Vec::new());
            } else {
                kept.push(stream);
            }
        }
    });
    address
}

fn answer(answer: &IcResp) -> Option<Vec<u8>> {
    Some(answer.as_bytes().to_vec())
}

fn ic_resp() -> IcResp {
    IcResp::new(Digests::default(), 1 << 17)
}

#[tokio::test]
async fn a_portal_is_told_from_whatever_else_has_its_address() {
    let sound = listener(answer(&ic_resp()), false);
    assert_eq!(ask_portal(sound, LONG).await, Presence::Serving);
    for closes in [false, true] {
        let wrong_length =
            IcResp { ch: CommonHeader { plen: 4_000_000_000.into(), ..ic_resp().ch }, ..ic_resp() };
        for garbage in [b"SSH-2.0-x\r\n".to_vec(), b"x".to_vec(), wrong_length.as_bytes().to_vec()]
        {
            let address = listener(Some(garbage), closes);
            assert_eq!(ask_portal(address, LONG).await, Presence::Another);
        }
        let address = listener(None, closes);
        let patience = if closes { LONG } else { SHORT };
        assert_eq!(ask_portal(address, patience).await, Presence::Silent, "closes: {closes}");
        // A part of an answer and no more: SEEK-HOLDER-3, or something else that has ended.
        let begun = if closes { Presence::Another } else { Presence::Silent };
        let address = listener(Some(vec![1, 0, 128]), closes);
        assert_eq!(ask_portal(address, patience).await, begun, "closes: {closes}");
    }
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    assert_eq!(ask_portal(free, LONG).await, Presence::Absent);
}

/// SEEK-HOLDER-2 and SEEK-HOLDER-3: an address that answers goes before one that is silent, and both before one
/// without a listener.
#[tokio::test]
async fn a_holder_is_seen_at_any_of_its_addresses() {
    let (portal, silent) = (listener(answer(&ic_resp()), false), listener(None, false));
    let garbage = listener(Some(b"220 ready\r\n".to_vec()), true);
    let at = |api: SocketAddr, portals: &[SocketAddr]| {
        let (id, name) = (Uuid::from_u128(0xa), "a".to_owned());
        let api = Some(OtherHost { id, name, api, api_certificate: None });
        Places { api, portals: portals.to_vec() }
    };
    let seen = |address, answers| Some(Sighting { address, answers });
    // These wait until the time is up, which is long enough for the listeners that answer.
    let until_the_end = |places: Places| places.ask(DEVICE, Duration::from_secs(10));
    let both = tokio::join!(
        until_the_end(at(garbage, &[garbage, portal, silent])),
        until_the_end(at(silent, &[garbage, garbage])),
    );
    assert_eq!(both, (seen(portal, true), seen(silent, false)));
    let ask = async |places: Places| places.ask(DEVICE, LONG).await;
    assert_eq!(ask(at(garbage, &[garbage, garbage])).await, None);
    // An API that is the holder's, and says that it does not serve the device.
    let body = r#"{"host":"00000000-0000-0000-0000-00000000000a","serves":false}"#;
    let idle = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let says = |text: String| listener(Some(text.into_bytes()), true);
    assert_eq!(ask(at(says(idle.clone()), &[portal, silent])).await, None);
    let another = says(idle.replace("000a", "000b"));
    assert_eq!(ask(at(another, &[portal])).await, seen(portal, true));
    let serving = says(idle.replace("false", "true "));
    assert_eq!(ask(at(serving, &[garbage])).await, seen(serving, true));
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// SEEK-HOLDER-4.
#[test]
fn addresses_of_others_are_not_asked() {
    let claim = |boot: &str, api: &str, portals: &[&str]| ClaimRecord {
        host: Uuid::from_u128(0xa),
        host_name: "a".to_owned(),
        session: Uuid::nil(),
        number: 1,
        labels: BTreeMap::new(),
        device_name: "file:/a".to_owned(),
        volatile: false,
        model: None,
        serial: None,
        boot: boot.to_owned(),
        api: Some(address(api)),
        api_certificate: Some("x".to_owned()),
        portals: portals.iter().map(|portal| address(portal)).collect(),
        fence_after_ms: None,
    };
    let host = |id: u128, api: &str, portal: &str| HostRecord {
        id: Uuid::from_u128(id),
        name: id.to_string(),
        session: Uuid::nil(),
        boot: String::new(),
        version: String::new(),
        api: address(api),
        api_certificate: None,
        discovery: None,
        labels: BTreeMap::new(),
        portals_also: Vec::new(),
        fence_after_ms: None,
        cores: vec![CoreRecord { core: 0, portal: address(portal) }],
        devices: Vec::new(),
    };
    let mut view = View::default();
    for host in [host(0xa, "192.0.2.1:1", "192.0.2.1:2"), host(0xc, "192.0.2.3:1", "192.0.2.3:2")] {
        view.hosts.insert(host.id, Arc::new(host));
    }
    let own = ["0.0.0.0:4420", "192.0.2.2:7"].map(address).to_vec();
    let here = Here { own, boot: "this".to_owned() };
    let asked = |claim: &ClaimRecord| {
        let Places { api, portals } = here.places(claim, &view);
        (api.map(|host| host.api), portals)
    };
    let its = ["192.0.2.1:2", "203.0.113.3:4420", "198.51.100.1:4420"];
    let api = "192.0.2.1:1";
    let all = (Some(address(api)), its.map(address).to_vec());
    assert_eq!(asked(&claim("", api, &its)), all);
    let known = ["192.0.2.3:2", "192.0.2.2:7", "0.0.0.0:9", "192.0.2.9:0", "[::]:9"];
    assert_eq!(asked(&claim("this", "192.0.2.3:1", &known)), (None, Vec::new()));
    // This host listens on port 4420 of all addresses, and on no other port of loopback.
    let loopback = ["127.0.0.1:4420", "127.0.0.2:4420", "127.0.0.1:4421"];
    assert_eq!(asked(&claim("this", api, &loopback)).1, [address("127.0.0.1:4421")]);
    assert_eq!(asked(&claim("another", "127.0.0.1:1", &loopback)), (None, Vec::new()));
    let most = claim("this", api, &["192.0.2.1:2"; PORTALS_MAX + 1]);
    assert_eq!(asked(&most).1.len(), PORTALS_MAX);
}
