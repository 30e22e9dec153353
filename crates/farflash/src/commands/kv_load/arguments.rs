//! Arguments that have a form of their own.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use kv_load::{Arrivals, Latencies, Profile, WriteCommand};

/// A rate above zero, or `none` for no run.
pub(super) fn rate(text: &str) -> Result<Option<f64>, String> {
    if text == "none" {
        return Ok(None);
    }
    let rate: Option<f64> = text.parse().ok().filter(|rate| (1e-3..=1e9).contains(rate));
    rate.map(Some)
        .ok_or_else(|| format!("`{text}` is no rate; write requests a second, such as 5000"))
}

/// The server: `HOST:PORT`, looked up once.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Target {
    /// The name or address that its certificate has to be for.
    pub(crate) host: String,
    pub(crate) address: SocketAddr,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_v6 = self.host.contains(':');
        let (open, close) = if is_v6 { ("[", "]") } else { ("", "") };
        write!(f, "{open}{}{close}:{}", self.host, self.address.port())
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (host, _) = text
            .rsplit_once(':')
            .ok_or_else(|| format!("`{text}` has no port; write HOST:PORT, such as kv-1:6379"))?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let addresses = text.to_socket_addrs();
        let first = addresses.map_err(|error| error.to_string())?.next();
        let address = first.ok_or_else(|| format!("{host} has no address"))?;
        Ok(Self { host: host.to_owned(), address })
    }
}

/// A length of time: `200us`, `1.5ms`, `10s`, `2m`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Span(pub(super) Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const UNITS: [(&str, f64); 4] = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0)];
        const LONGEST: f64 = 7.0 * 24.0 * 3600.0;
        let wrong = || format!("`{text}` is no length of time; write 200us, 1.5ms, 10s or 2m");
        let seconds = UNITS.iter().find_map(|(unit, factor)| {
            let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
            Some(number * factor).filter(|seconds| (1e-6..=LONGEST).contains(seconds))
        });
        seconds.map(|seconds| Self(Duration::from_secs_f64(seconds))).ok_or_else(wrong)
    }
}

/// The share of reads, written as `GETS:SETS`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Share(pub(super) f64);

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let part = |text: &str| text.parse::<f64>().ok().filter(|part| (0.0..=1e9).contains(part));
        let parts = text.split_once(':').and_then(|(gets, sets)| Some((part(gets)?, part(sets)?)));
        let parts = parts.filter(|(gets, sets)| gets + sets > 0.0);
        let (gets, sets) =
            parts.ok_or_else(|| format!("`{text}` is no ratio; write GETS:SETS, such as 9:1"))?;
        Ok(Self(gets / (gets + sets)))
    }
}

/// Rows of table 1 of "Flash Storage Disaggregation".
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(super) enum ProfileArg {
    /// Values up to 10 kB, 12 reads for a write
    A,
    /// Values up to 50 kB, 20 reads for 7 writes
    B,
    /// Values up to 15 kB, 5 reads for 9 writes
    C,
    /// Values up to 25 kB, 10 reads for a write
    D,
}

impl ProfileArg {
    pub(super) fn profile(self) -> Profile {
        Profile::ALL[self as usize]
    }
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub(super) enum ArrivalsArg {
    /// Random, as requests of many users come
    #[default]
    Poisson,
    /// Equal
    Uniform,
}

impl From<ArrivalsArg> for Arrivals {
    fn from(arrivals: ArrivalsArg) -> Self {
        match arrivals {
            ArrivalsArg::Poisson => Self::Poisson,
            ArrivalsArg::Uniform => Self::Uniform,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub(super) enum WriteArg {
    /// SET, which appends at a datastore with `--set append`
    #[default]
    Set,
    /// APPEND, which also reads the value's length
    Append,
}

impl From<WriteArg> for WriteCommand {
    fn from(write: WriteArg) -> Self {
        match write {
            WriteArg::Set => Self::Set,
            WriteArg::Append => Self::Append,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub(super) enum Judge {
    /// Mean
    Mean,
    /// Median
    P50,
    /// 95th percentile
    #[default]
    P95,
    /// 99th percentile
    P99,
}

impl Judge {
    pub(super) fn of(self, latencies: &Latencies) -> Duration {
        match self {
            Self::Mean => latencies.mean(),
            Self::P50 => latencies.percentile(50.0),
            Self::P95 => latencies.percentile(95.0),
            Self::P99 => latencies.percentile(99.0),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::P50 => "p50",
            Self::P95 => "p95",
            Self::P99 => "p99",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_and_nonsense_is_refused() {
        let micros = |text: &str| text.parse::<Span>().map(|span| span.0.as_micros());
        for (text, expected) in
            [("200us", 200), ("1.5ms", 1500), ("10s", 10_000_000), ("2m", 120_000_000)]
        {
            assert_eq!(micros(text), Ok(expected), "{text}");
        }
        for text in ["", "5", "0s", "-1s", "nans", "infs", "1h", "1e99s"] {
            assert!(micros(text).is_err(), "{text}");
        }
        let target = |text: &str| text.parse::<Target>().map(|target| target.host);
        assert_eq!(target("127.0.0.1:6379"), Ok("127.0.0.1".to_owned()));
        assert_eq!(target("[::1]:6379"), Ok("::1".to_owned()));
        assert!(["", "6379", "127.0.0.1:99999", "::1"].iter().all(|text| target(text).is_err()));
        assert_eq!("9:1".parse(), Ok(Share(0.9)));
        assert_eq!("0:1".parse(), Ok(Share(0.0)));
        for text in ["", "1", "0:0", "-1:2", "a:b", "nan:1"] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
        assert_eq!((rate("5000"), rate("none")), (Ok(Some(5000.0)), Ok(None)));
        assert!(["0", "-1", "nan", "x", ""].iter().all(|text| rate(text).is_err()));
    }
}
