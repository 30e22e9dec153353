//! Checks a whole device that is not in use, and repairs it.
//!
//! - FSCK-1: [`fsck`] writes nothing. It goes on where it can: what one fault hides is all that it
//!   misses.
//! - FSCK-2: [`repair`] does what [`Problem::repair`] announced and nothing else. What loses data needs
//!   consent.
//! - FSCK-3: space is rebuilt from the maps, and only if the rebuilding code itself read all of them,
//!   since a second read may fail. Otherwise no block in use is freed.
//! - FSCK-4: a shard is looked at without what is damaged in it, as [`repair`] with consent opens it,
//!   so that all else is checked, too.
//! - FSCK-5: a damaged copy of a root, while its twin is older than the shard's newest, may be all that
//!   is left of a newer one. It is rewritten only if the shard was read back without it, and
//!   nothing was missing, or with consent: until then a start sees that it may lack that root, and
//!   a later successful read of the copy still recovers it.
//!
//! `fault.rs`: the problems and their repairs.

mod fault;

use io_traits::{BufferSlice, Device, DeviceError};
use layout::{DecodeError, Superblock};
use situations::{Phase, during};
use units::Pba;
use uuid::Uuid;

use crate::copies::{Copy, read_copy};
use crate::format::ROOTS_WRITTEN;
use crate::sabotage::{Sabotage, broken};
use crate::shard::{Loss, Mended, decode_meant, places_of_next};
use crate::{CheckReport, ExtentAllocator, Finding, OpenError, Recovered, Shard, ShardOptions};
use crate::{active_shards, read_superblock};
pub use fault::{Fault, Problem, Repair};

/// The depth of a check.
#[derive(Clone, Copy, Debug)]
pub struct FsckOptions {
    /// True if tenants' data is read, too, and not only the metadata that leads to it.
    pub read_data: bool,
}

/// The outcome of a check.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct FsckReport {
    /// Shards that were ever used.
    pub shards: usize,
    /// Volumes in those that could be opened.
    pub volumes: usize,
    /// Blocks of tenants.
    pub data: u64,
    /// All other blocks in use.
    pub metadata: u64,
    /// The cluster that the device belongs to, if any: its hosts may serve it.
    pub cluster: Option<Uuid>,
    /// All that is not as it should be.
    pub faults: Vec<Fault>,
}

/// The outcome of a repair.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Repaired {
    /// Copies of superblocks and roots that were rewritten.
    pub copies: u64,
    /// Shards of which anything else was written.
    pub shards: u64,
    /// Unreadable nodes that were taken out of maps.
    pub nodes_given_up: u64,
    /// Damaged descriptors, and nodes of tables of them, that were taken out with their volumes.
    pub volumes_given_up: u64,
    /// Journals that end before a damaged record now.
    pub journals_cut: u64,
}

/// Checks a device that is not in use (FSCK-1). `progress` is told blocks done and blocks to do.
///
/// # Errors
/// It is not ours, no superblock is whole, or the device fails in another way than that it cannot
/// read a block.
pub async fn fsck<D: Device>(
    device: &D,
    options: FsckOptions,
    mut progress: impl FnMut(u64, u64),
) -> Result<FsckReport, OpenError> {
    let superblock = read_superblock(device).await?;
    let mut report = FsckReport { cluster: superblock.cluster, ..FsckReport::default() };
    let copies = read_copies(device, &superblock).await?;
    let recovered = recover_all(device, superblock, true, &mut report).await?;
    let unopened = std::mem::take(&mut report.faults);
    for copy in copies.iter().filter(|copy| copy.is_damaged) {
        let Twin { pba, shard, .. } = *copy;
        let is_missed =
            unopened.iter().any(|fault| fault.shard == shard) || misses_root(&recovered, shard);
        let may_be_got = copy.may_be_newest && copy.is_unreadable;
        let problem = if may_be_got && is_missed { Problem::NewestRoot } else { copy.problem() };
        report.faults.push(Fault { pba: Some(pba), shard, volume: None, problem });
    }
    report.faults.extend(unopened);
    report.volumes = recovered.iter().map(|r| r.shard().volumes().len()).sum();
    let total: u64 = recovered.iter().map(|r| r.shard().blocks_in_use()).sum();
    let mut before = 0;
    for recovered in &recovered {
        let shard = recovered.shard();
        report.faults.extend(faults_of(recovered));
        let done = |done: u64| progress((before + done).min(total), total);
        let (found, volumes) = shard.check_by_volume(options.read_data, done).await;
        let CheckReport { data, metadata, findings } = found;
        report.data += data;
        report.metadata += metadata;
        for (finding, number) in findings.into_iter().zip(volumes) {
            let volume = number.and_then(|number| shard.name_of(number));
            let (pba, shard) = (finding.pba(), Some(shard.index()));
            report.faults.push(Fault { pba, shard, volume, problem: Problem::Check(finding) });
        }
        before += shard.blocks_in_use();
    }
    progress(total, total);
    Ok(report)
}

/// Returns whether the journal of a recovered shard continues from a root that is missing.
fn misses_root<D: Device>(recovered: &[Recovered<D>], shard: Option<u16>) -> bool {
    let of_shard = recovered.iter().find(|it| Some(it.shard().index()) == shard);
    of_shard.is_some_and(|it| it.losses().iter().any(|loss| matches!(loss, Loss::Journal { .. })))
}

/// Returns the faults met while a shard was recovered.
fn faults_of<D: Device>(recovered: &Recovered<D>) -> Vec<Fault> {
    let shard = recovered.shard();
    let mended = recovered.mended();
    let mended = mended.iter().filter_map(|mended| match *mended {
        // Each copy is a fault by itself.
        Mended::Root { .. } => None,
        Mended::Bitmap { extent, pba } => Some((pba, None, Problem::Bitmap { extent })),
        Mended::Extents { pba } => Some((pba, None, Problem::Extents)),
    });
    let losses = recovered.losses();
    let losses = losses.iter().map(|loss| {
        let volume = match loss {
            Loss::Node { volume, .. } => shard.name_of(*volume),
            _ => None,
        };
        (loss.pba(), volume, Problem::Lost(*loss))
    });
    let shard = Some(shard.index());
    let fault = |(pba, volume, problem)| Fault { pba: Some(pba), shard, volume, problem };
    mended.chain(losses).map(fault).collect()
}

/// Does what [`Problem::repair`] announces (FSCK-2). `consent`: whether data may be lost
/// ([`Repair::loses_data`]). `progress` is told blocks done and blocks to do: all is looked at once
/// more before it is written.
///
/// # Errors
/// The device cannot be written, or a shard cannot be opened: copies were rewritten before.
pub async fn repair<D: Device>(
    device: &D,
    consent: bool,
    mut progress: impl FnMut(u64, u64),
) -> Result<Repaired, OpenError> {
    let _repairing = during(Phase::Repair);
    let superblock = read_superblock(device).await?;
    let mut repaired = Repaired::default();
    let copies = read_copies(device, &superblock).await?;
    let (last_hopes, others): (Vec<_>, Vec<_>) =
        copies.iter().filter(|copy| copy.is_damaged).partition(|copy| copy.may_be_newest);
    rewrite_copies(device, &others, &mut repaired).await?;
    let mut report = FsckReport::default();
    let recovered = recover_all(device, superblock, consent, &mut report).await?;
    // A shard that is not opened owns extents that are unknown here.
    for fault in report.faults {
        if let Problem::Unopened(error) = fault.problem {
            return Err(error);
        }
    }
    // FSCK-5: what was missing without them was given up, if anything was.
    rewrite_copies(device, &last_hopes, &mut repaired).await?;
    let total: u64 = recovered.iter().map(|r| r.shard().blocks_in_use()).sum();
    let (mut before, mut changed) = (0, Vec::new());
    for recovered in &recovered {
        let blocks = recovered.shard().blocks_in_use();
        let done = |done: u64| progress((before + done).min(total), total);
        changed.push(repair_shard(recovered, consent, &mut repaired, done).await?);
        before += blocks;
    }
    progress(total, total);
    write_changed(recovered, &changed).await?;
    repaired.shards += changed.iter().filter(|changed| **changed).count() as u64;
    Ok(repaired)
}

/// Has the shards written that were `changed` by a repair, and none of the others.
async fn write_changed<D: Device>(
    mut recovered: Vec<Recovered<D>>,
    changed: &[bool],
) -> Result<(), OpenError> {
    if !changed.contains(&true) {
        return Ok(());
    }
    let confirmed = Recovered::confirm_all(&mut recovered).await?;
    for (shard, _) in confirmed.into_iter().zip(changed).filter(|(_, changed)| **changed) {
        shard.start().await?;
    }
    Ok(())
}

/// Rewrites copies durably from their twins, as far as these are whole.
async fn rewrite_copies<D: Device>(
    device: &D,
    copies: &[&Twin],
    repaired: &mut Repaired,
) -> Result<(), DeviceError> {
    for (pba, source) in copies.iter().filter_map(|copy| Some((copy.pba, copy.source.clone()?))) {
        if repaired.copies == 0 || !broken(Sabotage::RepairOneCopy) {
            device.write(pba, source).await?;
        }
        repaired.copies += 1;
    }
    if broken(Sabotage::RepairSkipsFlush) { Ok(()) } else { device.flush().await }
}

/// Mends what was read back. Returns whether it is to be written.
async fn repair_shard<D: Device>(
    recovered: &Recovered<D>,
    consent: bool,
    repaired: &mut Repaired,
    progress: impl FnMut(u64),
) -> Result<bool, OpenError> {
    let shard = recovered.shard();
    let mut given_up = if consent { shard.give_up_unreadable().await } else { 0 };
    let (found, _) = shard.check_by_volume(false, progress).await;
    let is_outside = |finding: &Finding| matches!(finding, Finding::Outside { .. });
    let has_new_table = recovered.mended().iter().any(|m| matches!(m, Mended::Extents { .. }));
    if has_new_table && found.findings.iter().any(is_outside) {
        return Err(OpenError::Unsteady(shard.index()));
    }
    let finds =
        |repair| found.findings.iter().any(|f| Problem::Check(f.clone()).repair() == Some(repair));
    let hides_blocks = shard.hides_blocks();
    let unowned = given_up > 0 || hides_blocks || finds(Repair::Bitmaps);
    // FSCK-3: what is lost owns its blocks until it is given up.
    let space = unowned && shard.rebuild_space(hides_blocks && !consent).await;
    let uncounted = given_up > 0 || !recovered.losses().is_empty() || finds(Repair::Counts);
    let counts = uncounted && shard.recount().await;
    let (mut volumes, mut journals) = (0, 0);
    for loss in recovered.losses().iter().filter(|_| consent) {
        match loss {
            Loss::Volume { .. } | Loss::Volumes { .. } => volumes += 1,
            Loss::Node { .. } => given_up += 1,
            Loss::Journal { .. } => journals += 1,
        }
    }
    repaired.nodes_given_up += given_up;
    repaired.volumes_given_up += volumes;
    repaired.journals_cut += journals;
    let is_rebuilt = recovered.mended().iter().any(|m| !matches!(m, Mended::Root { .. }));
    let is_changed = given_up + volumes + journals > 0 || is_rebuilt;
    Ok(space || counts || is_changed)
}

/// One of two copies of the same.
struct Twin {
    pba: Pba,
    /// `None` for the superblock.
    shard: Option<u16>,
    is_damaged: bool,
    /// True if it is all zeroes.
    is_blank: bool,
    /// True if the device does not give it, which may pass.
    is_unreadable: bool,
    /// True if it may have been a newer root than all that are whole (FSCK-5).
    may_be_newest: bool,
    /// Generation of a whole root.
    generation: Option<u64>,
    error: DecodeError,
    /// The expected content, if the other copy is whole.
    source: Option<BufferSlice>,
}

impl Twin {
    fn problem(&self) -> Problem {
        match self.shard {
            None => Problem::Superblock(self.error),
            Some(_) => Problem::Root { twin: self.source.is_some() },
        }
    }
}

/// All superblocks, and the roots of all shards that were ever used.
async fn read_copies<D: Device>(
    device: &D,
    superblock: &Superblock,
) -> Result<Vec<Twin>, DeviceError> {
    let places = Superblock::places(superblock.blocks);
    let superblocks = pair(device, None, places, |block| {
        Superblock::decode(block).and_then(|found| {
            if found == *superblock { Ok(0) } else { Err(DecodeError::Field("superblock")) }
        })
    });
    let mut copies = Vec::from(superblocks.await?);
    for shard in 0..superblock.shard_slots {
        copies.extend(read_roots(device, superblock, shard).await?);
    }
    Ok(copies)
}

/// All copies of a shard's roots. Zeroes are no damage where perhaps none was ever written.
async fn read_roots<D: Device>(
    device: &D,
    superblock: &Superblock,
    shard: u16,
) -> Result<Vec<Twin>, DeviceError> {
    let mut copies = Vec::new();
    for parity in [0, 1] {
        let places = superblock.root_places(shard, parity);
        let roots = pair(device, Some(shard), places, |block| {
            decode_meant(block, superblock, shard, parity).map(|root| root.generation)
        });
        copies.extend(roots.await?);
    }
    let newest = copies.iter().filter_map(|copy| copy.generation).max();
    for copy in &mut copies {
        copy.is_damaged &= !copy.is_blank || newest >= Some(ROOTS_WRITTEN);
    }
    let of_next = newest.map(|newest| places_of_next(superblock, shard, newest));
    for copy in &mut copies {
        copy.may_be_newest &= of_next.is_some_and(|places| places.contains(&copy.pba));
    }
    Ok(copies)
}

/// Reads both copies; `decode` tells the generation.
async fn pair<D: Device>(
    device: &D,
    shard: Option<u16>,
    places: [Pba; 2],
    decode: impl Fn(&[u8]) -> Result<u64, DecodeError>,
) -> Result<[Twin; 2], DeviceError> {
    let first = read_copy(device, places[0], &decode).await?;
    let second = read_copy(device, places[1], &decode).await?;
    let twin = |pba: Pba, copy: &Copy<u64>, other: &Copy<u64>| Twin {
        pba,
        shard,
        is_damaged: !matches!(copy, Copy::Whole { .. }),
        is_blank: matches!(copy, Copy::Blank),
        is_unreadable: matches!(copy, Copy::Unreadable(_)),
        may_be_newest: shard.is_some() && matches!(copy, Copy::Unreadable(_) | Copy::Damaged(_)),
        generation: match copy {
            Copy::Whole { value, .. } => Some(*value),
            Copy::Blank | Copy::Damaged(_) | Copy::Unreadable(_) => None,
        },
        error: match copy {
            Copy::Damaged(error) => *error,
            Copy::Unreadable(_) => DecodeError::Short,
            Copy::Whole { .. } | Copy::Blank => DecodeError::Magic,
        },
        source: match other {
            Copy::Whole { block, .. } => Some(block.clone()),
            Copy::Blank | Copy::Damaged(_) | Copy::Unreadable(_) => None,
        },
    };
    Ok([twin(places[0], &first, &second), twin(places[1], &second, &first)])
}

/// Opens every shard that was ever used, with consent without what is damaged; what cannot be opened is
/// a fault.
async fn recover_all<D: Device>(
    device: &D,
    superblock: Superblock,
    consent: bool,
    report: &mut FsckReport,
) -> Result<Vec<Recovered<D>>, OpenError> {
    let extents = ExtentAllocator::new(&superblock);
    let active = active_shards(device, &superblock).await?;
    report.shards = active.len();
    let mut all = Vec::new();
    for index in active {
        let (device, extents) = (device.clone(), extents.clone());
        let recovered = match consent {
            true => Shard::salvage(device, superblock, index, extents).await,
            false => {
                let options = ShardOptions::default();
                Shard::recover(device, superblock, index, extents, options).await
            }
        };
        match recovered {
            Ok(recovered) => all.push(recovered),
            Err(error) => {
                let pba = match &error {
                    OpenError::Damaged { pba, .. } | OpenError::Later { pba, .. } => Some(*pba),
                    _ => None,
                };
                let problem = Problem::Unopened(error);
                report.faults.push(Fault { pba, shard: Some(index), volume: None, problem });
            }
        }
    }
    Ok(all)
}
