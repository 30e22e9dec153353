//! Cores as people list them: `0`, `0,2` or `0-3,8`.

use std::str::FromStr;

/// CPUs, in the order given.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct CoreList(pub(crate) Vec<u32>);

/// Most cores of a server: a bound on what a typing mistake can ask for.
const CORES_MAX: usize = 256;

/// Why a text lists no cores.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum ParseCoreListError {
    #[error("`{0}` is no core; list cores as 0 or 0,2 or 0-3,8")]
    NotACore(String),
    #[error("`{0}` runs backwards; write the lower core first")]
    Backwards(String),
    #[error("core {0} is listed twice")]
    Twice(u32),
    #[error("more than {CORES_MAX} cores are listed")]
    TooMany,
}

impl CoreList {
    /// The cores, checked for repetition.
    pub(crate) fn new(cores: Vec<u32>) -> Result<Self, ParseCoreListError> {
        if cores.len() > CORES_MAX {
            return Err(ParseCoreListError::TooMany);
        }
        match cores.iter().enumerate().find(|(at, core)| cores[..*at].contains(core)) {
            Some((_, &core)) => Err(ParseCoreListError::Twice(core)),
            None => Ok(Self(cores)),
        }
    }
}

impl FromStr for CoreList {
    type Err = ParseCoreListError;

    fn from_str(text: &str) -> Result<Self, ParseCoreListError> {
        let core = |part: &str| -> Result<u32, ParseCoreListError> {
            let number = part.trim();
            // `parse` alone would take a plus sign.
            let digits = number.bytes().all(|byte| byte.is_ascii_digit());
            let parsed = number.parse().ok().filter(|_| digits);
            parsed.ok_or_else(|| ParseCoreListError::NotACore(part.to_owned()))
        };
        let mut cores = Vec::new();
        for part in text.split(',') {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (core(first)?, core(last)?),
                None => (core(part)?, core(part)?),
            };
            if first > last {
                return Err(ParseCoreListError::Backwards(part.to_owned()));
            }
            if (last - first) as usize >= CORES_MAX {
                return Err(ParseCoreListError::TooMany);
            }
            cores.extend(first..=last);
        }
        Self::new(cores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_are_read() {
        for (text, cores) in
            [("0", vec![0]), ("3,1", vec![3, 1]), ("0-2,8", vec![0, 1, 2, 8]), ("0, 1", vec![0, 1])]
        {
            assert_eq!(text.parse(), Ok(CoreList(cores)), "{text}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        use ParseCoreListError::*;
        for (text, error) in [
            ("", NotACore(String::new())),
            ("a", NotACore("a".into())),
            ("0,", NotACore(String::new())),
            ("+1", NotACore("+1".into())),
            ("-1", NotACore(String::new())),
            ("3-1", Backwards("3-1".into())),
            ("0,1,0", Twice(0)),
            ("0-1,1", Twice(1)),
            ("0-4000000000", TooMany),
        ] {
            assert_eq!(text.parse::<CoreList>(), Err(error), "{text}");
        }
    }
}
