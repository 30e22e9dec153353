//! Requests to the key-value server, in pieces of any size, and replies to its load generator.

use datastore::{Class, classify, parse_read, parse_session, parse_write};
use resp::{
    AnswerDecoder, AnswerError, Request, RequestDecoder, RequestError, RequestLimits,
    encode_request,
};

use crate::input::Input;

const LIMITS: RequestLimits =
    RequestLimits { arguments: 32, argument_len: 2000, request_len: 4000 };
/// Memory of a decoder apart from the bytes that it was given.
const HELD_MAX: usize = 40 << 10;

/// The bytes give the same in one piece and in many, keep the limits, and each request can be parsed and encoded.
pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let piece = usize::from(input.u8()).max(1);
    let stream = input.0;
    let (whole, whole_end) = requests(stream, stream.len().max(1));
    let (pieces, pieces_end) = requests(stream, piece);
    assert_eq!((&whole, &whole_end), (&pieces, &pieces_end), "pieces of {piece}");
    whole.iter().for_each(look_at);
    assert_eq!(answers(stream, stream.len().max(1)), answers(stream, piece), "pieces of {piece}");
}

fn requests(stream: &[u8], piece: usize) -> (Vec<Request>, Option<RequestError>) {
    let (mut decoder, mut all) = (RequestDecoder::new(LIMITS), Vec::new());
    for mut piece in stream.chunks(piece) {
        loop {
            match decoder.decode(&mut piece) {
                Ok(Some(request)) => all.push(request),
                Ok(None) => break,
                Err(error) => return (all, Some(error)),
            }
        }
        assert!(piece.is_empty(), "a decoder that waits has taken all");
        assert!(decoder.held_len() <= 4 * stream.len() + HELD_MAX, "{}", decoder.held_len());
    }
    (all, None)
}

fn answers(stream: &[u8], piece: usize) -> (usize, Option<AnswerError>) {
    let (mut decoder, mut count) = (AnswerDecoder::default(), 0);
    for mut piece in stream.chunks(piece) {
        loop {
            match decoder.decode(&mut piece) {
                Ok(Some(_)) => count += 1,
                Ok(None) => break,
                Err(error) => return (count, Some(error)),
            }
        }
    }
    (count, None)
}

fn look_at(request: &Request) {
    let arguments: Vec<&[u8]> = request.arguments().collect();
    assert!((1..=LIMITS.arguments).contains(&arguments.len()));
    assert!(arguments.iter().all(|argument| argument.len() <= LIMITS.argument_len));
    assert!(request.byte_len() <= LIMITS.request_len);
    let mut encoded = Vec::new();
    encode_request(&mut encoded, &arguments);
    assert_eq!(requests(&encoded, encoded.len()), (vec![request.clone()], None));
    let refusal = match classify(request) {
        Ok(Class::Read) => parse_read(request).err(),
        Ok(Class::Write) => parse_write(request, 1000).err(),
        Ok(Class::Session) => parse_session(request).err(),
        Err(error) => Some(error),
    };
    // An error is a reply: a code, a blank, a message.
    assert!(refusal.is_none_or(|error| error.to_string().contains(' ')));
}

/// A pipeline of each kind of request, the mistakes, and replies.
pub fn seeds() -> Vec<Vec<u8>> {
    let requests: [&[&[u8]]; 9] = [
        &[b"SET", b"key", b"value", b"NX", b"GET"],
        &[b"MGET", b"a", b"b"],
        &[b"MSET", b"a", b"1", b"b", b"\r\n"],
        &[b"DEL", b"a", b"a"],
        &[b"APPEND", b"a", b"more"],
        &[b"SCAN", b"17", b"MATCH", b"a*[b-c]", b"COUNT", b"10", b"TYPE", b"string"],
        &[b"HELLO", b"3", b"AUTH", b"default", b"secret", b"SETNAME", b"x"],
        &[b"CONFIG", b"GET", b"max*"],
        &[b"CLIENT", b"SETINFO", b"LIB-NAME", b"x"],
    ];
    let mut pipeline = vec![7];
    requests.iter().for_each(|arguments| encode_request(&mut pipeline, arguments));
    let texts: [&[u8]; 4] = [
        b"\x01GET \"a\\x41\\n\" 'b\\'c'\r\nPING\n*0\r\n*-1\r\n\r\nINFO all\r\n",
        b"\x03*2\r\n$3\r\nGET\r\n$4000000\r\n",
        b"\x02*3\r\n$3\r\nSET\r\n$1\r\na\r\n$-1\r\n",
        b"\x05+OK\r\n-ERR x\r\n:7\r\n$3\r\nabc\r\n%1\r\n+a\r\n*2\r\n_\r\n,1.5\r\n>1\r\n#t\r\n$-1\r\n",
    ];
    let mut seeds: Vec<Vec<u8>> = texts.iter().map(|text| text.to_vec()).collect();
    seeds.push(pipeline);
    seeds
}
