//! Streams over loopback.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use io_traits::{
    Buffer, Clock, Listener, Network, NetworkError, SendBatch, Spawn, Stream, StreamError,
};
use local_sync::yield_now;
use units::BLOCK_SIZE;

use super::{loopback, loopback_v6, pause, poll_once_and_drop, run_every_way, run_with};
use crate::core::POLLS_PER_TURN;
use crate::hot::RECEIVES_MIN;
use crate::{Handle, IdlePolicy, TcpStream};

/// Two ends that are asked directly where the core polls.
async fn pair(handle: &Handle) -> (TcpStream, TcpStream) {
    let (client, server) = strangers(handle).await;
    for _ in 0..RECEIVES_MIN {
        for (from, to) in [(&client, &server), (&server, &client)] {
            send_bytes(from, b"a word").await.expect("sent");
            recv_exact(to, 6).await;
        }
    }
    (client, server)
}

/// Two ends that have said nothing yet.
async fn strangers(handle: &Handle) -> (TcpStream, TcpStream) {
    let listener = handle.listen(loopback()).expect("a free port");
    let client = handle.connect(listener.local()).await.expect("it listens");
    let server = listener.accept().await.expect("it connected");
    assert_eq!((client.local(), client.peer()), (server.peer(), server.local()));
    (client, server)
}

async fn send_bytes(stream: &TcpStream, bytes: &[u8]) -> Result<(), StreamError> {
    let mut batch = SendBatch::new();
    batch.push_bytes(bytes);
    stream.send(batch).await.map(|batch| assert!(batch.is_empty(), "comes back empty"))
}

async fn recv_exact(stream: &TcpStream, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        bytes.extend_from_slice(&stream.recv().await.expect("more bytes"));
    }
    assert_eq!(bytes.len(), len);
    bytes
}

async fn echo(stream: TcpStream) {
    let mut batch = SendBatch::new();
    while let Ok(chunk) = stream.recv().await {
        batch.push_bytes(&chunk);
        drop(chunk);
        match stream.send(batch).await {
            Ok(empty) => batch = empty,
            Err(_) => return,
        }
    }
}

#[test]
fn both_ends_send_at_once_and_the_kernel_asks_after_silent_peers() {
    run_every_way(|handle| async move {
        let (client, server) = pair(&handle).await;
        let expected = (Duration::from_secs(30), Duration::from_secs(10), 3);
        for end in [client, server] {
            assert_eq!(end.keep_alive(), Some(expected));
            assert!(end.sends_at_once());
        }
    });
}

#[test]
fn a_socket_is_asked_directly_once_it_has_earned_it_and_until_it_is_silent_beside_work() {
    run_with(IdlePolicy::Spin, |handle| async move {
        let (_stranger, waits) = strangers(&handle).await;
        let _receive = waits.recv();
        assert_eq!(handle.core.hot.len(), 0);
        let (_client, server) = pair(&handle).await;
        let _receive = server.recv();
        assert_eq!(handle.core.hot.len(), 1);
        // A turn has a bound of polls. Asking in vain beside work counts for more than beside none.
        for _ in 0..16 * POLLS_PER_TURN {
            yield_now().await;
        }
        assert_eq!(handle.core.hot.len(), 0);
        assert_eq!(server.receives(), 0);
    });
}

/// STREAM-3 and LISTENER-1. Method: far more is there than is taken at a time; the core's clock stands still within a
/// turn.
#[test]
fn a_peer_that_sends_or_connects_a_lot_leaves_turns_to_others() {
    run_with(IdlePolicy::Sleep, |handle| async move {
        let (client, server) = strangers(&handle).await;
        let (total, mut received) = (16 * uring::CHUNK_LEN, 0);
        handle.spawn(async move { send_bytes(&client, &vec![7; total]).await.expect("sent") });
        pause(&handle, Duration::from_millis(20)).await;
        let (mut full, mut turns) = (0, BTreeSet::new());
        while received < total {
            let chunk = server.recv().await.expect("more bytes");
            received += chunk.len();
            if chunk.len() == uring::CHUNK_LEN {
                full += 1;
                turns.insert(handle.now());
            }
        }
        assert!(full > 4, "{full} chunks were full");
        assert_eq!(turns.len(), full);
        let listener = handle.listen(loopback()).expect("a free port");
        let mut clients = Vec::new();
        for _ in 0..10 {
            clients.push(handle.connect(listener.local()).await.expect("connects"));
        }
        let mut turns = BTreeSet::new();
        for _ in 0..10 {
            listener.accept().await.expect("accepts");
            turns.insert(handle.now());
        }
        assert_eq!(turns.len(), 10);
    });
}

#[test]
fn the_sending_side_ends_alone() {
    run_every_way(|handle| async move {
        let (client, server) = pair(&handle).await;
        send_bytes(&server, b"last words").await.expect("sent");
        server.shutdown_write();
        assert_eq!(recv_exact(&client, 10).await, b"last words");
        assert_eq!(client.recv().await.map(drop), Err(StreamError::Closed));
        send_bytes(&client, b"heard").await.expect("the other way is open");
        assert_eq!(recv_exact(&server, 5).await, b"heard");
    });
}

#[test]
fn the_end_is_known_before_what_came_ahead_of_it_is_received() {
    run_every_way(|handle| async move {
        for is_reset in [false, true] {
            let (client, server) = pair(&handle).await;
            send_bytes(&client, b"unread").await.expect("sent");
            assert_eq!((client.end_by_peer(), server.end_by_peer()), (None, None));
            if is_reset {
                send_bytes(&server, b"unread, too").await.expect("sent");
                sleep(&handle, 20).await;
                client.shutdown();
                drop(client);
            } else {
                client.shutdown_write();
                assert_eq!(client.end_by_peer(), None);
            }
            let deadline = handle.now() + units::Duration::from_secs(5);
            let expected = if is_reset { StreamError::Reset } else { StreamError::Closed };
            // A reset may come behind an end.
            while server.end_by_peer() != Some(expected) {
                assert!(handle.now() < deadline, "{expected:?}");
                sleep(&handle, 1).await;
            }
            if !is_reset {
                assert_eq!(recv_exact(&server, 6).await, b"unread");
            }
        }
    });
}

async fn sleep(handle: &Handle, milliseconds: u64) {
    handle.sleep_until(handle.now() + units::Duration::from_millis(milliseconds)).await;
}

#[test]
fn an_echo_server_returns_every_byte() {
    for address in [loopback(), loopback_v6()] {
        run_every_way(move |handle| async move {
            let listener = handle.listen(address).expect("a free port");
            let address = listener.local();
            let spawner = handle.clone();
            handle.spawn(async move {
                loop {
                    let stream = listener.accept().await.expect("accepts");
                    spawner.spawn(echo(stream));
                }
            });
            let stream = handle.connect(address).await.expect("connects");
            let message: Vec<u8> = (0..300_000u32).map(|n| (n * 7) as u8).collect();
            let (sender, sent) = (stream.clone(), message.clone());
            handle.spawn(async move { send_bytes(&sender, &sent).await.expect("sends") });
            assert_eq!(recv_exact(&stream, message.len()).await, message);
        });
    }
}

#[test]
fn a_thousand_idle_connections_hold_no_receive_memory() {
    run_every_way(|handle| async move {
        let listener = handle.listen(loopback()).expect("a free port");
        let mut streams = Vec::new();
        let done = Rc::new(Cell::new(0));
        for _ in 0..1_000 {
            let client = handle.connect(listener.local()).await.expect("connects");
            let server = listener.accept().await.expect("accepts");
            handle.spawn(echo(server));
            streams.push(client);
        }
        // All at once: there are far more receives than chunks.
        for (n, stream) in streams.iter().cloned().enumerate() {
            let done = done.clone();
            handle.spawn(async move {
                let message = [n as u8; 1000];
                send_bytes(&stream, &message).await.expect("sends");
                assert_eq!(recv_exact(&stream, message.len()).await, message);
                done.set(done.get() + 1);
            });
        }
        while done.get() < 1_000 {
            pause(&handle, Duration::from_millis(1)).await;
        }
    });
}

/// Method: the receiver keeps every chunk that the core has, so that further receives find none.
#[test]
fn without_a_free_chunk_a_receive_waits_for_one() {
    run_every_way(|handle| async move {
        let mut kept = Vec::new();
        let mut streams = Vec::new();
        for n in 0..uring::CHUNKS {
            let (client, server) = pair(&handle).await;
            send_bytes(&client, &n.to_le_bytes()).await.expect("sends");
            kept.push(server.recv().await.expect("a chunk is left"));
            streams.push((client, server));
        }
        let (client, server) = &streams[0];
        send_bytes(client, b"more").await.expect("sends");
        assert!(poll_once_and_drop(server.recv()).await.is_none());
        pause(&handle, Duration::from_millis(5)).await;
        assert!(poll_once_and_drop(server.recv()).await.is_none(), "no chunk to be had");
        kept.truncate(3);
        assert_eq!(recv_exact(server, 4).await, b"more");
    });
}

#[test]
fn a_batch_of_more_segments_than_a_call_takes_arrives_whole() {
    run_every_way(|handle| async move {
        let (client, server) = pair(&handle).await;
        let mut batch = SendBatch::new();
        let mut expected = Vec::new();
        for n in 0..1_000u32 {
            let mut buffer = Buffer::new(1);
            buffer.as_mut_bytes().fill(n as u8);
            let slice = buffer.into_slice();
            let header = n.to_le_bytes();
            batch.push_bytes(&header);
            expected.extend_from_slice(&header);
            expected.extend_from_slice(slice.as_bytes());
            batch.push_data(slice);
        }
        assert_eq!(batch.segment_count(), 2_000);
        handle.spawn(async move {
            let batch = client.send(batch).await.expect("sends");
            assert!(batch.is_empty());
            // The stream ends here, behind the last byte.
        });
        let received = recv_exact(&server, 1_000 * (4 + BLOCK_SIZE)).await;
        assert!(received == expected, "every byte in its place");
        assert_eq!(server.recv().await.err(), Some(StreamError::Closed));
    });
}

#[test]
fn a_dropped_receive_loses_no_bytes() {
    run_every_way(|handle| async move {
        let (client, server) = pair(&handle).await;
        for n in 0..100u8 {
            assert!(poll_once_and_drop(server.recv()).await.is_none());
            send_bytes(&client, &[n]).await.expect("sends");
            if n % 3 == 0 {
                pause(&handle, Duration::from_micros(200)).await;
            }
            assert_eq!(recv_exact(&server, 1).await, [n]);
        }
    });
}

/// Method: pieces of drawn lengths, each with a head of ten bytes that says how long it is, are received into a buffer
/// behind their heads, as a driver does that knows a head before its data.
#[test]
fn bytes_are_received_where_they_belong() {
    const PIECES: [usize; 7] = [1, 5_000, 65_536, 200_000, 70_001, 131_072, 9];
    run_every_way(|handle| async move {
        let (client, server) = pair(&handle).await;
        let sent: Vec<u8> = (0..PIECES.iter().sum::<usize>()).map(|n| (n / 3) as u8).collect();
        let (mut all, mut at) = (Vec::new(), 0);
        for len in PIECES {
            all.extend_from_slice(&[len as u8; 10]);
            all.extend_from_slice(&sent[at..at + len]);
            at += len;
        }
        handle.spawn(async move { send_bytes(&client, &all).await.expect("sends") });
        let (mut pending, mut at) = (Vec::new(), 0);
        for len in PIECES {
            while pending.len() < 10 {
                pending.extend_from_slice(&server.recv().await.expect("more bytes"));
            }
            assert_eq!(pending[..10], [len as u8; 10]);
            pending.drain(..10);
            let mut buffer = Buffer::new(len.div_ceil(BLOCK_SIZE));
            let mut filled = pending.len().min(len);
            buffer.as_mut_bytes()[..filled].copy_from_slice(&pending[..filled]);
            pending.drain(..filled);
            while filled < len {
                let landed = server.recv_into(buffer, filled..len).await.expect("more bytes");
                assert!(landed.len_bytes > 0);
                filled += landed.len_bytes;
                let behind = &landed.chunk[landed.behind_from..];
                assert!(filled == len || behind.is_empty(), "nothing is passed over");
                pending.extend_from_slice(behind);
                buffer = landed.buffer;
            }
            assert_eq!(buffer.as_bytes()[..len], sent[at..at + len]);
            at += len;
        }
        assert!(pending.is_empty());
        let end = server.recv_into(Buffer::new(1), 0..9).await;
        assert_eq!(end.err(), Some(StreamError::Closed));
    });
}

#[test]
fn a_dropped_send_goes_on_and_the_next_one_follows_it() {
    run_every_way(|handle| async move {
        let (client, server) = pair(&handle).await;
        let mut batch = SendBatch::new();
        batch.push_data(Buffer::zeroed(4_096).into_slice());
        let len = batch.len_bytes();
        assert!(poll_once_and_drop(client.send(batch)).await.is_none());
        let sender = client.clone();
        handle.spawn(async move { send_bytes(&sender, b"behind").await.expect("sends") });
        let received = recv_exact(&server, len + 6).await;
        assert_eq!(received[len - 1..], *b"\0behind");
    });
}

#[test]
fn an_accept_that_was_dropped_loses_no_connection() {
    run_every_way(|handle| async move {
        let listener = handle.listen(loopback()).expect("a free port");
        assert!(poll_once_and_drop(listener.accept()).await.is_none());
        let client = handle.connect(listener.local()).await.expect("connects");
        pause(&handle, Duration::from_millis(2)).await;
        let server = listener.accept().await.expect("accepts");
        assert_eq!(server.peer(), client.local());
    });
}

#[test]
fn refusals_say_what_they_are() {
    run_every_way(|handle| async move {
        let listener = handle.listen(loopback()).expect("a free port");
        let address = listener.local();
        assert_eq!(handle.listen(address).err(), Some(NetworkError::AddressInUse { address }));
        drop(listener);
        // The dropped listener's watch lets go of the port soon.
        while let Ok(stream) = handle.connect(address).await {
            drop(stream);
            pause(&handle, Duration::from_millis(1)).await;
        }
        assert_eq!(handle.connect(address).await.err(), Some(NetworkError::Refused { address }));
        let elsewhere = "192.0.2.1:80".parse().expect("an address");
        assert_eq!(
            handle.listen(elsewhere).err(),
            Some(NetworkError::AddressNotAvailable { address: elsewhere })
        );
        drop(handle.listen(address).expect("the port is free again"));
    });
}

#[test]
fn shutdown_ends_a_waiting_receive_and_a_stuck_send() {
    run_every_way(|handle| async move {
        let (client, server) = pair(&handle).await;
        let ended = Rc::new(Cell::new(0));
        let (receiver, count) = (client.clone(), ended.clone());
        handle.spawn(async move {
            assert_eq!(receiver.recv().await.err(), Some(StreamError::Reset));
            count.set(count.get() + 1);
        });
        let (sender, count) = (client.clone(), ended.clone());
        handle.spawn(async move {
            let mut batch = SendBatch::new();
            batch.push_data(Buffer::zeroed(8_192).into_slice());
            // The peer never reads, so this gets stuck.
            assert_eq!(sender.send(batch).await.err(), Some(StreamError::Reset));
            count.set(count.get() + 1);
        });
        pause(&handle, Duration::from_millis(5)).await;
        assert_eq!(ended.get(), 0);
        client.shutdown();
        while ended.get() < 2 {
            pause(&handle, Duration::from_millis(1)).await;
        }
        assert_eq!(client.recv().await.err(), Some(StreamError::Reset));
        assert_eq!(send_bytes(&client, b"late").await.err(), Some(StreamError::Reset));
        drop(server);
    });
}

#[test]
fn the_end_of_a_stream_is_seen_after_its_bytes() {
    run_every_way(|handle| async move {
        let (client, server) = pair(&handle).await;
        send_bytes(&client, b"last words").await.expect("sends");
        drop(client);
        assert_eq!(recv_exact(&server, 10).await, b"last words");
        assert_eq!(server.recv().await.err(), Some(StreamError::Closed));
    });
}

/// URING-1 and URING-5: streams and operations of every kind are in flight when the core goes away.
#[test]
fn a_core_that_ends_takes_its_operations_along() {
    for _ in 0..10 {
        run_every_way(|handle| async move {
            let listener = handle.listen(loopback()).expect("a free port");
            for _ in 0..20 {
                let client = handle.connect(listener.local()).await.expect("connects");
                let server = listener.accept().await.expect("accepts");
                handle.spawn(echo(server));
                handle.spawn_now(async move {
                    let mut batch = SendBatch::new();
                    batch.push_data(Buffer::zeroed(2_048).into_slice());
                    let _ = client.send(batch).await;
                });
            }
            let _ = poll_once_and_drop(listener.accept()).await;
        });
    }
}
