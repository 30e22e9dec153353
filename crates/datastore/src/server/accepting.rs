//! Accepting of connections: a lack of descriptors takes neither the whole CPU, nor a line of the log for each try.

use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

use super::lines::Lines;

/// Pause after `accept` failed.
const PAUSE: Duration = Duration::from_millis(100);

/// A listener, and what was told of it of late.
pub(crate) struct Accepting {
    listener: TcpListener,
    /// The option with its address.
    option: &'static str,
    lines: Lines<Option<i32>>,
}

impl Accepting {
    pub(crate) fn new(listener: TcpListener, option: &'static str) -> Self {
        Self { listener, option, lines: Lines::new() }
    }

    /// The next connection.
    pub(crate) async fn next(&mut self) -> TcpStream {
        loop {
            let error = match self.listener.accept().await {
                Ok((stream, _)) => return stream,
                Err(error) => error,
            };
            let text = format!(
                "connections to {} cannot be accepted, and wait: {error}; if files are lacking, raise their limit (ulimit -n, \
                 a unit's LimitNOFILE=), or lower --connections",
                self.option
            );
            if let Some(line) = self.lines.line(error.raw_os_error(), &text) {
                tracing::warn!("{line}");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
