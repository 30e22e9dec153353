//! Addresses of an API, as people write them.

use std::fmt;
use std::str::FromStr;

use ureq::http::Uri;

/// The address of one server's API: `http://HOST:PORT` or `https://HOST:PORT`, without a path.
///
/// Without a port it is the scheme's own, 80 or 443. A token is sent to this address, so nothing in it is guessed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ApiUrl(String);

/// Text that is no address of an API.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("`{text}` is no API address: {reason}")]
pub struct BadApiUrl {
    /// The text as given.
    pub text: String,
    /// The part that is wrong, and how.
    pub reason: &'static str,
}

impl ApiUrl {
    /// Parses addresses that are separated by commas.
    ///
    /// # Errors
    /// There is none, or one of them is none.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, BadApiUrl> {
        text.split(',').map(|url| url.trim().parse()).collect()
    }

    /// Returns whether TLS is used.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.0.starts_with("https:")
    }

    /// The address, without a slash at its end.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ApiUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ApiUrl {
    type Err = BadApiUrl;

    fn from_str(text: &str) -> Result<Self, BadApiUrl> {
        let bad = |reason| BadApiUrl { text: text.to_owned(), reason };
        let has_prefix = |prefix: &str| {
            text.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
        };
        if text.is_empty() {
            return Err(bad("it is empty"));
        }
        if !has_prefix("http://") && !has_prefix("https://") {
            return Err(bad("it begins with neither `http://` nor `https://`"));
        }
        let uri: Uri = text.parse().map_err(|_| bad("a character or the port is wrong"))?;
        let authority = uri.authority().ok_or_else(|| bad("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad("a user has no place there; a token is given apart"));
        }
        if authority.host().is_empty() || authority.host() == "[]" {
            return Err(bad("it has no host"));
        }
        let after_host = authority.as_str().strip_prefix(authority.host()).unwrap_or_default();
        if !after_host.is_empty() && !is_port(after_host) {
            return Err(bad("the port is no number from 1 to 65535"));
        }
        if uri.path() != "/" || uri.query().is_some() || text.contains('#') {
            return Err(bad("nothing may follow the port"));
        }
        let scheme = uri.scheme_str().unwrap_or_default();
        Ok(Self(format!("{scheme}://{authority}")))
    }
}

/// Returns whether `text` is a colon and a port. A number may begin with zeros, but not with a sign.
fn is_port(text: &str) -> bool {
    let digits =
        text.strip_prefix(':').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    digits.and_then(|digits| digits.parse::<u16>().ok()).is_some_and(|port| port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(text: &str) -> &'static str {
        match text.parse::<ApiUrl>() {
            Ok(url) => panic!("{text} is taken as {url}"),
            Err(error) => error.reason,
        }
    }

    #[test]
    fn addresses_are_taken_as_written() {
        for (text, url) in [
            ("http://127.0.0.1:7420", "http://127.0.0.1:7420"),
            ("https://flash-1:7420/", "https://flash-1:7420"),
            ("HTTP://flash-1", "http://flash-1"),
            ("http://[2001:db8::7]:7420", "http://[2001:db8::7]:7420"),
            ("http://[::1]", "http://[::1]"),
        ] {
            assert_eq!(text.parse().map(|url: ApiUrl| url.0).as_deref(), Ok(url), "{text}");
        }
        assert!("https://a:1".parse::<ApiUrl>().unwrap().is_encrypted());
    }

    #[test]
    fn nothing_is_guessed() {
        let port = "the port is no number from 1 to 65535";
        for (text, why) in [
            ("", "it is empty"),
            ("127.0.0.1:7420", "it begins with neither `http://` nor `https://`"),
            ("ftp://127.0.0.1:7420", "it begins with neither `http://` nor `https://`"),
            ("http://a:0", port),
            ("http://a:99999", port),
            ("http://a:7420x", port),
            ("http://a:", port),
            ("http://a:+80", port),
            ("http://a:7420/v1", "nothing may follow the port"),
            ("http://a:7420?x", "nothing may follow the port"),
            ("http://a:7420#x", "nothing may follow the port"),
            ("http://user@a:7420", "a user has no place there; a token is given apart"),
        ] {
            assert_eq!(reason(text), why, "{text}");
        }
        for text in [
            "http://",
            "http://:7420",
            "http:// a",
            "http://a:7420;",
            "http://a;http://b",
            "http://[::1",
        ] {
            reason(text);
        }
    }

    #[test]
    fn lists_have_no_empty_places() {
        let list = ApiUrl::parse_list("http://a:1, https://b:2").unwrap();
        assert_eq!(
            list.iter().map(ApiUrl::as_str).collect::<Vec<_>>(),
            ["http://a:1", "https://b:2"]
        );
        for text in
            ["", "http://a:1,", ",http://a:1", "http://a:1,,http://b:1", "http://a:1;http://b:1"]
        {
            assert!(ApiUrl::parse_list(text).is_err(), "{text}");
        }
    }
}
