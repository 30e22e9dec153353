//! A connection whose peer must take what it is sent.
//!
//! - API-PACE-1: while bytes wait to be sent, the peer takes at least [`PACE_BYTES`] of them in
//!   each `write_timeout`, or the connection fails.
//! - API-PACE-2: while every place for a connection is taken, the time is [`CROWDED_TIMEOUT`] at
//!   most, so that peers which do not read cannot keep all others out.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Bytes that count as progress: little for a slow network, too much to hold a connection cheaply.
const PACE_BYTES: usize = 64 << 10;
/// Longest stall while others wait for a place. Also how often a stall is looked at.
const CROWDED_TIMEOUT: Duration = Duration::from_millis(500);

/// A stream whose writes fail when the peer does not take them.
pub(crate) struct Paced<S> {
    stream: S,
    write_timeout: Duration,
    crowded: Arc<AtomicBool>,
    stall: Option<Stall>,
}

/// Bytes wait, and too few were taken since it began.
struct Stall {
    began: Instant,
    taken_bytes: usize,
    look: Pin<Box<Sleep>>,
}

impl<S> Paced<S> {
    /// `crowded` says whether all places for connections are taken.
    pub(crate) fn new(stream: S, write_timeout: Duration, crowded: Arc<AtomicBool>) -> Self {
        Self { stream, write_timeout, crowded, stall: None }
    }

    /// The stream itself.
    pub(crate) fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Looks at the result of a write.
    fn judge(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => {
                if let Some(stall) = &mut self.stall {
                    stall.taken_bytes += bytes;
                    if stall.taken_bytes >= PACE_BYTES {
                        self.stall = None;
                    }
                }
                written
            }
            Poll::Ready(Err(_)) => written,
            Poll::Pending => {
                ready!(self.poll_too_slow(context));
                Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the client does not take its answer",
                )))
            }
        }
    }

    /// Completes when the peer has had its time.
    fn poll_too_slow(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let look_every = CROWDED_TIMEOUT.min(self.write_timeout);
        let stall = self.stall.get_or_insert_with(|| Stall {
            began: Instant::now(),
            taken_bytes: 0,
            look: Box::pin(tokio::time::sleep(look_every)),
        });
        loop {
            ready!(stall.look.as_mut().poll(context));
            let now = Instant::now();
            let crowded = self.crowded.load(Ordering::Relaxed);
            if crowded || now.duration_since(stall.began) >= self.write_timeout {
                return Poll::Ready(());
            }
            stall.look.as_mut().reset(now + look_every);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.judge(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Asked for when all bytes are handed over: nothing waits any more.
        self.stall = None;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
