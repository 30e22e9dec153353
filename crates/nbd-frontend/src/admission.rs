//! Exports as a client finds them: only those that it may open (NBD-EXPORT-1).
//!
//! - NBD-ADMISSION-1: while a volume that is absent may still appear, each client that finds no export is told that it is
//!   not served now: which exports there are, and for which clients, is not known. So NBD-EXPORT-1 holds then, too.

use std::rc::Rc;

use access::{Access, NbdClient};
use dataplane::Export;
use io_traits::{Device, Stream, World};
use nbd_server::{Export as ToldExport, Purpose, Refusal};
use nbd_wire::{BlockSizes, TransmissionFlags};
use units::BLOCK_SIZE;
use volume::Volume;

use crate::connection::Connection;
use crate::exports::{ExportPlace, ExportRecord};
use crate::frontend::Way;

/// The flags of every export (NBD-EXPORT-2).
const FLAGS: TransmissionFlags = TransmissionFlags::HAS_FLAGS
    .with(TransmissionFlags::SEND_FLUSH)
    .with(TransmissionFlags::SEND_FUA)
    .with(TransmissionFlags::SEND_TRIM)
    .with(TransmissionFlags::SEND_WRITE_ZEROES)
    .with(TransmissionFlags::CAN_MULTI_CONN)
    .with(TransmissionFlags::SEND_CACHE)
    .with(TransmissionFlags::SEND_FAST_ZERO);

/// The outcome of looking for an export.
enum Found<W: World, D: Device> {
    /// It is here, and the client may open it.
    Here(Rc<Export<W, D>>, String),
    /// It is at this address.
    Elsewhere(String),
    /// It is not served now.
    NotNow,
    /// There is none for this client.
    Unknown,
}

impl<W: World, D: Device> Connection<W, D> {
    /// Returns whether the client may open volumes of this access list.
    pub(crate) fn is_admitted_by(&self, access: &Access) -> bool {
        match self.way {
            Way::Unix => access.admits_nbd(&NbdClient::Unix),
            Way::Network => access.admits_nbd(&NbdClient::Network {
                address: self.stream.peer().ip(),
                interface: &|| self.interface(),
                has_certificate: &|name| self.stream.has_certificate(name),
            }),
        }
    }

    /// Answers the names of all exports that the client may open here: some clients open all that are listed.
    pub(crate) fn list(&self) {
        let exports = self.frontend.state.exports.borrow();
        let open = exports.here().filter(|record| self.is_admitted_by(&record.access));
        let names: Vec<&str> = open.map(|record| record.name.as_str()).collect();
        self.put(|machine, out| machine.listed(names, out));
    }

    /// Answers for the export `name`.
    pub(crate) fn find(&self, name: &str, purpose: Purpose) {
        let (export, name) = match self.look_for(name) {
            Found::Here(export, name) => (export, name),
            Found::Elsewhere(uri) => {
                let message = format!("this export is at {uri}");
                self.log_refusal(name, &message);
                return self.refuse(Refusal::Policy(&message));
            }
            Found::NotNow => {
                self.log_refusal(name, "it is not served now");
                return self.refuse(Refusal::Shutdown);
            }
            Found::Unknown => {
                self.log_refusal(name, "there is none that this client may open");
                return self.refuse(Refusal::Unknown);
            }
        };
        if purpose == Purpose::Open && !self.core.has_place_for(&export) {
            let why = "the export has as many connections as it may have";
            self.log_refusal(&name, why);
            return self.refuse(Refusal::Policy(why));
        }
        let sizes = BlockSizes {
            minimum: 1,
            preferred: BLOCK_SIZE as u32,
            maximum: self.frontend.state.options.limits.payload_bytes_max,
        };
        let told = ToldExport {
            name: &name,
            description: None,
            size_bytes: size_of(&export),
            flags: FLAGS,
            sizes,
        };
        if self.put(|machine, out| machine.found(&told, out)) {
            self.link.let_in(&export);
            tracing::info!(connection = %self.link.id(), export = name, "NBD client has opened it");
            *self.export.borrow_mut() = Some(export);
        }
    }

    /// Logs why a client does not get an export, unless much was said of its address lately.
    fn log_refusal(&self, export: &str, reason: &str) {
        self.link.note_refused();
        let peer = self.stream.peer();
        let now = self.core.world().now();
        if self.frontend.state.quiet.borrow_mut().allows(peer.ip(), now) {
            tracing::info!(connection = %self.link.id(), %peer, export, reason, "NBD export refused");
        }
    }

    fn refuse(&self, refusal: Refusal<'_>) {
        self.put(|machine, out| machine.refuse(refusal, out));
    }

    fn look_for(&self, name: &str) -> Found<W, D> {
        let exports = self.frontend.state.exports.borrow();
        let record = match name.is_empty() {
            true => self.default_of(exports.here()),
            false => exports.find(name),
        };
        let Some(record) = record.filter(|record| self.is_admitted_by(&record.access)) else {
            return self.found_none();
        };
        if let ExportPlace::Elsewhere { uri } = &record.place {
            return Found::Elsewhere(uri.clone());
        }
        // What the core knows of the volume is newer than what was announced.
        match self.core.open_if(Some(record.uuid), |access| self.is_admitted_by(access)) {
            Ok(export) => Found::Here(export, record.name.clone()),
            Err(_) => self.found_none(),
        }
    }

    /// NBD-ADMISSION-1.
    fn found_none(&self) -> Found<W, D> {
        if self.core.awaits_volumes() { Found::NotNow } else { Found::Unknown }
    }

    /// The export that a client means that gives no name: the only one that it may open here.
    fn default_of<'a>(
        &self,
        here: impl Iterator<Item = &'a ExportRecord>,
    ) -> Option<&'a ExportRecord> {
        let mut open = here.filter(|record| self.is_admitted_by(&record.access));
        let first = open.next();
        if open.next().is_none() { first } else { None }
    }
}

/// The size of an export as it is now.
pub(crate) fn size_of<W: World, D: Device>(export: &Export<W, D>) -> u64 {
    export.with_volume(Volume::blocks) * BLOCK_SIZE as u64
}
