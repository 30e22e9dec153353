//! Profiles of runs: everything is drawn from the seed.

mod control;

use sim::{DeviceFaults, Rng};
use units::{MetadataSize, SectorSize};
use volume::NodeCapacity;

use crate::hosts::HOSTS;
use crate::tall;

/// The subject of a run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Workload {
    /// Power cuts on a sound disk.
    Crash,
    /// The same on a disk that is nearly full, so that blocks are reused at once.
    Full,
    /// Volumes come, go, grow and shrink.
    Churn,
    /// Many small records, so that the journal wraps around.
    Long,
    /// Requests all over volumes of whose maps hardly anything may be in memory.
    Paged,
    /// Failing reads, writes and flushes, slow and stuck requests, no space.
    Errors,
    /// A disk that goes away and comes back.
    Gone,
    /// Bit rot; lost and misdirected writes and reads.
    Corrupt,
    /// Damage at rest that is repaired, with power cuts in between.
    Repair,
    /// Power cuts under the whole data plane.
    Plane,
    /// Cut connections, and power cuts, under the whole data plane.
    Links,
    /// Failing and damaged blocks under the whole data plane.
    PlaneFaults,
    /// Blocks that are freed while a reader needs them, and reused at once: hardly any room, one checkpoint after
    /// the other, and readers that keep blocks for long.
    Reuse,
    /// Blocks that fail for good, and full disks that take nothing for a while.
    Broken,
    /// Power cuts, and checkpoints all the time, under requests all over a volume whose map has three levels.
    Tall,
    /// Extents that are given back by a root that no flush covers, and starts with other numbers of shards.
    Starts,
    /// Extents that go from shard to shard all the time, roots that take long, and power cuts meanwhile.
    Trade,
    /// Requests of operators, and short boots in any order, with hosts and without.
    Control,
    /// Hosts that share devices, and their etcd: partitions, lost answers, restored backups, stopped processes.
    Cluster,
    /// Hosts that exclude one another by reservations, and power cuts.
    Reserve,
    /// Volumes of logical blocks of 512 bytes under the whole data plane.
    Sectors,
}

impl Workload {
    /// All of them, by name.
    pub const ALL: [(&'static str, Self); 21] = [
        ("crash", Self::Crash),
        ("full", Self::Full),
        ("churn", Self::Churn),
        ("long", Self::Long),
        ("paged", Self::Paged),
        ("errors", Self::Errors),
        ("gone", Self::Gone),
        ("corrupt", Self::Corrupt),
        ("repair", Self::Repair),
        ("plane", Self::Plane),
        ("links", Self::Links),
        ("plane-faults", Self::PlaneFaults),
        ("reuse", Self::Reuse),
        ("broken", Self::Broken),
        ("tall", Self::Tall),
        ("starts", Self::Starts),
        ("trade", Self::Trade),
        ("control", Self::Control),
        ("reserve", Self::Reserve),
        ("sectors", Self::Sectors),
        ("cluster", Self::Cluster),
    ];

    /// The one with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, workload)| *workload)
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, workload)| *workload == self).expect("listed").0
    }

    /// The one that a seed means where none is asked for: cheap ones more often.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let deck = [
            Self::Crash,
            Self::Errors,
            Self::Corrupt,
            Self::Churn,
            Self::Crash,
            Self::Plane,
            Self::Gone,
            Self::Errors,
            Self::Full,
            Self::Links,
            Self::Crash,
            Self::Corrupt,
            Self::Churn,
            Self::PlaneFaults,
            Self::Paged,
            Self::Plane,
            Self::Long,
            Self::Repair,
            Self::Paged,
            Self::Reuse,
            Self::Broken,
            Self::Tall,
            Self::Starts,
            Self::Trade,
            Self::Control,
            Self::Control,
            Self::Reserve,
            Self::Sectors,
            Self::Cluster,
        ];
        deck[(seed % deck.len() as u64) as usize]
    }

    /// Returns true if requests go through initiator, network and server: always, or in two of three runs.
    fn is_plane(self, rng: &mut Rng) -> bool {
        match self {
            Self::Plane | Self::Links | Self::PlaneFaults | Self::Reserve | Self::Sectors => true,
            Self::Control => !rng.one_in(3),
            _ => false,
        }
    }
}

/// Weights of the kinds of requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mix {
    /// Writes.
    pub write: u64,
    /// Deallocations and writes of zeroes of a few blocks.
    pub clear: u64,
    /// The same of most of the volume.
    pub clear_wide: u64,
    /// Reads.
    pub read: u64,
    /// Comparisons.
    pub compare: u64,
    /// Comparisons that write.
    pub swap: u64,
    /// Resizes.
    pub resize: u64,
    /// Volumes created or deleted.
    pub churn: u64,
    /// Checkpoints.
    pub checkpoint: u64,
    /// Scrubs.
    pub scrub: u64,
    /// Other ceilings, policies and quotas.
    pub share: u64,
    /// Several ranges that one command deallocates.
    pub clear_several: u64,
    /// Other promises.
    pub slo: u64,
    /// Other tokens and restrictions.
    pub access: u64,
    /// Looks at what the server says of volumes.
    pub look: u64,
    /// Hosts that ask for a volume, with a secret that may open it.
    pub knock: u64,
    /// Other bounds of what a tenant's volumes hold.
    pub allot: u64,
    /// Reservation commands.
    pub reserve: u64,
}

/// Blocks that fail, however often they are tried.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Breaks {
    /// None.
    Nothing,
    /// A few, for good.
    Some,
    /// All that may be written on a disk that is full, for a while.
    AllForAWhile,
}

/// The profile of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Profile {
    /// Its workload.
    pub workload: Workload,
    /// True if requests go through initiator, network and server.
    pub plane: bool,
    /// Hosts have to authenticate.
    pub authenticates: bool,
    /// Hosts of each volume.
    pub hosts: u64,
    /// True if most boots are followed by some that do little.
    pub rows: bool,
    /// True if the disk has a volatile cache.
    pub volatile: bool,
    /// Shards of the disk; volumes are in the first `busy_shards`.
    pub shards: u16,
    /// Shards with volumes.
    pub busy_shards: u16,
    /// True if the first start has the busy shards alone, and later ones bring others, which then have volumes,
    /// too. Blocks that such a run gives back need not be discarded first.
    pub joins: bool,
    /// Volumes to begin with.
    pub volumes: u64,
    /// Blocks of each.
    pub volume_blocks: u64,
    /// Most requests go to so many blocks at its start.
    pub hot_blocks: u64,
    /// True if another volume takes nearly all the room and requests are large, so that blocks are reused at once.
    pub tight: bool,
    /// True if free space lies in pieces of a few blocks, so that writes of several blocks lie in several runs.
    pub aged: bool,
    /// True if some starts fail to read the blocks that replayed records name.
    pub deaf: bool,
    /// Starts find an older version of a node or a descriptor.
    pub stales: bool,
    /// Some of the blocks that were written last rot between boots.
    pub rots: bool,
    /// True if shards take extents from each other all the time, and the power goes while roots are written.
    pub trades: bool,
    /// Number of workers. Each makes one request at a time.
    pub workers: u64,
    /// Requests of each worker between two starts.
    pub requests: u64,
    /// Starts of the server.
    pub boots: u64,
    /// Weights of the requests.
    pub mix: Mix,
    /// Faults of the disk while requests are made.
    pub faults: DeviceFaults,
    /// True if connections are cut.
    pub cuts: bool,
    /// True if the disk goes away and comes back.
    pub goes: bool,
    /// Blocks of the disk that fail however often they are tried; failed shards are then brought back.
    pub breaks: Breaks,
    /// True if readers keep what they read for long before they are done with it.
    pub lingers: bool,
    /// Bytes of memory for the maps of each shard, if there is a limit.
    pub map_memory: Option<u64>,
    /// Metadata of each block of every other volume.
    pub metadata: MetadataSize,
    /// Logical blocks of volumes.
    pub sector: SectorSize,
    /// Entries that nodes of maps take, if fewer than they have room for.
    pub nodes: Option<NodeCapacity>,
    /// Blocks of journals, if they are shorter than their extents allow.
    pub journal_blocks: Option<u32>,
    /// Connections have memory for the data of only two large requests.
    pub scarce: bool,
}

const MIX: Mix = Mix {
    write: 50,
    clear: 12,
    clear_wide: 3,
    read: 20,
    compare: 4,
    swap: 5,
    resize: 1,
    churn: 0,
    checkpoint: 4,
    scrub: 1,
    share: 0,
    clear_several: 2,
    slo: 1,
    access: 1,
    look: 1,
    knock: 0,
    allot: 0,
    reserve: 0,
};

/// Shards that leave the first one two extents of the smallest disk.
const CROWD: u16 = 7;

impl Profile {
    /// The profile of a workload's run.
    #[must_use]
    pub(crate) fn draw(workload: Workload, rng: &mut Rng) -> Self {
        // Apart from the other draws.
        let mut apart = rng.clone().fork();
        let stales = rng.one_in(4);
        let drawn = Self::draw_young(workload, rng).grown_old(rng);
        let stales = stales && drawn.faults.lost_write_one_in > 0;
        Self { stales, ..drawn }.made_small(&mut apart)
    }

    /// The same with short journals, with a core that has little memory for data, and with nodes that take few entries, each
    /// in a part of all runs.
    fn made_small(self, rng: &mut Rng) -> Self {
        // A record has at most 64 blocks. What is repaired is looked for where the superblock says.
        let is_short = rng.one_in(4) && self.workload != Workload::Repair;
        let journal_blocks = is_short.then(|| rng.between(128, 200) as u32);
        let scarce = self.plane && rng.one_in(3);
        let small = Self { journal_blocks, scarce, ..self };
        let small = match self.workload {
            Workload::Crash if is_short => small.going_around(rng),
            Workload::Errors if rng.one_in(5) => small.rotting(rng),
            Workload::Corrupt if rng.one_in(5) => small.fraying(rng),
            Workload::Full if rng.one_in(3) => small.emptying(rng),
            _ => small,
        };
        let shallow = [Workload::Tall, Workload::Repair];
        let is_deep = rng.one_in(6) && !shallow.contains(&self.workload);
        let nodes = if is_deep { Some(few_entries(rng)) } else { small.nodes };
        Self { nodes, ..small }
    }

    /// The same with so many records, many of several blocks, that a short journal goes around.
    fn going_around(self, rng: &mut Rng) -> Self {
        let metadata = MetadataSize::ALL.last().copied().expect("there are some");
        let mix = Mix { write: 90, checkpoint: 2, ..self.mix };
        Self { metadata, requests: rng.between(40, 120), mix, ..self }
    }

    /// The same where nodes of maps rot that no memory keeps, and that requests and large deallocations read beside each other.
    fn fraying(self, rng: &mut Rng) -> Self {
        let volume_blocks = if self.tight { self.volume_blocks } else { 1300 };
        let faults = DeviceFaults { rot_one_in: rng.between(4, 12), ..DeviceFaults::default() };
        let mix = Mix { clear_wide: 12, read: 40, checkpoint: 12, ..self.mix };
        Self {
            map_memory: Some(1),
            workers: 5,
            volume_blocks,
            hot_blocks: volume_blocks,
            mix,
            faults,
            ..self
        }
    }

    /// The same with two volumes of which only one finds room at a time, and with little under way: large deallocations make room,
    /// and what comes at once behind them waits for it.
    fn emptying(self, rng: &mut Rng) -> Self {
        let mix = Mix { clear_wide: 16, read: 8, checkpoint: 20, resize: 1, scrub: 0, ..self.mix };
        Self {
            volumes: 2,
            volume_blocks: 1300,
            hot_blocks: 1300,
            workers: rng.between(1, 2),
            mix,
            ..self
        }
    }

    /// The same where writes fail beside others whose data rots later, and what those free is used again at once.
    fn rotting(self, rng: &mut Rng) -> Self {
        let faults = DeviceFaults {
            write_error_one_in: rng.between(8, 30),
            slow_one_in: some(rng, 5, 20),
            ..DeviceFaults::default()
        };
        let Self { shards, busy_shards, volumes, .. } = self.filling(rng);
        let mix = Mix { checkpoint: 1, clear: 4, clear_wide: 0, ..self.mix };
        Self {
            rots: true,
            tight: true,
            shards,
            busy_shards,
            volumes,
            volume_blocks: 300,
            hot_blocks: 300,
            workers: 5,
            mix,
            faults,
            ..self
        }
    }

    /// The same with free space in pieces, and with reads that fail when it starts, each in a part of all runs.
    fn grown_old(self, rng: &mut Rng) -> Self {
        let is_deaf = rng.one_in(3);
        let ages = rng.one_in(if is_deaf { 2 } else { 4 });
        let prepared = [Workload::Starts, Workload::Repair, Workload::Paged];
        let is_prepared = prepared.contains(&self.workload)
            || (self.workload == Workload::Tall && self.nodes.is_none());
        let is_whole = self.trades || is_prepared;
        let faults = self.faults;
        let fails = faults.read_error_one_in
            + faults.write_error_one_in
            + faults.no_space_one_in
            + faults.flush_error_one_in;
        let deaf = is_deaf && !self.goes && self.breaks == Breaks::Nothing && fails == 0;
        if !ages || is_whole {
            return Self { deaf, ..self };
        }
        let volume_blocks =
            if self.tight { self.volume_blocks } else { self.volume_blocks.min(300) };
        let shards = if self.tight { self.shards } else { CROWD };
        Self { aged: true, deaf, shards, volume_blocks, ..self }
    }

    fn draw_young(workload: Workload, rng: &mut Rng) -> Self {
        let plane = workload.is_plane(rng);
        let calm = Self {
            workload,
            plane,
            authenticates: plane && rng.one_in(2),
            hosts: rng.between(1, HOSTS as u64),
            rows: false,
            volatile: !rng.one_in(3),
            shards: 1,
            busy_shards: 1,
            joins: false,
            volumes: rng.between(1, 2),
            volume_blocks: [40, 300, 1300][rng.below(3) as usize],
            hot_blocks: rng.between(6, 40),
            tight: false,
            aged: false,
            deaf: false,
            trades: false,
            stales: false,
            rots: false,
            workers: rng.between(1, 5),
            requests: rng.between(8, 40),
            boots: rng.between(2, 4),
            mix: if plane { MIX.of_plane() } else { MIX },
            faults: DeviceFaults::default(),
            cuts: false,
            goes: false,
            breaks: Breaks::Nothing,
            lingers: false,
            map_memory: rng.one_in(3).then(|| few_nodes(rng)),
            metadata: some_metadata(rng),
            sector: SectorSize::default(),
            nodes: None,
            journal_blocks: None,
            scarce: false,
        };
        match workload {
            Workload::Crash | Workload::Plane | Workload::Repair | Workload::Cluster => calm,
            Workload::Full => calm.filling(rng),
            Workload::Reuse => calm.reusing(rng),
            Workload::Tall => calm.tall(rng),
            Workload::Starts => calm.starting(rng),
            Workload::Trade => calm.trading(rng),
            Workload::Control => calm.controlled(rng),
            Workload::Churn => Self {
                shards: 2,
                busy_shards: 2,
                mix: Mix { resize: 10, churn: 12, ..MIX },
                ..calm
            },
            Workload::Long => calm.long(rng),
            Workload::Paged => calm.paged(rng),
            Workload::Errors => calm.failing(rng),
            Workload::Gone => Self { goes: true, ..calm },
            Workload::Broken => calm.breaking(rng),
            Workload::Corrupt => Self { faults: corruption(rng), ..calm },
            Workload::Links => Self { cuts: true, ..calm },
            Workload::Reserve => calm.reserving(rng),
            Workload::Sectors => calm.in_sectors(rng),
            Workload::PlaneFaults => match rng.below(3) {
                0 => Self { breaks: Breaks::Some, ..calm },
                1 => Self { faults: errors(rng), ..calm },
                _ => Self { faults: corruption(rng), ..calm },
            },
        }
    }

    /// The same on a disk that is nearly full.
    fn filling(self, rng: &mut Rng) -> Self {
        Self {
            shards: CROWD,
            volume_blocks: 300,
            hot_blocks: 300,
            tight: true,
            workers: rng.between(2, 5),
            requests: 50,
            volumes: 1,
            boots: 2,
            mix: Mix { resize: 4, checkpoint: 6, ..MIX },
            faults: DeviceFaults { slow_one_in: 20, ..DeviceFaults::default() },
            ..self
        }
    }

    /// The same by hosts that exclude one another from one volume, on a disk that is slow now and then: some of their requests
    /// are under way for long.
    fn reserving(self, rng: &mut Rng) -> Self {
        Self {
            authenticates: false,
            hosts: HOSTS as u64,
            volumes: 1,
            volume_blocks: 40,
            hot_blocks: rng.between(2, 8),
            workers: rng.between(3, 6),
            requests: rng.between(20, 60),
            faults: DeviceFaults { slow_one_in: rng.between(3, 12), ..DeviceFaults::default() },
            mix: Mix { reserve: 25, read: 40, access: 0, ..self.mix },
            ..self
        }
    }

    /// The same on volumes of logical blocks of 512 bytes, most requests within a few blocks of 4096. Hosts say nothing but what
    /// such blocks need.
    fn in_sectors(self, rng: &mut Rng) -> Self {
        Self {
            sector: SectorSize::Bytes512,
            metadata: MetadataSize::None,
            authenticates: false,
            volume_blocks: [40, 300][rng.below(2) as usize],
            hot_blocks: rng.between(16, 100),
            workers: rng.between(2, 5),
            requests: rng.between(20, 60),
            mix: Mix { resize: 2, ..self.mix },
            ..self
        }
    }

    /// The same with so many records that the journal wraps around.
    fn long(self, rng: &mut Rng) -> Self {
        Self {
            volumes: 1,
            volume_blocks: 300,
            workers: rng.between(1, 2),
            requests: 1400,
            boots: 2,
            mix: Mix { write: 90, clear: 5, read: 3, clear_wide: 0, resize: 0, ..MIX },
            ..self
        }
    }

    /// The same on a disk that fails requests. What it fails one shard may concern another.
    fn failing(self, rng: &mut Rng) -> Self {
        let shards = if rng.one_in(2) { 2 } else { 1 };
        let volumes = self.volumes.max(shards.into());
        Self { shards, busy_shards: shards, volumes, faults: errors(rng), ..self }
    }

    /// The same with little room, checkpoints all the time that take long, and readers that linger.
    fn reusing(self, rng: &mut Rng) -> Self {
        Self {
            // Only a disk without a cache lends its blocks.
            volatile: rng.one_in(2),
            shards: CROWD,
            volumes: 1,
            volume_blocks: 1300,
            hot_blocks: 1300,
            tight: true,
            workers: 5,
            requests: 40,
            boots: rng.between(4, 6),
            mix: Mix { write: 60, clear: 4, clear_wide: 0, read: 20, checkpoint: 30, ..MIX },
            faults: DeviceFaults { slow_one_in: 10, ..DeviceFaults::default() },
            lingers: true,
            ..self
        }
    }

    /// The same with shards that come later, to extents that others gave back.
    fn starting(self, rng: &mut Rng) -> Self {
        Self {
            volatile: true,
            shards: 3,
            joins: true,
            volumes: 2,
            // Each leaves two extents empty, of which its shard keeps one.
            volume_blocks: 3100,
            requests: rng.between(4, 12),
            workers: rng.between(1, 3),
            boots: 8,
            mix: Mix { clear_wide: 6, churn: 8, checkpoint: 8, ..MIX },
            faults: DeviceFaults { flush_error_one_in: rng.between(20, 60), ..self.faults },
            ..self
        }
    }

    /// The same with so little room for three shards that each takes what another gave back.
    fn trading(self, rng: &mut Rng) -> Self {
        Self {
            volatile: !rng.one_in(4),
            shards: 6,
            busy_shards: 3,
            trades: true,
            volumes: 3,
            volume_blocks: 1500,
            hot_blocks: 1500,
            workers: 5,
            requests: rng.between(12, 30),
            mix: Mix {
                write: 60,
                clear: 2,
                clear_wide: 16,
                read: 5,
                resize: 0,
                checkpoint: 12,
                ..MIX
            },
            ..self
        }
    }

    /// The same all over a volume whose map has three levels, with one checkpoint after the other.
    fn tall(self, rng: &mut Rng) -> Self {
        if !rng.one_in(3) {
            return self.shaped(rng);
        }
        Self {
            volumes: 1,
            volume_blocks: tall::BLOCKS,
            hot_blocks: tall::BLOCKS,
            metadata: tall::METADATA,
            workers: rng.between(2, 5),
            boots: 2,
            mix: Mix { clear_wide: 0, resize: 0, scrub: 0, checkpoint: 20, ..MIX },
            ..self
        }
    }

    /// The same where a volume of some hundred blocks has such a map: nodes take few entries. Requests begin and end around
    /// bounds of nodes, and leave leaves and inner nodes in all shapes.
    fn shaped(self, rng: &mut Rng) -> Self {
        let nodes = Some(few_entries(rng));
        Self {
            volumes: 1,
            volume_blocks: 1300,
            hot_blocks: 1300,
            workers: rng.between(2, 5),
            requests: rng.between(20, 60),
            boots: rng.between(2, 3),
            mix: Mix { clear: 30, clear_wide: 2, resize: 4, checkpoint: 14, ..MIX },
            nodes,
            ..self
        }
    }

    /// The same on a disk of which blocks fail for good.
    fn breaking(self, rng: &mut Rng) -> Self {
        if rng.one_in(4) {
            return self.refusing(rng);
        }
        Self {
            breaks: Breaks::Some,
            boots: rng.between(2, 5),
            requests: rng.between(20, 60),
            mix: Mix { checkpoint: 8, ..MIX },
            ..self
        }
    }

    /// The same on a disk that is full, and takes nothing for a while.
    fn refusing(self, rng: &mut Rng) -> Self {
        Self {
            breaks: Breaks::AllForAWhile,
            shards: CROWD,
            volumes: 1,
            volume_blocks: 300,
            hot_blocks: 300,
            tight: true,
            boots: rng.between(2, 3),
            requests: rng.between(4, 20),
            ..self
        }
    }

    /// The same all over volumes that are full, with little memory for their maps.
    fn paged(self, rng: &mut Rng) -> Self {
        let faults = match rng.below(4) {
            0 => corruption(rng),
            1 => errors(rng),
            _ => DeviceFaults { slow_one_in: some(rng, 5, 40), ..DeviceFaults::default() },
        };
        Self {
            volume_blocks: 2600,
            hot_blocks: 2600,
            requests: rng.between(20, 60),
            map_memory: Some(few_nodes(rng)),
            mix: Mix { clear_wide: 2, read: 40, checkpoint: 6, ..MIX },
            faults,
            ..self
        }
    }
}

/// Memory for less than one request needs, or for some nodes.
fn few_nodes(rng: &mut Rng) -> u64 {
    [1, 12_000, 40_000, 100_000][rng.below(4) as usize]
}

/// So few that a map of some hundred blocks has three levels.
fn few_entries(rng: &mut Rng) -> NodeCapacity {
    let leaf = rng.between(12, 24) as usize;
    let inner = rng.between(12, 20) as usize;
    NodeCapacity { leaf, inner }
}

/// None, mostly.
fn some_metadata(rng: &mut Rng) -> MetadataSize {
    let sizes = MetadataSize::ALL;
    sizes.get(rng.below(7) as usize).copied().unwrap_or_default()
}

/// A few of many faults, each now and then.
fn some(rng: &mut Rng, low: u64, high: u64) -> u64 {
    if rng.one_in(2) { rng.between(low, high) } else { 0 }
}

fn errors(rng: &mut Rng) -> DeviceFaults {
    DeviceFaults {
        read_error_one_in: some(rng, 8, 60),
        write_error_one_in: some(rng, 8, 60),
        flush_error_one_in: if rng.one_in(4) { rng.between(10, 60) } else { 0 },
        no_space_one_in: some(rng, 10, 60),
        discard_error_one_in: some(rng, 2, 5),
        slow_one_in: some(rng, 20, 100),
        stuck_one_in: some(rng, 50, 150),
        ..DeviceFaults::default()
    }
}

fn corruption(rng: &mut Rng) -> DeviceFaults {
    DeviceFaults {
        lost_write_one_in: some(rng, 15, 100),
        misdirected_write_one_in: some(rng, 15, 100),
        misdirected_read_one_in: some(rng, 15, 100),
        rot_one_in: some(rng, 15, 100),
        ..DeviceFaults::default()
    }
}
