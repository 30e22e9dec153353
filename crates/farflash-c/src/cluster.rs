//! Provisioning.

use std::ffi::{c_char, c_int};

use farflash_client::{ChangeAuth, ChangeRestrictions, Cluster, NewVolume, ResizeOptions, Slo};

use crate::edge::{
    Failure, check_aligned, check_place, edge, optional_list, optional_reference, put, reference,
    take_back, text,
};
use crate::structs::{CClusterOptions, CCutOff, CNewVolume, CTokens, slo};

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_cluster_new(
    urls: *const c_char,
    api_token: *const c_char,
    cluster: *mut *mut Cluster,
) -> c_int {
    // SAFETY: the caller's promise.
    edge(|| unsafe { cluster_new(&CClusterOptions::of(urls, api_token), cluster) })
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_cluster_new_with(
    options: *const CClusterOptions,
    cluster: *mut *mut Cluster,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let options = unsafe { reference(options, "options") }?;
        options.check()?;
        // SAFETY: the caller's promise.
        unsafe { cluster_new(options, cluster) }
    })
}

/// Makes a cluster, and puts it to `cluster`.
///
/// # Safety
/// The strings of `options` are null, or end in a zero and stay as they are meanwhile; `cluster` is null, or points
/// to memory that is the caller's to write.
unsafe fn cluster_new(
    options: &CClusterOptions,
    cluster: *mut *mut Cluster,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let made = Cluster::with(&unsafe { options.options() }?)?;
    check_place(cluster, "cluster")?;
    // SAFETY: the caller's promise.
    unsafe { put(cluster, "cluster", Box::into_raw(Box::new(made))) }
}

/// See `farflash.h`.
///
/// # Safety
/// `cluster` is null, or from `farflash_cluster_new` and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_incomplete_records(cluster: *const Cluster) -> u64 {
    // SAFETY: the caller's promise.
    let cluster = unsafe { optional_reference(cluster, "cluster") };
    cluster.ok().flatten().map_or(0, Cluster::incomplete_records)
}

/// See `farflash.h`.
///
/// # Safety
/// `cluster` is null, or from `farflash_cluster_new` and no longer used by any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_cluster_free(cluster: *mut Cluster) {
    edge(|| {
        // SAFETY: made by `Box::into_raw`, and by the caller's promise given back once.
        unsafe { take_back(cluster, "cluster") }.map(drop)
    });
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_create(
    cluster: *const Cluster,
    name: *const c_char,
    size_bytes: u64,
    tokens: *mut CTokens,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { farflash_create_ex(cluster, name, size_bytes, 0, tokens) }
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_create_ex(
    cluster: *const Cluster,
    name: *const c_char,
    size_bytes: u64,
    metadata_size: u32,
    tokens: *mut CTokens,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let (cluster, name) = unsafe { (reference(cluster, "cluster")?, text(name, "name")?) };
        let new = NewVolume { metadata_size, ..NewVolume::new(name, size_bytes) };
        // SAFETY: the caller's promise.
        unsafe { create(cluster, &new, tokens) }
    })
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_create_with(
    cluster: *const Cluster,
    volume: *const CNewVolume,
    tokens: *mut CTokens,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let (cluster, volume) =
            unsafe { (reference(cluster, "cluster")?, reference(volume, "volume")?) };
        // SAFETY: the caller's promise.
        unsafe { create(cluster, &volume.new_volume()?, tokens) }
    })
}

/// Makes a volume, and tells its tokens.
///
/// # Safety
/// `tokens` is null, or points to memory that is the caller's to write.
unsafe fn create(cluster: &Cluster, new: &NewVolume, tokens: *mut CTokens) -> Result<(), Failure> {
    let created = cluster.create(new)?;
    if tokens.is_null() {
        return Ok(());
    }
    let told = CTokens::new(&created.volume.id.to_string(), &created.tokens);
    // SAFETY: the caller's promise.
    unsafe { put(tokens, "tokens", told) }
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_set_slo(
    cluster: *const Cluster,
    volume: *const c_char,
    share: u32,
    reads_per_second: u64,
    writes_per_second: u64,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let (cluster, volume) =
            unsafe { (reference(cluster, "cluster")?, text(volume, "volume")?) };
        cluster.set_slo(volume, promised(share, reads_per_second, writes_per_second)?)?;
        Ok(())
    })
}

/// The service level that is asked for.
pub(crate) fn promised(share: u32, reads: u64, writes: u64) -> Result<Slo, Failure> {
    let nothing = || Failure::argument("neither a share nor rates are given");
    slo(share, reads, writes)?.ok_or_else(nothing)
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_delete(cluster: *const Cluster, volume: *const c_char) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let (cluster, volume) =
            unsafe { (reference(cluster, "cluster")?, text(volume, "volume")?) };
        Ok(cluster.delete(volume)?)
    })
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_delete_with_data(
    cluster: *const Cluster,
    volume: *const c_char,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let (cluster, volume) =
            unsafe { (reference(cluster, "cluster")?, text(volume, "volume")?) };
        Ok(cluster.delete_with_data(volume)?)
    })
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_resize(
    cluster: *const Cluster,
    volume: *const c_char,
    size_bytes: u64,
    cut_off: *mut CCutOff,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { farflash_resize_with(cluster, volume, size_bytes, 0, 0, cut_off) }
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_resize_with(
    cluster: *const Cluster,
    volume: *const c_char,
    size_bytes: u64,
    if_size_bytes: u64,
    lose_data: c_int,
    cut_off: *mut CCutOff,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let (cluster, volume) =
            unsafe { (reference(cluster, "cluster")?, text(volume, "volume")?) };
        check_aligned(cut_off, "cut_off")?;
        let options = resize_options(if_size_bytes, lose_data);
        let record = cluster.resize_with(volume, size_bytes, &options)?;
        if cut_off.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { put(cut_off, "cut_off", CCutOff::of(&record)) }
    })
}

/// The conditions for another size; 0: any size.
pub(crate) fn resize_options(if_size_bytes: u64, lose_data: c_int) -> ResizeOptions {
    let if_size_bytes = (if_size_bytes > 0).then_some(if_size_bytes);
    ResizeOptions { lose_data: lose_data != 0, if_size_bytes }
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_change_auth(
    cluster: *const Cluster,
    volume: *const c_char,
    cut: c_int,
    grace_seconds: u32,
    tokens: *mut CTokens,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let (cluster, volume) =
            unsafe { (reference(cluster, "cluster")?, text(volume, "volume")?) };
        let made = cluster.change_auth(volume, &auth_change(cut, grace_seconds, tokens)?)?;
        // SAFETY: the caller's promise.
        unsafe { put(tokens, "tokens", CTokens::new("", &made)) }
    })
}

/// Builds the request for new tokens, which are written to `tokens`.
pub(crate) fn auth_change(
    cut: c_int,
    grace_seconds: u32,
    tokens: *mut CTokens,
) -> Result<ChangeAuth, Failure> {
    if tokens.is_null() {
        return Err(Failure::argument("tokens is NULL, and they are told this once"));
    }
    let grace_seconds = (grace_seconds > 0).then_some(grace_seconds);
    Ok(ChangeAuth { cut: cut != 0, grace_seconds })
}

/// See `farflash.h`.
///
/// # Safety
/// Pointers are null or as `farflash.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farflash_restrict(
    cluster: *const Cluster,
    volume: *const c_char,
    hosts: *const c_char,
    networks: *const c_char,
    interfaces: *const c_char,
) -> c_int {
    edge(|| {
        // SAFETY: the caller's promise.
        let (cluster, volume) =
            unsafe { (reference(cluster, "cluster")?, text(volume, "volume")?) };
        // SAFETY: the caller's promise.
        cluster.restrict(volume, &unsafe { restrictions(hosts, networks, interfaces) }?)?;
        Ok(())
    })
}

/// The hosts that may open a volume from now on.
///
/// # Safety
/// The lists are null, or end in a zero and stay as they are meanwhile.
pub(crate) unsafe fn restrictions(
    hosts: *const c_char,
    networks: *const c_char,
    interfaces: *const c_char,
) -> Result<ChangeRestrictions, Failure> {
    // SAFETY: the caller's promise.
    let list = |pointer, name| unsafe { optional_list(pointer, name) };
    Ok(ChangeRestrictions {
        hosts: list(hosts, "hosts")?,
        networks: list(networks, "networks")?,
        interfaces: list(interfaces, "interfaces")?,
        nbd: None,
    })
}
