//! Replies, as a client reads them: where each ends, and what kind it is.
//!
//! Elements of arrays and maps are counted and passed over. Nothing recurses: a reply of any depth needs one
//! counter of the elements that are missing.

use alloc::vec::Vec;

use crate::request::number;

/// The longest line: a status, an error, a number.
const LINE_LEN_MAX: usize = 64 << 10;

/// Bytes that are no reply. The stream cannot be followed any further.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AnswerError {
    /// A reply begins with a byte that the protocol does not know.
    #[error("a reply begins with '{}', which no kind of reply does", .0.escape_ascii())]
    UnknownKind(u8),
    /// A length or a number is none.
    #[error("a reply has a length that is no number")]
    BadLen,
    /// A line has no end within 64 KiB.
    #[error("a line of a reply is longer than 64 KiB")]
    LineTooLong,
    /// A bulk string is not followed by CR LF.
    #[error("a bulk string is longer than its length says")]
    NoLineEnd,
}

/// The kind of a whole reply.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AnswerKind {
    /// A status, such as `OK`: its text is in [`Answer::text`].
    Status,
    /// An error: its text is in [`Answer::text`].
    Error,
    /// An integer, a double, a boolean or a big number: its digits are in [`Answer::text`].
    Number,
    /// A bulk string; its length is [`Answer::bulk_len`].
    Bulk,
    /// The absence of a value.
    Null,
    /// An array, a set or a map.
    Aggregate,
    /// A message that answers no request (RESP3).
    Push,
}

/// A whole reply.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Answer {
    /// Its kind.
    pub kind: AnswerKind,
    /// The line of a status, an error or a number; empty for others.
    pub text: Vec<u8>,
    /// Bytes of all bulk strings in it.
    pub bulk_len: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Line,
    Bulk(u64),
    Cr,
    Lf,
}

/// Turns a connection's bytes into replies. After an error it must not be used again.
#[derive(Debug)]
pub struct AnswerDecoder {
    state: State,
    line: Vec<u8>,
    /// Elements that are missing until the reply is whole.
    missing: u64,
    answer: Option<Answer>,
}

impl Default for AnswerDecoder {
    fn default() -> Self {
        Self { state: State::Line, line: Vec::new(), missing: 1, answer: None }
    }
}

impl AnswerDecoder {
    /// Takes bytes from `input` up to the end of the next reply. `None`: all were taken, and more are needed.
    ///
    /// # Errors
    ///
    /// The bytes are no reply.
    pub fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Answer>, AnswerError> {
        while let Some(&first) = input.first() {
            let element_ends = match self.state {
                State::Line => self.line_end(input)? && self.on_line()?,
                State::Bulk(left) => {
                    let taken = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
                    *input = &input[taken..];
                    let left = left - taken as u64;
                    self.state = if left == 0 { State::Cr } else { State::Bulk(left) };
                    false
                }
                State::Cr | State::Lf => self.on_end(input, first)?,
            };
            if element_ends {
                self.missing -= 1;
            }
            if self.missing == 0 {
                self.missing = 1;
                return Ok(self.answer.take());
            }
        }
        Ok(None)
    }

    fn line_end(&mut self, input: &mut &[u8]) -> Result<bool, AnswerError> {
        let end = input.iter().position(|byte| *byte == b'\n');
        let taken = end.unwrap_or(input.len());
        if self.line.len() + taken > LINE_LEN_MAX {
            return Err(AnswerError::LineTooLong);
        }
        self.line.extend_from_slice(&input[..taken]);
        *input = &input[end.map_or(taken, |end| end + 1)..];
        if end.is_some() && self.line.last() == Some(&b'\r') {
            self.line.pop();
        }
        Ok(end.is_some())
    }

    /// Notes the kind of the reply if this is its first element.
    fn note(&mut self, kind: AnswerKind) {
        let text = match kind {
            AnswerKind::Status | AnswerKind::Error | AnswerKind::Number => self.line[1..].to_vec(),
            _ => Vec::new(),
        };
        self.answer.get_or_insert(Answer { kind, text, bulk_len: 0 });
    }

    /// Takes a line in; true: an element ends with it.
    fn on_line(&mut self) -> Result<bool, AnswerError> {
        let Some(&first) = self.line.first() else { return Err(AnswerError::UnknownKind(b'\r')) };
        let ends = match first {
            b'+' => self.simple(AnswerKind::Status),
            b'-' => self.simple(AnswerKind::Error),
            b':' | b',' | b'#' | b'(' => self.simple(AnswerKind::Number),
            b'_' => self.simple(AnswerKind::Null),
            b'$' | b'=' | b'!' => self.on_bulk(first)?,
            b'*' | b'~' => self.on_aggregate(AnswerKind::Aggregate, 1)?,
            b'%' => self.on_aggregate(AnswerKind::Aggregate, 2)?,
            b'>' => self.on_aggregate(AnswerKind::Push, 1)?,
            other => return Err(AnswerError::UnknownKind(other)),
        };
        self.line.clear();
        Ok(ends)
    }

    fn simple(&mut self, kind: AnswerKind) -> bool {
        self.note(kind);
        true
    }

    fn on_bulk(&mut self, first: u8) -> Result<bool, AnswerError> {
        let len = number(&self.line[1..]).ok_or(AnswerError::BadLen)?;
        match u64::try_from(len) {
            Err(_) if len == -1 => Ok(self.simple(AnswerKind::Null)),
            Err(_) => Err(AnswerError::BadLen),
            Ok(len) => {
                self.note(if first == b'!' { AnswerKind::Error } else { AnswerKind::Bulk });
                if let Some(answer) = &mut self.answer {
                    answer.text.clear();
                    answer.bulk_len = answer.bulk_len.saturating_add(len);
                }
                self.state = if len == 0 { State::Cr } else { State::Bulk(len) };
                Ok(false)
            }
        }
    }

    fn on_aggregate(&mut self, kind: AnswerKind, per_element: u64) -> Result<bool, AnswerError> {
        let count = number(&self.line[1..]).ok_or(AnswerError::BadLen)?;
        match u64::try_from(count) {
            Err(_) if count == -1 => Ok(self.simple(AnswerKind::Null)),
            Err(_) => Err(AnswerError::BadLen),
            Ok(count) => {
                self.note(kind);
                let more =
                    count.checked_mul(per_element).and_then(|more| self.missing.checked_add(more));
                self.missing = more.ok_or(AnswerError::BadLen)?;
                Ok(true)
            }
        }
    }

    fn on_end(&mut self, input: &mut &[u8], first: u8) -> Result<bool, AnswerError> {
        *input = &input[1..];
        match (self.state, first) {
            (State::Cr, b'\r') => self.state = State::Lf,
            (State::Lf, b'\n') => {
                self.state = State::Line;
                return Ok(true);
            }
            _ => return Err(AnswerError::NoLineEnd),
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(input: &[u8], piece: usize) -> Result<Vec<Answer>, AnswerError> {
        let mut decoder = AnswerDecoder::default();
        let mut all = Vec::new();
        for mut piece in input.chunks(piece) {
            while let Some(answer) = decoder.decode(&mut piece)? {
                all.push(answer);
            }
        }
        Ok(all)
    }

    #[test]
    fn each_reply_ends_where_it_does() {
        use AnswerKind::{Aggregate, Bulk, Error, Null, Number, Push, Status};
        let input = b"+OK\r\n-ERR no\r\n:7\r\n$-1\r\n_\r\n$3\r\na\r\n\r\n$0\r\n\r\n*0\r\n*-1\r\n\
            *2\r\n*1\r\n$2\r\nab\r\n%1\r\n+k\r\n:1\r\n>1\r\n+m\r\n=7\r\ntxt:abc\r\n#t\r\n";
        let expected: [(AnswerKind, &str, u64); 13] = [
            (Status, "OK", 0),
            (Error, "ERR no", 0),
            (Number, "7", 0),
            (Null, "", 0),
            (Null, "", 0),
            (Bulk, "", 3),
            (Bulk, "", 0),
            (Aggregate, "", 0),
            (Null, "", 0),
            (Aggregate, "", 2),
            (Push, "", 0),
            (Bulk, "", 7),
            (Number, "t", 0),
        ];
        for piece in 1..=input.len() {
            let all = decode(input, piece).expect("replies");
            assert_eq!(all.len(), 13, "{piece}: {all:?}");
            for (answer, (kind, text, bulk_len)) in all.iter().zip(expected) {
                let expected = Answer { kind, text: text.as_bytes().to_vec(), bulk_len };
                assert_eq!(*answer, expected, "{piece}");
            }
        }
    }

    #[test]
    fn bytes_that_are_no_reply_are_errors() {
        let cases: [(&[u8], AnswerError); 5] = [
            (b"\r\n", AnswerError::UnknownKind(b'\r')),
            (b"HTTP/1.1 400\r\n", AnswerError::UnknownKind(b'H')),
            (b"$x\r\n", AnswerError::BadLen),
            (b"*-7\r\n", AnswerError::BadLen),
            (b"$1\r\nabc\r\n", AnswerError::NoLineEnd),
        ];
        for (input, error) in cases {
            assert_eq!(decode(input, 1), Err(error));
        }
        let deep = b"*1\r\n".repeat(1 << 20);
        assert_eq!(decode(&deep, 4096), Ok(Vec::new()), "depth takes no stack");
    }
}
