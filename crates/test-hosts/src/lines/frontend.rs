//! A front end for a protocol of lines, as small as one can be: what a core asks of a front end is enough for another
//! protocol than NVMe.
//!
//! A host sends `TAG open UUID NAME`, and `TAG VERB EXPORT ...` with `write LBA BYTE`, `read LBA`, `compare LBA BYTE`,
//! `swap LBA BYTE BYTE`, `unmap LBA BLOCKS`, `verify LBA` or `flush`. A block is named by the byte that fills it.
//! Answers are lines that begin with the tag; the data of a read follows its line. Lines that begin with `*` are events.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use dataplane::{
    Core, Export, ExportId, Frontend, IoError, Link, Outbox, Outcome, Payload, Peer, Request,
    Session, Tag, VolumeEvent, footprint,
};
use io_traits::{Buffer, Device, Stream, World};
use local_sync::{Notify, first_of};
use units::{BLOCK_SIZE, Instant, Lba, LbaRange};

/// The front end.
#[derive(Debug)]
pub struct LineFrontend;

struct LineSession<W: World, D: Device> {
    core: Core<W, D>,
    link: Link,
    stream: W::Stream,
    outbox: Outbox,
    /// As `open` numbered them.
    exports: RefCell<Vec<Rc<Export<W, D>>>>,
    in_flight: Cell<usize>,
}

impl<W: World, D: Device> Frontend<W, D> for LineFrontend {
    fn protocol(&self) -> &'static str {
        "lines"
    }

    fn accept(&self, core: &Core<W, D>, link: Link, stream: W::Stream) -> Rc<dyn Session> {
        let session = Rc::new(LineSession {
            core: core.clone(),
            link,
            outbox: Outbox::new(stream.clone(), Notify::new()),
            stream,
            exports: RefCell::default(),
            in_flight: Cell::new(0),
        });
        let (sending, receiving) = (session.clone(), session.clone());
        core.world().spawn(async move {
            // The host is gone if that fails.
            let _ = sending.outbox.run().await;
            sending.stream.shutdown();
            sending.link.cut();
            sending.link.leave();
        });
        core.world().spawn(async move { receiving.receive().await });
        session
    }

    fn on_tick(&self, _core: &Core<W, D>, _now: Instant) {}
}

impl<W: World, D: Device> LineSession<W, D> {
    async fn receive(self: &Rc<Self>) {
        let mut received = Vec::new();
        let mut closed = std::pin::pin!(self.link.closed().notified());
        while self.link.is_open() {
            match first_of(self.stream.recv(), closed.as_mut()).await.first() {
                Some(Ok(chunk)) => received.extend_from_slice(&chunk),
                _ => break,
            }
            while let Some(end) = received.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = received.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line).into_owned();
                let words: Vec<&str> = line.split_whitespace().collect();
                if self.act(&words).is_none() {
                    self.close("a line is no command");
                }
            }
        }
        self.close("the host closed it");
    }

    /// Acts on a line; `None` if it is no command.
    fn act(self: &Rc<Self>, words: &[&str]) -> Option<()> {
        let (tag, verb) = (words.first()?.parse().ok()?, *words.get(1)?);
        if verb == "open" {
            let (uuid, name) = (words.get(2)?.parse().ok()?, *words.get(3)?);
            self.open(tag, uuid, name);
            return Some(());
        }
        let export = self.exports.borrow().get(words.get(2)?.parse::<usize>().ok()?)?.clone();
        let number = |at: usize| words.get(at)?.parse::<u64>().ok();
        let range = |blocks| Some(LbaRange::new(Lba(number(3)?), blocks));
        let filled = |at: usize, share_of: usize| {
            let byte = u8::try_from(number(at)?).ok()?;
            let mut block = Buffer::new(1);
            block.as_mut_bytes().fill(byte);
            // A line cannot be refused once it has come.
            let share = self.link.window().take_anyway(footprint(share_of * BLOCK_SIZE));
            Some(Box::new(Payload { data: block.into_slice(), crcs: None, share: Some(share) }))
        };
        let request = match verb {
            "read" => Request::Read(range(1)?),
            "write" => Request::Write { range: range(1)?, data: filled(4, 1)? },
            "compare" => Request::Compare { range: range(1)?, expected: filled(4, 2)? },
            "swap" => Request::CompareAndWrite {
                range: range(1)?,
                expected: filled(4, 2)?,
                data: filled(5, 1)?,
            },
            "unmap" => Request::Unmap { ranges: vec![range(number(4)?)?], share: None },
            "zero" => Request::WriteZeroes(range(number(4)?)?),
            "verify" => Request::Verify(range(1)?),
            "flush" => Request::Flush,
            _ => return None,
        };
        self.in_flight.set(self.in_flight.get() + 1);
        self.core.submit(self.clone(), tag, &export, request);
        Some(())
    }

    fn open(&self, tag: Tag, uuid: uuid::Uuid, name: &str) {
        let (address, interface) = (self.stream.peer().ip(), || None);
        let peer = Peer { host: name, address, interface: &interface };
        match self.core.open(Some(uuid), &peer) {
            Ok(export) if self.core.has_place_for(&export) => {
                self.link.let_in(&export);
                let blocks = export.with_volume(volume::Volume::blocks);
                let number = self.exports.borrow().len();
                self.exports.borrow_mut().push(export);
                self.say(&format!("{tag} opened {number} {blocks}"));
            }
            Ok(_) => self.say(&format!("{tag} refused: it has as many connections as it may have")),
            // Not the reason: the host has not authenticated.
            Err(_) => self.say(&format!("{tag} refused")),
        }
    }

    fn say(&self, line: &str) {
        self.outbox.put(|out| {
            out.bytes(line.as_bytes());
            out.bytes(b"\n");
        });
    }
}

impl<W: World, D: Device> Session for LineSession<W, D> {
    fn link(&self) -> &Link {
        &self.link
    }

    fn complete(&self, tag: Tag, outcome: Outcome) {
        self.in_flight.set(self.in_flight.get() - 1);
        match outcome {
            Outcome::Done => self.say(&format!("{tag} done")),
            Outcome::Data(data, share) => self.outbox.put(|out| {
                out.bytes(format!("{tag} data {}\n", data.len_bytes()).as_bytes());
                data.pieces.into_iter().for_each(|piece| out.data(piece));
                out.hold(share);
            }),
            Outcome::Extents(_) => unreachable!("no line asks for extents"),
            Outcome::Failed(IoError::Miscompare { offset_bytes }) => {
                self.say(&format!("{tag} differs at {offset_bytes}"));
            }
            Outcome::Failed(error) => self.say(&format!("{tag} failed: {error}")),
        }
    }

    fn requests(&self) -> usize {
        if self.link.is_open() { self.in_flight.get() } else { 0 }
    }

    fn has_open(&self, volume: ExportId) -> bool {
        self.exports.borrow().iter().any(|export| export.id() == volume)
    }

    fn on_volume(&self, volume: ExportId, event: VolumeEvent) {
        let opened = self.exports.borrow();
        let Some(number) = opened.iter().position(|export| export.id() == volume) else { return };
        match event {
            VolumeEvent::Resized => {
                let blocks = opened[number].with_volume(volume::Volume::blocks);
                self.say(&format!("* {number} has {blocks}"));
            }
            VolumeEvent::AccessChanged { revoked: false } => {}
            VolumeEvent::AccessChanged { revoked: true } => self.close("access was revoked"),
            VolumeEvent::Suspended => self.close("the volume is not served now"),
            VolumeEvent::Deleted => self.close("the volume is gone"),
        }
    }

    fn on_tick(&self, _now: Instant) {}

    fn close(&self, reason: &str) {
        if self.link.is_open() {
            self.say(&format!("* closed: {reason}"));
            self.link.close();
            self.outbox.close();
        }
    }

    fn cut(&self, reason: &str) {
        self.close(reason);
        if self.link.cut() {
            self.stream.shutdown();
        }
    }
}
