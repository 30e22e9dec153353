extern crate std;

use alloc::string::ToString;
use alloc::vec;
use core::net::IpAddr;

use auth::Hash;
use nvme_wire::Nqn;
use proptest::prelude::*;

use super::*;

fn host(name: &str) -> HostName {
    name.parse().expect("a name")
}

fn nqn(name: &str) -> HostName {
    Nqn::new(name).expect("a name").into()
}

fn secret(number: u8) -> Secret {
    Secret::new(Hash::Sha384, &[number; 64])
}

fn token(number: u8) -> Token {
    Token { secret: secret(number), controller: None, until: None }
}

fn full() -> Access {
    Access {
        tokens: vec![
            Token { controller: Some(secret(3)), ..token(1) },
            Token { until: Some(UnixSeconds(1_800_000_000)), ..token(2) },
        ],
        restrictions: Restrictions {
            hosts: [
                "nqn.2024-01.io.example:a",
                "nqn.2024-01.io.example:b",
                "iqn.2024-01.io.example:A",
                "naa.52004567BA64678D",
            ]
            .map(host)
            .into(),
            networks: ["10.0.0.0/8", "2001:db8::/32", "192.0.2.7"]
                .map(|text| text.parse().expect("a network"))
                .into(),
            interfaces: vec!["vxlan42".parse().expect("a name")],
        },
        nbd: NbdAccess {
            networks: ["192.0.2.0/24", "2001:db8:1::/48"]
                .map(|text| text.parse().expect("a network"))
                .into(),
            certificates: vec!["backup.example.com".parse().expect("a name")],
            unix: true,
        },
        owner: Some("acme".into()),
        reservations: vec![1, 2, 3],
    }
}

/// Returns whether `access` admits a client of NBD that comes from `address` by `eth0`, with a certificate for `certificate`.
fn admits(access: &Access, address: &str, certificate: Option<&str>) -> bool {
    let client = NbdClient::Network {
        address: address.parse().expect("an address"),
        interface: &|| Some("eth0"),
        has_certificate: &|name| Some(name.as_str()) == certificate,
    };
    access.admits_nbd(&client)
}

#[test]
fn no_client_of_nbd_is_admitted_before_it_is_named() {
    let mut access = Access::default();
    assert!(access.nbd.is_off());
    assert!(!admits(&access, "192.0.2.7", Some("a.example")));
    assert!(!access.admits_nbd(&NbdClient::Unix));
    access.nbd.networks = vec!["192.0.2.0/24".parse().expect("a network")];
    assert!(admits(&access, "192.0.2.7", None) && admits(&access, "::ffff:192.0.2.7", None));
    assert!(!admits(&access, "192.0.3.7", Some("a.example")));
    assert!(!access.admits_nbd(&NbdClient::Unix) && !access.nbd.is_off());
    access.nbd.certificates = vec!["A.Example".parse().expect("a name")];
    assert!(admits(&access, "192.0.3.7", Some("a.example")), "each opens it by itself");
    access.nbd = NbdAccess { unix: true, ..NbdAccess::default() };
    assert!(access.admits_nbd(&NbdClient::Unix) && !admits(&access, "192.0.2.7", None));
}

/// Restrictions of networks and interfaces hold for clients of NBD that come by the network; names of hosts, which they do not
/// have, do not.
#[test]
fn restrictions_hold_besides_for_clients_of_nbd() {
    let mut access = Access::default();
    access.nbd.networks = vec!["0.0.0.0/0".parse().expect("a network")];
    access.restrictions.hosts = vec![nqn("nqn.2024-01.io.example:a")];
    assert!(admits(&access, "192.0.2.7", None));
    access.restrictions.networks = vec!["10.0.0.0/8".parse().expect("a network")];
    assert!(!admits(&access, "192.0.2.7", None) && admits(&access, "10.1.2.3", None));
    access.restrictions.interfaces = vec!["vxlan42".parse().expect("a name")];
    assert!(!admits(&access, "10.1.2.3", None));
    access.restrictions.interfaces.push("eth0".parse().expect("a name"));
    assert!(admits(&access, "10.1.2.3", None));
}

#[test]
fn names_of_certificates_are_domain_names() {
    for text in ["", "a b", "a/b", "*.example.com", &"a".repeat(254)] {
        assert!(text.parse::<CertificateName>().is_err(), "{text}");
    }
    assert_eq!(
        "A-1.example".parse::<CertificateName>().map(|it| it.to_string()),
        Ok("a-1.example".into())
    );
}

#[test]
fn an_access_survives_encode_then_decode() {
    for access in [Access::default(), full()] {
        let bytes = access.encode().expect("fits");
        assert_eq!(Access::decode(&bytes), Ok(access));
    }
    let default = Access::default().encode();
    assert_eq!(default, Ok(vec![]));
}

/// A server that knows no names of initiators lets no host in (ACCESS-2): they are of a kind of their own.
#[test]
fn names_of_hosts_are_kept_by_their_protocol() {
    let hosts = ["nqn.2024-01.a", "iqn.2024-01.A"].map(host).into();
    let restrictions = Restrictions { hosts, ..Restrictions::default() };
    let bytes = Access { restrictions, ..Access::default() }.encode().expect("fits");
    assert_eq!(bytes, b"\x03\x0d\0nqn.2024-01.a\x0b\x0d\0iqn.2024-01.a");
    for (kind, name) in [(3, "iqn.2024-01.a"), (11, "nqn.2024-01.a")] {
        let field = [&[kind, 13, 0], name.as_bytes()].concat();
        assert_eq!(Access::decode(&field), Err(AccessError::Field { kind }));
    }
}

#[test]
fn names_of_hosts_begin_as_those_of_a_protocol() {
    let error = |text: &str| text.parse::<HostName>().expect_err(text).to_string();
    assert!(error("nqn.x").contains("year and month"));
    assert!(error("NQN.2024-01.io.example:a").contains("`nqn.…`"));
    assert!(error("iqn.2024-01.io.example:a b").contains("no blanks"));
    for text in ["", "x", "iqn", "example.com", "é"] {
        assert!(error(text).contains("`nqn.…`") && error(text).contains("`iqn.…`"), "{text}");
    }
    let odd = ["iqn.2024.example", "EUI.1"].map(host);
    assert!(odd.iter().all(|host| host.matches_no_host().is_some()), "{odd:?}");
    assert!(full().restrictions.hosts.iter().all(|host| host.matches_no_host().is_none()));
}

/// The order of bytes is part of the format.
#[test]
fn fields_lie_as_the_picture_says() {
    let access = Access {
        restrictions: Restrictions {
            networks: vec!["10.1.0.0/16".parse().expect("a network")],
            interfaces: vec!["eth0".parse().expect("a name")],
            ..Restrictions::default()
        },
        ..Access::default()
    };
    let bytes = access.encode().expect("fits");
    assert_eq!(bytes, [4, 5, 0, 16, 10, 1, 0, 0, 5, 4, 0, b'e', b't', b'h', b'0']);
}

/// ACCESS-2.
#[test]
fn what_is_cut_short_or_unknown_is_refused() {
    let bytes = full().encode().expect("fits");
    let fields: Vec<usize> = {
        let mut at = 0;
        let mut ends = vec![0];
        while at < bytes.len() {
            at += 3 + usize::from(u16::from_le_bytes([bytes[at + 1], bytes[at + 2]]));
            ends.push(at);
        }
        ends
    };
    for len in 0..bytes.len() {
        assert_eq!(Access::decode(&bytes[..len]).is_ok(), fields.contains(&len), "{len} bytes");
    }
    for kind in [10, 11] {
        assert_eq!(Access::decode(&[kind, 0, 0]), Err(AccessError::Field { kind }));
    }
    let nbd = NbdAccess { unix: true, ..NbdAccess::default() };
    assert_eq!(Access::decode(&[9, 0, 0]), Ok(Access { nbd, ..Access::default() }));
    for bad in [&[9, 0, 0, 9, 0, 0][..], &[9, 1, 0, 0], &[8, 1, 0, b'*'], &[7, 1, 0, 24]] {
        assert_eq!(Access::decode(bad), Err(AccessError::Field { kind: bad[0] }), "{bad:?}");
    }
    let tokens = vec![token(1); 3];
    let many = Access { tokens, ..Access::default() }.encode().expect("fits");
    assert_eq!(Access::decode(&many), Err(AccessError::Field { kind: 1 }));
    let hosts = vec![nqn(&std::format!("nqn.2024-01.io.example:{}", "x".repeat(190))); 12];
    let restrictions = Restrictions { hosts, ..Restrictions::default() };
    let long = Access { restrictions, ..Access::default() };
    assert!(matches!(long.encode(), Err(AccessError::TooLong { .. })));
}

/// To the byte, both ways.
#[test]
fn a_record_has_as_many_bytes_as_fit_into_a_descriptor() {
    // Ten fields of 200 bytes each, and an owner.
    let host = nqn(&std::format!("nqn.2024-01.io.example:{}", "x".repeat(174)));
    let owner = "o".repeat(ACCESS_BYTES_MAX - 10 * 200 - 3);
    let access = Access {
        restrictions: Restrictions { hosts: vec![host; 10], ..Restrictions::default() },
        owner: Some(owner),
        ..Access::default()
    };
    let mut bytes = access.encode().expect("it fits");
    assert_eq!(bytes.len(), ACCESS_BYTES_MAX);
    assert_eq!(Access::decode(&bytes), Ok(access.clone()));
    bytes.push(0);
    let too_long = Err(AccessError::TooLong { bytes: ACCESS_BYTES_MAX + 1 });
    assert_eq!(Access::decode(&bytes), too_long);
    let owner = access.owner.as_ref().map(|owner| std::format!("{owner}o"));
    assert_eq!(Access { owner, ..access }.encode().map(drop), too_long.map(|_: Access| ()));
}

/// ACCESS-2.
#[test]
fn fields_that_come_too_often_or_are_too_long_are_refused() {
    let field = |kind: u8, value: &[u8]| [&[kind, value.len() as u8, 0], value].concat();
    let owner = |len: usize| field(6, "o".repeat(len).as_bytes());
    assert!(Access::decode(&owner(OWNER_BYTES_MAX)).is_ok());
    let refused = |bytes: &[u8], kind| {
        assert_eq!(Access::decode(bytes), Err(AccessError::Field { kind }));
    };
    refused(&owner(OWNER_BYTES_MAX + 1), 6);
    refused(&[owner(3), owner(3)].concat(), 6);
    let proof = field(2, secret(3).reveal().as_bytes());
    refused(&proof, 2);
    let reserved = field(10, &[1, 2]);
    assert!(Access::decode(&reserved).is_ok());
    refused(&[&reserved[..], &reserved].concat(), 10);
    let known = Access { tokens: vec![token(1)], ..Access::default() }.encode().expect("fits");
    assert!(Access::decode(&[&known[..], &proof].concat()).is_ok());
    refused(&[&known[..], &proof, &proof].concat(), 2);
}

#[test]
fn a_restriction_of_any_kind_is_one() {
    let Restrictions { hosts, networks, interfaces } = full().restrictions;
    assert!(Restrictions::default().is_empty());
    for restrictions in [
        Restrictions { hosts, ..Restrictions::default() },
        Restrictions { networks, ..Restrictions::default() },
        Restrictions { interfaces, ..Restrictions::default() },
    ] {
        assert!(!restrictions.is_empty(), "{restrictions:?}");
    }
}

#[test]
fn a_visitor_must_match_each_list_that_is_not_empty() {
    let restrictions = full().restrictions;
    let (a, other) = (nqn("nqn.2024-01.io.example:a"), nqn("nqn.2024-01.io.example:c"));
    let address = |text: &str| text.parse::<IpAddr>().expect("an address");
    let at = |host: &HostName, from: &str, interface| {
        let host = host.as_str();
        restrictions.admit(&Visitor { host, address: address(from), interface })
    };
    let vxlan = Some("vxlan42");
    for (initiator, is_admitted) in
        [("IQN.2024-01.io.Example:a", true), ("iqn.2024-01.io.example:ab", false)]
    {
        assert_eq!(at(&host(initiator), "10.200.3.4", vxlan), is_admitted, "{initiator}");
    }
    assert!(at(&a, "10.200.3.4", vxlan));
    assert!(at(&a, "::ffff:10.200.3.4", vxlan), "an IPv4 address in another form");
    assert!(at(&a, "2001:db8:1::2", vxlan));
    assert!(at(&a, "192.0.2.7", vxlan));
    assert!(!at(&a, "192.0.2.8", vxlan));
    assert!(!at(&other, "10.200.3.4", vxlan));
    assert!(!at(&a, "10.200.3.4", Some("vxlan4")));
    assert!(!at(&a, "10.200.3.4", None), "an interface that is not known is none of the list");
    let none = Restrictions::default();
    assert!(none.admit(&Visitor {
        host: other.as_str(),
        address: address("::1"),
        interface: None
    }));
}

#[test]
fn networks_are_read_with_care() {
    let network = |text: &str| text.parse::<Network>();
    assert_eq!(network("192.0.2.7").map(|n| n.to_string()), Ok("192.0.2.7/32".into()));
    assert_eq!(network("::/0").map(|n| n.to_string()), Ok("::/0".into()));
    let wanted = network("10.0.0.0/8").expect("a network");
    assert_eq!(network("10.0.0.5/8"), Err(NetworkError::HostBits { network: wanted }));
    for bad in ["", "10.0.0.0/33", "10.0.0/8", "all", "2001:db8::/129", "10.0.0.0/8 "] {
        assert_eq!(network(bad), Err(NetworkError::Form), "{bad:?}");
    }
}

/// Addresses of hosts are compared as IPv4 addresses where they are such: so are networks, also those of a record that was kept in
/// the other form.
#[test]
fn a_network_of_ipv4_addresses_is_the_same_however_it_is_written() {
    for (mapped, plain) in [
        ("::ffff:127.0.0.0/104", "127.0.0.0/8"),
        ("::ffff:192.0.2.7", "192.0.2.7/32"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
    ] {
        let network = mapped.parse::<Network>().expect("a network");
        assert_eq!(Ok(network), plain.parse(), "{mapped}");
        assert_eq!(network.to_string(), plain);
        assert!(network.contains(network.address()), "{mapped}");
        let (address, prefix_len) = mapped.split_once('/').unwrap_or((mapped, "128"));
        let address: std::net::Ipv6Addr = address.parse().expect("an address");
        let prefix = [prefix_len.parse::<u8>().expect("a number")];
        let record = [&[4, 17, 0][..], &prefix, &address.octets()].concat();
        let kept = Access::decode(&record).expect("a record").restrictions;
        assert_eq!(kept.networks, [network], "{mapped}");
    }
    let wanted = "10.0.0.0/8".parse::<Network>().expect("a network");
    let bits = "::ffff:10.0.0.5/104".parse::<Network>();
    assert_eq!(bits, Err(NetworkError::HostBits { network: wanted }));
    let all = "::/0".parse::<Network>().expect("a network");
    assert!(all.contains("2001:db8::1".parse().expect("an address")), "what is of IPv6 stays");
}

#[test]
fn networks_that_no_host_comes_from_are_told() {
    for text in ["224.0.0.0/4", "239.1.2.3", "ff02::/16", "0.0.0.0", "::", "255.255.255.255"] {
        let network = text.parse::<Network>().expect("a network");
        assert!(network.matches_no_host().is_some(), "{text}");
    }
    for text in
        ["0.0.0.0/0", "::/0", "10.0.0.0/8", "fe80::/10", "127.0.0.0/8", "::1", "192.0.0.0/2"]
    {
        let network = text.parse::<Network>().expect("a network");
        assert_eq!(network.matches_no_host(), None, "{text}");
    }
}

#[test]
fn names_of_interfaces_are_those_of_the_system() {
    for good in ["lo", "eth0.100", "br-3f2a", "123456789012345"] {
        let name = good.parse::<InterfaceName>().expect("a name");
        assert_eq!((name.as_str(), name.to_string()), (good, good.to_string()));
    }
    for bad in ["", "1234567890123456"] {
        assert_eq!(bad.parse::<InterfaceName>(), Err(InterfaceNameError::Length), "{bad:?}");
    }
    for bad in ["a b", "a/b", "a:b", ".", "..", "a\0"] {
        assert_eq!(bad.parse::<InterfaceName>(), Err(InterfaceNameError::Character), "{bad:?}");
    }
}

/// ACCESS-3.
#[test]
fn a_token_takes_the_place_of_another_with_or_without_grace() {
    let valid = |access: &Access, now| {
        access.tokens_at(UnixSeconds(now)).map(|token| token.secret.clone()).collect::<Vec<_>>()
    };
    let mut access = Access::default();
    assert!(valid(&access, 100).is_empty());
    let once_limited = Token { until: Some(UnixSeconds(150)), ..token(1) };
    access.rotate(once_limited, UnixSeconds(100), None);
    assert_eq!(valid(&access, 151), [secret(1)], "a new one is for ever");
    access.rotate(token(2), UnixSeconds(200), Some(UnixSeconds(260)));
    assert_eq!(valid(&access, 259), [secret(2), secret(1)]);
    assert_eq!(valid(&access, 260), [secret(2)]);
    // A second change within the grace period leaves two, and does not prolong what was granted.
    access.rotate(token(3), UnixSeconds(210), Some(UnixSeconds(1000)));
    assert_eq!(valid(&access, 211), [secret(3), secret(2)]);
    access.rotate(token(4), UnixSeconds(220), None);
    assert_eq!(valid(&access, 221), [secret(4)]);
}

/// ACCESS-3: to the second.
#[test]
fn tokens_that_open_nothing_any_more_are_forgotten() {
    let mut access = full();
    access.forget_expired(UnixSeconds(1_799_999_999));
    assert_eq!(access.tokens.len(), 2);
    access.forget_expired(UnixSeconds(1_800_000_000));
    assert_eq!(access.tokens, full().tokens[..1]);
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_come_back_the_same(bytes in prop::collection::vec(0_u8..8, 0..64)) {
        if let Ok(access) = Access::decode(&bytes) {
            let again = access.encode().expect("it was short enough");
            prop_assert_eq!(Access::decode(&again), Ok(access));
        }
    }
}
