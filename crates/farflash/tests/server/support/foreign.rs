//! The first words of iSCSI initiators and NBD clients, and what a server answers them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::Server;

/// Returns the addresses at which a server listens for a protocol, by the message that says so.
pub fn places(server: &Server, message: &str) -> Vec<SocketAddr> {
    let lines = server.starting.iter().map(|line| &line["fields"]);
    let at = lines.filter(|fields| fields["message"] == message);
    at.map(|fields| fields["listens_on"].as_str().unwrap().parse().unwrap()).collect()
}

/// Tries to log in to an iSCSI target by CHAP, with a response that no secret gives. Returns status class and detail.
pub fn iscsi_login(portal: SocketAddr, volume: &str) -> [u8; 2] {
    let mut stream = TcpStream::connect(portal).unwrap();
    let names = format!(
        "InitiatorName=iqn.2026-01.com.example:host\0TargetName=iqn.2026-01.io.farflash:{volume}\0"
    );
    let proof = format!("CHAP_N={volume}\0CHAP_R=0x{}\0", "5a".repeat(16));
    let steps = [(0, names + "AuthMethod=CHAP\0"), (0, "CHAP_A=5\0".to_owned()), (0x81, proof)];
    for (flags, text) in steps {
        let mut request = vec![0; 48];
        (request[0], request[1], request[8]) = (0x43, flags, 0x80);
        request[5..8].copy_from_slice(&(text.len() as u32).to_be_bytes()[1..]);
        request.extend(text.as_bytes());
        request.resize(request.len().next_multiple_of(4), 0);
        stream.write_all(&request).unwrap();
        let mut answer = [0; 48];
        stream.read_exact(&mut answer).unwrap();
        if answer[36..38] != [0, 0] {
            return [answer[36], answer[37]];
        }
        let len = u32::from_be_bytes([0, answer[5], answer[6], answer[7]]) as usize;
        stream.read_exact(&mut vec![0; len.next_multiple_of(4)]).unwrap();
    }
    [0, 0]
}

/// Asks for an NBD export. Returns the kind of the first reply.
pub fn nbd_go(at: SocketAddr, export: &str) -> u32 {
    nbd_ask(at, export).1
}

/// Opens an NBD export.
pub fn nbd_open(at: SocketAddr, export: &str) -> TcpStream {
    let (stream, kind) = nbd_ask(at, export);
    assert!(kind < 1 << 31, "refused by {kind:#x}");
    stream
}

fn nbd_ask(at: SocketAddr, export: &str) -> (TcpStream, u32) {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    let len = export.len() as u32;
    let mut words = 3_u32.to_be_bytes().to_vec();
    words.extend(b"IHAVEOPT");
    [7, len + 6, len].iter().for_each(|word: &u32| words.extend(word.to_be_bytes()));
    words.extend(export.as_bytes());
    words.extend([0, 0]);
    stream.write_all(&words).unwrap();
    let mut reply = [0; 20];
    stream.read_exact(&mut reply).unwrap();
    (stream, u32::from_be_bytes(reply[12..16].try_into().unwrap()))
}
