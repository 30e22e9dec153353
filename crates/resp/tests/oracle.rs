//! Holds encoders and decoders against an independent implementation of the protocol.

use proptest::prelude::*;
use redis_protocol::resp2::decode::decode as decode2;
use redis_protocol::resp2::types::OwnedFrame as Frame2;
use redis_protocol::resp3::decode::complete::decode as decode3;
use redis_protocol::resp3::encode::complete::encode as encode3;
use redis_protocol::resp3::types::{OwnedFrame as Frame3, Resp3Frame};
use resp::{AnswerDecoder, Protocol, Reply, RequestDecoder, RequestLimits, encode_request};

const LIMITS: RequestLimits =
    RequestLimits { arguments: 64, argument_len: 1 << 16, request_len: 1 << 20 };

fn arguments() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..10)
}

/// Parts of a reply that both versions have.
#[derive(Clone, Debug)]
enum Part {
    Status(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Null,
    Array(Vec<Part>),
}

fn part() -> impl Strategy<Value = Part> {
    let leaf = prop_oneof![
        "[a-zA-Z0-9 ]{0,20}".prop_map(Part::Status),
        any::<i64>().prop_map(Part::Integer),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(Part::Bulk),
        Just(Part::Null),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| prop::collection::vec(inner, 0..6).prop_map(Part::Array))
}

fn write(reply: &mut Reply<'_>, part: &Part) {
    match part {
        Part::Status(text) => reply.status(text),
        Part::Integer(number) => reply.integer(*number),
        Part::Bulk(bytes) => reply.bulk(bytes),
        Part::Null => reply.null(),
        Part::Array(parts) => {
            reply.array(parts.len());
            parts.iter().for_each(|part| write(reply, part));
        }
    }
}

fn frame2(part: &Part) -> Frame2 {
    match part {
        Part::Status(text) => Frame2::SimpleString(text.clone().into_bytes()),
        Part::Integer(number) => Frame2::Integer(*number),
        Part::Bulk(bytes) => Frame2::BulkString(bytes.clone()),
        Part::Null => Frame2::Null,
        Part::Array(parts) => Frame2::Array(parts.iter().map(frame2).collect()),
    }
}

fn frame3(part: &Part) -> Frame3 {
    let attributes = None;
    match part {
        Part::Status(text) => Frame3::SimpleString { data: text.clone().into_bytes(), attributes },
        Part::Integer(number) => Frame3::Number { data: *number, attributes },
        Part::Bulk(bytes) => Frame3::BlobString { data: bytes.clone(), attributes },
        Part::Null => Frame3::Null,
        Part::Array(parts) => {
            Frame3::Array { data: parts.iter().map(frame3).collect(), attributes }
        }
    }
}

/// The number of replies in `bytes`, taken in pieces of `piece` bytes, and what is left over.
fn answers(bytes: &[u8], piece: usize) -> usize {
    let (mut decoder, mut count) = (AnswerDecoder::default(), 0);
    for mut piece in bytes.chunks(piece) {
        while decoder.decode(&mut piece).expect("replies").is_some() {
            count += 1;
        }
    }
    count
}

proptest! {
    #[test]
    fn requests_are_read_by_others_and_by_us(arguments in arguments(), piece in 1usize..50) {
        let mut bytes = Vec::new();
        let slices: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
        encode_request(&mut bytes, &slices);
        let expected = Frame2::Array(arguments.iter().cloned().map(Frame2::BulkString).collect());
        prop_assert_eq!(decode2(&bytes).expect("a frame"), Some((expected, bytes.len())));

        let (mut decoder, mut requests) = (RequestDecoder::new(LIMITS), Vec::new());
        for mut piece in bytes.chunks(piece) {
            requests.extend(decoder.decode(&mut piece).expect("a request"));
        }
        prop_assert_eq!(requests.len(), 1);
        prop_assert_eq!(requests[0].arguments().collect::<Vec<_>>(), slices);
    }

    #[test]
    fn replies_are_read_by_others(part in part()) {
        let (mut two, mut three) = (Vec::new(), Vec::new());
        write(&mut Reply::new(&mut two, Protocol::Resp2), &part);
        write(&mut Reply::new(&mut three, Protocol::Resp3), &part);
        prop_assert_eq!(decode2(&two).expect("a frame"), Some((frame2(&part), two.len())));
        prop_assert_eq!(decode3(&three).expect("a frame"), Some((frame3(&part), three.len())));
    }

    #[test]
    fn replies_of_others_are_read_by_us(
        parts in prop::collection::vec(part(), 1..5),
        piece in 1usize..50,
    ) {
        let mut bytes = Vec::new();
        for part in &parts {
            let frame = frame3(part);
            let start = bytes.len();
            bytes.resize(start + frame.encode_len(false), 0);
            encode3(&mut bytes[start..], &frame, false).expect("room");
        }
        prop_assert_eq!(answers(&bytes, piece), parts.len());
    }
}
