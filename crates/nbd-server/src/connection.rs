//! The bytes of a connection, taken apart.

use alloc::string::String;
use alloc::vec::Vec;

use nbd_wire::{
    BadMagic, ClientFlags, Command, CommandFlags, Greeting, HandshakeFlags, HeaderStyle,
    OPTION_HEADER_LEN, OptionCode, OptionHeader, OptionReplyKind, Request,
};
use strangers::protocol_of;

use crate::haggling::{Purpose, TlsOffer};

/// Takes what is to be sent.
pub trait Outbox {
    /// Appends a copy of `bytes`.
    fn bytes(&mut self, bytes: &[u8]);
}

impl Outbox for Vec<u8> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Bounds on what a client can ask for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of an option that are kept (NBD-SERVER-1). Longer ones are refused.
    pub option_bytes_max: u32,
    /// Bytes of an option that are passed over to refuse it; a longer one ends the connection.
    pub option_bytes_skipped_max: u32,
    /// Options of a connection: haggling ends some day.
    pub options_max: u32,
    /// Bytes of a read, and of the payload of a request. A longer payload ends the connection.
    pub payload_bytes_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            option_bytes_max: 32 << 10,
            option_bytes_skipped_max: 1 << 20,
            options_max: 8192,
            // What the protocol lets a client count on that has not asked.
            payload_bytes_max: 32 << 20,
        }
    }
}

/// The next thing that a connection is to do.
#[derive(Debug, Eq, PartialEq)]
pub enum Step<'a> {
    /// All bytes are used up.
    NeedMore,
    /// The client was told to begin TLS: all that comes from now on is TLS, the rest of the input included
    /// (NBD-SERVER-3). [`Connection::tls_started`] is to be called when its handshake is over.
    StartTls,
    /// The client asks for the exports it may open: [`Connection::listed`].
    List,
    /// The client asks for an export: [`Connection::found`] or [`Connection::refuse`].
    Find {
        /// Its name; empty for the default one.
        name: String,
        /// The reason for which it asks.
        purpose: Purpose,
    },
    /// A request has come, without payload. It is to be answered once.
    Request(Request),
    /// A request has come whose payload is about to, in [`Step::Payload`]s of together its length.
    RequestWithPayload(Request),
    /// A part of the payload of the last request.
    Payload(&'a [u8]),
    /// All payload of the last request was handed out.
    PayloadEnd,
    /// The connection is over: replies that are owed are sent, and nothing more is read.
    Closed(CloseReason),
}

/// The reason for which a connection is over.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CloseReason {
    /// As the client wished.
    #[error("the client disconnected")]
    Disconnected,
    /// While haggling.
    #[error("the client aborted the handshake")]
    Aborted,
    /// It speaks something else.
    #[error(transparent)]
    Magic(#[from] BadMagic),
    /// The first bytes are of another protocol.
    #[error("the client speaks {0}, and this port NBD")]
    OtherProtocol(&'static str),
    /// It did not say that it understands answers to options, or said what is not known.
    #[error("the client has flags {flags:#x}; fixed newstyle is needed")]
    Flags {
        /// Those flags.
        flags: u32,
    },
    /// An option is so long that it is not even passed over.
    #[error("{option} with {len_bytes} bytes of data")]
    OptionTooLong {
        /// The option.
        option: OptionCode,
        /// Its length.
        len_bytes: u32,
    },
    /// It never chooses.
    #[error("too many options")]
    TooManyOptions,
    /// A payload is longer than any may be.
    #[error("a payload of {len_bytes} bytes")]
    PayloadTooLong {
        /// Its length.
        len_bytes: u64,
    },
    /// `NBD_OPT_EXPORT_NAME` cannot be refused otherwise.
    #[error("the client asked for an export that it may not open, by an option that has no answer")]
    NoSuchExport,
}

impl CloseReason {
    /// Returns true if the client ended the connection in good order.
    #[must_use]
    pub fn is_by_client(&self) -> bool {
        matches!(self, Self::Disconnected | Self::Aborted)
    }
}

/// The progress of a connection.
#[derive(Debug)]
enum Phase {
    /// The client's flags are expected.
    Flags,
    /// The header of an option is.
    Option,
    /// The data of an option is.
    OptionData(OptionHeader),
    /// The rest of an option that is refused is.
    OptionSkipped { header: OptionHeader, left: u32, kind: OptionReplyKind },
    /// The driver's answer to an option is; nothing is read.
    Answer,
    /// TLS is.
    Tls,
    /// The header of a request is.
    Request,
    /// So many bytes of payload are.
    Payload { left: u64 },
    /// Nothing is.
    Ended(CloseReason),
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    pub(crate) limits: Limits,
    phase: Phase,
    /// The header, or the data of an option, as far as it has come.
    buffer: Vec<u8>,
    options: u32,
    pub(crate) tls: TlsOffer,
    pub(crate) is_encrypted: bool,
    pub(crate) has_padding: bool,
    pub(crate) is_structured: bool,
    pub(crate) style: HeaderStyle,
    /// The export for which `base:allocation` was chosen.
    pub(crate) context_of: Option<String>,
    /// The option that waits for the driver's answer.
    pub(crate) asked: Option<crate::haggling::Asked>,
    /// `base:allocation` holds for the export that is open.
    pub(crate) has_context: bool,
}

impl Connection {
    /// A connection that was accepted. Greets the client.
    #[must_use]
    pub fn new(limits: Limits, tls: TlsOffer, out: &mut impl Outbox) -> Self {
        let flags = HandshakeFlags::FIXED_NEWSTYLE.with(HandshakeFlags::NO_ZEROES);
        out.bytes(&Greeting { flags }.encode());
        Self {
            limits,
            phase: Phase::Flags,
            buffer: Vec::new(),
            options: 0,
            tls,
            is_encrypted: false,
            has_padding: true,
            is_structured: false,
            style: HeaderStyle::Compact,
            context_of: None,
            asked: None,
            has_context: false,
        }
    }

    /// Returns whether an export is open.
    #[must_use]
    pub fn is_transmitting(&self) -> bool {
        matches!(self.phase, Phase::Request | Phase::Payload { .. })
    }

    /// Returns whether TLS protects the connection.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// Returns the bytes that the client owes of a request that has begun to come; `None` if it owes none.
    #[must_use]
    pub fn owed_bytes(&self) -> Option<u64> {
        match &self.phase {
            Phase::Payload { left } => Some(*left),
            Phase::Request if !self.buffer.is_empty() => {
                Some((self.style.request_len() - self.buffer.len()) as u64)
            }
            _ => None,
        }
    }

    /// Takes in bytes from the front of `input`, up to the next thing to do.
    pub fn poll<'a>(&mut self, input: &mut &'a [u8], out: &mut impl Outbox) -> Step<'a> {
        loop {
            let step = match &mut self.phase {
                Phase::Flags => self.take_flags(input),
                Phase::Option => self.take_option(input),
                Phase::OptionData(header) => {
                    let header = *header;
                    match self.collect(input, header.len_bytes as usize) {
                        false => Some(Step::NeedMore),
                        true => self.option_complete(header, out),
                    }
                }
                Phase::OptionSkipped { header, left, kind } => {
                    let skipped = (input.len()).min(*left as usize);
                    *input = &input[skipped..];
                    *left -= skipped as u32;
                    if *left > 0 {
                        Some(Step::NeedMore)
                    } else {
                        let (option, kind) = (header.option, *kind);
                        self.phase = Phase::Option;
                        self.refuse_option(option, kind, "too much data", out);
                        None
                    }
                }
                Phase::Answer | Phase::Tls => Some(Step::NeedMore),
                Phase::Request => self.take_request(input),
                Phase::Payload { left } => Some(take_payload(left, input)),
                Phase::Ended(reason) => return Step::Closed(*reason),
            };
            match step {
                None => {}
                Some(Step::PayloadEnd) => {
                    self.phase = Phase::Request;
                    return Step::PayloadEnd;
                }
                Some(step) => return step,
            }
        }
    }

    /// Gathers `len` bytes in the buffer; whether they are there.
    fn collect(&mut self, input: &mut &[u8], len: usize) -> bool {
        let missing = len - self.buffer.len();
        let (taken, rest) = input.split_at(missing.min(input.len()));
        self.buffer.extend_from_slice(taken);
        *input = rest;
        self.buffer.len() == len
    }

    fn take_flags<'a>(&mut self, input: &mut &'a [u8]) -> Option<Step<'a>> {
        if !self.collect(input, 4) {
            return Some(Step::NeedMore);
        }
        // What is behind them, too, if it has come: four bytes do not tell all protocols apart.
        let begun: Vec<u8> = self.buffer.iter().chain(input.iter().take(4)).copied().collect();
        let flags = u32::from_be_bytes(self.buffer[..].try_into().expect("four were collected"));
        let flags = ClientFlags(flags);
        self.buffer.clear();
        if flags.has_unknown() || !flags.has(ClientFlags::FIXED_NEWSTYLE) {
            let unknown = CloseReason::Flags { flags: flags.0 };
            let reason = protocol_of(&begun).map_or(unknown, CloseReason::OtherProtocol);
            return Some(self.end(reason));
        }
        self.has_padding = !flags.has(ClientFlags::NO_ZEROES);
        self.phase = Phase::Option;
        None
    }

    fn take_option<'a>(&mut self, input: &mut &'a [u8]) -> Option<Step<'a>> {
        if !self.collect(input, OPTION_HEADER_LEN) {
            return Some(Step::NeedMore);
        }
        let header = OptionHeader::decode(self.buffer[..].try_into().expect("they were collected"));
        self.buffer.clear();
        let header = match header {
            Ok(header) => header,
            Err(error) => return Some(self.end(error.into())),
        };
        self.options += 1;
        let OptionHeader { option, len_bytes } = header;
        if self.options > self.limits.options_max {
            return Some(self.end(CloseReason::TooManyOptions));
        }
        if len_bytes > self.limits.option_bytes_skipped_max {
            return Some(self.end(CloseReason::OptionTooLong { option, len_bytes }));
        }
        self.phase = match len_bytes > self.limits.option_bytes_max {
            true => {
                let kind = OptionReplyKind::ERR_TOO_BIG;
                Phase::OptionSkipped { header, left: len_bytes, kind }
            }
            false => Phase::OptionData(header),
        };
        None
    }

    fn option_complete<'a>(
        &mut self,
        header: OptionHeader,
        out: &mut impl Outbox,
    ) -> Option<Step<'a>> {
        let data = core::mem::take(&mut self.buffer);
        self.phase = Phase::Option;
        let step = self.on_option(header.option, &data, out);
        match &step {
            Some(Step::StartTls) => self.phase = Phase::Tls,
            Some(Step::List | Step::Find { .. }) => self.phase = Phase::Answer,
            _ => {}
        }
        step
    }

    fn take_request<'a>(&mut self, input: &mut &'a [u8]) -> Option<Step<'a>> {
        if !self.collect(input, self.style.request_len()) {
            return Some(Step::NeedMore);
        }
        let request = Request::decode(self.style, &self.buffer);
        self.buffer.clear();
        let request = match request {
            Ok(request) => request,
            Err(error) => return Some(self.end(error.into())),
        };
        if request.command == Command::DISCONNECT {
            return Some(self.end(CloseReason::Disconnected));
        }
        let says_payload =
            self.style == HeaderStyle::Extended && request.flags.has(CommandFlags::PAYLOAD_LEN);
        if request.command != Command::WRITE && !says_payload {
            return Some(Step::Request(request));
        }
        if request.len_bytes > self.limits.payload_bytes_max.into() {
            let len_bytes = request.len_bytes;
            return Some(self.end(CloseReason::PayloadTooLong { len_bytes }));
        }
        self.phase = Phase::Payload { left: request.len_bytes };
        Some(Step::RequestWithPayload(request))
    }

    /// Ends the connection.
    pub(crate) fn end<'a>(&mut self, reason: CloseReason) -> Step<'a> {
        self.phase = Phase::Ended(reason);
        Step::Closed(reason)
    }

    /// Goes on with the next option.
    pub(crate) fn option_answered(&mut self) {
        self.phase = Phase::Option;
    }

    /// Goes on with requests.
    pub(crate) fn export_opened(&mut self) {
        self.phase = Phase::Request;
    }

    /// TLS has begun: what was agreed before counts for nothing (NBD-SERVER-3).
    pub fn tls_started(&mut self) {
        assert!(matches!(self.phase, Phase::Tls), "only after `Step::StartTls`");
        self.phase = Phase::Option;
        self.is_encrypted = true;
        self.is_structured = false;
        self.style = HeaderStyle::Compact;
        self.context_of = None;
    }
}

fn take_payload<'a>(left: &mut u64, input: &mut &'a [u8]) -> Step<'a> {
    if *left == 0 {
        return Step::PayloadEnd;
    }
    if input.is_empty() {
        return Step::NeedMore;
    }
    let len = usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
    let (taken, rest) = input.split_at(len);
    *left -= len as u64;
    *input = rest;
    Step::Payload(taken)
}
