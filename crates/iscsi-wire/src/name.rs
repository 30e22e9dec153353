//! iSCSI names (RFC 7143, clause 4.2.7).

use alloc::string::String;
use core::fmt;

/// Longest name in bytes.
pub const NAME_LEN_MAX: usize = 223;

/// Why a text is no iSCSI name.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NameError {
    /// Empty, or longer than [`NAME_LEN_MAX`].
    #[error("an iSCSI name has 1 to 223 bytes")]
    Length,
    /// Neither `iqn.`, `eui.` nor `naa.`.
    #[error("an iSCSI name starts with `iqn.`, `eui.` or `naa.`")]
    Type,
    /// A byte that no name has.
    #[error("an iSCSI name has no blanks and no control characters")]
    Character,
    /// A character that is not seen, or that changes how others are.
    #[error("an iSCSI name has no character such as U+{:04X}, which is not seen, or stands for another", u32::from(*.0))]
    Hidden(char),
}

/// An iSCSI name in the form in which names are compared: letters are lower case (RFC 3722, clause 3). Names beyond ASCII are
/// not normalized otherwise: RFC 3722 has the side that takes one in from a person do that.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct IscsiName(String);

impl IscsiName {
    /// Checks `name` and takes a copy of it.
    ///
    /// # Errors
    /// It is none.
    pub fn new(name: &str) -> Result<Self, NameError> {
        match name.chars().find(|c| is_hidden(*c)) {
            Some(hidden) => Err(NameError::Hidden(hidden)),
            None => Self::saved(name),
        }
    }

    /// The same for a name that was saved, perhaps by a version that let in hidden characters: what is stored stays readable.
    ///
    /// # Errors
    /// It is none.
    pub fn saved(name: &str) -> Result<Self, NameError> {
        if !(1..=NAME_LEN_MAX).contains(&name.len()) {
            return Err(NameError::Length);
        }
        // Character by character: a letter does not depend on those beside it.
        let name: String = name.chars().flat_map(char::to_lowercase).collect();
        if name.len() > NAME_LEN_MAX {
            return Err(NameError::Length);
        }
        if !["iqn.", "eui.", "naa."].iter().any(|prefix| name.starts_with(prefix)) {
            return Err(NameError::Type);
        }
        if name.contains(|c: char| c.is_control() || c.is_whitespace() || c == ',') {
            return Err(NameError::Character);
        }
        Ok(Self(name))
    }

    /// Returns how it deviates from the form of its type (RFC 7143, clause 4.2.7). Initiators send such names, too:
    /// a departure is a typing mistake more often than the name of one.
    #[must_use]
    pub fn departs_from_its_form(&self) -> Option<&'static str> {
        let (kind, rest) = self.0.split_at(4);
        let is_hex = |lens: &[usize]| {
            lens.contains(&rest.len()) && rest.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        let is_odd = |c: char| c.is_ascii() && !c.is_ascii_alphanumeric() && !"-.:".contains(c);
        match kind {
            "eui." if !is_hex(&[16]) => Some("`eui.` is followed by 16 hexadecimal digits"),
            "naa." if !is_hex(&[16, 32]) => {
                Some("`naa.` is followed by 16 or 32 hexadecimal digits")
            }
            "iqn." if !has_date_and_domain(rest) => {
                Some("`iqn.` is followed by a year and month such as `2024-01`, a dot and a domain")
            }
            "iqn." if rest.contains(is_odd) => {
                Some("its characters are letters, digits, `-`, `.` and `:`")
            }
            _ => None,
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IscsiName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns whether a character beyond ASCII is one that RFC 3722 prohibits (clause 5), or removes (clause 3): a line of a log, or of
/// a terminal, shows another name than the one that it has. Control characters and blanks are refused beside this.
fn is_hidden(c: char) -> bool {
    matches!(c,
        // Mapped to nothing (RFC 3454, B.1), and format characters (C.2.2, C.6, C.8), among them those of later versions of Unicode.
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{1806}' | '\u{180b}'..='\u{180e}'
        | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff9}'..='\u{ffff}' | '\u{1d173}'..='\u{1d17a}'
        // Marks of tone (C.8), descriptions of ideographs (C.7), and the full stop of RFC 3722 itself.
        | '\u{340}' | '\u{341}' | '\u{2ff0}'..='\u{2ffb}' | '\u{3002}'
        // Private use and no characters (C.3, C.4), tags (C.9).
        | '\u{e000}'..='\u{f8ff}' | '\u{fdd0}'..='\u{fdef}' | '\u{e0000}'..='\u{10ffff}')
        || u32::from(c) & 0xFFFE == 0xFFFE
}

/// Returns whether `text` begins with `yyyy-mm.` and a domain.
fn has_date_and_domain(text: &str) -> bool {
    let Some((date, rest)) = text.split_once('.') else { return false };
    let domain = rest.split(':').next().unwrap_or_default();
    let bytes = date.as_bytes();
    let has_form = bytes.len() == 7
        && bytes.iter().enumerate().all(|(at, byte)| match at {
            4 => *byte == b'-',
            _ => byte.is_ascii_digit(),
        });
    let is_month = || ("01"..="12").contains(&&date[5..]);
    has_form && is_month() && domain.split('.').all(|label| !label.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_compared_in_lower_case() {
        let name = IscsiName::new("IQN.1993-08.org.Debian:01:ab").expect("a name");
        assert_eq!(name.as_str(), "iqn.1993-08.org.debian:01:ab");
        assert_eq!(IscsiName::new(""), Err(NameError::Length));
        assert_eq!(IscsiName::new(&"i".repeat(224)), Err(NameError::Length));
        assert_eq!(IscsiName::new("nqn.2014-08.org.x"), Err(NameError::Type));
        assert_eq!(IscsiName::new("iqn.2014-08.org x"), Err(NameError::Character));
    }

    /// The length counts in the form in which names are compared.
    #[test]
    fn letters_beyond_ascii_are_lower_case_too() {
        let name = IscsiName::new("iqn.1993-08.org.Ärzte:Σ").expect("a name");
        assert_eq!(name.as_str(), "iqn.1993-08.org.ärzte:σ");
        let grows = alloc::format!("iqn.{}", "\u{130}".repeat(109));
        assert_eq!((grows.len(), IscsiName::new(&grows)), (222, Err(NameError::Length)));
    }

    /// A name that a terminal shows as another one, or that steers the terminal, is none. Those that were saved stay.
    #[test]
    fn characters_that_are_not_seen_are_refused() {
        for control in
            ['\0', '\u{7}', '\u{1b}', '\u{7f}', '\u{9b}', '\u{85}', ' ', '\u{a0}', '\u{2028}', '\n']
        {
            let name = alloc::format!("iqn.2026-11.example:{control}[2J");
            assert_eq!(IscsiName::new(&name), Err(NameError::Character), "{control:?}");
            assert_eq!(IscsiName::saved(&name), Err(NameError::Character), "{control:?}");
        }
        for hidden in [
            '\u{ad}',
            '\u{34f}',
            '\u{61c}',
            '\u{6dd}',
            '\u{70f}',
            '\u{1806}',
            '\u{180b}',
            '\u{180e}',
            '\u{200b}',
            '\u{200f}',
            '\u{202a}',
            '\u{202e}',
            '\u{2060}',
            '\u{2066}',
            '\u{206f}',
            '\u{fe00}',
            '\u{fe0f}',
            '\u{feff}',
            '\u{fff9}',
            '\u{fffd}',
            '\u{ffff}',
            '\u{1d173}',
            '\u{340}',
            '\u{341}',
            '\u{2ff0}',
            '\u{3002}',
            '\u{e000}',
            '\u{f8ff}',
            '\u{fdd0}',
            '\u{1fffe}',
            '\u{e0001}',
            '\u{e007f}',
            '\u{f0000}',
            '\u{10ffff}',
        ] {
            let name = alloc::format!("iqn.2026-11.example:{hidden}a");
            assert_eq!(IscsiName::new(&name), Err(NameError::Hidden(hidden)), "{hidden:?}");
            assert_eq!(IscsiName::saved(&name).expect("it was saved").as_str(), name);
            let told = alloc::format!("{}", NameError::Hidden(hidden));
            assert!(!told.contains(hidden), "{told}");
        }
        for letters in ["ärzte", "日本", "東京-1", "ελ", "𐐨", "שלום", "क्षि", "é"]
        {
            let name = alloc::format!("iqn.2026-11.example:{letters}");
            assert_eq!(IscsiName::new(&name).expect("a name").as_str(), name);
        }
    }

    #[test]
    fn names_that_are_not_of_their_types_form_are_told() {
        for (text, part) in [
            ("iqn.1993-08.org.debian:01:ab-c.d", ""),
            ("iqn.2001-04.com.example", ""),
            ("eui.02004567A425678D", ""),
            ("naa.52004567BA64678D", ""),
            ("naa.62004567BA64678D0123456789ABCDEF", ""),
            ("iqn.com.example:a", "year and month"),
            ("iqn.2001-13.com.example", "year and month"),
            ("iqn.2001-04.", "a domain"),
            ("iqn.2001-04.com..example", "a domain"),
            ("iqn.2001-04.com.example:a_b", "letters, digits"),
            ("eui.02004567A425678", "16 hexadecimal"),
            ("eui.02004567A425678X", "16 hexadecimal"),
            ("naa.52004567BA64678D01", "16 or 32"),
        ] {
            let departs = IscsiName::new(text).expect("a name").departs_from_its_form();
            match part {
                "" => assert_eq!(departs, None, "{text}"),
                _ => assert!(departs.is_some_and(|why| why.contains(part)), "{text}: {departs:?}"),
            }
        }
    }
}
