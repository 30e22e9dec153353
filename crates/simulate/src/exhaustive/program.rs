//! The short programs: which operations there are, and which rows of them are tried.

/// One operation. What goes to a volume goes to the one that was created last, also when it is deleted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step {
    /// Writes blocks 0 to 2.
    Write,
    /// Writes blocks 1 to 3.
    Overlap,
    /// Deallocates blocks 0 to 2.
    Unmap,
    /// Deallocates everything.
    UnmapAll,
    /// Writes blocks 0 to 2 if they hold what they should.
    Swap,
    /// The same, but for what they do not hold.
    SwapWrongly,
    /// Shrinks the volume to 2 blocks, or grows it again.
    Resize,
    /// Creates another volume.
    Create,
    /// Deletes the volume.
    Delete,
    /// Takes a checkpoint.
    Checkpoint,
    /// Writes blocks below two inner nodes.
    Across,
    /// Deallocates blocks below two inner nodes, some of a leaf each.
    ClearAcross,
    /// Deallocates all of several inner nodes, and some of those beside them.
    ClearWide,
    /// Shrinks the volume to where a leaf has only some of its entries left, or grows it again.
    CutInside,
}

impl Step {
    const ALL: [Self; 10] = [
        Self::Write,
        Self::Overlap,
        Self::Unmap,
        Self::UnmapAll,
        Self::Swap,
        Self::SwapWrongly,
        Self::Resize,
        Self::Create,
        Self::Delete,
        Self::Checkpoint,
    ];
    /// All that changes the same blocks.
    const BLOCKS: [Self; 5] =
        [Self::Write, Self::Overlap, Self::Unmap, Self::Swap, Self::Checkpoint];
    /// Programs that change a map of many levels across the bounds of its nodes.
    const SHAPES: [Self; 5] =
        [Self::Across, Self::ClearAcross, Self::ClearWide, Self::CutInside, Self::Checkpoint];
    /// One of each kind.
    const KINDS: [Self; 7] = [
        Self::Write,
        Self::Swap,
        Self::SwapWrongly,
        Self::Resize,
        Self::Create,
        Self::Delete,
        Self::Checkpoint,
    ];
}

/// A few operations, one after the other or all at once.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Program {
    /// The operations.
    pub steps: Vec<Step>,
    /// True if they run at once.
    pub at_once: bool,
    /// Bytes of memory for the maps, if there is a limit.
    pub map_memory: Option<u64>,
}

/// All programs of up to three operations, in both ways; all of four that change the same blocks, and of
/// four of one operation of each kind, in order; those of two also where a map has no memory to speak of.
///
/// With every program in order there is each that it begins with: only in its last operation is the power
/// cut.
#[must_use]
pub fn programs() -> Vec<Program> {
    let mut all = Vec::new();
    let mut longer: Vec<Vec<Step>> = vec![Vec::new()];
    for _ in 0..3 {
        longer = extend(&longer, &Step::ALL);
        for steps in &longer {
            let program =
                |at_once, map_memory| Program { steps: steps.clone(), at_once, map_memory };
            all.push(program(false, None));
            if steps.len() > 1 {
                all.push(program(true, None));
            }
            if steps.len() == 2 {
                all.extend([false, true].map(|at_once| program(at_once, Some(1))));
            }
            if steps.len() == 1 {
                all.push(program(false, Some(1)));
            }
        }
    }
    let blocks = (0..4).fold(vec![Vec::new()], |longer, _| extend(&longer, &Step::BLOCKS));
    let mut four = (0..4).fold(vec![Vec::new()], |longer, _| extend(&longer, &Step::KINDS));
    four.extend(blocks.into_iter().filter(|steps| !is_made_of(steps, &Step::KINDS)));
    all.extend(four.into_iter().map(|steps| Program { steps, at_once: false, map_memory: None }));
    all
}

/// Programs for a map of three levels: what changes the same blocks, and that with a checkpoint behind it, where all of the map
/// may be in memory and where next to nothing may.
#[must_use]
pub fn tall_programs() -> Vec<Program> {
    let mut all = Vec::new();
    for map_memory in [None, Some(1)] {
        for first in Step::BLOCKS {
            all.push(Program { steps: vec![first], at_once: false, map_memory });
            let steps = vec![first, Step::Checkpoint];
            all.push(Program { steps: steps.clone(), at_once: false, map_memory });
            all.push(Program { steps, at_once: true, map_memory });
        }
    }
    all
}

/// Programs for a map of many levels, of nodes that take few entries ([`super::Base::shaped`]): up to two operations that go
/// across bounds of nodes, and checkpoints, in order and at once, where all of the map may be in memory and where next to
/// nothing may.
#[must_use]
pub fn shape_programs() -> Vec<Program> {
    let mut all = Vec::new();
    let one = extend(&[Vec::new()], &Step::SHAPES);
    let two = extend(&one, &Step::SHAPES);
    for map_memory in [None, Some(1)] {
        for steps in one.iter().chain(&two) {
            all.push(Program { steps: steps.clone(), at_once: false, map_memory });
        }
        for steps in &two {
            all.push(Program { steps: steps.clone(), at_once: true, map_memory });
        }
    }
    all
}

fn extend(shorter: &[Vec<Step>], steps: &[Step]) -> Vec<Vec<Step>> {
    let with = |before: &Vec<Step>, step: Step| before.iter().copied().chain([step]).collect();
    shorter.iter().flat_map(|before| steps.iter().map(move |step| with(before, *step))).collect()
}

fn is_made_of(steps: &[Step], alphabet: &[Step]) -> bool {
    steps.iter().all(|step| alphabet.contains(step))
}
