//! Get Features and Set Features. No feature can be saved: a controller ends with its connection.

use nvme_wire::feature::{
    ASYNC_CONFIG_DISCOVERY_CHANGE, ASYNC_CONFIG_NAMESPACE_ATTRIBUTE, ASYNC_CONFIG_SMART,
    CAPABILITY_CHANGEABLE, CAPABILITY_NAMESPACE, Fid, GetFeatures, HOST_BEHAVIOR_LEN,
    HOST_IDENTIFIER_EXTENDED, NumberOfQueues, RESERVATION_PERSISTS, Select, SetFeatures,
    VOLATILE_WRITE_CACHE_ENABLE,
};
use nvme_wire::reservation::ReservationNotification;
use nvme_wire::sqe::NSID_ALL;
use nvme_wire::{Sqe, Status};
use units::Instant;

use super::identify::KAS_100MS;
use super::{AdminReply, Backend, Controller, ControllerKind, KATO_DEFAULT_MS};
use crate::io::NSID;

/// Features of an I/O controller. Volatile Write Cache only where there is one.
pub(super) const SUPPORTED: [Fid; 13] = [
    Fid::ARBITRATION,
    Fid::POWER_MANAGEMENT,
    Fid::TEMPERATURE_THRESHOLD,
    Fid::ERROR_RECOVERY,
    Fid::VOLATILE_WRITE_CACHE,
    Fid::NUMBER_OF_QUEUES,
    Fid::WRITE_ATOMICITY,
    Fid::ASYNC_EVENT_CONFIG,
    Fid::KEEP_ALIVE_TIMER,
    Fid::HOST_BEHAVIOR,
    Fid::HOST_IDENTIFIER,
    Fid::RESERVATION_MASK,
    Fid::RESERVATION_PERSISTENCE,
];
/// Features of a discovery controller.
const SUPPORTED_BY_DISCOVERY: [Fid; 3] =
    [Fid::ASYNC_EVENT_CONFIG, Fid::KEEP_ALIVE_TIMER, Fid::HOST_IDENTIFIER];

/// Arbitration burst: no limit.
const ARBITRATION_DEFAULT: u32 = 0x7;
/// Temperature thresholds of the composite temperature in kelvins: never reached.
const OVER_TEMPERATURE_DEFAULT: u16 = 0xFFFF;
/// TMPSEL: the composite temperature.
const TMPSEL_COMPOSITE: u32 = 0;
/// TMPSEL of Set Features, where it stands in dword 11: all implemented temperature sensors.
const TMPSEL_ALL: u32 = 0xF << 16;
const DISABLE_NORMAL: u32 = 1;
/// Dword 10 of Set Features: all but FID and Save.
const SET_RESERVED: u32 = 0x7FFF_FF00;
/// Dword 10 of Get Features: all but FID and Select.
const GET_RESERVED: u32 = 0xFFFF_F800;

/// The values of a controller's features.
#[derive(Debug)]
pub(super) struct Features {
    kato_ms: u32,
    arbitration: u32,
    over_temperature: u16,
    under_temperature: u16,
    error_recovery: u32,
    has_write_cache: bool,
    write_cache: u32,
    queues: Option<NumberOfQueues>,
    write_atomicity: u32,
    host_behavior: [u8; HOST_BEHAVIOR_LEN as usize],
    reservation_mask: u32,
}

impl Features {
    pub(super) fn new(kato_ms: u32, has_write_cache: bool) -> Self {
        Self {
            kato_ms: round_kato(kato_ms),
            arbitration: ARBITRATION_DEFAULT,
            over_temperature: OVER_TEMPERATURE_DEFAULT,
            under_temperature: 0,
            error_recovery: 0,
            has_write_cache,
            write_cache: u32::from(has_write_cache) * VOLATILE_WRITE_CACHE_ENABLE,
            queues: None,
            write_atomicity: 0,
            host_behavior: [0; HOST_BEHAVIOR_LEN as usize],
            reservation_mask: 0,
        }
    }

    /// Back to the defaults, but for the keep alive timer, which belongs to the connection.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.kato_ms, self.has_write_cache);
    }

    /// The kinds of reservation notifications that the host does not want.
    pub(super) fn reservation_mask(&self) -> u32 {
        self.reservation_mask
    }

    pub(super) fn kato_ms(&self) -> u32 {
        self.kato_ms
    }

    /// The highest number that an I/O queue may have, as far as the host has asked for a number.
    pub(super) fn io_queues_granted(&self) -> u16 {
        let granted = self.queues.map(|queues| queues.submission.min(queues.completion));
        granted.and_then(|granted| u16::try_from(granted).ok()).unwrap_or(u16::MAX)
    }

    pub(super) fn write_cache_enabled(&self) -> bool {
        self.write_cache & VOLATILE_WRITE_CACHE_ENABLE != 0
    }

    /// The threshold of the composite temperature that a dword 11 selects.
    fn temperature_threshold(&mut self, dword11: u32) -> Result<&mut u16, Status> {
        let sensor = dword11 >> 16 & 0xF;
        match (sensor, dword11 >> 20 & 0x3) {
            (TMPSEL_COMPOSITE, 0) => Ok(&mut self.over_temperature),
            (TMPSEL_COMPOSITE, 1) => Ok(&mut self.under_temperature),
            _ => Err(Status::INVALID_FIELD.with_dnr()),
        }
    }
}

/// Bits of a feature's value that are reserved, or stand for what is not there: another power state than 0, errors
/// of deallocated blocks.
fn value_refused(fid: Fid) -> u32 {
    match fid {
        Fid::ARBITRATION => 0xF8,
        Fid::POWER_MANAGEMENT => u32::MAX,
        Fid::TEMPERATURE_THRESHOLD => 0xFFC0_0000,
        Fid::ERROR_RECOVERY => 0xFFFF_0000,
        Fid::VOLATILE_WRITE_CACHE => !VOLATILE_WRITE_CACHE_ENABLE,
        Fid::WRITE_ATOMICITY => !DISABLE_NORMAL,
        Fid::RESERVATION_MASK => !ReservationNotification::MASK_BITS,
        Fid::RESERVATION_PERSISTENCE => !RESERVATION_PERSISTS,
        _ => 0,
    }
}

/// Returns whether a feature has a value for each namespace.
fn is_per_namespace(fid: Fid) -> bool {
    matches!(fid, Fid::ERROR_RECOVERY | Fid::RESERVATION_MASK | Fid::RESERVATION_PERSISTENCE)
}

/// Returns true if a host may set this: bytes 0 to 3 are 0 or 1 each, and no format of the Copy command, which is not
/// supported, is enabled (bytes 4 and 5).
fn may_be_behavior(behavior: &[u8; HOST_BEHAVIOR_LEN as usize]) -> bool {
    behavior[..4].iter().all(|byte| *byte <= 1) && behavior[4..6] == [0; 2]
}

/// Rounds up to the granularity that Identify states (KAS).
fn round_kato(kato_ms: u32) -> u32 {
    kato_ms.checked_next_multiple_of(u32::from(KAS_100MS) * 100).unwrap_or(kato_ms)
}

/// A value of a namespace is that of one.
fn require_namespace(nsid: u32) -> Result<(), Status> {
    if nsid == NSID { Ok(()) } else { Err(Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr()) }
}

impl Controller {
    pub(super) fn require_feature(&self, fid: Fid) -> Result<(), Status> {
        let is_supported = match self.parameters.kind {
            ControllerKind::Discovery => SUPPORTED_BY_DISCOVERY.contains(&fid),
            ControllerKind::Io => {
                SUPPORTED.contains(&fid)
                    && (fid != Fid::VOLATILE_WRITE_CACHE || self.features.has_write_cache)
            }
        };
        if is_supported { Ok(()) } else { Err(Status::INVALID_FIELD.with_dnr()) }
    }

    pub(super) fn get_features(
        &mut self,
        sqe: &Sqe,
        backend: &dyn Backend,
    ) -> Result<AdminReply, Status> {
        let get = GetFeatures::decode(sqe);
        self.require_feature(get.fid)?;
        if sqe.cdw10.get() & GET_RESERVED != 0 {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        if !matches!(get.nsid, 0 | NSID | NSID_ALL) {
            return Err(Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr());
        }
        match get.select {
            Select::Current if get.fid == Fid::RESERVATION_PERSISTENCE => {
                require_namespace(get.nsid)?;
                Ok(AdminReply::success(backend.reservations_persist().into()))
            }
            Select::Current => self.current_value(&get, sqe.dptr.length.get()),
            // What cannot be saved has its default value as its saved one.
            Select::Default | Select::Saved => {
                let mut defaults = Features::new(KATO_DEFAULT_MS, self.features.has_write_cache);
                core::mem::swap(&mut self.features, &mut defaults);
                let config = self.events.config();
                self.events.set_config(0);
                let reply = self.current_value(&get, sqe.dptr.length.get());
                self.events.set_config(config);
                self.features = defaults;
                reply
            }
            Select::SupportedCapabilities => {
                let is_fixed = matches!(get.fid, Fid::POWER_MANAGEMENT | Fid::HOST_IDENTIFIER);
                let changeable = if is_fixed { 0 } else { CAPABILITY_CHANGEABLE };
                let per_namespace =
                    if is_per_namespace(get.fid) { CAPABILITY_NAMESPACE } else { 0 };
                Ok(AdminReply::success(u64::from(changeable | per_namespace)))
            }
            Select::Reserved => Err(Status::INVALID_FIELD.with_dnr()),
        }
    }

    fn current_value(&mut self, get: &GetFeatures, data_len: u32) -> Result<AdminReply, Status> {
        let features = &mut self.features;
        let value = match get.fid {
            Fid::ARBITRATION => features.arbitration,
            Fid::TEMPERATURE_THRESHOLD => {
                u32::from(*features.temperature_threshold(get.parameter)?)
            }
            Fid::ERROR_RECOVERY => features.error_recovery,
            Fid::VOLATILE_WRITE_CACHE => features.write_cache,
            Fid::NUMBER_OF_QUEUES => {
                let most = u32::from(self.parameters.limits.io_queues_max);
                let all = NumberOfQueues { submission: most, completion: most };
                features.queues.unwrap_or(all).encode()
            }
            Fid::WRITE_ATOMICITY => features.write_atomicity,
            Fid::RESERVATION_MASK => {
                require_namespace(get.nsid)?;
                features.reservation_mask
            }
            Fid::ASYNC_EVENT_CONFIG => self.events.config(),
            Fid::KEEP_ALIVE_TIMER => features.kato_ms,
            Fid::HOST_BEHAVIOR => {
                if data_len < HOST_BEHAVIOR_LEN {
                    return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
                }
                return Ok(AdminReply::data(features.host_behavior));
            }
            Fid::HOST_IDENTIFIER => {
                if get.parameter & HOST_IDENTIFIER_EXTENDED == 0 {
                    return Err(Status::INVALID_FIELD.with_dnr());
                }
                if (data_len as usize) < self.host_id.0.len() {
                    return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
                }
                return Ok(AdminReply::data(self.host_id.0));
            }
            // Power Management: state 0 is the only one.
            _ => 0,
        };
        Ok(AdminReply::success(u64::from(value)))
    }

    pub(super) fn set_features(
        &mut self,
        now: Instant,
        sqe: &Sqe,
        data: &[u8],
    ) -> Result<AdminReply, Status> {
        let set = SetFeatures::decode(sqe);
        self.require_feature(set.fid)?;
        if set.save {
            return Err(Status::FEATURE_NOT_SAVEABLE.with_dnr());
        }
        match set.nsid {
            0 if set.fid == Fid::RESERVATION_PERSISTENCE => {
                return Err(Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr());
            }
            0 | NSID_ALL => {}
            NSID if is_per_namespace(set.fid) => {}
            NSID => return Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC.with_dnr()),
            _ => return Err(Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr()),
        }
        if sqe.cdw10.get() & SET_RESERVED != 0 || set.value & value_refused(set.fid) != 0 {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let (features, value) = (&mut self.features, set.value);
        match set.fid {
            Fid::ARBITRATION => features.arbitration = value,
            Fid::POWER_MANAGEMENT => {}
            Fid::TEMPERATURE_THRESHOLD => {
                let [low, high, ..] = value.to_le_bytes();
                // The composite temperature is all that is implemented.
                let is_of_all = value & TMPSEL_ALL == TMPSEL_ALL;
                let value = if is_of_all { value & !TMPSEL_ALL } else { value };
                *features.temperature_threshold(value)? = u16::from_le_bytes([low, high]);
            }
            Fid::ERROR_RECOVERY => features.error_recovery = value,
            Fid::VOLATILE_WRITE_CACHE => features.write_cache = value,
            Fid::NUMBER_OF_QUEUES => return self.set_number_of_queues(value),
            Fid::WRITE_ATOMICITY => features.write_atomicity = value,
            Fid::RESERVATION_MASK => features.reservation_mask = value,
            Fid::RESERVATION_PERSISTENCE => {
                return Ok(AdminReply::Persist(value & RESERVATION_PERSISTS != 0));
            }
            Fid::ASYNC_EVENT_CONFIG => return self.set_async_event_config(value),
            Fid::KEEP_ALIVE_TIMER => {
                // The transport requires the timer: once a host has one, it cannot do without.
                if value == 0 {
                    return Err(Status::KEEP_ALIVE_TIMEOUT_INVALID.with_dnr());
                }
                features.kato_ms = round_kato(value);
                self.kept_alive = now;
                self.any_command_keeps_alive = false;
            }
            Fid::HOST_BEHAVIOR => match data.try_into() {
                Ok(behavior) if may_be_behavior(&behavior) => features.host_behavior = behavior,
                Ok(_) => return Err(Status::INVALID_FIELD.with_dnr()),
                Err(_) => return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr()),
            },
            // Host Identifier: Connect has set it.
            _ => return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr()),
        }
        Ok(AdminReply::success(0))
    }

    fn set_number_of_queues(&mut self, value: u32) -> Result<AdminReply, Status> {
        let asked = NumberOfQueues::decode(value).ok_or(Status::INVALID_FIELD.with_dnr())?;
        if self.io_queue_count() > 0 {
            return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
        }
        let most = u32::from(self.parameters.limits.io_queues_max);
        let allocated = NumberOfQueues {
            submission: asked.submission.min(most),
            completion: asked.completion.min(most),
        };
        self.features.queues = Some(allocated);
        Ok(AdminReply::success(u64::from(allocated.encode())))
    }

    fn set_async_event_config(&mut self, value: u32) -> Result<AdminReply, Status> {
        let known = match self.parameters.kind {
            ControllerKind::Io => ASYNC_CONFIG_SMART | ASYNC_CONFIG_NAMESPACE_ATTRIBUTE,
            ControllerKind::Discovery => ASYNC_CONFIG_DISCOVERY_CHANGE,
        };
        if value & !known != 0 {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        self.events.set_config(value);
        Ok(AdminReply::success(0))
    }
}
