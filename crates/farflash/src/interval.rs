//! Lengths of time as people write them: `90s`, `30m`, `12h`, `7d`.

use std::str::FromStr;
use std::time::Duration;

/// A length of time, of whole seconds, above zero.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Interval(pub(crate) Duration);

impl FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no length of time; write 30m, 12h or 7d");
        let (number, unit) =
            text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(wrong)?;
        let unit = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            "d" => 86_400,
            _ => return Err(wrong()),
        };
        let number: u32 = number.parse().map_err(|_| wrong())?;
        if number == 0 {
            return Err(wrong());
        }
        Ok(Self(Duration::from_secs(u64::from(number) * unit)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_multiply_and_nonsense_is_refused() {
        for (text, seconds) in [("90s", 90), ("30m", 1800), ("12h", 43_200), ("7d", 604_800)] {
            assert_eq!(text.parse(), Ok(Interval(Duration::from_secs(seconds))), "{text}");
        }
        for text in ["", "d", "7", "0d", "-1d", "1w", "7 d", "99999999999d", "7é"] {
            assert!(text.parse::<Interval>().is_err(), "{text}");
        }
    }
}
