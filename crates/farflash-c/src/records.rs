//! The records that an API has of volumes.

use std::ffi::{CString, c_char, c_int, c_void};

use farflash_client::{Cluster, Slo, VolumeRecord, VolumeState};

use crate::edge::{
    Failure, c_text, check_place, edge, optional_reference, put, reference, take_back, text,
};
use crate::starting::Caller;
use crate::structs::check_size;
use crate::submit::Callback;

/// `farflash_volume_list`
pub struct CVolumeList(Vec<Record>);

/// A volume, and its texts as C takes them.
struct Record {
    volume: VolumeRecord,
    texts: Texts,
}

struct Texts {
    id: CString,
    name: CString,
    nqn: CString,
    address: CString,
    host: CString,
    /// Each ends in a zero, an empty one ends all.
    labels: Vec<u8>,
    device: CString,
    model: CString,
    serial: CString,
    owner: CString,
    hosts: CString,
    networks: CString,
    interfaces: CString,
    trouble: CString,
}

/// `farflash_volume_record`
#[repr(C)]
pub struct CVolumeRecord {
    struct_size: usize,
    id: *const c_char,
    name: *const c_char,
    nqn: *const c_char,
    address: *const c_char,
    host: *const c_char,
    labels: *const c_char,
    device: *const c_char,
    model: *const c_char,
    serial: *const c_char,
    owner: *const c_char,
    hosts: *const c_char,
    networks: *const c_char,
    interfaces: *const c_char,
    trouble: *const c_char,
    size_bytes: u64,
    allocated_bytes: u64,
    reads_per_second: u64,
    writes_per_second: u64,
    share: u32,
    metadata_size: u32,
    core: u32,
    is_online: c_int,
    health: c_int,
    sector_size: u32,
}

impl CVolumeList {
    pub(crate) fn new(volumes: Vec<VolumeRecord>) -> Self {
        let record = |volume: VolumeRecord| Record { texts: Texts::of(&volume), volume };
        Self(volumes.into_iter().map(record).collect())
    }

    /// Hands the list over to the caller, which gives it back.
    pub(crate) fn handed_over(volumes: Vec<VolumeRecord>) -> *mut Self {
        Box::into_raw(Box::new(Self::new(volumes)))
    }
}

impl Texts {
    fn of(volume: &VolumeRecord) -> Self {
        let optional = |text: &Option<String>| c_text(text.as_deref().unwrap_or_default());
        let labels = volume.labels.iter().map(|(key, value)| format!("{key}={value}\0"));
        let restrictions = &volume.restrictions;
        Self {
            id: c_text(&volume.id.to_string()),
            name: c_text(&volume.name),
            nqn: c_text(&volume.nqn),
            address: c_text(&volume.address.to_string()),
            host: c_text(&volume.host),
            labels: format!("{}\0", labels.collect::<String>()).into_bytes(),
            device: c_text(&volume.device),
            model: optional(&volume.drive.model),
            serial: optional(&volume.drive.serial),
            owner: optional(&volume.owner),
            hosts: c_text(&restrictions.hosts.join(",")),
            networks: c_text(&restrictions.networks.join(",")),
            interfaces: c_text(&restrictions.interfaces.join(",")),
            trouble: optional(&volume.trouble),
        }
    }
}

impl Record {
    fn as_c(&self) -> CVolumeRecord {
        let Self { volume, texts } = self;
        let (share, reads_per_second, writes_per_second) = match volume.slo {
            Slo::Share(share) => (share, 0, 0),
            Slo::Rate { reads_per_second, writes_per_second } => {
                (0, reads_per_second, writes_per_second)
            }
        };
        CVolumeRecord {
            struct_size: size_of::<CVolumeRecord>(),
            id: texts.id.as_ptr(),
            name: texts.name.as_ptr(),
            nqn: texts.nqn.as_ptr(),
            address: texts.address.as_ptr(),
            host: texts.host.as_ptr(),
            labels: texts.labels.as_ptr().cast(),
            device: texts.device.as_ptr(),
            model: texts.model.as_ptr(),
            serial: texts.serial.as_ptr(),
            owner: texts.owner.as_ptr(),
            hosts: texts.hosts.as_ptr(),
            networks: texts.networks.as_ptr(),
            interfaces: texts.interfaces.as_ptr(),
            trouble: texts.trouble.as_ptr(),
            size_bytes: volume.size_bytes,
            allocated_bytes: volume.allocated_bytes,
            reads_per_second,
            writes_per_second,
            share,
            metadata_size: volume.metadata_bytes,
            core: volume.portal.core,
            is_online: c_int::from(volume.state == VolumeState::Online),
            health: match volume.drive.health.as_deref() {
                Some("good") => 1,
                Some("degraded") => 2,
                Some("failed") => 3,
                _ => 0,
            },
            sector_size: u32::try_from(volume.sector_bytes.bytes()).expect("512 or 4096"),
        }
    }
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_list(
    cluster: *const Cluster,
    list: *mut *mut CVolumeList,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let cluster = unsafe { reference(cluster, "cluster") }?;
        check_place(list, "list")?;
        let made = CVolumeList::handed_over(cluster.list()?);
        // SAFETY: the caller's promise.
        unsafe { put(list, "list", made) }
    })
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_show(
    cluster: *const Cluster,
    volume: *const c_char,
    list: *mut *mut CVolumeList,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let (cluster, volume) =
            unsafe { (reference(cluster, "cluster")?, text(volume, "volume")?) };
        check_place(list, "list")?;
        let made = CVolumeList::handed_over(vec![cluster.show(volume)?]);
        // SAFETY: the caller's promise.
        unsafe { put(list, "list", made) }
    })
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_start_list(
    cluster: *const Cluster,
    list: *mut *mut CVolumeList,
    done: Option<Callback>,
    context: *mut c_void,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let cluster = unsafe { reference(cluster, "cluster") }?;
        check_place(list, "list")?;
        let caller = Caller::new(done, context, list)?;
        caller.wait_for(cluster.start_list(), CVolumeList::handed_over);
        Ok(())
    })
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_start_show(
    cluster: *const Cluster,
    volume: *const c_char,
    list: *mut *mut CVolumeList,
    done: Option<Callback>,
    context: *mut c_void,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let (cluster, volume) =
            unsafe { (reference(cluster, "cluster")?, text(volume, "volume")?) };
        check_place(list, "list")?;
        let caller = Caller::new(done, context, list)?;
        caller.wait_for(cluster.start_show(volume), |shown| CVolumeList::handed_over(vec![shown]));
        Ok(())
    })
}

/// See `farflash.h`.
///
/// # Safety
/// `list` is null, or from this library and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_list_count(list: *const CVolumeList) -> usize {
    // SAFETY: the caller's promise.
    let list = unsafe { optional_reference(list, "list") };
    list.ok().flatten().map_or(0, |list| list.0.len())
}

/// See `farflash.h`.
///
/// # Safety
/// `list` is null, or from this library and not freed; `record` is null, or points to one of which no more than the size
/// need be set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_list_get(
    list: *const CVolumeList,
    index: usize,
    record: *mut CVolumeRecord,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let list = unsafe { reference(list, "list") }?;
        check_place(record, "record")?;
        // SAFETY: the caller's promise; no reference is made of what may not be set.
        check_size::<CVolumeRecord>(unsafe { (&raw const (*record).struct_size).read() })?;
        let found = list.0.get(index).ok_or_else(|| {
            Failure::argument(format!("index is {index}, of {} volumes", list.0.len()))
        })?;
        // SAFETY: the caller's promise.
        unsafe { put(record, "record", found.as_c()) }
    })
}

/// See `farflash.h`.
///
/// # Safety
/// `list` is null, or from this library and no longer used by any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_list_free(list: *mut CVolumeList) {
    edge(|| {
        // SAFETY: made by `Box::into_raw`, and by the caller's promise given back once.
        unsafe { take_back(list, "list") }.map(drop)
    });
}
