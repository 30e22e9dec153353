//! A client of NBD, which can also break every rule.

use std::net::SocketAddr;

use io_traits::{Network, SendBatch, Stream};
use nbd_wire::{
    Chunk, ChunkKind, Command, CommandFlags, Errno, GREETING_LEN, Greeting, HeaderStyle,
    InfoRequest, MetaContextRequest, OPTION_REPLY_HEADER_LEN, OptionCode, OptionHeader,
    OptionReplyHeader, OptionReplyKind, Request, SIMPLE_REPLY_LEN, SimpleReply,
};
use sim::{SimStream, SimWorld};

pub fn place() -> SocketAddr {
    "10.0.0.1:10809".parse().expect("an address")
}

/// The unix socket, as far as a simulated network has one: the front end knows it by its listener.
pub fn unix_place() -> SocketAddr {
    "10.0.0.1:10810".parse().expect("an address")
}

/// The answer to a request.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Answer {
    pub error: u32,
    pub data: Vec<u8>,
    /// Lengths and flags.
    pub extents: Vec<(u64, u64)>,
}

pub struct Client {
    stream: SimStream,
    received: Vec<u8>,
    pub style: HeaderStyle,
    pub is_structured: bool,
    cookie: u64,
}

impl Client {
    /// Connects and says hello.
    pub async fn connect(world: &SimWorld, place: SocketAddr) -> Self {
        let client = Self::connect_silently(world, place).await;
        client.send(&3_u32.to_be_bytes()).await;
        client
    }

    /// Connects and says nothing.
    pub async fn connect_silently(world: &SimWorld, place: SocketAddr) -> Self {
        let stream = world.connect(place).await.expect("a core listens");
        let style = HeaderStyle::Compact;
        let mut client =
            Self { stream, received: Vec::new(), style, is_structured: false, cookie: 1 };
        let greeting = client.take(GREETING_LEN).await.expect("a greeting");
        Greeting::decode(greeting[..].try_into().expect("its length")).expect("of NBD");
        client
    }

    /// A client that has opened the export.
    pub async fn open(world: &SimWorld, name: &str) -> Self {
        let mut client = Self::connect(world, place()).await;
        client.is_structured = true;
        assert_eq!(client.option(OptionCode::STRUCTURED_REPLY, b"").await, []);
        client.choose_context(name).await;
        client.go(name).await.expect("it may open it");
        client
    }

    pub async fn choose_context(&mut self, name: &str) {
        let request = MetaContextRequest { name, queries: vec!["base:allocation"] };
        let found = self.option(OptionCode::SET_META_CONTEXT, &request.encode()).await;
        assert_eq!(found[0].1[4..], *b"base:allocation");
    }

    /// Opens an export. Returns its size.
    pub async fn go(&mut self, name: &str) -> Result<u64, OptionReplyKind> {
        let data = InfoRequest { name, infos: Vec::new() }.encode();
        let replies = self.option(OptionCode::GO, &data).await;
        match replies.as_slice() {
            [(kind, _)] if kind.is_error() => Err(*kind),
            [(_, export), ..] => Ok(u64::from_be_bytes(export[2..10].try_into().expect("a size"))),
            [] => panic!("no information"),
        }
    }

    /// Sends an option. Returns the replies but for the acknowledgement.
    pub async fn option(
        &mut self,
        option: OptionCode,
        data: &[u8],
    ) -> Vec<(OptionReplyKind, Vec<u8>)> {
        let header = OptionHeader { option, len_bytes: data.len() as u32 };
        self.send(&header.encode()).await;
        self.send(data).await;
        let mut replies = Vec::new();
        loop {
            let bytes = self.take(OPTION_REPLY_HEADER_LEN).await.expect("a reply");
            let header = OptionReplyHeader::decode(bytes[..].try_into().expect("its length"));
            let header = header.expect("a reply");
            assert_eq!(header.option, option);
            let data = self.take(header.len_bytes as usize).await.expect("its data");
            if header.kind == OptionReplyKind::ACK {
                return replies;
            }
            replies.push((header.kind, data));
            if header.kind.is_error() {
                return replies;
            }
        }
    }

    pub async fn send(&self, bytes: &[u8]) {
        if !bytes.is_empty() {
            let mut batch = SendBatch::default();
            batch.push_bytes(bytes);
            // The core may have closed the connection: what it says of that is looked at.
            let _ = self.stream.send(batch).await;
        }
    }

    /// Takes `len` bytes; `None` at the end of the connection.
    pub async fn take(&mut self, len: usize) -> Option<Vec<u8>> {
        while self.received.len() < len {
            self.received.extend_from_slice(&self.stream.recv().await.ok()?);
        }
        Some(self.received.drain(..len).collect())
    }

    /// Returns whether the core closes the connection, whatever it says before.
    pub async fn is_closed(&mut self) -> bool {
        while self.stream.recv().await.is_ok() {}
        true
    }

    /// Ends the connection without a word.
    pub fn leave(self) {
        self.stream.shutdown();
    }

    /// Sends a request. Returns its cookie.
    pub async fn request(
        &mut self,
        (command, flags): (Command, CommandFlags),
        offset: u64,
        len_bytes: u64,
        payload: &[u8],
    ) -> u64 {
        self.cookie += 1;
        let request = Request { flags, command, cookie: self.cookie, offset, len_bytes };
        let mut bytes = request.encode(self.style);
        bytes.extend_from_slice(payload);
        self.send(&bytes).await;
        self.cookie
    }

    /// Takes the next answer. `read` tells how many bytes the simple reply of a read has behind it.
    pub async fn answer(&mut self, read: usize) -> Option<(u64, Answer)> {
        let magic = self.take(4).await?;
        if magic == 0x6744_6698_u32.to_be_bytes() {
            let mut bytes = magic;
            bytes.extend(self.take(SIMPLE_REPLY_LEN - 4).await?);
            let reply = SimpleReply::decode(bytes[..].try_into().expect("its length"));
            let SimpleReply { error, cookie } = reply.expect("a reply");
            let has_data = error == Errno::SUCCESS && !self.is_structured;
            let data = if has_data { self.take(read).await? } else { Vec::new() };
            return Some((cookie, Answer { error: error.0, data, ..Answer::default() }));
        }
        let len = match self.style {
            HeaderStyle::Compact => 20,
            HeaderStyle::Extended => 32,
        };
        let mut bytes = magic;
        bytes.extend(self.take(len - 4).await?);
        let chunk = Chunk::decode(self.style, &bytes).expect("a chunk");
        assert!(chunk.is_last, "one chunk is an answer");
        let contents = self.take(chunk.len_bytes as usize).await?;
        Some((chunk.cookie, self.answer_of(chunk.kind, &contents)))
    }

    fn answer_of(&self, kind: ChunkKind, contents: &[u8]) -> Answer {
        let mut answer = Answer::default();
        let word = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four bytes"));
        match kind {
            ChunkKind::NONE => {}
            ChunkKind::OFFSET_DATA => answer.data = contents[8..].to_vec(),
            ChunkKind::ERROR => answer.error = word(&contents[..4]),
            ChunkKind::BLOCK_STATUS => {
                let all = contents[4..].chunks(8);
                let extent = |e: &[u8]| (word(&e[..4]).into(), word(&e[4..]).into());
                answer.extents = all.map(extent).collect();
            }
            ChunkKind::BLOCK_STATUS_EXTENDED => {
                let long = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("eight"));
                let all = contents[8..].chunks(16);
                answer.extents = all.map(|e| (long(&e[..8]), long(&e[8..]))).collect();
            }
            other => panic!("a chunk of kind {other:?}"),
        }
        answer
    }

    /// Sends a request and waits for its answer; `None` if the connection ends first.
    pub async fn ask(
        &mut self,
        command: Command,
        flags: CommandFlags,
        offset: u64,
        len_bytes: u64,
    ) -> Option<Answer> {
        let cookie = self.request((command, flags), offset, len_bytes, &[]).await;
        let read = if command == Command::READ { len_bytes as usize } else { 0 };
        let (answered, answer) = self.answer(read).await?;
        assert_eq!(answered, cookie);
        Some(answer)
    }

    pub async fn write(&mut self, offset: u64, bytes: &[u8]) -> u32 {
        let flags = match self.style {
            HeaderStyle::Compact => CommandFlags::default(),
            HeaderStyle::Extended => CommandFlags::PAYLOAD_LEN,
        };
        let len_bytes = bytes.len() as u64;
        let cookie = self.request((Command::WRITE, flags), offset, len_bytes, bytes).await;
        let (answered, answer) = self.answer(0).await.expect("an answer");
        assert_eq!(answered, cookie);
        answer.error
    }

    pub async fn read(&mut self, offset: u64, len_bytes: usize) -> Vec<u8> {
        let none = CommandFlags::default();
        let answer = self.ask(Command::READ, none, offset, len_bytes as u64).await;
        let answer = answer.expect("an answer");
        assert_eq!(answer.error, 0);
        answer.data
    }
}
