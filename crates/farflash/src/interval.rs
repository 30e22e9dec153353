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
        let time = humantime::parse_duration(text).map_err(|_| wrong())?;
        let is_whole = time.subsec_nanos() == 0 && !time.is_zero();
        if is_whole { Ok(Self(time)) } else { Err(wrong()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_multiply_and_nonsense_is_refused() {
        for (text, seconds) in
            [("90s", 90), ("30m", 1800), ("12h", 43_200), ("7d", 604_800), ("1h 30m", 5400)]
        {
            assert_eq!(text.parse(), Ok(Interval(Duration::from_secs(seconds))), "{text}");
        }
        for text in ["", "d", "7", "0d", "-1d", "500ms", "1s 500ms", "99999999999999999999d", "7é"]
        {
            assert!(text.parse::<Interval>().is_err(), "{text}");
        }
    }
}
