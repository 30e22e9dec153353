//! Exchanges of a client with the state machine: what is agreed, what is forgotten, and that no bytes break it.

use nbd_server::{
    BASE_ALLOCATION, CloseReason, Connection, Export, Limits, Operation, Purpose, Refusal, Step,
    TlsOffer, decode_operation,
};
use nbd_wire::{
    BlockSizes, Command, CommandFlags, Errno, HeaderStyle, InfoRequest, MetaContextRequest,
    OptionCode, OptionHeader, OptionReplyHeader, OptionReplyKind, Request, TransmissionFlags,
};
use proptest::prelude::*;

const SIZE: u64 = 1 << 30;

fn export() -> Export<'static> {
    Export {
        name: "db",
        description: Some("a volume"),
        size_bytes: SIZE,
        flags: TransmissionFlags::HAS_FLAGS,
        sizes: BlockSizes { minimum: 1, preferred: 4096, maximum: 32 << 20 },
    }
}

/// All that a connection did with the bytes that it was given.
#[derive(Debug, Default, Eq, PartialEq)]
struct Log {
    sent: Vec<u8>,
    requests: Vec<(Request, Vec<u8>)>,
    closed: Option<CloseReason>,
    tls_started: bool,
}

struct Server {
    connection: Connection,
    log: Log,
}

impl Server {
    fn new(tls: TlsOffer) -> Self {
        let mut log = Log::default();
        let connection = Connection::new(Limits::default(), tls, &mut log.sent);
        Self { connection, log }
    }

    /// A server that has read the client's flags, and whose greeting was read.
    fn greeted(tls: TlsOffer) -> Self {
        let mut server = Self::new(tls);
        server.take(&3_u32.to_be_bytes());
        server.log.sent.clear();
        server
    }

    /// Takes bytes in, and answers for the exports: `db` is there, nothing else is.
    fn take(&mut self, mut input: &[u8]) {
        loop {
            let Self { connection, log } = self;
            match connection.poll(&mut input, &mut log.sent) {
                Step::NeedMore => return,
                Step::StartTls => {
                    log.tls_started = true;
                    return;
                }
                Step::List => connection.listed(["db"], &mut log.sent),
                Step::Find { name, .. } if name == "db" => {
                    connection.found(&export(), &mut log.sent);
                }
                Step::Find { .. } => connection.refuse(Refusal::Unknown, &mut log.sent),
                Step::Request(request) | Step::RequestWithPayload(request) => {
                    log.requests.push((request, Vec::new()));
                }
                Step::Payload(bytes) => {
                    log.requests.last_mut().expect("its request").1.extend_from_slice(bytes);
                }
                Step::PayloadEnd => {}
                Step::Closed(reason) => {
                    log.closed = Some(reason);
                    return;
                }
            }
        }
    }

    /// Takes an option in. Returns the kinds of the replies.
    fn option(&mut self, option: OptionCode, data: &[u8]) -> Vec<OptionReplyKind> {
        let len_bytes = data.len() as u32;
        self.take(&[&OptionHeader { option, len_bytes }.encode()[..], data].concat());
        kinds(&std::mem::take(&mut self.log.sent))
    }
}

fn kinds(mut sent: &[u8]) -> Vec<OptionReplyKind> {
    let mut kinds = Vec::new();
    while let Some((header, rest)) = sent.split_first_chunk::<20>() {
        let header = OptionReplyHeader::decode(header).expect("a reply");
        kinds.push(header.kind);
        sent = &rest[header.len_bytes as usize..];
    }
    kinds
}

fn go(name: &str) -> Vec<u8> {
    InfoRequest { name, infos: Vec::new() }.encode()
}

fn contexts(name: &str) -> Vec<u8> {
    MetaContextRequest { name, queries: vec![BASE_ALLOCATION] }.encode()
}

const ACK: OptionReplyKind = OptionReplyKind::ACK;
const INFO: OptionReplyKind = OptionReplyKind::INFO;
const CONTEXT: OptionReplyKind = OptionReplyKind::META_CONTEXT;

#[test]
fn exports_are_told_and_opened() {
    let mut server = Server::greeted(TlsOffer::None);
    assert_eq!(server.option(OptionCode::LIST, b""), [OptionReplyKind::SERVER, ACK]);
    assert_eq!(server.option(OptionCode::INFO, &go("db")), [INFO, INFO, ACK]);
    assert_eq!(server.option(OptionCode::GO, &go("other")), [OptionReplyKind::ERR_UNKNOWN]);
    assert!(!server.connection.is_transmitting());
    assert_eq!(server.option(OptionCode::GO, &go("db")), [INFO, INFO, ACK]);
    assert!(server.connection.is_transmitting());
}

#[test]
fn clients_of_other_protocols_are_named() {
    for (bytes, name) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "HTTP"),
        (b"POST /v1/volumes HTTP/1.1\r\n\r\n", "HTTP"),
        (&[0x16, 3, 1, 0, 200, 1, 0, 0], "TLS"),
        (&[0, 0, 128, 0, 128, 0, 0, 0], "NVMe/TCP"),
    ] {
        let mut server = Server::new(TlsOffer::None);
        server.take(bytes);
        assert_eq!(server.log.closed, Some(CloseReason::OtherProtocol(name)));
    }
    let mut server = Server::new(TlsOffer::None);
    server.take(&[0xFF; 40]);
    assert_eq!(server.log.closed, Some(CloseReason::Flags { flags: u32::MAX }));
}

#[test]
fn an_export_by_name_alone_is_answered_with_padding_or_without() {
    for (flags, len) in [(3_u32, 10), (1, 134)] {
        let mut server = Server::new(TlsOffer::None);
        server.log.sent.clear();
        server.take(&flags.to_be_bytes());
        let header = OptionHeader { option: OptionCode::EXPORT_NAME, len_bytes: 2 };
        server.take(&[&header.encode()[..], b"db"].concat());
        assert_eq!(server.log.sent.len(), len);
        assert!(server.connection.is_transmitting());
    }
    let mut server = Server::greeted(TlsOffer::None);
    let header = OptionHeader { option: OptionCode::EXPORT_NAME, len_bytes: 2 };
    server.take(&[&header.encode()[..], b"no"].concat());
    assert_eq!(server.log.closed, Some(CloseReason::NoSuchExport));
}

#[test]
fn clients_of_before_fixed_newstyle_are_not_served() {
    for flags in [0_u32, 2, 5] {
        let mut server = Server::new(TlsOffer::None);
        server.take(&flags.to_be_bytes());
        assert_eq!(server.log.closed, Some(CloseReason::Flags { flags }));
    }
}

/// NBD-SERVER-3. Method: all that can be agreed is agreed, then TLS begins: nothing of it is left, and not one byte that
/// came with the option is read.
#[test]
fn what_was_agreed_before_tls_counts_for_nothing() {
    let mut server = Server::greeted(TlsOffer::Optional);
    assert_eq!(server.option(OptionCode::EXTENDED_HEADERS, b""), [ACK]);
    assert_eq!(server.option(OptionCode::SET_META_CONTEXT, &contexts("db")), [CONTEXT, ACK]);
    let start = OptionHeader { option: OptionCode::STARTTLS, len_bytes: 0 }.encode();
    let injected = OptionHeader { option: OptionCode::LIST, len_bytes: 0 }.encode();
    server.take(&[start, injected].concat());
    assert!(server.log.tls_started);
    assert_eq!(kinds(&std::mem::take(&mut server.log.sent)), [ACK], "of STARTTLS alone");
    server.take(&injected);
    assert_eq!(server.log.sent, [], "nothing is read before TLS has begun");
    server.connection.tls_started();
    assert!(server.connection.is_encrypted());
    assert_eq!(server.option(OptionCode::STARTTLS, b""), [OptionReplyKind::ERR_INVALID]);
    let refused = server.option(OptionCode::SET_META_CONTEXT, &contexts("db"));
    assert_eq!(refused, [OptionReplyKind::ERR_INVALID], "structured replies are forgotten");
    assert_eq!(server.option(OptionCode::GO, &go("db")), [INFO, INFO, ACK]);
    let request = Request {
        flags: CommandFlags::default(),
        command: Command::BLOCK_STATUS,
        cookie: 1,
        offset: 0,
        len_bytes: 1,
    };
    server.take(&request.encode(HeaderStyle::Compact));
    assert_eq!(server.log.requests.len(), 1, "headers are compact again");
    let refused = decode_operation(&server.connection, &request, SIZE);
    assert_eq!(refused.map_err(|it| it.errno), Err(Errno::EINVAL), "the context is forgotten");
}

/// NBD-SERVER-4: where TLS is offered, a client without it learns the same of every name.
#[test]
fn without_tls_all_names_are_answered_alike() {
    let mut server = Server::greeted(TlsOffer::Optional);
    for name in ["", "no", "none"] {
        let refused = server.option(OptionCode::GO, &go(name));
        assert_eq!(refused, [OptionReplyKind::ERR_TLS_REQD], "{name}");
    }
}

#[test]
fn a_context_holds_for_the_export_for_which_it_was_chosen() {
    let status = Request {
        flags: CommandFlags::REQ_ONE,
        command: Command::BLOCK_STATUS,
        cookie: 1,
        offset: 7,
        len_bytes: 8,
    };
    for (chosen, expected) in [
        (true, Ok(Operation::BlockStatus { offset: 7, len_bytes: 8, one: true })),
        (false, Err(Errno::EINVAL)),
    ] {
        let mut server = Server::greeted(TlsOffer::None);
        server.option(OptionCode::STRUCTURED_REPLY, b"");
        assert_eq!(server.option(OptionCode::SET_META_CONTEXT, &contexts("db")), [CONTEXT, ACK]);
        if !chosen {
            // A choice that fails leaves none.
            server.option(OptionCode::SET_META_CONTEXT, &contexts("no"));
        }
        server.option(OptionCode::GO, &go("db"));
        let found = decode_operation(&server.connection, &status, SIZE).map_err(|it| it.errno);
        assert_eq!(found, expected);
    }
}

/// A server whose client has opened the export, with structured replies or extended headers, and a context.
fn opened(is_structured: bool, style: HeaderStyle, has_context: bool) -> Server {
    let mut server = Server::greeted(TlsOffer::None);
    match style {
        HeaderStyle::Extended => server.option(OptionCode::EXTENDED_HEADERS, b""),
        HeaderStyle::Compact if is_structured => server.option(OptionCode::STRUCTURED_REPLY, b""),
        HeaderStyle::Compact => Vec::new(),
    };
    if has_context {
        server.option(OptionCode::SET_META_CONTEXT, &contexts("db"));
    }
    assert_eq!(server.option(OptionCode::GO, &go("db")), [INFO, INFO, ACK]);
    server
}

/// Every reason for which a request is refused, with its number. Each stands beside the nearest request that is carried out.
#[test]
fn each_refusal_has_its_number() {
    type Case = (Command, u16, u64, u64, Result<(), (Errno, &'static str)>);
    const SHORT: u64 = 32 << 20;
    const UNKNOWN: &str = "the command is not known";
    const FLAG: &str = "the command has no such flag";
    const FLUSH: &str = "a flush has no range";
    const BEYOND: &str = "the range ends beyond the export";
    let (einval, enospc) = (Errno::EINVAL, Errno::ENOSPC);
    let beyond = |errno| Err((errno, BEYOND));
    let too_long = Err((Errno::EOVERFLOW, "the range is longer than the largest block"));
    let fast = Err((Errno::ENOTSUP, "zeroes that take space are written as data is"));
    let cases: [Case; 33] = [
        (Command(77), 0, 0, 1, Err((einval, UNKNOWN))),
        (Command::DISCONNECT, 0, 0, 0, Err((einval, UNKNOWN))),
        (Command::FLUSH, 0, 0, 0, Ok(())),
        (Command::FLUSH, 0, 1, 0, Err((einval, FLUSH))),
        (Command::FLUSH, 0, 0, 1, Err((einval, FLUSH))),
        (Command::READ, 0, SIZE - 1, 1, Ok(())),
        (Command::READ, 0, SIZE, 0, Ok(())),
        (Command::READ, 0, SIZE - 1, 2, beyond(einval)),
        (Command::READ, 0, u64::MAX, 2, beyond(einval)),
        (Command::READ, 0, 0, SHORT, Ok(())),
        (Command::READ, 0, 0, SHORT + 1, too_long),
        (Command::READ, 0, 0, SIZE, too_long),
        (Command::READ, 4, 0, 1, Ok(())),
        (Command::WRITE, 0, SIZE - 1, 1, Ok(())),
        (Command::WRITE, 0, SIZE - 1, 2, beyond(enospc)),
        (Command::WRITE, 0, u64::MAX, 2, beyond(enospc)),
        (Command::WRITE, 0, 0, SHORT + 1, too_long),
        (Command::TRIM, 0, 0, SIZE, Ok(())),
        (Command::TRIM, 0, 1, SIZE, beyond(einval)),
        (Command::CACHE, 0, 0, SIZE, Ok(())),
        (Command::CACHE, 0, 1, SIZE, beyond(einval)),
        (Command::WRITE_ZEROES, 2, 0, SIZE, Ok(())),
        (Command::WRITE_ZEROES, 16, 0, SIZE, Ok(())),
        (Command::WRITE_ZEROES, 18, 0, 1, fast),
        (Command::WRITE_ZEROES, 0, 1, SIZE, beyond(enospc)),
        (Command::BLOCK_STATUS, 8, 0, SIZE, Ok(())),
        (Command::BLOCK_STATUS, 0, 1, SIZE, beyond(einval)),
        (Command::BLOCK_STATUS, 0, SIZE, 0, Err((einval, "the range is empty"))),
        (Command::READ, 8, 0, 1, Err((einval, FLAG))),
        (Command::TRIM, 2, 0, 1, Err((einval, FLAG))),
        (Command::WRITE_ZEROES, 4, 0, 1, Err((einval, FLAG))),
        (Command::READ, 32, 0, 1, Err((einval, FLAG))),
        (Command::WRITE, 64, 0, 1, Err((einval, FLAG))),
    ];
    let check = |server: &Server, (command, flags, offset, len_bytes, expected): Case| {
        let flags = CommandFlags(flags);
        let request = Request { flags, command, cookie: 1, offset, len_bytes };
        let found = decode_operation(&server.connection, &request, SIZE);
        let found = found.map(drop).map_err(|it| (it.errno, it.message));
        assert_eq!(found, expected, "{request:?}");
    };
    for style in [HeaderStyle::Compact, HeaderStyle::Extended] {
        let server = opened(true, style, true);
        cases.iter().for_each(|case| check(&server, *case));
        // Of extended headers alone.
        let payload = if style == HeaderStyle::Extended { Ok(()) } else { Err((einval, FLAG)) };
        check(&server, (Command::WRITE, 32, 0, 1, payload));
        let none = Err((einval, "no metadata context was chosen for this export"));
        check(&opened(true, style, false), (Command::BLOCK_STATUS, 0, 0, 1, none));
    }
    let simple = opened(false, HeaderStyle::Compact, false);
    check(
        &simple,
        (Command::READ, 4, 0, 1, Err((einval, "structured replies were not asked for"))),
    );
    check(&simple, (Command::READ, 0, 0, 1, Ok(())));
}

#[test]
fn an_option_without_end_and_options_without_end_end_the_connection() {
    let mut server = Server::greeted(TlsOffer::None);
    let header = OptionHeader { option: OptionCode::INFO, len_bytes: u32::MAX };
    server.take(&header.encode());
    let option = OptionCode::INFO;
    let reason = CloseReason::OptionTooLong { option, len_bytes: u32::MAX };
    assert_eq!(server.log.closed, Some(reason));
    assert!(reason.to_string().contains("NBD_OPT_INFO"), "{reason}");
    let mut server = Server::greeted(TlsOffer::None);
    let max = Limits::default().options_max;
    for _ in 0..max {
        assert_eq!(server.option(OptionCode(99), b""), [OptionReplyKind::ERR_UNSUP]);
    }
    server.option(OptionCode(99), b"");
    assert_eq!(server.log.closed, Some(CloseReason::TooManyOptions));
}

/// Each refusal names the option.
#[test]
fn a_refusal_says_which_option_is_refused() {
    let refusals: [(OptionCode, &[u8], &str); 4] = [
        (OptionCode::STARTTLS, b"", "NBD_OPT_STARTTLS: the server has no certificate"),
        (OptionCode::LIST, b"x", "NBD_OPT_LIST: the option has no data"),
        (OptionCode(4), b"", "NBD_OPT_PEEK_EXPORT: not known here"),
        (OptionCode(99), b"", "the option 99: not known here"),
    ];
    for (option, data, expected) in refusals {
        let mut server = Server::greeted(TlsOffer::None);
        let len_bytes = data.len() as u32;
        server.take(&[&OptionHeader { option, len_bytes }.encode()[..], data].concat());
        let said = String::from_utf8(server.log.sent.split_off(20)).expect("words");
        assert_eq!(said, expected);
    }
}

/// A purpose tells whether a connection takes one of the places of its volume.
#[test]
fn only_go_and_export_name_open() {
    for (option, expected) in [(OptionCode::INFO, Purpose::Look), (OptionCode::GO, Purpose::Open)] {
        let mut connection = Connection::new(Limits::default(), TlsOffer::None, &mut Vec::new());
        let data = go("db");
        let header = OptionHeader { option, len_bytes: data.len() as u32 }.encode();
        let bytes = [&3_u32.to_be_bytes()[..], &header, &data].concat();
        let mut input = &bytes[..];
        let step = connection.poll(&mut input, &mut Vec::new());
        assert_eq!(step, Step::Find { name: "db".into(), purpose: expected });
    }
}

/// A piece of what a client might send: messages, whole or cut short, and rubbish.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let option = (0..14_u32, prop::collection::vec(any::<u8>(), 0..40)).prop_map(|(code, data)| {
        let header = OptionHeader { option: OptionCode(code), len_bytes: data.len() as u32 };
        [&header.encode()[..], &data].concat()
    });
    let named = prop::sample::select(vec![6_u32, 7]).prop_map(|code| {
        let data = go("db");
        let header = OptionHeader { option: OptionCode(code), len_bytes: data.len() as u32 };
        [&header.encode()[..], &data].concat()
    });
    let request = (0..9_u16, any::<u16>(), any::<u64>(), 0..100_u64, any::<bool>()).prop_map(
        |(command, flags, offset, len_bytes, extended)| {
            let style = if extended { HeaderStyle::Extended } else { HeaderStyle::Compact };
            let (flags, command) = (CommandFlags(flags), Command(command));
            Request { flags, command, cookie: 5, offset, len_bytes }.encode(style)
        },
    );
    let rubbish = prop::collection::vec(any::<u8>(), 0..50);
    prop_oneof![4 => option, 2 => named, 4 => request, 1 => rubbish]
}

proptest! {
    /// Whatever comes is taken in without a panic, and to the same end however it is cut.
    #[test]
    fn bytes_do_the_same_in_any_pieces(
        pieces in prop::collection::vec(piece(), 0..12),
        cuts in prop::collection::vec(1..60_usize, 1..40),
    ) {
        let bytes = [&3_u32.to_be_bytes()[..], &pieces.concat()].concat();
        let mut whole = Server::new(TlsOffer::None);
        whole.take(&bytes);
        let mut cut = Server::new(TlsOffer::None);
        let (mut rest, mut cuts) = (&bytes[..], cuts.iter().cycle());
        while !rest.is_empty() && cut.log.closed.is_none() {
            let (taken, left) = rest.split_at(rest.len().min(*cuts.next().expect("endless")));
            cut.take(taken);
            rest = left;
        }
        prop_assert_eq!(&whole.log, &cut.log);
        for (request, _) in &whole.log.requests {
            // Of any request it can be said whether it makes sense.
            if let Ok(Operation::Read { offset, len_bytes }) =
                decode_operation(&whole.connection, request, SIZE)
            {
                prop_assert!(offset + u64::from(len_bytes) <= SIZE);
            }
        }
    }
}
