//! The access of a volume, as it is stored on a device.

use ::access::{Access, Restrictions, Token, UnixSeconds, Visitor};
use ::auth::{Hash, Secret};
use nvme_wire::Nqn;

fn host() -> Nqn {
    Nqn::new("nqn.2024-01.io.example:host").expect("a name")
}

/// Decodes an access; encoded and decoded again it must be the same, and admit the same hosts.
pub fn run(bytes: &[u8]) {
    let Ok(access) = Access::decode(bytes) else { return };
    let host = host();
    let visitor =
        Visitor { host: host.as_str(), address: [10, 0, 0, 7].into(), interface: Some("eth0") };
    let admits = access.restrictions.admit(&visitor);
    // The text of a token may be written in more ways than one; ours can be longer than another's.
    let Ok(written) = access.encode() else { return };
    let again = Access::decode(&written).expect("just written");
    assert_eq!(again, access);
    assert_eq!(again.restrictions.admit(&visitor), admits);
    assert!(access.tokens_at(UnixSeconds(u64::MAX)).count() <= access.tokens.len());
}

/// Each kind of field, alone and together.
pub fn seeds() -> Vec<Vec<u8>> {
    let secret = |byte| Secret::new(Hash::Sha256, &[byte; 64]);
    let token =
        Token { secret: secret(1), controller: Some(secret(2)), until: Some(UnixSeconds(7)) };
    let restrictions = Restrictions {
        hosts: vec![host().into(), "iqn.2024-01.io.example:host".parse().expect("a name")],
        networks: ["10.0.0.0/8", "2001:db8::/32"].map(|n| n.parse().expect("a network")).into(),
        interfaces: vec!["eth0".parse().expect("a name")],
    };
    let tokens = Access { tokens: vec![token], ..Access::default() };
    let restricted = Access { restrictions: restrictions.clone(), ..Access::default() };
    let owned = Access { owner: Some("acme".into()), ..Access::default() };
    let all = Access { restrictions, owner: owned.owner.clone(), ..tokens.clone() };
    [tokens, restricted, owned, all].iter().map(|a| a.encode().expect("short")).collect()
}
