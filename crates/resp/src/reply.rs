//! Replies, as a server writes them.

use alloc::vec::Vec;

use crate::request::push_number;

/// The version of the protocol that a connection asked for by `HELLO`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Protocol {
    /// RESP2, the version of a connection that sent no `HELLO`.
    #[default]
    Resp2,
    /// RESP3, which also has null, maps and verbatim text.
    Resp3,
}

/// Appends replies to a buffer. Of an array or a map as many elements must follow as were announced.
#[derive(Debug)]
pub struct Reply<'a> {
    out: &'a mut Vec<u8>,
    protocol: Protocol,
}

impl<'a> Reply<'a> {
    /// Replies to a connection of this version.
    pub fn new(out: &'a mut Vec<u8>, protocol: Protocol) -> Self {
        Self { out, protocol }
    }

    /// Bytes in the buffer.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a length to compare with a limit")]
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Takes back all that was written behind `len`, the value of [`Self::len`] at that time.
    pub fn truncate(&mut self, len: usize) {
        self.out.truncate(len);
    }

    fn line(&mut self, kind: u8, text: &str) {
        self.out.push(kind);
        // A line break inside would end the reply early.
        self.out.extend(
            text.bytes().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }),
        );
        self.out.extend_from_slice(b"\r\n");
    }

    fn head(&mut self, kind: u8, count: usize) {
        self.out.push(kind);
        push_number(self.out, count as i64);
    }

    /// A status, such as `OK`.
    pub fn status(&mut self, text: &str) {
        self.line(b'+', text);
    }

    /// An error: a code in capital letters, a blank, a message.
    pub fn error(&mut self, text: &str) {
        self.line(b'-', text);
    }

    /// An integer.
    pub fn integer(&mut self, number: i64) {
        self.out.push(b':');
        push_number(self.out, number);
    }

    /// A bulk string.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.head(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// A text for people.
    pub fn text(&mut self, text: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => {
                self.head(b'=', text.len() + 4);
                self.out.extend_from_slice(b"txt:");
                self.out.extend_from_slice(text.as_bytes());
                self.out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// The absence of a value.
    pub fn null(&mut self) {
        let bytes: &[u8] = if self.protocol == Protocol::Resp3 { b"_\r\n" } else { b"$-1\r\n" };
        self.out.extend_from_slice(bytes);
    }

    /// The head of an array of `count` elements.
    pub fn array(&mut self, count: usize) {
        self.head(b'*', count);
    }

    /// The head of a map of `count` keys, each followed by its value: a flat array in RESP2.
    pub fn map(&mut self, count: usize) {
        match self.protocol {
            Protocol::Resp2 => self.head(b'*', 2 * count),
            Protocol::Resp3 => self.head(b'%', count),
        }
    }
}
