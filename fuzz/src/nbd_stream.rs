//! Bytes of an NBD client: the handshake, options and requests, in pieces of any size.

use nbd_server::{Connection, Export, Limits, Refusal, Refused, Step, TlsOffer, decode_operation};
use nbd_wire::{
    BlockSizes, Command, CommandFlags, HeaderStyle, InfoRequest, MetaContextRequest, OptionCode,
    OptionHeader, Request, TransmissionFlags,
};

use crate::input::Input;

const SIZE: u64 = 1 << 20;
const LIMITS: Limits = Limits {
    option_bytes_max: 300,
    option_bytes_skipped_max: 1000,
    options_max: 50,
    payload_bytes_max: 4096,
};

/// All that a connection says and does; payload is only counted.
#[derive(Debug, Default, Eq, PartialEq)]
struct Seen {
    sent: Vec<u8>,
    requests: Vec<(Request, Option<Refused>)>,
    payload_bytes: u64,
    end: Option<String>,
}

/// The bytes do the same in one piece and in many, and no request that passes leaves the export.
pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let (piece, tls) = (usize::from(input.u8()).max(1), input.u8());
    let tls = if tls % 2 == 0 { TlsOffer::None } else { TlsOffer::Optional };
    let stream = input.0;
    let whole = serve(stream, stream.len().max(1), tls);
    assert_eq!(whole, serve(stream, piece, tls), "pieces of {piece}");
}

fn serve(stream: &[u8], piece: usize, tls: TlsOffer) -> Seen {
    let mut seen = Seen::default();
    let mut connection = Connection::new(LIMITS, tls, &mut seen.sent);
    for mut piece in stream.chunks(piece) {
        loop {
            match connection.poll(&mut piece, &mut seen.sent) {
                Step::NeedMore => break,
                // What came before the handshake of TLS is not read after it, so all of the stream is taken to be behind it.
                Step::StartTls => connection.tls_started(),
                Step::List => connection.listed(["a", "b"], &mut seen.sent),
                Step::Find { name, .. } => find(&mut connection, &name, &mut seen.sent),
                Step::Request(request) => look_at(&connection, request, &mut seen),
                Step::RequestWithPayload(request) => {
                    assert!(request.len_bytes <= LIMITS.payload_bytes_max.into());
                    look_at(&connection, request, &mut seen);
                }
                Step::Payload(bytes) => seen.payload_bytes += bytes.len() as u64,
                Step::PayloadEnd => assert_eq!(connection.owed_bytes(), None),
                Step::Closed(reason) => {
                    seen.end = Some(reason.to_string());
                    return seen;
                }
            }
        }
        assert!(piece.is_empty(), "a connection that waits has taken all");
    }
    seen
}

fn find(connection: &mut Connection, name: &str, sent: &mut Vec<u8>) {
    let refusal = match name {
        "" | "a" => {
            let export = Export {
                name: "a",
                description: None,
                size_bytes: SIZE,
                flags: TransmissionFlags::HAS_FLAGS,
                sizes: BlockSizes { minimum: 1, preferred: 4096, maximum: 4096 },
            };
            connection.found(&export, sent);
            return;
        }
        "b" => Refusal::Policy("elsewhere"),
        "c" => Refusal::Shutdown,
        _ => Refusal::Unknown,
    };
    connection.refuse(refusal, sent);
}

fn look_at(connection: &Connection, request: Request, seen: &mut Seen) {
    use nbd_server::Operation as Op;
    let operation = decode_operation(connection, &request, SIZE);
    let (offset, len_bytes) = match operation {
        Ok(Op::Read { offset, len_bytes } | Op::Write { offset, len_bytes }) => {
            assert!(len_bytes <= LIMITS.payload_bytes_max);
            (offset, len_bytes.into())
        }
        Ok(
            Op::Trim { offset, len_bytes }
            | Op::Cache { offset, len_bytes }
            | Op::WriteZeroes { offset, len_bytes, .. }
            | Op::BlockStatus { offset, len_bytes, .. },
        ) => (offset, len_bytes),
        Ok(Op::Flush) | Err(_) => (0, 0),
    };
    assert!(offset.checked_add(len_bytes).is_some_and(|end| end <= SIZE), "{request:?}");
    seen.requests.push((request, operation.err()));
}

/// A haggling of all options, and requests of both kinds.
pub fn seeds() -> Vec<Vec<u8>> {
    let option = |code: u32, data: &[u8]| {
        let header = OptionHeader { option: OptionCode(code), len_bytes: data.len() as u32 };
        [&header.encode()[..], data].concat()
    };
    let named = InfoRequest { name: "a", infos: vec![nbd_wire::InfoKind::NAME] }.encode();
    let contexts = MetaContextRequest { name: "a", queries: vec!["base:allocation"] }.encode();
    let requests = |style| {
        let request = |command| {
            let (flags, command) = (CommandFlags::FUA, Command(command));
            let request = Request { flags, command, cookie: 9, offset: 512, len_bytes: 16 };
            let mut bytes = request.encode(style);
            if command == Command::WRITE {
                bytes.extend_from_slice(&[7; 16]);
            }
            bytes
        };
        [0, 1, 3, 4, 5, 6, 7, 8, 2].map(request).concat()
    };
    let hello = [7, 0, 0, 0, 0, 3];
    let options = [
        option(3, b""),
        option(6, &named),
        option(8, b""),
        option(9, &contexts),
        option(10, &contexts),
    ]
    .concat();
    let go = option(7, &named);
    let compact = [&hello[..], &options, &go, &requests(HeaderStyle::Compact)].concat();
    let extended = option(11, b"");
    let long = requests(HeaderStyle::Extended);
    let extended = [&hello[..], &options, &extended, &go, &long].concat();
    let tls = [&[3, 1, 0, 0, 0, 1][..], &options, &option(5, b""), &options, &option(2, b"")];
    let by_name = [&[90, 0, 0, 0, 0, 1][..], &option(1, b"a"), &requests(HeaderStyle::Compact)];
    vec![compact, extended, tls.concat(), by_name.concat()]
}
