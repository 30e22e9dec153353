//! A recording of requests, and the text in which it is kept.
//!
//! ```text
//! farflash-requests 1
//! # SECONDS r|w OFFSET BYTES
//! 0.000000000 r 4096 8192
//! 0.001250000 w 1048576 524288
//! ```
//! Lines that begin with `#` and empty lines say nothing. Seconds count from the start of the recording and have up to nine
//! decimals; offset and length are bytes. The order of the lines does not matter. A request that begins or ends within a block
//! of 4 KiB is one of whole blocks here.
//!
//! Contents are not recorded.

use std::io::{BufRead, Read, Write};

use units::{BLOCK_SIZE, Lba};

use crate::measure::Kind;
use crate::planned::Planned;

/// The first line.
const HEAD: &str = "farflash-requests 1";
/// Requests of a recording: they take 24 bytes each.
const REQUESTS_MAX: usize = 1 << 26;
/// Bytes of a line.
const LINE_MAX: u64 = 256;
/// Blocks of a request: 256 MiB.
const BLOCKS_MAX: u64 = 1 << 16;
/// Seconds of a recording: a hundred years, which nanoseconds in 64 bits hold.
const SECONDS_MAX: u64 = 100 * 365 * 24 * 3600;

/// A recording.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Trace {
    requests: Vec<Planned>,
    /// Requests that came when it was full.
    left_out: u64,
}

/// A line that is none of a recording.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct TraceError {
    /// Number of the line, from 1.
    pub line: u64,
    /// The problem.
    pub problem: TraceProblem,
}

/// Why a line is none of a recording.
#[derive(Debug, thiserror::Error)]
pub enum TraceProblem {
    /// It could not be read.
    #[error(transparent)]
    Read(#[from] std::io::Error),
    /// Something else than a recording.
    #[error("a recording begins with `{HEAD}`")]
    NoHead,
    /// A line that does not end.
    #[error("no line of a recording is longer than {LINE_MAX} bytes")]
    TooLong,
    /// Not four fields.
    #[error("a request is `SECONDS r|w OFFSET BYTES`")]
    Fields,
    /// Not a time.
    #[error("`{0}` is no time; write seconds with up to nine decimals, such as 0.001250000")]
    Time(String),
    /// Neither read nor write.
    #[error("`{0}` is no kind of request; write r or w")]
    Kind(String),
    /// Not a number of bytes.
    #[error("`{0}` is no number of bytes")]
    Bytes(String),
    /// Nothing, or too much at once.
    #[error(
        "a request covers 1 to {BLOCKS_MAX} blocks of 4 KiB, not {bytes} bytes at byte {offset}"
    )]
    Length {
        /// Its first byte.
        offset: u64,
        /// Its bytes.
        bytes: u64,
    },
    /// Beyond any volume.
    #[error("a request at byte {0} ends beyond 2^63")]
    Offset(u64),
    /// More than are kept.
    #[error("a recording has at most {REQUESTS_MAX} requests; divide it")]
    TooMany,
}

impl Trace {
    /// Reads a recording.
    ///
    /// # Errors
    /// It could not be read, or a line is none of a recording.
    pub fn parse(mut input: impl BufRead) -> Result<Self, TraceError> {
        let mut requests = Vec::new();
        let mut line = Vec::new();
        for number in 1.. {
            let at = |problem| TraceError { line: number, problem };
            line.clear();
            let read = input.by_ref().take(LINE_MAX + 1).read_until(b'\n', &mut line);
            if read.map_err(|error| at(error.into()))? as u64 > LINE_MAX {
                return Err(at(TraceProblem::TooLong));
            }
            let text = line.trim_ascii();
            if number == 1 {
                if text != HEAD.as_bytes() {
                    return Err(at(TraceProblem::NoHead));
                }
            } else if line.is_empty() {
                break;
            } else if !(text.is_empty() || text.starts_with(b"#")) {
                if requests.len() == REQUESTS_MAX {
                    return Err(at(TraceProblem::TooMany));
                }
                requests.push(request(&String::from_utf8_lossy(text)).map_err(at)?);
            }
        }
        requests.sort_by_key(|request: &Planned| request.at_ns);
        Ok(Self { requests, left_out: 0 })
    }

    /// Writes the text, in the order of time.
    ///
    /// # Errors
    /// Writing failed.
    pub fn write(&mut self, mut out: impl Write) -> std::io::Result<()> {
        // Tasks that are free at the same time may take their requests one for another.
        self.requests.sort_by_key(|request| request.at_ns);
        writeln!(out, "{HEAD}\n# SECONDS r|w OFFSET BYTES")?;
        for Planned { at_ns, start, blocks, kind } in &self.requests {
            let (seconds, rest) = (at_ns / 1_000_000_000, at_ns % 1_000_000_000);
            let kind = match kind {
                Kind::Read => 'r',
                Kind::Write => 'w',
            };
            let block = BLOCK_SIZE as u64;
            let (offset, bytes) = (start.0 * block, u64::from(*blocks) * block);
            writeln!(out, "{seconds}.{rest:09} {kind} {offset} {bytes}")?;
        }
        Ok(())
    }

    /// Returns whether a line can have this request: one that [`Self::push`] takes in is to be so.
    #[must_use]
    pub fn has_form_for(request: &Planned) -> bool {
        let blocks = u64::from(request.blocks);
        let end = request.start.0.checked_add(blocks);
        (1..=BLOCKS_MAX).contains(&blocks)
            && request.at_ns < SECONDS_MAX * 1_000_000_000
            && end.is_some_and(|end| end <= i64::MAX as u64 / BLOCK_SIZE as u64)
    }

    /// Takes in a request. When there are as many as a recording can have, it is only counted.
    pub fn push(&mut self, request: Planned) {
        if self.requests.len() == REQUESTS_MAX {
            self.left_out += 1;
        } else {
            self.requests.push(request);
        }
    }

    /// The requests; those of a recording that was read are in the order of time.
    #[must_use]
    pub fn requests(&self) -> &[Planned] {
        &self.requests
    }

    /// Requests that came when it was full.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Returns true if a request writes.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.requests.iter().any(|request| request.kind == Kind::Write)
    }

    /// Blocks of the smallest target that has all its places.
    #[must_use]
    pub fn target_blocks(&self) -> u64 {
        let ends = self.requests.iter().map(|request| request.start.0 + u64::from(request.blocks));
        ends.max().unwrap_or(0)
    }

    /// Blocks of its largest request.
    #[must_use]
    pub fn blocks_max(&self) -> u32 {
        self.requests.iter().map(|request| request.blocks).max().unwrap_or(0)
    }

    /// Its requests at `speed` times their pace.
    pub fn into_requests(self, speed: f64) -> impl Iterator<Item = Planned> {
        let at = move |at_ns: u64| if speed == 1.0 { at_ns } else { (at_ns as f64 / speed) as u64 };
        let requests = self.requests.into_iter();
        requests.map(move |request| Planned { at_ns: at(request.at_ns), ..request })
    }
}

fn request(text: &str) -> Result<Planned, TraceProblem> {
    let mut fields = text.split_ascii_whitespace();
    let mut field = || fields.next().ok_or(TraceProblem::Fields);
    let (time, kind, offset, bytes) = (field()?, field()?, field()?, field()?);
    if fields.next().is_some() {
        return Err(TraceProblem::Fields);
    }
    let at_ns = nanoseconds(time).ok_or_else(|| TraceProblem::Time(time.to_owned()))?;
    let kind = match kind {
        "r" => Kind::Read,
        "w" => Kind::Write,
        _ => return Err(TraceProblem::Kind(kind.to_owned())),
    };
    let number = |text: &str| digits(text).ok_or_else(|| TraceProblem::Bytes(text.to_owned()));
    let (offset, bytes) = (number(offset)?, number(bytes)?);
    let block = BLOCK_SIZE as u64;
    // Widened to whole blocks, too, it ends below that.
    let end = offset.checked_add(bytes).filter(|end| *end <= i64::MAX as u64 / block * block);
    let (first, end) = (offset / block, end.ok_or(TraceProblem::Offset(offset))?.div_ceil(block));
    if bytes == 0 || end - first > BLOCKS_MAX {
        return Err(TraceProblem::Length { offset, bytes });
    }
    let blocks = u32::try_from(end - first).expect("bounded");
    Ok(Planned { at_ns, start: Lba(first), blocks, kind })
}

/// A number of digits only.
fn digits(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// Seconds with up to nine decimals.
fn nanoseconds(text: &str) -> Option<u64> {
    let (seconds, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let seconds = digits(seconds).filter(|seconds| *seconds <= SECONDS_MAX)?;
    let rest = digits(decimals).filter(|_| decimals.len() <= 9)?;
    let scale = 10u64.pow(9 - u32::try_from(decimals.len()).expect("at most nine"));
    Some(seconds * 1_000_000_000 + rest * scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: &str) -> Result<Trace, TraceError> {
        Trace::parse(format!("{HEAD}\n{body}").as_bytes())
    }

    const fn planned(at_ns: u64, kind: Kind, start: u64, blocks: u32) -> Planned {
        Planned { at_ns, start: Lba(start), blocks, kind }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut trace = Trace::default();
        trace.push(planned(1_250_000, Kind::Write, 256, 128));
        trace.push(planned(0, Kind::Read, 1, 2));
        trace.push(planned(7_000_000_001, Kind::Read, 1 << 40, 1));
        let mut text = Vec::new();
        trace.write(&mut text).expect("memory");
        let lines = "0.000000000 r 4096 8192\n0.001250000 w 1048576 524288\n7.000000001 r ";
        assert!(String::from_utf8_lossy(&text).contains(lines), "{text:?}");
        let read = Trace::parse(text.as_slice()).expect("our own");
        let starts: Vec<u64> = read.requests().iter().map(|request| request.start.0).collect();
        assert_eq!(starts, [1, 256, 1 << 40]);
        assert_eq!((read.target_blocks(), read.blocks_max()), ((1 << 40) + 1, 128));
        assert!(read.writes());
    }

    /// Method: requests at the bounds and beyond, of which the first kind is read again.
    #[test]
    fn a_request_that_has_a_form_is_read_again() {
        let last = i64::MAX as u64 / 4096;
        for (request, has_form) in [
            (planned(0, Kind::Read, 0, 1), true),
            (planned(SECONDS_MAX * 1_000_000_000 - 1, Kind::Write, last - 65_536, 65_536), true),
            (planned(0, Kind::Read, 0, 0), false),
            (planned(0, Kind::Read, 0, 65_537), false),
            (planned(0, Kind::Read, last, 1), false),
            (planned(0, Kind::Read, u64::MAX, 1), false),
            (planned(SECONDS_MAX * 1_000_000_000, Kind::Read, 0, 1), false),
        ] {
            assert_eq!(Trace::has_form_for(&request), has_form, "{request:?}");
            if has_form {
                let mut text = Vec::new();
                Trace { requests: vec![request], left_out: 0 }.write(&mut text).expect("memory");
                assert_eq!(Trace::parse(text.as_slice()).expect("a form").requests(), [request]);
            }
        }
    }

    /// As other tools write it: few decimals, sectors, spaces, comments, out of order.
    #[test]
    fn parts_of_blocks_become_whole_ones() {
        let body = "# by hand\n\n  2.5 w  512 512 \n1 r 4095 2\r\n.";
        let error = parse(body).expect_err("the last line is none");
        assert_eq!(error.line, 6);
        let trace = parse(body.trim_end_matches('.')).expect("the others are");
        let expected =
            [planned(1_000_000_000, Kind::Read, 0, 2), planned(2_500_000_000, Kind::Write, 0, 1)];
        assert_eq!(trace.requests(), expected);
        let fast: Vec<u64> = trace.into_requests(2.0).map(|request| request.at_ns).collect();
        assert_eq!(fast, [500_000_000, 1_250_000_000]);
    }

    #[test]
    fn each_problem_is_named_with_its_line() {
        let cases = [
            ("0 r 0", "SECONDS r|w OFFSET BYTES"),
            ("0 r 0 4096 1", "SECONDS r|w OFFSET BYTES"),
            ("-1 r 0 4096", "`-1` is no time"),
            ("0.1234567890 r 0 4096", "no time"),
            ("99999999999999999999 r 0 4096", "no time"),
            ("1. r 0 4096", "no time"),
            ("0 d 0 4096", "`d` is no kind of request; write r or w"),
            ("0 r +1 4096", "`+1` is no number of bytes"),
            ("0 r 0 0", "a request covers 1 to 65536 blocks of 4 KiB, not 0 bytes"),
            ("0 w 0 268435457", "not 268435457 bytes at byte 0"),
            ("0 w 1 268435456", "not 268435456 bytes at byte 1"),
            ("0 w 9223372036854775807 4096", "beyond 2^63"),
            ("0 r 9223372036854775800 1", "beyond 2^63"),
        ];
        for (body, said) in cases {
            let error = parse(&format!("0 r 0 1\n{body}\n")).expect_err(body);
            assert_eq!(error.line, 3, "{body}");
            assert!(error.to_string().contains(said), "{error}");
        }
        let long = parse(&"9".repeat(1000)).expect_err("too long");
        assert!(matches!(long, TraceError { line: 2, problem: TraceProblem::TooLong }), "{long}");
        for foreign in ["", "0 r 0 4096\n", "farflash-requests 2\n"] {
            let error = Trace::parse(foreign.as_bytes()).expect_err("no head");
            assert!(matches!(error.problem, TraceProblem::NoHead), "{error}");
        }
        assert_eq!(parse("").expect("empty"), Trace::default());
    }
}
