//! A host that speaks lines.

use std::net::SocketAddr;

use io_traits::{Network, SendBatch, Stream};
use sim::{SimStream, SimWorld};
use units::BLOCK_SIZE;
use uuid::Uuid;

pub fn portal() -> SocketAddr {
    "10.0.0.1:7000".parse().expect("an address")
}

pub struct Host {
    stream: SimStream,
    received: Vec<u8>,
}

impl Host {
    pub async fn connect(world: &SimWorld) -> Self {
        let stream = world.connect(portal()).await.expect("a core listens");
        Self { stream, received: Vec::new() }
    }

    /// A host that has opened `volume` as export 0.
    pub async fn with_volume(world: &SimWorld, volume: Uuid) -> Self {
        let mut host = Self::connect(world).await;
        let opened = host.ask(&format!("1 open {volume} me")).await;
        assert!(opened.starts_with("1 opened 0 "), "{opened}");
        host
    }

    pub async fn send(&self, lines: &str) {
        let mut batch = SendBatch::default();
        batch.push_bytes(lines.as_bytes());
        batch.push_bytes(b"\n");
        self.stream.send(batch).await.expect("the core reads");
    }

    pub async fn ask(&mut self, line: &str) -> String {
        self.send(line).await;
        self.line().await.expect("an answer")
    }

    /// The next line; `None` at the end of the connection.
    pub async fn line(&mut self) -> Option<String> {
        while !self.received.contains(&b'\n') {
            self.received.extend_from_slice(&self.stream.recv().await.ok()?);
        }
        let end = self.received.iter().position(|byte| *byte == b'\n').expect("seen");
        let line = self.received.drain(..=end).collect();
        Some(String::from_utf8(line).expect("text").trim_end().to_owned())
    }

    /// Reads a block, and returns the byte that fills it.
    pub async fn read(&mut self, lba: u64) -> u8 {
        assert_eq!(self.ask(&format!("9 read 0 {lba}")).await, format!("9 data {BLOCK_SIZE}"));
        while self.received.len() < BLOCK_SIZE {
            self.received.extend_from_slice(&self.stream.recv().await.expect("data"));
        }
        let block: Vec<u8> = self.received.drain(..BLOCK_SIZE).collect();
        assert!(block.iter().all(|byte| *byte == block[0]), "one byte fills a block");
        block[0]
    }
}
