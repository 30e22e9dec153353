//! Messages between the load generator's coordinator and its agents, in pieces of any size.

use kv_load::fuzzing::{frames, from_agent, to_agent};

use crate::input::Input;

/// The bytes give the same messages in one piece and in many; a message that is taken is encoded to one that is taken, too.
pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let piece = usize::from(input.u8()).max(1);
    let stream = input.0;
    let (whole, whole_end) = frames(stream, stream.len());
    assert_eq!((&whole, &whole_end), (&frames(stream, piece).0, &frames(stream, piece).1));
    // A mutation rarely keeps the length before a message, so the whole is taken for one, too.
    for message in whole.iter().map(Vec::as_slice).chain([stream]) {
        for decode in [to_agent, from_agent] {
            if let Some(encoded) = decode(message) {
                assert_eq!(
                    decode(&encoded),
                    Some(encoded.clone()),
                    "what was taken is not taken again"
                );
            }
        }
    }
}

/// A message of each kind, alone and in frames.
pub fn seeds() -> Vec<Vec<u8>> {
    let setup = r#"{"address":"192.0.2.1:6379","tls":{"name":"kv-1","authorities":null},"password":"secret","threads":2,
        "connections":3,"depth":4,"pace":{"open":{"rate":"1000.5","arrivals":"poisson"}},
        "warm_up":{"secs":1,"nanos":5},"duration":{"secs":10,"nanos":0},"drain":{"secs":10,"nanos":0},
        "workload":{"keys":1000,"key_sizes":"uniform:17,21","value_sizes":"pareto:15,214.476,0.348238",
        "popularity":"zipf:0.99","read_share":"0.9","write":"append","seed":1}}"#;
    let plan = format!(r#"{{"plan":{{"job":"run","part":{{"index":1,"of":4}},"setup":{setup}}}}}"#);
    let texts = [
        r#"{"hello":{"version":1,"token":"secret"}}"#,
        r#"{"clock":{}}"#,
        &plan,
        r#"{"start":{"at_ns":500000000}}"#,
        r#"{"welcome":{}}"#,
        r#"{"refused":{"reason":"the token is wrong"}}"#,
        r#"{"clock":{"ns":17}}"#,
        r#"{"failed":{"error":"no route"}}"#,
        r#"{"measured":{"reads":[[1000,3],[5000000,1]],"writes":[],"lateness":[[10,4]],"missing":1,"errors":0,
            "unanswered":2,"intervals":[{"done":2,"errors":0,"latencies":[[1003,3],[5017599,1]]}],"first_error":"ERR x",
            "overloaded":false,"busiest":"0.25","stalled":{"secs":0,"nanos":0},"end":{"secs":11,"nanos":1}}}"#,
    ];
    let mut stream = vec![9];
    let mut seeds = Vec::new();
    for text in texts {
        stream.extend((text.len() as u32).to_be_bytes());
        stream.extend(text.as_bytes());
        seeds.push([b"\x03", text.as_bytes()].concat());
    }
    seeds.push(stream);
    seeds
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mutations of what is refused at once would reach nothing.
    #[test]
    fn each_seed_is_a_message() {
        let mut seeds = seeds();
        let stream = seeds.pop().expect("the frames of all");
        let taken = |message: &[u8]| to_agent(message).is_some() || from_agent(message).is_some();
        for seed in &seeds {
            assert!(taken(&seed[1..]), "{}", String::from_utf8_lossy(seed));
        }
        assert_eq!(frames(&stream[1..], 7).0.len(), seeds.len());
    }
}
