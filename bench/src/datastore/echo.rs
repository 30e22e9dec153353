//! A server that answers requests at once: what is left is the load generator.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;

use anyhow::Result;

pub(super) const REPLY: &[u8] = b"$3\r\nabc\r\n";
const BUFFER_BYTES: usize = 64 << 10;

/// Serves `address` until the process ends: each connection has a thread.
pub(crate) fn serve(port: u16) -> Result<()> {
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    for stream in listener.incoming() {
        let stream = stream?;
        stream.set_nodelay(true)?;
        thread::spawn(move || answer(stream));
    }
    Ok(())
}

fn answer(mut stream: TcpStream) {
    let (mut buffer, mut replies) = (vec![0; BUFFER_BYTES], Vec::new());
    loop {
        let len = match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        replies.clear();
        for _ in 0..requests(&buffer[..len]) {
            replies.extend_from_slice(REPLY);
        }
        if stream.write_all(&replies).is_err() {
            return;
        }
    }
}

/// Requests that begin in these bytes: each is an array, and no key of the generators has an asterisk.
fn requests(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == b'*').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_gets_one_reply_wherever_it_is_cut() {
        let two = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n*2\r\n$3\r\nGET\r\n$1\r\nb\r\n";
        for cut in 0..two.len() {
            assert_eq!(requests(&two[..cut]) + requests(&two[cut..]), 2, "{cut}");
        }
    }
}
