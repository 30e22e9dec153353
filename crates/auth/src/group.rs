//! The groups of RFC 7919, and arithmetic in them.

use alloc::vec::Vec;

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};
use zeroize::Zeroizing;

/// The fraction of e, from its second binary digit before the point: the middle of every modulus.
/// The smaller ones have as much of it as they take.
const E: &str = "\
    adf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b3ef97d2fe363\
    630c75d8f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e7f57c935\
    984f0c70e0e68b77e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182b324fb61d108a94b\
    b2c8e3fbb96adab760d7f4681d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ec\
    c03404cd28342f619172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005c58ef183\
    7d1683b2c6f34a26c1b2effa886b4238611fcfdcde355b3b6519035bbc34f4def99c023861b46fc9d6e6c907\
    7ad91d2691f7f7ee598cb0fac186d91caefe130985139270b4130c93bc437944f4fd4452e2d74dd364f2e21e\
    71f54bff5cae82ab9c9df69ee86d2bc522363a0dabc521979b0deada1dbf9a42d5c4484e0abcd06bfa53ddef\
    3c1b20ee3fd59d7c25e41d2b669e1ef16e6f52c3164df4fb7930e9e4e58857b6ac7d5f42d69f6d187763cf1d\
    5503400487f55ba57e31cc7a7135c886efb4318aed6a1e012d9e6832a907600a918130c46dc778f971ad0038\
    092999a333cb8b7a1a1db93d7140003c2a4ecea9f98d0acc0a8291cdcec97dcf8ec9b55a7f88a46b4db5a851\
    f44182e1c68a007e5e0dd9020bfd64b645036c7a4e677d2c38532a3a23ba4442caf53ea63bb454329b7624c8\
    917bdd64b1c0fd4cb38e8c334c701c3acdad0657fccfec719b1f5c3e4e46041f388147fb4cfdb477a52471f7\
    a9a96910b855322edb6340d8a00ef092350511e30abec1fff9e3a26e7fb29f8c183023c3587e38da0077d9b4\
    763e4e4b94b2bbc194c6651e77caf992eeaac0232a281bf6b3a739c1226116820ae8db5847a67cbef9c9091b\
    462d538cd72b03746ae77f5e62292c311562a846505dc82db854338ae49f5235c95b91178ccf2dd5cacef403\
    ec9d1810c6272b045b3b71f9dc6b80d63fdd4a8e9adb1e6962a69526d43161c1a41d570d7938dad4a40e329c\
    cff46aaa36ad004cf600c8381e425a31d951ae64fdb23fcec9509d43687feb69edd1cc5e0b8cc3bdf64b10ef\
    86b63142a3ab8829555b2f747c932665cb2c0f1cc01bd70229388839d2af05e454504ac78b7582822846c0ba\
    35c35f5c59160cc046fd8251541fc68c9c86b022bb7099876a460e7451a8a93109703fee1c217e6c3826e52c\
    51aa691e0e423cfc99e9e31650c1217b624816cdad9a95f9d5b8019488d9c0a0a1fe3075a577e23183f81d4a\
    3f2fa4571efc8ce0ba8a4fe8b6855dfe72b0a66eded2fbabfbe58a30fafabe1c5d71a87e2f741ef8c1fe86fe\
    a6bbfde530677f0d97d11d49f7a8443d0822e506a9f4614e011e2a94838ff88cd68c8bb7c51eef6d";
/// Ones at either end of a modulus, in bytes.
const ONES_LEN: usize = 8;

/// A group in which two parties agree on a number that no third party knows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Group {
    /// None: responses can be guessed off line, as far as secrets can be guessed at all.
    Null,
    /// ffdhe2048.
    Ffdhe2048,
    /// ffdhe3072.
    Ffdhe3072,
    /// ffdhe4096.
    Ffdhe4096,
    /// ffdhe6144.
    Ffdhe6144,
    /// ffdhe8192.
    Ffdhe8192,
}

impl Group {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Null,
        Self::Ffdhe2048,
        Self::Ffdhe3072,
        Self::Ffdhe4096,
        Self::Ffdhe6144,
        Self::Ffdhe8192,
    ];

    /// The identifier in messages.
    #[must_use]
    pub const fn id(self) -> u8 {
        self as u8
    }

    /// From its identifier.
    #[must_use]
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.id() == id)
    }

    /// The name that hosts and targets have for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Ffdhe2048 => "ffdhe2048",
            Self::Ffdhe3072 => "ffdhe3072",
            Self::Ffdhe4096 => "ffdhe4096",
            Self::Ffdhe6144 => "ffdhe6144",
            Self::Ffdhe8192 => "ffdhe8192",
        }
    }

    /// From its name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.name() == name)
    }

    /// Bytes of a public value; 0 for the null group.
    #[must_use]
    pub const fn len_bytes(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 256,
            Self::Ffdhe3072 => 384,
            Self::Ffdhe4096 => 512,
            Self::Ffdhe6144 => 768,
            Self::Ffdhe8192 => 1024,
        }
    }

    /// Random bytes of a private exponent: twice the group's strength, and then some (RFC 7919,
    /// section 5.2).
    pub(crate) const fn exponent_len_bytes(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 32,
            Self::Ffdhe3072 => 40,
            Self::Ffdhe4096 => 48,
            Self::Ffdhe6144 => 48,
            Self::Ffdhe8192 => 56,
        }
    }

    /// The addend that makes the modulus a safe prime (RFC 7919, appendix A).
    const fn added(self) -> u32 {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 560_316,
            Self::Ffdhe3072 => 2_625_351,
            Self::Ffdhe4096 => 5_736_041,
            Self::Ffdhe6144 => 15_705_020,
            Self::Ffdhe8192 => 10_965_728,
        }
    }

    fn bits(self) -> u32 {
        self.len_bytes() as u32 * 8
    }

    fn modulus(self) -> BoxedUint {
        let mut bytes = Vec::with_capacity(self.len_bytes());
        bytes.resize(ONES_LEN, 0xFF);
        let digits = E.as_bytes().chunks_exact(2).take(self.len_bytes() - 2 * ONES_LEN);
        bytes.extend(digits.map(|pair| nibble(pair[0]) << 4 | nibble(pair[1])));
        // The modulus ends in ones because 1 is taken from it, which borrows from here.
        let mut carry = self.added() - 1;
        for byte in bytes.iter_mut().rev() {
            carry += u32::from(*byte);
            (*byte, carry) = ((carry & 0xFF) as u8, carry >> 8);
        }
        bytes.resize(self.len_bytes(), 0xFF);
        self.number(&bytes)
    }

    fn number(self, bytes: &[u8]) -> BoxedUint {
        BoxedUint::from_be_slice(bytes, self.bits()).expect("at most as long as the modulus")
    }

    fn power(self, base: BoxedUint, modulus: BoxedUint, private: &[u8]) -> BoxedUint {
        let modulus = Odd::new(modulus).expect("it ends in ones");
        let params = BoxedMontyParams::new(modulus);
        let bits = private.len() as u32 * 8;
        let exponent = BoxedUint::from_be_slice(private, bits).expect("of this length");
        BoxedMontyForm::new(base, &params).pow_bounded_exp(&exponent, bits).retrieve()
    }

    /// The public value of `private`.
    pub(crate) fn public(self, private: &[u8]) -> Vec<u8> {
        self.power(self.number(&[2]), self.modulus(), private).to_be_bytes().into()
    }

    /// The secret that follows from `private` and the public value `peer`. `None` if `peer` is no
    /// value that an honest peer sends: 0, 1, -1, or not below the modulus.
    pub(crate) fn shared(self, private: &[u8], peer: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        if peer.len() != self.len_bytes() {
            return None;
        }
        let (peer, modulus) = (self.number(peer), self.modulus());
        let one = BoxedUint::one_with_precision(self.bits());
        let last = modulus.wrapping_sub(&one);
        if peer <= one || peer >= last {
            return None;
        }
        let shared = self.power(peer, modulus, private);
        Some(Zeroizing::new(shared.to_be_bytes().into()))
    }
}

fn nibble(digit: u8) -> u8 {
    (digit as char).to_digit(16).expect("a hexadecimal digit") as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By Fermat: of numbers this large that are not prime, hardly one passes.
    fn looks_prime(number: &BoxedUint, group: Group) -> bool {
        let one = BoxedUint::one_with_precision(group.bits());
        let exponent = number.wrapping_sub(&one).to_be_bytes();
        group.power(group.number(&[2]), number.clone(), &exponent) == one
    }

    #[test]
    fn moduli_are_safe_primes() {
        for group in [Group::Ffdhe2048, Group::Ffdhe3072, Group::Ffdhe4096] {
            let modulus = group.modulus();
            assert_eq!(modulus.bits(), group.bits());
            assert!(looks_prime(&modulus, group), "{group:?}");
            assert!(looks_prime(&modulus.shr(1), group), "{group:?}");
        }
        // The larger ones take seconds for both; one of the two does as well.
        for group in [Group::Ffdhe6144, Group::Ffdhe8192] {
            assert!(looks_prime(&group.modulus(), group), "{group:?}");
        }
    }

    #[test]
    fn both_sides_agree() {
        for group in &Group::ALL[1..] {
            let len = group.exponent_len_bytes();
            let (a, b) = (alloc::vec![3; len], alloc::vec![5; len]);
            let (public_a, public_b) = (group.public(&a), group.public(&b));
            assert_eq!(public_a.len(), group.len_bytes());
            let shared = group.shared(&a, &public_b).expect("a public value");
            assert_eq!(Some(shared), group.shared(&b, &public_a));
        }
    }

    /// RFC 7919, section 5.2: a shorter exponent is easier to find than the group promises.
    #[test]
    fn private_exponents_are_as_long_as_the_strength_of_their_group_asks() {
        let bits = Group::ALL.map(|group| group.exponent_len_bytes() * 8);
        for (bits, least) in bits.into_iter().zip([0, 225, 275, 325, 375, 400]) {
            assert!(bits >= least && bits <= 2 * least, "{bits} bits, at least {least}");
        }
    }

    #[test]
    fn values_that_give_the_secret_away_are_refused() {
        let group = Group::Ffdhe2048;
        let private = [9; 32];
        let mut value = alloc::vec![0; 256];
        assert_eq!(group.shared(&private, &value), None, "0");
        value[255] = 1;
        assert_eq!(group.shared(&private, &value), None, "1");
        value[255] = 2;
        assert!(group.shared(&private, &value).is_some(), "2");
        let modulus = group.modulus();
        let one = BoxedUint::one_with_precision(group.bits());
        assert_eq!(group.shared(&private, &modulus.wrapping_sub(&one).to_be_bytes()), None, "-1");
        assert_eq!(group.shared(&private, &modulus.to_be_bytes()), None, "the modulus");
        assert_eq!(group.shared(&private, &value[1..]), None, "short");
    }
}
