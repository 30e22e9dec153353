//! A host of the server's volumes: the initiator library on a core of its own.

use client::{Client, Options, Reconnect, Volume};
use io_traits::Buffer;
use nvme_wire::Nqn;
use reactor::{CoreConfig, Handle};
use units::BLOCK_SIZE;

use super::tokens;

/// Runs `main` as a host.
pub fn on_core<T: 'static, F: Future<Output = T> + 'static>(main: impl FnOnce(Handle) -> F) -> T {
    reactor::run_on_current_thread(&CoreConfig::default(), main).unwrap()
}

/// Connects with the volume's token and data digests; a lost connection is not made again.
pub async fn connect(handle: &Handle, address: std::net::SocketAddr, nqn: &Nqn) -> Volume<Handle> {
    let options =
        Options { reconnect: Reconnect::Never, data_digest: true, ..tokens::options(nqn, 7) };
    let client = Client::connect(handle.clone(), address, nqn, options).await.unwrap();
    client.volume().await.unwrap()
}

/// A block full of `value`.
pub fn filled(value: u64) -> io_traits::BufferSlice {
    let mut buffer = Buffer::new(1);
    assert_eq!(buffer.len_bytes(), BLOCK_SIZE);
    buffer.as_mut_bytes().chunks_exact_mut(8).for_each(|word| {
        word.copy_from_slice(&value.to_le_bytes());
    });
    buffer.into_slice()
}
