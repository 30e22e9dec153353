//! Messages over a TLS connection, with deadlines.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustls::{ClientConnection, ServerConnection, StreamOwned};

use super::frame::{FrameError, Frames, framed};
use super::message::{Message, MessageError};

/// A peer has this long to take what is sent.
const SEND_TIME: Duration = Duration::from_secs(30);
/// The shortest time that a socket can wait: zero means for ever.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// A socket of which each read and write ends at a deadline, however few bytes a peer sends at a time.
#[derive(Debug)]
pub(crate) struct TimedStream {
    stream: TcpStream,
    deadline: Instant,
    /// It has looked once behind the deadline: what lies there came while this process may not have run.
    has_looked_late: bool,
}

impl TimedStream {
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, deadline: Instant::now() + SEND_TIME, has_looked_late: false })
    }

    fn left(&self) -> Option<Duration> {
        Some(self.deadline.saturating_duration_since(Instant::now()).max(WAIT_MIN))
    }

    fn set_deadline(&mut self, deadline: Instant) {
        (self.deadline, self.has_looked_late) = (deadline, false);
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }
}

impl Read for TimedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.is_over() && std::mem::replace(&mut self.has_looked_late, true) {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(self.left())?;
        self.stream.read(buffer)
    }
}

impl Write for TimedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_over() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_write_timeout(self.left())?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A stream whose operations end at a deadline.
pub(crate) trait Link: Read + Write + Send {
    fn set_deadline(&mut self, deadline: Instant);
}

impl Link for StreamOwned<ClientConnection, TimedStream> {
    fn set_deadline(&mut self, deadline: Instant) {
        self.sock.set_deadline(deadline);
    }
}

impl Link for StreamOwned<ServerConnection, TimedStream> {
    fn set_deadline(&mut self, deadline: Instant) {
        self.sock.set_deadline(deadline);
    }
}

/// An end of a channel that its owner did not want.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The peer closed the connection.
    #[error("the connection was closed")]
    Closed,
    /// Nothing came in time.
    #[error("nothing came within {} s", .0.as_secs())]
    Silent(Duration),
    /// TLS or the connection failed.
    #[error("{}", tls_files::connection_trouble(.0))]
    Broken(#[from] io::Error),
    /// A frame is refused.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A message is refused.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// A message that does not belong here.
    #[error("a message came out of turn")]
    OutOfTurn,
}

/// Messages of both directions.
pub(crate) struct Channel {
    link: Box<dyn Link>,
    frames: Frames,
}

impl Channel {
    /// Takes messages of up to `max` bytes.
    pub(crate) fn new(link: Box<dyn Link>, max: usize) -> Self {
        Self { link, frames: Frames::new(max) }
    }

    pub(crate) fn set_max(&mut self, max: usize) {
        self.frames.set_max(max);
    }

    pub(crate) fn send(&mut self, message: &impl Message) -> Result<(), ChannelError> {
        self.link.set_deadline(Instant::now() + SEND_TIME);
        self.link.write_all(&framed(&message.encode()))?;
        self.link.flush()?;
        Ok(())
    }

    /// Waits for a message; `None`: none came in time.
    pub(crate) fn poll<M: Message>(&mut self, within: Duration) -> Result<Option<M>, ChannelError> {
        self.link.set_deadline(Instant::now() + within);
        let mut buffer = [0; 16 << 10];
        loop {
            if let Some(message) = self.frames.poll_message()? {
                return Ok(Some(M::decode(&message)?));
            }
            match self.link.read(&mut buffer) {
                Ok(0) => return Err(ChannelError::Closed),
                Ok(len) => self.frames.on_bytes(&buffer[..len]),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => return Ok(None),
                    ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => {
                        return Err(ChannelError::Closed);
                    }
                    ErrorKind::Interrupted => {}
                    _ => return Err(error.into()),
                },
            }
        }
    }

    /// Waits for a message that has to come.
    pub(crate) fn receive<M: Message>(&mut self, within: Duration) -> Result<M, ChannelError> {
        self.poll(within)?.ok_or(ChannelError::Silent(within))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Bytes that lie there when the deadline is over are read, and a peer that goes on to send is not waited for.
    #[test]
    fn a_late_look_takes_what_lies_there_and_no_more() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let mut peer = TcpStream::connect(address).expect("it listens");
        let (stream, _) = listener.accept().expect("a connection");
        let mut stream = TimedStream::new(stream).expect("a socket");
        peer.write_all(b"ab").expect("room");
        stream.stream.peek(&mut [0]).expect("it comes");
        let mut byte = [0];
        for _ in 0..2 {
            stream.set_deadline(Instant::now());
            assert_eq!(stream.read(&mut byte).expect("it lies there"), 1);
            peer.write_all(b"c").expect("room");
            let error = stream.read(&mut byte).expect_err("the time is over");
            assert_eq!(error.kind(), ErrorKind::TimedOut);
        }
    }
}
