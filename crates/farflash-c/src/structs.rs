//! The structures of `farflash.h`.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::path::Path;
use std::time::Duration;

use farflash_client::{
    ClusterOptions, DeviceHealth, FailureDomain, NewVolume, OpenOptions, Properties, Restrictions,
    Slo, Tokens, VolumeRecord,
};
use uuid::Uuid;

use crate::edge::{Failure, check_place, is_null, optional_list, optional_path, optional_text};

/// `farflash_tokens`
#[repr(C)]
pub struct CTokens {
    id: [c_char; 40],
    token: [c_char; 160],
    controller_token: [c_char; 160],
}

/// `farflash_cut_off`
#[repr(C)]
pub struct CCutOff {
    bytes: u64,
    at_least: u32,
}

/// `farflash_cluster_options`
#[repr(C)]
pub struct CClusterOptions {
    struct_size: usize,
    urls: *const c_char,
    api_token: *const c_char,
    api_ca: *const c_char,
}

/// `farflash_new_volume`
#[repr(C)]
pub struct CNewVolume {
    struct_size: usize,
    name: *const c_char,
    size_bytes: u64,
    metadata_size: u32,
    share: u32,
    reads_per_second: u64,
    writes_per_second: u64,
    on: *const c_char,
    device: *const c_char,
    has_core: u32,
    core: u32,
    hosts: *const c_char,
    networks: *const c_char,
    interfaces: *const c_char,
    owner: *const c_char,
    sector_size: u32,
}

/// `farflash_volume_failure_domain`
#[repr(C)]
pub struct CFailureDomain {
    struct_size: usize,
    core: u32,
    health: c_int,
    host_id: [c_char; 40],
    host: [c_char; 264],
    device_id: [c_char; 40],
    device: [c_char; 264],
    model: [c_char; 88],
    serial: [c_char; 88],
    labels: [c_char; 3336],
}

/// `farflash_open_options`
#[repr(C)]
pub struct COpenOptions {
    struct_size: usize,
    token: *const c_char,
    controller_token: *const c_char,
    host_nqn: *const c_char,
    connections: u16,
    depth: u16,
    no_digests: u32,
    recovery_timeout_ms: u64,
}

/// `farflash_volume_properties`
#[repr(C)]
pub struct CProperties {
    size_bytes: u64,
    atomic_write_bytes: u64,
    transfer_bytes_max: u64,
    reconnects: u64,
    block_size: u32,
    uuid: [c_char; 40],
    nqn: [c_char; 224],
    address: [c_char; 64],
    metadata_size: u32,
}

// The last field takes the place of padding: programs that were built without it have room for it.
#[cfg(target_pointer_width = "64")]
const _: () =
    assert!(size_of::<CProperties>() == 368 && offset_of!(CProperties, metadata_size) == 364);

/// `farflash_blocks`
#[repr(C)]
pub struct CBlocks {
    pub(crate) data: *mut c_void,
    pub(crate) len: usize,
    pub(crate) metadata: *mut c_void,
    pub(crate) metadata_len: usize,
}

/// The fields of `farflash_request` that all requests have. Programs that were built before there were
/// requests with metadata have no more than this.
#[repr(C)]
pub struct CRequest {
    pub(crate) op: c_int,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) buffer: *mut c_void,
    pub(crate) expected: *const c_void,
}

/// All of `farflash_request`, as requests with metadata have it.
#[repr(C)]
pub struct CRequestEx {
    pub(crate) request: CRequest,
    pub(crate) metadata: *mut c_void,
    pub(crate) metadata_len: u64,
    pub(crate) expected_metadata: *const c_void,
}

const _: () = assert!(offset_of!(CRequestEx, metadata) == size_of::<CRequest>());

/// `text` with a zero at the end; what does not fit is cut off, which no text of ours is.
fn array<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (place, byte) in array[..N - 1].iter_mut().zip(text.bytes()) {
        *place = byte as c_char;
    }
    array
}

impl CTokens {
    pub(crate) fn new(id: &str, tokens: &Tokens) -> Self {
        Self {
            id: array(id),
            token: array(&tokens.token),
            controller_token: array(&tokens.controller_token),
        }
    }
}

impl CCutOff {
    /// The part that a resize has cut off, by the record that it returned.
    pub(crate) fn of(record: &VolumeRecord) -> Self {
        let (bytes, at_least) = record.cut_off.map_or((0, false), |cut| (cut.bytes, cut.at_least));
        Self { bytes, at_least: u32::from(at_least) }
    }
}

impl CProperties {
    pub(crate) fn new(properties: &Properties) -> Self {
        Self {
            size_bytes: properties.size_bytes,
            atomic_write_bytes: properties.atomic_write_bytes,
            transfer_bytes_max: properties.transfer_bytes_max,
            reconnects: properties.reconnects,
            block_size: properties.block_size,
            uuid: array(&properties.uuid().map(|uuid| uuid.to_string()).unwrap_or_default()),
            nqn: array(properties.nqn.as_str()),
            address: array(&properties.address.to_string()),
            metadata_size: properties.metadata_size,
        }
    }
}

impl CClusterOptions {
    /// Checks that the structure is of the size that is known here.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        check_size::<Self>(self.struct_size)
    }

    /// The arguments of `farflash_cluster_new`.
    pub(crate) fn of(urls: *const c_char, api_token: *const c_char) -> Self {
        Self { struct_size: size_of::<Self>(), urls, api_token, api_ca: std::ptr::null() }
    }

    /// As the library takes them.
    ///
    /// # Safety
    /// The strings are null, or end in a zero and stay as they are meanwhile.
    pub(crate) unsafe fn options(&self) -> Result<ClusterOptions, Failure> {
        // SAFETY: the caller's promise, for all three.
        let (urls, api_token, api_ca) = unsafe {
            (
                optional_text(self.urls, "urls")?.map(ClusterOptions::urls_of),
                optional_text(self.api_token, "api_token")?,
                optional_path(self.api_ca),
            )
        };
        let options = match urls {
            None if api_token.is_none() => ClusterOptions::from_env(),
            None => return Err(Failure::argument("api_token is given, but urls is NULL")),
            Some(urls) => {
                ClusterOptions { urls, api_token: api_token.map(str::to_owned), api_ca: None }
            }
        };
        Ok(ClusterOptions { api_ca: api_ca.map(Path::to_owned), ..options })
    }
}

impl CNewVolume {
    /// As the library takes it.
    ///
    /// # Safety
    /// The strings are null, or end in a zero and stay as they are meanwhile.
    pub(crate) unsafe fn new_volume(&self) -> Result<NewVolume, Failure> {
        check_size::<Self>(self.struct_size)?;
        // SAFETY: the caller's promise, for all that follow.
        let text = |pointer, name| unsafe { optional_text(pointer, name) };
        let owned = |pointer, name| Ok::<_, Failure>(text(pointer, name)?.map(str::to_owned));
        // SAFETY: the same.
        let list = |pointer, name| unsafe { optional_list(pointer, name) };
        let restrictions = Restrictions {
            hosts: list(self.hosts, "hosts")?.unwrap_or_default(),
            networks: list(self.networks, "networks")?.unwrap_or_default(),
            interfaces: list(self.interfaces, "interfaces")?.unwrap_or_default(),
        };
        let name = text(self.name, "name")?;
        Ok(NewVolume {
            metadata_size: self.metadata_size,
            sector_size: if self.sector_size == 0 { 4096 } else { self.sector_size },
            on: owned(self.on, "on")?,
            device: owned(self.device, "device")?,
            core: (self.has_core != 0).then_some(self.core),
            slo: slo(self.share, self.reads_per_second, self.writes_per_second)?,
            restrictions: Some(restrictions).filter(|some| *some != Restrictions::default()),
            owner: owned(self.owner, "owner")?,
            ..NewVolume::new(name.ok_or_else(|| is_null("name"))?, self.size_bytes)
        })
    }
}

/// The service level that is asked for, if there is one.
pub(crate) fn slo(share: u32, reads: u64, writes: u64) -> Result<Option<Slo>, Failure> {
    match (share, reads, writes) {
        (0, 0, 0) => Ok(None),
        (share, 0, 0) => Ok(Some(Slo::Share(share))),
        (0, reads_per_second, writes_per_second) => {
            Ok(Some(Slo::Rate { reads_per_second, writes_per_second }))
        }
        _ => Err(Failure::argument("a volume is promised a share or rates, not both")),
    }
}

impl CFailureDomain {
    /// Checks that there is room for one at `pointer`.
    ///
    /// # Safety
    /// `pointer` is null, or points to one of which no more than the size need be set.
    pub(crate) unsafe fn check(pointer: *const Self) -> Result<(), Failure> {
        check_place(pointer, "domain")?;
        // SAFETY: the caller's promise; no reference is made of what may not be set.
        check_size::<Self>(unsafe { (&raw const (*pointer).struct_size).read() })
    }

    pub(crate) fn new(domain: &FailureDomain) -> Self {
        let health = match domain.health {
            DeviceHealth::Unknown => 0,
            DeviceHealth::Good => 1,
            DeviceHealth::Degraded => 2,
            DeviceHealth::Failed => 3,
        };
        let id = |bytes| Uuid::from_bytes(bytes).to_string();
        Self {
            struct_size: size_of::<Self>(),
            core: domain.core,
            health,
            host_id: array(&id(domain.host_id)),
            host: array(&domain.host),
            device_id: array(&id(domain.device_id)),
            device: array(&domain.device),
            model: array(&domain.model),
            serial: array(&domain.serial),
            labels: labels(domain),
        }
    }
}

/// The labels, each of which ends in a zero, with an empty one at the end. The labels of a foreign target can
/// be longer than the array, since bytes that are no text were replaced by longer ones: then whole labels are
/// left out, so that a reader finds the empty one at the end.
fn labels<const N: usize>(domain: &FailureDomain) -> [c_char; N] {
    let mut text = String::new();
    for (key, value) in &domain.labels {
        let label = format!("{key}={value}\0");
        if text.len() + label.len() < N {
            text.push_str(&label);
        }
    }
    array(&text)
}

/// Checks that the caller's structure is of the size that is known here.
pub(crate) fn check_size<T>(struct_size: usize) -> Result<(), Failure> {
    if struct_size == size_of::<T>() {
        return Ok(());
    }
    Err(Failure::argument(format!("struct_size is {struct_size}, not {}", size_of::<T>())))
}

impl COpenOptions {
    /// As the library takes them.
    ///
    /// # Safety
    /// The strings are null, or end in a zero and stay as they are meanwhile.
    pub(crate) unsafe fn options(&self) -> Result<OpenOptions, Failure> {
        check_size::<Self>(self.struct_size)?;
        let mut options = OpenOptions::from_env();
        // SAFETY: the caller's promise, for all three.
        let (token, controller_token, host_nqn) = unsafe {
            (
                optional_text(self.token, "token")?,
                optional_text(self.controller_token, "controller_token")?,
                optional_text(self.host_nqn, "host_nqn")?,
            )
        };
        if let Some(token) = token {
            options.token = Some(token.to_owned());
        }
        if let Some(token) = controller_token {
            options.controller_token = Some(token.to_owned());
        }
        options.host_nqn = host_nqn.map(str::to_owned);
        if self.connections > 0 {
            options.connections = self.connections;
        }
        if self.depth > 0 {
            options.depth = self.depth;
        }
        options.digests = self.no_digests == 0;
        if self.recovery_timeout_ms > 0 {
            options.recovery_timeout = Duration::from_millis(self.recovery_timeout_ms);
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader of the labels finds the empty one within the array, whatever a target sends.
    ///
    /// Method: as many labels as an array takes, of every length of the last, and one that is longer than it.
    #[test]
    fn labels_end_within_their_array() {
        let domain = |values: &[usize]| {
            let labels = values.iter().enumerate();
            let labels = labels.map(|(n, len)| (n.to_string(), "\u{fffd}".repeat(*len)));
            FailureDomain { labels: labels.collect(), ..FailureDomain::default() }
        };
        for last in 0..20 {
            let array: [c_char; 64] = labels(&domain(&[3, 100, 4, last]));
            let bytes: Vec<u8> = array.iter().map(|byte| byte.cast_unsigned()).collect();
            let end = bytes.windows(2).position(|two| two == [0, 0]);
            let end = end.unwrap_or_else(|| panic!("no end with {last}: {bytes:?}"));
            let text = str::from_utf8(&bytes[..end]).unwrap();
            assert!(text.split('\0').all(|label| label.contains('=')), "{text:?}");
            assert!(text.contains("2=") && !text.contains("1="), "{text:?}");
        }
    }
}
