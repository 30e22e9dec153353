//! Recordings of requests.

use ::load::{Kind, Trace};

/// A text is refused with the number of a line that it has, or its requests are bounded, in order, and the same when they are
/// written and read again.
pub fn run(bytes: &[u8]) {
    let lines = bytes.split(|byte| *byte == b'\n').count() as u64;
    let mut trace = match Trace::parse(bytes) {
        Ok(trace) => trace,
        Err(error) => {
            assert!((1..=lines).contains(&error.line), "{error}");
            return assert!(!error.problem.to_string().is_empty());
        }
    };
    let requests = trace.requests().to_vec();
    assert!(requests.is_sorted_by_key(|request| request.at_ns));
    let bounded = |request: &load::Planned| {
        (1..=1 << 16).contains(&request.blocks)
            && request.start.0 + u64::from(request.blocks) <= trace.target_blocks()
            && request.blocks <= trace.blocks_max()
    };
    assert!(requests.iter().all(bounded) && trace.target_blocks() <= 1 << 52);
    assert_eq!(trace.writes(), requests.iter().any(|request| request.kind == Kind::Write));
    let mut text = Vec::new();
    trace.write(&mut text).expect("memory");
    let again = Trace::parse(text.as_slice()).expect("our own text");
    assert_eq!(again, trace);
    assert_eq!(again.into_requests(1.0).collect::<Vec<_>>(), requests);
}

/// Our own form, that of other tools, and each mistake.
pub fn seeds() -> Vec<Vec<u8>> {
    let bodies = [
        "# SECONDS r|w OFFSET BYTES\n0.000000000 r 4096 8192\n0.001250000 w 1048576 524288\n",
        "  2.5 w  512 512 \r\n\n1 r 4095 2\n3153600000.999999999 r 0 268435456",
        "0 r 9223372036854775807 1\n",
        "0 d 0 4096\n",
        "0.1234567890 r 0 4096\n",
        "0 r 0 4096 7\n",
        "-0 r +1 0\n",
    ];
    bodies.iter().map(|body| format!("farflash-requests 1\n{body}").into_bytes()).collect()
}
