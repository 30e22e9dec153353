//! Get Log Page.

use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;

use nvme_wire::discovery::{DiscoveryLogEntry, DiscoveryLogHeader};
use nvme_wire::identify::set_ascii;
use nvme_wire::log::{
    ChangedNamespaces, CommandEffects, EFFECT_CSUPP, EFFECT_LBCC, ErrorLogEntry, FailureDomainLog,
    FirmwareSlots, GetLogPage, Lid, SmartHealth, data_units,
};
use nvme_wire::reservation::ReservationNotification;
use nvme_wire::sqe::NSID_ALL;
use nvme_wire::{AdminOpcode, IoOpcode, Sqe, Status};
use zerocopy::{FromZeros, IntoBytes};

use super::{AdminReply, Backend, Controller, ControllerKind, ERROR_LOG_ENTRIES, feature};
use crate::io::NSID;

/// LID Supported and Effects: the log page is supported.
const LSUPP: u32 = 1;
/// Length of Supported Log Pages and of Feature Identifiers Supported: four bytes an identifier.
const SUPPORT_TABLE_LEN: usize = 1024;
/// Length of the Cross-Controller Reset log page: a header, and 511 entries of 8 bytes.
const CROSS_CONTROLLER_RESET_LOG_LEN: usize = 4096;
/// Length of a discovery log's header, and of each entry.
const DISCOVERY_RECORD_LEN: usize = 1024;
/// Length of the generation counter at its start.
const DISCOVERY_COUNTER_LEN: usize = size_of::<u64>();

/// Controllers that have a log page.
#[derive(Clone, Copy)]
enum Owner {
    All,
    Io,
    /// Those of a volume whose place is known.
    IoWithDomain,
    Discovery,
}

/// Bytes of a log page. Reading them may clear events.
#[derive(Clone, Copy)]
enum Content {
    /// The page has `len` bytes, and `read` returns all of them.
    Whole { len: usize, read: fn(&mut Controller, &GetLogPage, &dyn Backend) -> Vec<u8> },
    /// The page may be large: returns at most as many bytes as are given, from the offset of the command on.
    Part(fn(&mut Controller, &GetLogPage, &dyn Backend, usize) -> Vec<u8>),
}

/// A log page: identifier, owner and content are in one row, so that a page without a row cannot be served.
struct LogPage {
    lid: Lid,
    owner: Owner,
    /// True if the page can be read of a namespace, too. Other pages are the controller's or the subsystem's (Base,
    /// figure "Log Page Identifiers").
    of_namespace: bool,
    content: Content,
}

impl LogPage {
    const fn new(
        lid: Lid,
        owner: Owner,
        len: usize,
        read: fn(&mut Controller, &GetLogPage, &dyn Backend) -> Vec<u8>,
    ) -> Self {
        Self { lid, owner, of_namespace: false, content: Content::Whole { len, read } }
    }

    /// Returns whether a controller of `kind` has the page.
    fn is_of(&self, kind: ControllerKind, backend: &dyn Backend) -> bool {
        match (self.owner, kind) {
            (Owner::All, _)
            | (Owner::Io, ControllerKind::Io)
            | (Owner::Discovery, ControllerKind::Discovery) => true,
            (Owner::IoWithDomain, ControllerKind::Io) => backend.failure_domain().is_some(),
            (Owner::Io | Owner::IoWithDomain, ControllerKind::Discovery)
            | (Owner::Discovery, ControllerKind::Io) => false,
        }
    }
}

/// All log pages, by their identifiers.
const LOG_PAGES: [LogPage; 11] = [
    LogPage::new(Lid::SUPPORTED, Owner::All, SUPPORT_TABLE_LEN, |controller, _, backend| {
        support_table(controller.log_pages(backend).map(|page| (page.lid.0, LSUPP)))
    }),
    LogPage::new(
        Lid::ERROR,
        Owner::Io,
        ERROR_LOG_ENTRIES * size_of::<ErrorLogEntry>(),
        |controller, _, _| controller.error_entries(),
    ),
    LogPage {
        of_namespace: true,
        ..LogPage::new(
            Lid::HEALTH,
            Owner::Io,
            size_of::<SmartHealth>(),
            |controller, get, backend| {
                if !get.rae {
                    controller.events.health_log_read();
                }
                controller.smart_health(&backend.health()).as_bytes().to_vec()
            },
        )
    },
    LogPage::new(Lid::FIRMWARE_SLOT, Owner::Io, size_of::<FirmwareSlots>(), |controller, _, _| {
        controller.firmware_slots().as_bytes().to_vec()
    }),
    LogPage::new(
        Lid::CHANGED_NAMESPACES,
        Owner::Io,
        size_of::<ChangedNamespaces>(),
        |controller, get, _| {
            let is_listed = controller.events.read_changed_namespaces(get.rae);
            ChangedNamespaces::new(is_listed.then_some(NSID)).as_bytes().to_vec()
        },
    ),
    LogPage::new(Lid::COMMAND_EFFECTS, Owner::Io, size_of::<CommandEffects>(), |_, _, _| {
        command_effects().as_bytes().to_vec()
    }),
    LogPage::new(Lid::FEATURE_EFFECTS, Owner::Io, SUPPORT_TABLE_LEN, |controller, _, _| {
        controller.feature_effects()
    }),
    // A reset is over when its command is completed, so there is none to report.
    LogPage::new(
        Lid::CROSS_CONTROLLER_RESET,
        Owner::Io,
        CROSS_CONTROLLER_RESET_LOG_LEN,
        |_, _, _| vec![0; CROSS_CONTROLLER_RESET_LOG_LEN],
    ),
    LogPage {
        lid: Lid::DISCOVERY,
        owner: Owner::Discovery,
        of_namespace: false,
        content: Content::Part(Controller::read_discovery),
    },
    LogPage::new(
        Lid::RESERVATION_NOTIFICATION,
        Owner::Io,
        size_of::<ReservationNotification>(),
        |controller, get, _| controller.events.read_reservation_notice(get.rae).as_bytes().to_vec(),
    ),
    LogPage::new(
        Lid::FAILURE_DOMAIN,
        Owner::IoWithDomain,
        size_of::<FailureDomainLog>(),
        |_, _, backend| {
            let domain = backend.failure_domain().expect("its owner says so");
            FailureDomainLog::new(domain).as_bytes().to_vec()
        },
    ),
];

/// Each identifier has one row: a second one would never be served.
const _: () = {
    let mut row = 1;
    while row < LOG_PAGES.len() {
        assert!(LOG_PAGES[row - 1].lid.0 < LOG_PAGES[row].lid.0);
        row += 1;
    }
};

/// Health and use of what lies below a controller, for the SMART / Health log page. Wear and temperature are not part
/// of it: asking a drive for them holds up its I/O.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Health {
    /// Critical Warning bits, such as [`nvme_wire::log::CRITICAL_RELIABILITY`].
    pub critical_warning: u8,
    /// Available spare in per cent.
    pub available_spare: u8,
    /// Available spare threshold in per cent.
    pub available_spare_threshold: u8,
    /// Bytes read by hosts.
    pub bytes_read: u128,
    /// Bytes written by hosts.
    pub bytes_written: u128,
    /// Read commands.
    pub host_reads: u128,
    /// Write commands.
    pub host_writes: u128,
    /// Minutes with commands in flight.
    pub busy_minutes: u128,
    /// Starts of the volume's part of the device, and returns of it after a failure.
    pub power_cycles: u128,
    /// Hours since the first start, as far as is known.
    pub power_on_hours: u128,
    /// Starts that found it not shut down, as far as is known.
    pub unsafe_shutdowns: u128,
    /// Blocks that were found damaged, of data or of what leads to it, and requests that the device
    /// failed.
    pub media_errors: u128,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            critical_warning: 0,
            available_spare: 100,
            available_spare_threshold: 0,
            bytes_read: 0,
            bytes_written: 0,
            host_reads: 0,
            host_writes: 0,
            busy_minutes: 0,
            power_cycles: 0,
            power_on_hours: 0,
            unsafe_shutdowns: 0,
            media_errors: 0,
        }
    }
}

/// The entries that a host may discover. The generation counter changes whenever the entries do, so
/// that a host which reads the log in pieces notices.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DiscoveryLog {
    /// Generation counter.
    pub genctr: u64,
    /// The subsystems, and ways to them.
    pub entries: Vec<Rc<DiscoveryLogEntry>>,
}

impl DiscoveryLog {
    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        ((1 + self.entries.len()) * DISCOVERY_RECORD_LEN) as u64
    }

    /// Record `index` of the log page, the header being the first.
    fn record(&self, index: usize) -> Option<[u8; DISCOVERY_RECORD_LEN]> {
        let mut record = [0; DISCOVERY_RECORD_LEN];
        if index == 0 {
            let header = DiscoveryLogHeader::new(self.genctr, self.entries.len() as u64);
            record.copy_from_slice(header.as_bytes());
        } else {
            record.copy_from_slice(self.entries.get(index - 1)?.as_bytes());
        }
        Some(record)
    }

    /// At most `len_bytes` bytes from `offset` of the log page; fewer at its end.
    fn read(&self, offset: u64, len_bytes: usize) -> Vec<u8> {
        let left = usize::try_from(self.len_bytes().saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; left.min(len_bytes)];
        let (mut at, mut filled) = (usize::try_from(offset).unwrap_or(usize::MAX), 0);
        while filled < bytes.len() {
            let Some(record) = self.record(at / DISCOVERY_RECORD_LEN) else { break };
            let part = &record[at % DISCOVERY_RECORD_LEN..];
            let count = part.len().min(bytes.len() - filled);
            bytes[filled..filled + count].copy_from_slice(&part[..count]);
            filled += count;
            at += count;
        }
        bytes
    }
}

impl Controller {
    pub(super) fn get_log_page(
        &mut self,
        sqe: &Sqe,
        backend: &dyn Backend,
    ) -> Result<AdminReply, Status> {
        let get = GetLogPage::decode(sqe);
        let mut pages = self.log_pages(backend);
        let Some(page) = pages.find(|page| page.lid == get.lid) else {
            return Err(Status::INVALID_LOG_PAGE.with_dnr());
        };
        let len_max = u64::from(self.parameters.limits.transfer_bytes_max);
        if get.len_bytes > len_max || get.offset_is_index || !get.offset.is_multiple_of(4) {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        if get.len_bytes > u64::from(sqe.dptr.length.get()) {
            return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
        }
        // NSID 0 is what older hosts send where the specification asks for FFFFFFFFh.
        if !matches!(get.nsid, 0 | NSID_ALL) {
            if !page.of_namespace {
                return Err(Status::INVALID_FIELD.with_dnr());
            }
            if get.nsid != NSID {
                return Err(Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr());
            }
        }
        let len = usize::try_from(get.len_bytes).expect("bounded by MDTS");
        let bytes = match page.content {
            Content::Part(read) => read(self, &get, backend, len),
            Content::Whole { len: whole, .. } if get.offset >= whole as u64 => {
                return Err(Status::INVALID_FIELD.with_dnr());
            }
            Content::Whole { len: whole, read } => {
                let bytes = read(self, &get, backend);
                assert_eq!(bytes.len(), whole, "log page {:#x} has its row's length", page.lid.0);
                let start = usize::try_from(get.offset).expect("within the page");
                bytes[start..whole.min(start + len)].to_vec()
            }
        };
        let zeroes = len - bytes.len();
        Ok(AdminReply::Data { bytes, zeroes })
    }

    /// Returns the log pages that this controller has.
    fn log_pages<'a>(
        &self,
        backend: &'a dyn Backend,
    ) -> impl Iterator<Item = &'static LogPage> + use<'a> {
        const ROWS: &[LogPage] = &LOG_PAGES;
        let kind = self.parameters.kind;
        ROWS.iter().filter(move |page| page.is_of(kind, backend))
    }

    fn read_discovery(
        &mut self,
        get: &GetLogPage,
        backend: &dyn Backend,
        len_bytes: usize,
    ) -> Vec<u8> {
        let empty = DiscoveryLog::default();
        let log = backend.discovery_log().unwrap_or(&empty);
        // The log may have shrunk since the host read its header: it then reads zeroes, and sees
        // from the generation counter why.
        let bytes = log.read(get.offset, len_bytes);
        let has_counter = get.offset == 0 && bytes.len() >= DISCOVERY_COUNTER_LEN;
        self.events.discovery_log_read(has_counter, get.rae);
        bytes
    }

    fn error_entries(&self) -> Vec<u8> {
        let mut bytes = vec![0; ERROR_LOG_ENTRIES * size_of::<ErrorLogEntry>()];
        for (place, entry) in bytes.chunks_mut(size_of::<ErrorLogEntry>()).zip(&self.error_log) {
            place.copy_from_slice(entry.as_bytes());
        }
        bytes
    }

    fn smart_health(&self, health: &Health) -> SmartHealth {
        SmartHealth {
            critical_warning: health.critical_warning,
            available_spare: health.available_spare,
            available_spare_threshold: health.available_spare_threshold,
            data_units_read: data_units(health.bytes_read).into(),
            data_units_written: data_units(health.bytes_written).into(),
            host_reads: health.host_reads.into(),
            host_writes: health.host_writes.into(),
            busy_minutes: health.busy_minutes.into(),
            power_cycles: health.power_cycles.into(),
            power_on_hours: health.power_on_hours.into(),
            unsafe_shutdowns: health.unsafe_shutdowns.into(),
            media_errors: health.media_errors.into(),
            error_log_entries: u128::from(self.errors).into(),
            ..SmartHealth::new_zeroed()
        }
    }

    fn feature_effects(&self) -> Vec<u8> {
        let supported = feature::SUPPORTED.iter();
        let supported = supported.filter(|fid| self.require_feature(**fid).is_ok());
        support_table(supported.map(|fid| (fid.0, LSUPP)))
    }

    fn firmware_slots(&self) -> FirmwareSlots {
        let mut revision = [0; 8];
        set_ascii(&mut revision, &self.parameters.firmware);
        FirmwareSlots::single(revision)
    }
}

fn command_effects() -> CommandEffects {
    let mut effects = CommandEffects::new_zeroed();
    for opcode in [
        AdminOpcode::GET_LOG_PAGE,
        AdminOpcode::IDENTIFY,
        AdminOpcode::ABORT,
        AdminOpcode::SET_FEATURES,
        AdminOpcode::GET_FEATURES,
        AdminOpcode::ASYNC_EVENT_REQUEST,
        AdminOpcode::KEEP_ALIVE,
        AdminOpcode::CROSS_CONTROLLER_RESET,
    ] {
        effects.admin[usize::from(opcode.0)] = EFFECT_CSUPP.into();
    }
    for opcode in [
        IoOpcode::FLUSH,
        IoOpcode::READ,
        IoOpcode::COMPARE,
        IoOpcode::VERIFY,
        IoOpcode::RESERVATION_REGISTER,
        IoOpcode::RESERVATION_REPORT,
        IoOpcode::RESERVATION_ACQUIRE,
        IoOpcode::RESERVATION_RELEASE,
    ] {
        effects.io[usize::from(opcode.0)] = EFFECT_CSUPP.into();
    }
    for opcode in [
        IoOpcode::WRITE,
        IoOpcode::WRITE_ZEROES,
        IoOpcode::DATASET_MANAGEMENT,
        IoOpcode::COMPARE_AND_WRITE,
    ] {
        effects.io[usize::from(opcode.0)] = (EFFECT_CSUPP | EFFECT_LBCC).into();
    }
    effects
}

fn support_table(entries: impl Iterator<Item = (u8, u32)>) -> Vec<u8> {
    let mut bytes = vec![0; SUPPORT_TABLE_LEN];
    for (identifier, value) in entries {
        let at = usize::from(identifier) * 4;
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    bytes
}
