//! Requests: arrays of bulk strings, or a line of words that a person typed.
//!
//! ```text
//! *2\r\n$3\r\nGET\r\n$1\r\nk\r\n      an array of two bulk strings
//! GET k\r\n                           the same as an inline request
//! ```

use alloc::vec::Vec;

/// The longest inline request, and the longest line with a length: as Redis has it.
const LINE_LEN_MAX: usize = 64 << 10;
/// Memory that a length field may ask for before its bytes have come.
const RESERVE_MAX: usize = 16 << 10;

/// Bounds of a request. A request beyond them is a [`RequestError`].
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Arguments of a request, with the command's name.
    pub arguments: usize,
    /// Bytes of one argument.
    pub argument_len: usize,
    /// Bytes of all arguments of a request together.
    pub request_len: usize,
}

/// A request that breaks the protocol or a limit. The stream cannot be followed any further.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// The number behind `*` is none.
    #[error("Protocol error: invalid multibulk length")]
    BadArgumentCount,
    /// More arguments than the server takes.
    #[error(
        "Protocol error: invalid multibulk length: a request has {count} arguments, the limit is {limit}"
    )]
    TooManyArguments {
        /// Arguments announced.
        count: u64,
        /// Arguments allowed.
        limit: usize,
    },
    /// An argument begins with something else than `$`.
    #[error("Protocol error: expected '$', got '{}'", .0.escape_ascii())]
    NoBulkString(u8),
    /// The number behind `$` is none, or negative.
    #[error("Protocol error: invalid bulk length")]
    BadArgumentLen,
    /// An argument, or all of them together, are longer than the server takes.
    #[error(
        "Protocol error: invalid bulk length: a request needs {len} bytes, the limit is {limit}"
    )]
    TooLong {
        /// Bytes needed at least.
        len: u64,
        /// Bytes allowed.
        limit: usize,
    },
    /// An argument is not followed by CR LF.
    #[error("Protocol error: an argument is longer than its length says")]
    NoLineEnd,
    /// An inline request or a length has no end within 64 KiB.
    #[error("Protocol error: too big inline request")]
    LineTooLong,
    /// An inline request opens a quote that it does not close.
    #[error("Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
}

/// A command's name and its arguments; never empty.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Request {
    bytes: Vec<u8>,
    /// End of each argument in `bytes`.
    ends: Vec<usize>,
}

impl Request {
    fn push(&mut self, argument: &[u8]) {
        self.bytes.extend_from_slice(argument);
        self.ends.push(self.bytes.len());
    }

    /// Number of arguments, with the command's name.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a request is never empty")]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of all arguments together.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// The argument at `index`, from 0 on, which is the command's name.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.bytes[start..end])
    }

    /// All arguments, beginning with the command's name.
    pub fn arguments(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.ends.len()).map(|index| self.get(index).unwrap_or_default())
    }
}

/// The part of a request that comes next.
#[derive(Clone, Copy, Debug)]
enum State {
    /// The first byte of a request.
    Start,
    /// An inline request, to the end of its line.
    Inline,
    /// The line with the number of arguments.
    Count,
    /// The line with an argument's length.
    Len,
    /// This many bytes of an argument.
    Argument(usize),
    /// The CR behind an argument.
    Cr,
    /// The LF behind it.
    Lf,
}

/// Turns a connection's bytes into requests. After an error it must not be used again.
#[derive(Debug)]
pub struct RequestDecoder {
    limits: RequestLimits,
    state: State,
    line: Vec<u8>,
    request: Request,
    /// Arguments of the request that have not come.
    missing: usize,
}

impl RequestDecoder {
    /// A decoder at the start of a connection.
    #[must_use]
    pub fn new(limits: RequestLimits) -> Self {
        let request = Request::default();
        Self { limits, state: State::Start, line: Vec::new(), request, missing: 0 }
    }

    /// Changes the limits, for all that is decoded from now on.
    pub fn set_limits(&mut self, limits: RequestLimits) {
        self.limits = limits;
    }

    /// Bytes held of a request that is not complete.
    #[must_use]
    pub fn held_len(&self) -> usize {
        self.request.bytes.capacity()
            + self.line.capacity()
            + self.request.ends.capacity() * size_of::<usize>()
    }

    /// Takes bytes from `input` up to the end of the next request. `None`: all were taken, and more are needed.
    ///
    /// # Errors
    ///
    /// The bytes break the protocol or a limit.
    pub fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Request>, RequestError> {
        while let Some(&first) = input.first() {
            let done = match self.state {
                State::Start => {
                    self.state = if first == b'*' { State::Count } else { State::Inline };
                    false
                }
                State::Inline => self.line_end(input)? && self.on_inline()?,
                State::Count => self.line_end(input)? && self.on_count()?,
                State::Len => self.line_end(input)? && self.on_len()?,
                State::Argument(left) => self.on_argument(input, left),
                State::Cr | State::Lf => self.on_end(input, first)?,
            };
            if done {
                return Ok(Some(core::mem::take(&mut self.request)));
            }
        }
        Ok(None)
    }

    /// Takes bytes up to the end of a line; true: the whole line is in `line`, without its end.
    fn line_end(&mut self, input: &mut &[u8]) -> Result<bool, RequestError> {
        let end = input.iter().position(|byte| *byte == b'\n');
        let taken = end.unwrap_or(input.len());
        if self.line.len() + taken > LINE_LEN_MAX {
            return Err(RequestError::LineTooLong);
        }
        self.line.extend_from_slice(&input[..taken]);
        *input = &input[end.map_or(taken, |end| end + 1)..];
        if end.is_some() && self.line.last() == Some(&b'\r') {
            self.line.pop();
        }
        Ok(end.is_some())
    }

    fn on_inline(&mut self) -> Result<bool, RequestError> {
        self.state = State::Start;
        let line = core::mem::take(&mut self.line);
        split_words(&line, &mut self.request)?;
        if self.request.len() > self.limits.arguments {
            let count = self.request.len() as u64;
            return Err(RequestError::TooManyArguments { count, limit: self.limits.arguments });
        }
        self.check_len(0)?;
        Ok(self.request.len() > 0)
    }

    fn on_count(&mut self) -> Result<bool, RequestError> {
        let count = number(&self.line[1..]).ok_or(RequestError::BadArgumentCount)?;
        self.line.clear();
        if count > self.limits.arguments as i64 {
            let limit = self.limits.arguments;
            return Err(RequestError::TooManyArguments { count: count.unsigned_abs(), limit });
        }
        self.missing = match count {
            // Redis passes over requests without arguments, and over negative numbers of them.
            ..=0 => 0,
            _ => usize::try_from(count).map_err(|_| RequestError::BadArgumentCount)?,
        };
        self.state = if self.missing == 0 { State::Start } else { State::Len };
        Ok(false)
    }

    fn on_len(&mut self) -> Result<bool, RequestError> {
        match self.line.first() {
            Some(b'$') => {}
            other => return Err(RequestError::NoBulkString(other.copied().unwrap_or(b'\r'))),
        }
        let len = number(&self.line[1..]).ok_or(RequestError::BadArgumentLen)?;
        self.line.clear();
        let len = usize::try_from(len).map_err(|_| RequestError::BadArgumentLen)?;
        self.check_len(len)?;
        self.request.bytes.reserve(len.min(RESERVE_MAX));
        self.state = if len == 0 { State::Cr } else { State::Argument(len) };
        Ok(false)
    }

    /// Checks that `len` more bytes keep the limits.
    fn check_len(&self, len: usize) -> Result<(), RequestError> {
        let all = self.request.bytes.len() as u64 + len as u64;
        let RequestLimits { argument_len, request_len, .. } = self.limits;
        let too_long = |len, limit| Err(RequestError::TooLong { len, limit });
        match () {
            () if len > argument_len => too_long(len as u64, argument_len),
            () if all > request_len as u64 => too_long(all, request_len),
            () => Ok(()),
        }
    }

    fn on_argument(&mut self, input: &mut &[u8], left: usize) -> bool {
        let (taken, rest) = input.split_at(left.min(input.len()));
        self.request.bytes.extend_from_slice(taken);
        *input = rest;
        self.state =
            if taken.len() == left { State::Cr } else { State::Argument(left - taken.len()) };
        false
    }

    fn on_end(&mut self, input: &mut &[u8], first: u8) -> Result<bool, RequestError> {
        *input = &input[1..];
        match (self.state, first) {
            (State::Cr, b'\r') => {
                self.state = State::Lf;
                Ok(false)
            }
            (State::Lf, b'\n') => {
                self.request.ends.push(self.request.bytes.len());
                self.missing -= 1;
                self.state = if self.missing == 0 { State::Start } else { State::Len };
                Ok(self.missing == 0)
            }
            _ => Err(RequestError::NoLineEnd),
        }
    }
}

/// A decimal number that fills all of `digits`.
pub(crate) fn number(digits: &[u8]) -> Option<i64> {
    let text = core::str::from_utf8(digits).ok()?;
    // `parse` also takes a leading `+`, which the protocol does not know.
    if text.starts_with('+') { None } else { text.parse().ok() }
}

/// Splits an inline request as Redis does: at blanks, with `"…"` (escapes `\n \r \t \b \a \xHH`) and `'…'`
/// (escape `\'`), behind whose end a blank must follow.
fn split_words(line: &[u8], request: &mut Request) -> Result<(), RequestError> {
    let mut rest = line.trim_ascii_start();
    while !rest.is_empty() {
        let mut word = Vec::new();
        rest = take_word(rest, &mut word)?.trim_ascii_start();
        request.push(&word);
    }
    Ok(())
}

fn take_word<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Result<&'a [u8], RequestError> {
    while let [first, tail @ ..] = rest {
        rest = match first {
            b'"' => closed(take_double_quoted(tail, word)?)?,
            b'\'' => closed(take_single_quoted(tail, word)?)?,
            byte if byte.is_ascii_whitespace() => break,
            byte => {
                word.push(*byte);
                tail
            }
        };
    }
    Ok(rest)
}

fn closed(rest: &[u8]) -> Result<&[u8], RequestError> {
    match rest.first() {
        Some(byte) if !byte.is_ascii_whitespace() => Err(RequestError::UnbalancedQuotes),
        _ => Ok(rest),
    }
}

fn take_double_quoted<'a>(
    mut rest: &'a [u8],
    word: &mut Vec<u8>,
) -> Result<&'a [u8], RequestError> {
    loop {
        let (byte, tail) = match rest {
            [] => return Err(RequestError::UnbalancedQuotes),
            [b'"', tail @ ..] => return Ok(tail),
            [b'\\', b'x', high, low, tail @ ..] if hex(*high, *low).is_some() => {
                (hex(*high, *low).unwrap_or_default(), tail)
            }
            [b'\\', escaped, tail @ ..] => (unescape(*escaped), tail),
            [byte, tail @ ..] => (*byte, tail),
        };
        word.push(byte);
        rest = tail;
    }
}

fn take_single_quoted<'a>(
    mut rest: &'a [u8],
    word: &mut Vec<u8>,
) -> Result<&'a [u8], RequestError> {
    loop {
        let (byte, tail) = match rest {
            [] => return Err(RequestError::UnbalancedQuotes),
            [b'\'', tail @ ..] => return Ok(tail),
            [b'\\', b'\'', tail @ ..] => (b'\'', tail),
            [byte, tail @ ..] => (*byte, tail),
        };
        word.push(byte);
        rest = tail;
    }
}

fn unescape(escaped: u8) -> u8 {
    match escaped {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    }
}

fn hex(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

/// Appends a request to `out`.
pub fn encode_request(out: &mut Vec<u8>, arguments: &[&[u8]]) {
    out.push(b'*');
    push_number(out, arguments.len() as i64);
    for argument in arguments {
        out.push(b'$');
        push_number(out, argument.len() as i64);
        out.extend_from_slice(argument);
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends a number and the end of its line.
pub(crate) fn push_number(out: &mut Vec<u8>, number: i64) {
    // The digits of an `i64`, its sign, CR and LF.
    let mut text = [0; 23];
    let mut start = text.len() - 2;
    text[start..].copy_from_slice(b"\r\n");
    let mut rest = number.unsigned_abs();
    loop {
        start -= 1;
        text[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        start -= 1;
        text[start] = b'-';
    }
    out.extend_from_slice(&text[start..]);
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    const LIMITS: RequestLimits =
        RequestLimits { arguments: 8, argument_len: 100, request_len: 150 };

    /// Requests of `input`, handed over in pieces of `piece` bytes.
    fn decode(input: &[u8], piece: usize) -> Result<Vec<Vec<Vec<u8>>>, RequestError> {
        let mut decoder = RequestDecoder::new(LIMITS);
        let mut all = Vec::new();
        for mut piece in input.chunks(piece) {
            while let Some(request) = decoder.decode(&mut piece)? {
                all.push(request.arguments().map(<[u8]>::to_vec).collect());
            }
            assert!(piece.is_empty(), "a decoder that waits has taken all");
        }
        Ok(all)
    }

    #[test]
    fn requests_are_the_same_in_whatever_pieces_they_come() {
        let input = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*0\r\n*-10\r\n\r\nPING\r\n*3\r\n$3\r\nSET\r\n$0\r\n\r\n$4\r\n\r\n\r\n\r\n\
            set \"a\\x41\\n\\\"\" 'it\\'s'  b\n";
        let word = |text: &str| text.as_bytes().to_vec();
        let expected = vec![
            vec![word("GET"), word("k")],
            vec![word("PING")],
            vec![word("SET"), word(""), word("\r\n\r\n")],
            vec![word("set"), word("aA\n\""), word("it's"), word("b")],
        ];
        for piece in 1..=input.len() {
            assert_eq!(decode(input, piece).as_ref(), Ok(&expected), "{piece}");
        }
    }

    #[test]
    fn each_mistake_has_its_error() {
        let cases: [(&[u8], &str); 12] = [
            (b"*x\r\n", "Protocol error: invalid multibulk length"),
            (b"*\r\n", "Protocol error: invalid multibulk length"),
            (b"*+1\r\n", "Protocol error: invalid multibulk length"),
            (
                b"*9\r\n",
                "Protocol error: invalid multibulk length: a request has 9 arguments, the limit is 8",
            ),
            (b"*99999999999999999999\r\n", "Protocol error: invalid multibulk length"),
            (b"*1\r\n:1\r\n", "Protocol error: expected '$', got ':'"),
            (b"*1\r\n$-1\r\n", "Protocol error: invalid bulk length"),
            (
                b"*1\r\n$101\r\n",
                "Protocol error: invalid bulk length: a request needs 101 bytes, the limit is 100",
            ),
            (b"*1\r\n$1\r\nabc", "Protocol error: an argument is longer than its length says"),
            (b"get \"a\r\n", "Protocol error: unbalanced quotes in request"),
            (b"get 'a'b\r\n", "Protocol error: unbalanced quotes in request"),
            (
                b"a b c d e f g h i\r\n",
                "Protocol error: invalid multibulk length: a request has 9 arguments, the limit is 8",
            ),
        ];
        for (input, message) in cases {
            for piece in [1, input.len()] {
                let error = decode(input, piece).expect_err("a mistake");
                assert_eq!(alloc::format!("{error}"), message, "{}", input.escape_ascii());
            }
        }
    }

    #[test]
    fn arguments_together_have_a_limit() {
        let argument = [&b"$80\r\n"[..], &[b'a'; 80], b"\r\n"].concat();
        let input = [&b"*2\r\n"[..], &argument, &argument].concat();
        assert_eq!(decode(&input, 7), Err(RequestError::TooLong { len: 160, limit: 150 }));
        let line = vec![b'a'; LINE_LEN_MAX + 1];
        assert_eq!(decode(&line, 999), Err(RequestError::LineTooLong));
    }

    /// A length field alone takes no memory.
    #[test]
    fn memory_follows_the_bytes_that_came() {
        let limits =
            RequestLimits { arguments: 1 << 20, argument_len: 1 << 30, request_len: 1 << 30 };
        let mut decoder = RequestDecoder::new(limits);
        let mut input = &b"*1000000\r\n$1000000000\r\nab"[..];
        assert_eq!(decoder.decode(&mut input), Ok(None));
        assert!(decoder.held_len() <= 2 * RESERVE_MAX, "{}", decoder.held_len());
    }
}
