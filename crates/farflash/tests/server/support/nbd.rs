//! A client of NBD with simple replies and compact headers.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use nbd_wire::{
    Command, CommandFlags, GREETING_LEN, HeaderStyle, InfoRequest, OPTION_REPLY_HEADER_LEN,
    OptionCode, OptionHeader, OptionReplyHeader, OptionReplyKind, Request, SIMPLE_REPLY_LEN,
};

use super::PATIENCE;

/// Says hello and asks for an export.
pub fn go(export: &str) -> Vec<u8> {
    let data = InfoRequest { name: export, infos: Vec::new() }.encode();
    let header = OptionHeader { option: OptionCode::GO, len_bytes: data.len() as u32 };
    [&3_u32.to_be_bytes()[..], &header.encode(), &data].concat()
}

pub fn request(command: Command, cookie: u64, offset: u64, len_bytes: u64) -> Vec<u8> {
    let flags = CommandFlags::default();
    Request { flags, command, cookie, offset, len_bytes }.encode(HeaderStyle::Compact)
}

/// A connection with an open export.
pub struct Client {
    stream: TcpStream,
    cookie: u64,
}

impl Client {
    /// Opens an export.
    pub fn open(at: SocketAddr, export: &str) -> Result<Self, OptionReplyKind> {
        let stream = TcpStream::connect(at).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut client = Self { stream, cookie: 0 };
        client.stream.write_all(&go(export)).unwrap();
        client.is_let_in()?;
        Ok(client)
    }

    /// A client that has said [`go`].
    pub fn of(stream: TcpStream) -> Self {
        Self { stream, cookie: 0 }
    }

    /// Takes the greeting and the replies to [`go`].
    pub fn is_let_in(&mut self) -> Result<(), OptionReplyKind> {
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        self.stream.read_exact(&mut [0; GREETING_LEN]).unwrap();
        loop {
            let mut header = [0; OPTION_REPLY_HEADER_LEN];
            self.stream.read_exact(&mut header).unwrap();
            let header = OptionReplyHeader::decode(&header).unwrap();
            self.stream.read_exact(&mut vec![0; header.len_bytes as usize]).unwrap();
            match header.kind {
                OptionReplyKind::ACK => return Ok(()),
                kind if kind.is_error() => return Err(kind),
                _ => {}
            }
        }
    }

    fn ask(&mut self, command: Command, offset: u64, len_bytes: u64, data: &[u8]) {
        self.cookie += 1;
        let head = request(command, self.cookie, offset, len_bytes);
        self.stream.write_all(&[&head, data].concat()).unwrap();
        let mut reply = [0; SIMPLE_REPLY_LEN];
        self.stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[4..8], [0; 4], "no error");
        assert_eq!(reply[8..], self.cookie.to_be_bytes());
    }

    pub fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        self.ask(Command::READ, offset, len as u64, &[]);
        let mut data = vec![0; len];
        self.stream.read_exact(&mut data).unwrap();
        data
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.ask(Command::WRITE, offset, data.len() as u64, data);
    }

    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    pub fn into_stream(self) -> TcpStream {
        self.stream
    }
}

/// Returns whether an error says that the other side went.
pub fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}
