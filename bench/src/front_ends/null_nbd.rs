//! An NBD server that does nothing: the limit of a client that is not ours.
//!
//! It polls plain sockets, never sleeps, looks up nothing, and answers all reads that one receive brought with one send
//! of the same few bytes. A rate that it does not reach is out of reach with this client.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use nbd_wire::{
    Command, Errno, Greeting, HandshakeFlags, HeaderStyle, OPTION_HEADER_LEN, OptionCode,
    OptionHeader, OptionReplyHeader, OptionReplyKind, REQUEST_LEN, Request, SimpleReply,
    TransmissionFlags, encode_info_export,
};

use crate::case::GIB;
use crate::cpus;
use crate::null::pin;

const RECEIVE_BYTES: usize = 64 << 10;

/// Runs `load` with the address of such a server, whose thread has the CPU of servers while it runs.
pub(super) fn serve_during<T>(load: impl FnOnce(SocketAddr) -> Result<T>) -> Result<T> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listen on loopback")?;
    listener.set_nonblocking(true)?;
    let (address, stop) = (listener.local_addr()?, AtomicBool::new(false));
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&listener, &stop));
        let brought = load(address);
        stop.store(true, Ordering::Relaxed);
        server.join().expect("the server thread panicked")?;
        brought
    })
}

fn serve(listener: &TcpListener, stop: &AtomicBool) -> Result<()> {
    pin(cpus::server())?;
    let mut clients = Vec::new();
    let mut buffer = vec![0; RECEIVE_BYTES];
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => clients.push(Client::greet(stream)?),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("accept"),
        }
        let mut is_left = Vec::with_capacity(clients.len());
        for client in &mut clients {
            is_left.push(client.turn(&mut buffer)?);
        }
        let mut is_left = is_left.into_iter();
        clients.retain(|_| is_left.next().expect("one for each client"));
    }
    Ok(())
}

/// The way in which a client's bytes are to be read.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Phase {
    /// Flags of the client come first.
    Flags,
    Options,
    Requests,
}

struct Client {
    stream: TcpStream,
    phase: Phase,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
}

impl Client {
    fn greet(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let flags = HandshakeFlags::FIXED_NEWSTYLE.with(HandshakeFlags::NO_ZEROES);
        let outgoing = Greeting { flags }.encode().to_vec();
        Ok(Self { stream, phase: Phase::Flags, incoming: Vec::new(), outgoing })
    }

    /// Takes what has come, and sends what is owed. Returns false once the client is gone.
    fn turn(&mut self, buffer: &mut [u8]) -> Result<bool> {
        match self.stream.read(buffer) {
            Ok(0) => return Ok(false),
            Ok(count) => {
                self.incoming.extend_from_slice(&buffer[..count]);
                if !self.take_in()? {
                    return Ok(false);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(false),
            Err(error) => return Err(error).context("receive"),
        }
        if self.outgoing.is_empty() {
            return Ok(true);
        }
        match self.stream.write(&self.outgoing) {
            Ok(sent) => drop(self.outgoing.drain(..sent)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // The next receive sees the end as well.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            Err(error) => return Err(error).context("send"),
        }
        Ok(true)
    }

    /// Answers all that is whole. Returns false if the client is done.
    fn take_in(&mut self) -> Result<bool> {
        let incoming = std::mem::take(&mut self.incoming);
        let mut left = &incoming[..];
        let mut goes_on = true;
        while goes_on {
            let whole = match self.phase {
                Phase::Flags => (left.len() >= 4).then_some(4),
                Phase::Options => option_len(left)?,
                Phase::Requests => (left.len() >= REQUEST_LEN).then_some(REQUEST_LEN),
            };
            let Some((bytes, rest)) = whole.and_then(|len| left.split_at_checked(len)) else {
                break;
            };
            left = rest;
            match self.phase {
                Phase::Flags => self.phase = Phase::Options,
                Phase::Options => goes_on = self.answer_option(bytes)?,
                Phase::Requests => goes_on = self.answer_request(bytes)?,
            }
        }
        self.incoming = left.to_vec();
        Ok(goes_on)
    }

    fn answer_option(&mut self, bytes: &[u8]) -> Result<bool> {
        let header = header_of(bytes)?;
        let reply = |kind: OptionReplyKind, len_bytes: u32| {
            OptionReplyHeader { option: header.option, kind, len_bytes }.encode()
        };
        match header.option {
            OptionCode::GO | OptionCode::INFO => {
                let flags = TransmissionFlags::HAS_FLAGS.with(TransmissionFlags::CAN_MULTI_CONN);
                let info = encode_info_export(GIB, flags);
                self.outgoing.extend(reply(OptionReplyKind::INFO, info.len() as u32));
                self.outgoing.extend(info);
                self.outgoing.extend(reply(OptionReplyKind::ACK, 0));
                if header.option == OptionCode::GO {
                    self.phase = Phase::Requests;
                }
            }
            OptionCode::ABORT => return Ok(false),
            _ => self.outgoing.extend(reply(OptionReplyKind::ERR_UNSUP, 0)),
        }
        Ok(true)
    }

    fn answer_request(&mut self, bytes: &[u8]) -> Result<bool> {
        let request = Request::decode(HeaderStyle::Compact, bytes)?;
        if request.command == Command::DISCONNECT {
            return Ok(false);
        }
        ensure!(request.command == Command::READ, "fio sent a command that is no read");
        let reply = SimpleReply { error: Errno::SUCCESS, cookie: request.cookie };
        self.outgoing.extend(reply.encode());
        let len = usize::try_from(request.len_bytes)?;
        self.outgoing.resize(self.outgoing.len() + len, 0xA5);
        Ok(true)
    }
}

fn header_of(bytes: &[u8]) -> Result<OptionHeader> {
    let header = bytes.first_chunk::<OPTION_HEADER_LEN>().expect("the caller collects a header");
    Ok(OptionHeader::decode(header)?)
}

/// Bytes of the option at the start of `bytes`, once its header is there.
fn option_len(bytes: &[u8]) -> Result<Option<usize>> {
    if bytes.len() < OPTION_HEADER_LEN {
        return Ok(None);
    }
    Ok(Some(OPTION_HEADER_LEN + header_of(bytes)?.len_bytes as usize))
}

#[cfg(test)]
mod tests {
    use nbd_wire::{CommandFlags, GREETING_LEN, OPTION_REPLY_HEADER_LEN, SIMPLE_REPLY_LEN};

    use super::*;

    /// A client that haggles and reads two blocks in one send gets both.
    #[test]
    fn reads_are_answered() {
        let talk = |address: SocketAddr| {
            let mut stream = TcpStream::connect(address)?;
            stream.write_all(&[0, 0, 0, 3])?;
            let name = [0, 0, 0, 0, 0, 0];
            let option = OptionHeader { option: OptionCode::GO, len_bytes: name.len() as u32 };
            stream.write_all(&[&option.encode()[..], &name].concat())?;
            let haggled = GREETING_LEN + 2 * OPTION_REPLY_HEADER_LEN + 12;
            stream.read_exact(&mut vec![0; haggled])?;
            let request = |cookie: u64| {
                let (flags, offset) = (CommandFlags(0), 0);
                let read =
                    Request { flags, command: Command::READ, cookie, offset, len_bytes: 512 };
                read.encode(HeaderStyle::Compact)
            };
            stream.write_all(&[request(7), request(8)].concat())?;
            let mut replies = vec![0; 2 * (SIMPLE_REPLY_LEN + 512)];
            stream.read_exact(&mut replies)?;
            let second = replies[SIMPLE_REPLY_LEN + 512..].first_chunk().expect("a header");
            Ok(SimpleReply::decode(second)?)
        };
        let second = serve_during(talk).expect("loopback");
        assert_eq!(second, SimpleReply { error: Errno::SUCCESS, cookie: 8 });
    }
}
