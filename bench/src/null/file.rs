//! A null server on a file (NULL-6): what comes from all over it is sent, and nothing is looked for or
//! checked.
//!
//! It runs on farflash's reactor, with its device and its sockets: what a server without a protocol, a map and
//! checksums makes of this drive over this network.

use std::cell::{Cell, RefCell};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc;

use anyhow::{Context, Result, anyhow, ensure};
use io_traits::{Buffer, Device, Listener, Network, SendBatch, Spawn, Stream};
use local_sync::Notify;
use reactor::{CoreConfig, FileDevice, Handle, OpenOptions, OwnedDevice};
use units::{BLOCK_SIZE, Pba};

use super::outgoing::scramble;
use super::{COMMAND_BYTES, Direction, NullResult, NullSpec, RESPONSE_BYTES, Run, drive};

/// The server's side of the connection.
struct Server<S> {
    handle: Handle,
    device: FileDevice,
    stream: S,
    blocks_each: usize,
    replies: RefCell<SendBatch>,
    is_ready: Notify,
    /// Reads so far.
    number: Cell<u64>,
    has_ended: Cell<bool>,
}

impl<S: Stream> Server<S> {
    /// Serves until the client has gone.
    async fn run(self: &Rc<Self>) {
        let sender = self.clone();
        self.handle.spawn(async move { sender.send().await });
        let mut partial_bytes = 0;
        while let Ok(chunk) = self.stream.recv().await {
            let bytes = partial_bytes + chunk.len();
            partial_bytes = bytes % COMMAND_BYTES;
            for _ in 0..bytes / COMMAND_BYTES {
                let server = self.clone();
                self.handle.spawn_now(async move { server.read().await });
            }
        }
        self.has_ended.set(true);
        self.is_ready.notify_all();
    }

    async fn read(&self) {
        let number = self.number.replace(self.number.get() + 1);
        let places = self.device.limits().blocks / self.blocks_each as u64;
        let pba = Pba(scramble(number) % places * self.blocks_each as u64);
        // Without an answer the client waits, and its run fails.
        let Ok(data) = self.device.read(pba, Buffer::new(self.blocks_each)).await else { return };
        let mut replies = self.replies.borrow_mut();
        replies.push_bytes(&[0xA5; RESPONSE_BYTES]);
        replies.push_data(data.into_slice());
        self.is_ready.notify_all();
    }

    /// Sends what is ready, all that there is at a time.
    async fn send(&self) {
        while !self.has_ended.get() {
            let ready = self.is_ready.notified();
            if self.replies.borrow().is_empty() {
                ready.await;
                continue;
            }
            let replies = self.replies.take();
            if self.stream.send(replies).await.is_err() {
                return;
            }
        }
    }
}

/// Runs a server of the file at `path`, and a client that reads from it.
pub(crate) fn run(spec: &NullSpec, path: &Path) -> Result<NullResult> {
    ensure!(spec.direction == Direction::Read && spec.connections == 1, "one connection, reads");
    let device =
        OwnedDevice::open(path, OpenOptions { read_only: true, ..OpenOptions::default() })?;
    let (tell, told) = mpsc::channel();
    let blocks_each = spec.block_bytes / BLOCK_SIZE;
    let config = CoreConfig {
        cpu: Some(spec.server_cpu),
        name: "null-file".to_owned(),
        ..CoreConfig::default()
    };
    let server = reactor::spawn_thread(config, move |handle| async move {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = handle.listen(address).context("listen on loopback")?;
        // The receiver is gone if the benchmark has failed elsewhere.
        let _ = tell.send(listener.local());
        let begin = super::thread_cpu_seconds();
        let server = Rc::new(Server {
            device: device.attach(&handle),
            stream: listener.accept().await.context("accept")?,
            handle,
            blocks_each,
            replies: RefCell::default(),
            is_ready: Notify::new(),
            number: Cell::new(0),
            has_ended: Cell::new(false),
        });
        server.run().await;
        anyhow::Ok(super::thread_cpu_seconds() - begin)
    })?;
    let address = told.recv().context("the server did not start")?;
    // On a thread of its own, as it takes that to its CPU.
    let driven = std::thread::scope(|scope| scope.spawn(|| drive(spec, address)).join());
    let driven = driven.map_err(|_| anyhow!("the client panicked"))?;
    let cpu_seconds = server.join().map_err(|_| anyhow!("the server panicked"))??;
    Ok(Run { driven: driven?, calls: None, cpu_seconds }.result(spec))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpus;
    use crate::null::Blocks;

    #[test]
    fn a_file_is_read_over_the_network() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(1 << 20).expect("its size");
        let spec = NullSpec {
            direction: Direction::Read,
            block_bytes: 4096,
            blocks: Blocks::Cached,
            depth: 4,
            connections: 1,
            server_cpu: cpus::server(),
            client_cpu: cpus::client(),
            warm_up_seconds: 0.0,
            seconds: 0.5,
        };
        let result = run(&spec, file.path()).expect("loopback");
        assert!(result.requests > 0);
    }
}
