//! Properties: capabilities, version, configuration, status.

use nvme_wire::fabrics::{Property, PropertySize};
use nvme_wire::property::{Cap, Cc, Csts, Version, offset};
use nvme_wire::{Sqe, Status};
use units::Instant;

use super::{AdminReply, Backend, Controller, ControllerKind};

/// The specification that the controller complies with.
pub(super) const VERSION: Version = Version::new(2, 0, 0);
/// Longest time from CC.EN to CSTS.RDY in units of 500 ms: commands of before may be at a device (CONTROLLER-6), which
/// fails them by its timeout, as a rule within half of this.
const TIMEOUT_500MS: u8 = 60;
/// The sizes of queue entries that CC must hold, as powers of two.
const IOSQES: u8 = 6;
const IOCQES: u8 = 4;

impl Controller {
    fn cap(&self) -> Cap {
        let entries = u32::from(self.parameters.limits.queue_entries_max);
        Cap::new(entries, TIMEOUT_500MS, Cap::CQR | Cap::CSS_NVM | Cap::CRWMS)
    }

    pub(super) fn property_get(&self, sqe: &Sqe) -> Result<AdminReply, Status> {
        let property = Property::from(*sqe);
        let size = property.size().ok_or(Status::INVALID_FIELD.with_dnr())?;
        let value = match (property.ofst.get(), size) {
            (offset::CAP, PropertySize::Eight) => self.cap().0,
            (offset::VS, PropertySize::Four) => u64::from(VERSION.0),
            (offset::CC, PropertySize::Four) => u64::from(self.cc.0),
            (offset::CSTS, PropertySize::Four) => u64::from(self.csts.0),
            // Subsystem reset is not supported (CAP.NSSRS); the property then reads as zero.
            (offset::NSSR, PropertySize::Four) => 0,
            // Controller Ready With Media Timeout; the other one does not apply (CAP.CRMS).
            (offset::CRTO, PropertySize::Four) => u64::from(TIMEOUT_500MS),
            _ => return Err(Status::INVALID_FIELD.with_dnr()),
        };
        Ok(AdminReply::success(value))
    }

    pub(super) fn property_set(
        &mut self,
        now: Instant,
        sqe: &Sqe,
        backend: &dyn Backend,
    ) -> Result<AdminReply, Status> {
        let property = Property::from(*sqe);
        if (property.ofst.get(), property.size()) != (offset::CC, Some(PropertySize::Four)) {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let value = u32::try_from(property.value.get() & u64::from(u32::MAX)).expect("32 bits");
        let new = Cc(value);
        if !self.may_be_configured(new) {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        self.configure(now, new);
        self.start(now, backend);
        Ok(AdminReply::success(0))
    }

    /// Returns true if `new` keeps the rules of the property (Base, figure "Controller Configuration"): CC.SHN has no
    /// reserved value, and a field that applies to an enabled controller does not change until it is disabled. Reserved
    /// bits may be anything.
    fn may_be_configured(&self, new: Cc) -> bool {
        let stays_enabled = self.cc.en() && new.en();
        let is_kept = self.cc.setup() == new.setup();
        new.shn() != Cc::SHN_RESERVED && (is_kept || !stays_enabled)
    }

    /// Takes a new CC: enables, disables, shuts down. What was shut down stays so until it is disabled or, if it is,
    /// enabled, whatever becomes of CC.SHN (Base, clause 3.6.2).
    fn configure(&mut self, now: Instant, new: Cc) {
        let old = core::mem::replace(&mut self.cc, new);
        if (old.en(), old.shn()) != (new.en(), new.shn()) {
            // CONTROLLER-2: either timeout begins.
            self.keep_alive(now);
        }
        if new.en() && !old.en() {
            let is_valid = self.is_valid(new);
            self.csts = Csts::new(false, !is_valid, Csts::SHST_NORMAL);
        }
        if !new.en() && old.en() {
            self.reset();
            self.csts = Csts(0);
        }
        if new.shn() != Cc::SHN_NONE && old.shn() == Cc::SHN_NONE {
            // Whatever was acknowledged is durable, or the host has flushed: nothing is left to do.
            self.drop_io_queues();
            self.csts = Csts::new(self.csts.rdy(), self.csts.cfs(), Csts::SHST_COMPLETE);
        }
    }

    /// An enabled controller gets ready, unless something of before is under way (CONTROLLER-6).
    pub(super) fn start(&mut self, now: Instant, backend: &dyn Backend) {
        let is_starting = self.cc.en() && !self.csts.rdy() && !self.csts.cfs();
        if is_starting && backend.has_settled() {
            self.keep_alive(now);
            self.csts = Csts::new(true, false, self.csts.shst());
        }
    }

    fn is_valid(&self, cc: Cc) -> bool {
        // A discovery controller has no I/O queues, and hosts differ in what they say of them.
        let sizes_fit = self.parameters.kind == ControllerKind::Discovery
            || (cc.iosqes() == IOSQES && cc.iocqes() == IOCQES);
        sizes_fit && cc.mps() == 0 && cc.ams() == 0 && cc.css() == Cc::CSS_NVM && !cc.crime()
    }

    /// A controller level reset: what the host configured is gone, and so are the I/O queues.
    fn reset(&mut self) {
        self.drop_io_queues();
        self.events.reset(self.resets.abort());
        self.features.reset();
    }

    /// The I/O queues are no more, though their connections have yet to end: their numbers are free.
    fn drop_io_queues(&mut self) {
        self.close_io_queues = true;
        self.io_queues.fill(false);
    }
}
