//! Times for people.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A time since 1970 as people and programs read it, such as `2026-11-28T13:42:41Z`.
#[must_use]
pub fn utc(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().map(OffsetDateTime::from_unix_timestamp);
    let text = time.and_then(Result::ok).map(|time| time.format(&Rfc3339));
    text.and_then(Result::ok).unwrap_or_else(|| format!("{seconds} s after 1970"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_utc() {
        assert_eq!(utc(1_795_873_361), "2026-11-28T13:42:41Z");
        assert_eq!(utc(u64::MAX), format!("{} s after 1970", u64::MAX));
    }
}
