//! A controller that lies plays against the host's side of a queue pair.
//!
//! Promises: nothing panics; no payload is asked for beyond a command's data; a slot completes only
//! while a command occupies it.

use checksum::crc32c;
use nvme_initiator::{Config, Connection, Event, Transfer};
use nvme_wire::pdu::{C2hData, CapsuleResp, Digests, IcResp, PduFlags, R2t};
use nvme_wire::{Cqe, Sqe, Status};
use units::{Duration, Instant};
use zerocopy::IntoBytes;

use crate::input::{Input, digests};

const DATA_LEN: u32 = 8192;
const DEPTH: u16 = 8;
const STEPS_MAX: usize = 64;

/// The input is a mode, then steps: a tag and what belongs to it.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let mode = input.u8();
    let digests = digests(mode);
    let config = Config {
        digests,
        depth: DEPTH,
        command_timeout: Duration::from_secs(1),
        in_capsule_max: if mode & 4 != 0 { 4096 } else { 0 },
    };
    let mut host = Host { connection: Connection::new(&config, |_| ()), occupied: 0 };
    if mode & 8 == 0 {
        host.feed(IcResp::new(digests, 4096).as_bytes());
    }
    for _ in 0..STEPS_MAX {
        if input.is_empty() || !host.step(&mut input, digests) {
            return;
        }
    }
}

struct Host {
    connection: Connection,
    occupied: usize,
}

impl Host {
    /// Takes a step; returns true while the connection lives.
    fn step(&mut self, input: &mut Input<'_>, digests: Digests) -> bool {
        let (cid, range) = (input.u16() % 16, (input.u32() % 10_000, input.u32() % 10_000));
        match input.u8() % 5 {
            0 => {
                let len = usize::from(input.u8());
                self.feed(input.bytes(len))
            }
            1 => {
                self.submit(input.u8());
                true
            }
            2 => {
                let flags = PduFlags(input.u8());
                let header = C2hData::new(cid, range, flags, digests, 4);
                let fed = self.feed(&sealed(header.as_bytes(), digests));
                let data = [0xA5; 512];
                fed && self.feed(&data[..(range.1 as usize).min(512)])
            }
            3 => {
                let header = R2t::new(cid, input.u16(), range, digests);
                self.feed(&sealed(header.as_bytes(), digests))
            }
            _ => {
                let cqe = Cqe::new(cid, Status::SUCCESS);
                self.feed(&sealed(CapsuleResp::new(cqe, digests).as_bytes(), digests))
            }
        }
    }

    fn submit(&mut self, choice: u8) {
        let transfer = match choice % 3 {
            0 => Transfer::None,
            1 => Transfer::ToHost(DATA_LEN),
            _ => Transfer::ToController(DATA_LEN),
        };
        if !self.connection.is_ready() {
            return;
        }
        let sqe = Sqe::new(choice, 1);
        let slot = self.connection.submit(Instant(0), &sqe, transfer, None, |_| ());
        self.occupied += usize::from(slot.is_some());
    }

    fn feed(&mut self, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        loop {
            if let Some(payload) = self.connection.payload() {
                assert!(payload.offset + payload.len <= DATA_LEN, "beyond the command's data");
                let len = rest.len().min(payload.len as usize);
                rest = &rest[len..];
                self.connection.on_payload(u32::try_from(len).expect("at most the payload"));
                if self.connection.payload().is_some() {
                    return true;
                }
            }
            match self.connection.on_bytes(rest) {
                Ok((0, None)) => return true,
                Ok((taken, event)) => {
                    rest = &rest[taken..];
                    self.on_event(event);
                }
                Err(error) => {
                    let quoted = self.connection.term_req(&error);
                    assert!(quoted.is_none_or(|pdu| (24..=152).contains(&pdu.len())));
                    return false;
                }
            }
        }
    }

    fn on_event(&mut self, event: Option<Event>) {
        match event {
            Some(Event::R2t(request)) => {
                assert!(request.offset + request.len <= DATA_LEN, "beyond the command's data");
                let total: u32 = self.connection.h2c_pdus(request).map(|pdu| pdu.len).sum();
                assert_eq!(total, request.len);
            }
            Some(Event::Completed { slot, .. }) => {
                assert!(slot < DEPTH && self.occupied > 0, "nothing was outstanding");
                self.occupied -= 1;
            }
            _ => {}
        }
        assert_eq!(self.connection.outstanding(), self.occupied);
    }
}

/// The header with its digest: without one it would hardly ever get past the first check.
fn sealed(header: &[u8], digests: Digests) -> Vec<u8> {
    let mut bytes = header.to_vec();
    if digests.header {
        bytes.extend(crc32c(header).to_le_bytes());
    }
    bytes
}

/// Commands that are answered as they should be.
pub fn seeds() -> Vec<Vec<u8>> {
    let skip = [0; 10];
    let submit = |choice: u8| [skip.as_slice(), &[1, choice]].concat();
    let answer = |tag: u8, offset: u32, len: u32| {
        let mut bytes = vec![0, 0];
        bytes.extend(offset.to_le_bytes());
        bytes.extend(len.to_le_bytes());
        bytes.extend([tag, 4]);
        bytes
    };
    (0..8)
        .map(|mode| {
            let mut bytes = vec![mode];
            for choice in 0..3 {
                bytes.extend(submit(choice));
                bytes.extend(answer(2, 0, 512));
                bytes.extend(answer(3, 0, 4096));
                bytes.extend(answer(4, 0, 0));
            }
            bytes
        })
        .collect()
}
