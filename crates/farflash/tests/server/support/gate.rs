//! Stands between a client and an API, and may stop answering without hanging up.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

/// See the module's head.
pub struct Gate {
    pub url: String,
    hangs: Arc<AtomicBool>,
    held: Arc<AtomicU32>,
    passed: Arc<AtomicU32>,
}

impl Gate {
    /// A gate to the API at `address`.
    pub fn start(address: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (held, passed) = (Arc::default(), Arc::default());
        let gate = Self { url, hangs: Arc::default(), held, passed };
        let (hangs, held, address) = (gate.hangs.clone(), gate.held.clone(), address.to_owned());
        let passed = gate.passed.clone();
        thread::spawn(move || {
            let mut kept = Vec::new();
            for client in listener.incoming().map_while(Result::ok) {
                if hangs.load(Ordering::Acquire) {
                    kept.push(client);
                    held.fetch_add(1, Ordering::AcqRel);
                } else if let Ok(api) = TcpStream::connect(&address) {
                    passed.fetch_add(1, Ordering::AcqRel);
                    pass(client.try_clone().unwrap(), api.try_clone().unwrap());
                    pass(api, client);
                }
            }
        });
        gate
    }

    /// From now on connections are taken, and nothing comes of them.
    pub fn hang(&self) {
        self.hangs.store(true, Ordering::Release);
    }

    /// Connections that reached the API.
    pub fn passed(&self) -> u32 {
        self.passed.load(Ordering::Acquire)
    }

    /// Connections of which nothing came so far.
    pub fn held(&self) -> u32 {
        self.held.load(Ordering::Acquire)
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
}
