//! Can the simulator see? Deliberately broken engines and disks, each of which it must catch.
//!
//! Method: the seeds of a workload, which find nothing wrong with the engine as it is, in order until
//! one finds something. `--nocapture` shows which one, and what it finds.

use sim::Trace;
use simulate::{Base, Seam, Workload, run};
use volume::Sabotage;

/// Seeds within which a mutant must be caught. Most are by one of the first.
const SEEDS: u64 = 1000;

/// Seeds that are tried first, since they caught a mutant that is caught late. Any change of the simulator may change
/// what a seed does: then another one does it, only later. To find them again:
/// `cargo nextest run -p simulate --test mutants --success-output final | grep ': seed '`.
const FIRST: &[(&str, u64)] = &[
    ("BanNothing", 143),
    ("BuildOnUnflushed", 20),
    ("CompareFirstRun", 84),
    ("CompareNoneBehindUnreadable", 84),
    ("EvictUnwritten", 20),
    ("FirstBoundStays", 70),
    ("FlushAlone", 73),
    ("IgnoreFlushError", 73),
    ("InnerSplitBoundTooHigh", 12),
    ("KeepReadAhead", 630),
    ("LoseUndiscarded", 211),
    ("MergeSwapsMetadata", 17),
    ("ReadsEndWithJournal", 118),
    ("ReplayRepeatsResizes", 55),
    ("ReuseInnerNodes", 473),
    ("ReuseNodes", 56),
    ("RootBeforeFlush", 102),
    ("RunForgetsParent", 319),
    ("SettleTooMuch", 95),
    ("StartOnce", 214),
    ("StartOneByOne", 20),
    ("TakeStaleLeaf", 98),
    ("TakeStaleRecord", 204),
    ("UnmarkLate", 146),
    ("VacateForgetsAbsent", 41),
];

fn must_be_caught(mutant: &str, seam: Seam, workload: Workload) {
    let first = FIRST.iter().filter(|(name, _)| *name == mutant).map(|(_, seed)| *seed);
    let caught = first.chain(0..SEEDS).find_map(|seed| {
        let outcome = run(seed, Some(workload), seam, &Trace::default());
        outcome.failure.map(|finding| (seed, finding))
    });
    block_map::sabotage(None);
    space::sabotage(None);
    volume::sabotage(None);
    dataplane::sabotage(None);
    let (seed, finding) = caught.unwrap_or_else(|| panic!("no seed notices {mutant}"));
    let sound = run(seed, Some(workload), Seam::Honest, &Trace::default());
    assert!(sound.failure.is_none(), "seed {seed} finds {finding} without {mutant}, too");
    println!("{mutant}: seed {seed}: {finding}");
}

macro_rules! engines {
    ($($name:ident: $sabotage:ident under $workload:ident;)*) => {$(
        #[test]
        fn $name() {
            volume::sabotage(Some(Sabotage::$sabotage));
            must_be_caught(stringify!($sabotage), Seam::Honest, Workload::$workload);
        }
    )*};
}

macro_rules! maps {
    ($($name:ident: $sabotage:ident under $workload:ident;)*) => {$(
        #[test]
        fn $name() {
            block_map::sabotage(Some(block_map::Sabotage::$sabotage));
            must_be_caught(stringify!($sabotage), Seam::Honest, Workload::$workload);
        }
    )*};
}

macro_rules! spaces {
    ($($name:ident: $sabotage:ident under $workload:ident;)*) => {$(
        #[test]
        fn $name() {
            space::sabotage(Some(space::Sabotage::$sabotage));
            must_be_caught(stringify!($sabotage), Seam::Honest, Workload::$workload);
        }
    )*};
}

macro_rules! planes {
    ($($name:ident: $sabotage:ident under $workload:ident;)*) => {$(
        #[test]
        fn $name() {
            dataplane::sabotage(Some(dataplane::Sabotage::$sabotage));
            must_be_caught(stringify!($sabotage), Seam::Honest, Workload::$workload);
        }
    )*};
}

/// Method: as the others, on a disk that a sound engine made.
#[test]
fn engine_reuse_inner_nodes() {
    drop(Base::tall());
    volume::sabotage(Some(Sabotage::ReuseInnerNodes));
    must_be_caught("ReuseInnerNodes", Seam::Honest, Workload::Tall);
}

macro_rules! disks {
    ($($name:ident: $seam:ident;)*) => {$(
        #[test]
        fn $name() {
            must_be_caught(stringify!($seam), Seam::$seam, Workload::Crash);
        }
    )*};
}

engines! {
    engine_ack_before_record: AckBeforeRecord under Crash;
    engine_ack_before_data: AckBeforeData under Crash;
    engine_skip_flush: SkipFlush under Crash;
    engine_ignore_flush_error: IgnoreFlushError under Errors;
    engine_flush_alone: FlushAlone under Errors;
    engine_ignore_record_error: IgnoreRecordError under Errors;
    engine_ignore_data_error: IgnoreDataError under Errors;
    engine_skip_restore: SkipRestore under Errors;
    engine_skip_entries: SkipEntries under Crash;
    engine_settle_too_much: SettleTooMuch under Crash;
    engine_skip_read_checksum: SkipReadChecksum under Corrupt;
    engine_recover_by_one_read: RecoverByOneRead under Corrupt;
    engine_blank_by_one_read: BlankByOneRead under Corrupt;
    engine_serve_by_one_read: ServeByOneRead under Corrupt;
    engine_reuse_nodes: ReuseNodes under Reuse;
    engine_pin_without_read: PinWithoutRead under Reuse;
    engine_root_before_flush: RootBeforeFlush under Crash;
    engine_build_on_unflushed: BuildOnUnflushed under Starts;
    engine_start_one_by_one: StartOneByOne under Starts;
    engine_late_replay_point: LateReplayPoint under Crash;
    engine_replay_two_records: ReplayTwoRecords under Crash;
    engine_replay_skips_unmaps: ReplaySkipsUnmaps under Crash;
    engine_replay_skips_deletes: ReplaySkipsDeletes under Churn;
    engine_replay_skips_creates: ReplaySkipsCreates under Churn;
    engine_keep_gone: KeepGone under Churn;
    engine_replay_trusts_data: ReplayTrustsData under Crash;
    engine_compare_first_run: CompareFirstRun under Crash;
    engine_compare_none_behind_unreadable: CompareNoneBehindUnreadable under Crash;
    engine_take_stale_record: TakeStaleRecord under Crash;
    engine_take_stale_descriptor: TakeStaleDescriptor under Corrupt;
    engine_take_stale_bitmap: TakeStaleBitmap under Corrupt;
    engine_compare_unlocked: CompareUnlocked under Crash;
    engine_miscompare_writes: MiscompareWrites under Crash;
    plane_compare_unlocked: CompareUnlocked under Plane;
    plane_miscompare_writes: MiscompareWrites under Plane;
    engine_fill_unlocked: FillUnlocked under Sectors;
    engine_fill_first_only: FillFirstOnly under Sectors;
    engine_short_apply: ShortApply under Crash;
    engine_shrink_keeps_blocks: ShrinkKeepsBlocks under Churn;
    engine_read_dead: ReadDead under Churn;
    engine_leak_overwritten: LeakOverwritten under Crash;
    engine_shift_metadata: ShiftMetadata under Crash;
    engine_compare_data_only: CompareDataOnly under Crash;
    plane_compare_data_only: CompareDataOnly under Plane;
    engine_replay_drops_metadata: ReplayDropsMetadata under Crash;
    engine_lose_waiter: LoseWaiter under Paged;
    engine_keep_read_ahead: KeepReadAhead under Crash;
    plane_keep_read_ahead: KeepReadAhead under Plane;
    engine_reads_end_with_journal: ReadsEndWithJournal under Broken;
    engine_ban_nothing: BanNothing under Broken;
    engine_journal_insists: JournalInsists under Broken;
    engine_start_once: StartOnce under Broken;
    engine_checkpoint_gets_no_pardon: CheckpointGetsNoPardon under Broken;
    engine_overwrite_gets_no_pardon: OverwriteGetsNoPardon under Broken;
    engine_lose_undiscarded: LoseUndiscarded under Errors;
    engine_replayed_access_unmarked: ReplayedAccessUnmarked under Control;
    engine_replayed_slo_unmarked: ReplayedSloUnmarked under Control;
    engine_replayed_size_unmarked: ReplayedSizeUnmarked under Control;
    engine_replay_skips_access: ReplaySkipsAccess under Control;
    engine_replay_skips_slo: ReplaySkipsSlo under Control;
    engine_replay_skips_resizes: ReplaySkipsResizes under Control;
    engine_replay_repeats_resizes: ReplayRepeatsResizes under Control;
    engine_replay_forgets_terms: ReplayForgetsTerms under Control;
    engine_ack_access_early: AckAccessEarly under Control;
    engine_ack_slo_early: AckSloEarly under Control;
    engine_unmark_late: UnmarkLate under Control;
    engine_keep_old_descriptor: KeepOldDescriptor under Control;
    engine_record_first_range: RecordFirstRange under Crash;
    plane_record_first_range: RecordFirstRange under Plane;
    repair_frees_named: RepairFreesNamed under Repair;
    repair_forgets_volume: RepairForgetsVolume under Repair;
    repair_one_copy: RepairOneCopy under Repair;
    repair_skips_flush: RepairSkipsFlush under Repair;
    repair_mends_from_old_bitmap: MendFromOldBitmap under Repair;
    repair_cut_stays_behind: CutStaysBehind under Repair;
    repair_root_before_flush: RootBeforeFlush under Repair;
}

maps! {
    map_take_stale_table: TakeStaleTable under Corrupt;
    map_take_stale_leaf: TakeStaleLeaf under Corrupt;
    map_take_stale_inner: TakeStaleInner under Paged;
    map_evict_dirty: EvictDirty under Paged;
    map_evict_unwritten: EvictUnwritten under Paged;
    map_evict_pinned: EvictPinned under Crash;
    map_run_forgets_parent: RunForgetsParent under Tall;
    map_run_forgets_leaf: RunForgetsLeaf under Tall;
    map_run_fills_gap: RunFillsGap under Tall;
    map_find_misses_bound: FindMissesBound under Tall;
    map_span_takes_bound: SpanTakesBound under Tall;
    map_remove_skips_key: RemoveSkipsKey under Tall;
    map_remove_takes_end: RemoveTakesEnd under Tall;
    map_split_loses_first: SplitLosesFirst under Tall;
    map_split_bound_too_high: SplitBoundTooHigh under Tall;
    map_inner_split_bound_too_high: InnerSplitBoundTooHigh under Tall;
    map_merge_swaps_metadata: MergeSwapsMetadata under Tall;
    map_fold_keeps_bounds: FoldKeepsBounds under Tall;
    map_share_keeps_bound: ShareKeepsBound under Tall;
    map_drain_keeps_base: DrainKeepsBase under Tall;
    map_sweep_forgets_parent: SweepForgetsParent under Tall;
    map_site_forgets_parent: SiteForgetsParent under Tall;
    map_vacate_forgets_absent: VacateForgetsAbsent under Tall;
    map_retire_forgets_home: RetireForgetsHome under Tall;
    map_first_bound_stays: FirstBoundStays under Tall;
    map_keep_old_metadata: KeepOldMetadata under Crash;
}

spaces! {
    space_reuse_while_read: ReuseWhileRead under Full;
    space_flush_before_known: FlushBeforeKnown under Errors;
}

planes! {
    plane_keep_expired_tokens: KeepExpiredTokens under Control;
    plane_ignore_restrictions: IgnoreRestrictions under Control;
    plane_start_forgets_restrictions: StartForgetsRestrictions under Control;
    plane_keep_old_access: KeepOldAccess under Control;
    plane_access_before_record: AccessBeforeRecord under Control;
    plane_cut_no_host: CutNoHost under Control;
    plane_keep_unqualified: KeepUnqualified under Control;
    plane_zero_whole_blocks: ZeroWholeBlocks under Sectors;
    plane_reserve_in_memory: ReserveInMemory under Reserve;
    plane_pass_by_writes: PassByWrites under Reserve;
    plane_admit_readers: AdmitReaders under Reserve;
    plane_start_unbound: StartUnbound under Control;
}

disks! {
    disk_swallowed_flush: SwallowedFlush;
    disk_lying_cache: LyingCache;
    disk_early_write: EarlyWrite;
    disk_early_flush: EarlyFlush;
    disk_short_write: ShortWrite;
    disk_swapped_blocks: SwappedBlocks;
    disk_stale_read: StaleRead;
    disk_off_by_one: OffByOne;
}

/// A mutant that is left out above would never run.
#[test]
fn every_broken_disk_has_its_test() {
    let source = include_str!("mutants.rs");
    for seam in Seam::BROKEN {
        assert!(source.contains(&format!(": {seam:?};")), "{seam:?}");
    }
}
