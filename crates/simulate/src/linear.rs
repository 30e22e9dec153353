//! Is there an order in which a block, taken as a register, would have answered like this?
//!
//! Method (Wing and Gong, with the sets of Lowe): all orders at once. A world is a value and which of
//! the requests under way have taken effect in it. When one is answered, every world in which it has
//! not taken effect lets others go first in every way, then it. What no world can explain is wrong.

use std::collections::BTreeSet;

use crate::content::Shown;
use crate::history::{Fate, History, Moment};

/// Worlds beyond which a block is given up as too much.
const WORLDS_MAX: usize = 20_000;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Put(Shown),
    /// The second, if the first was there.
    Swap(Shown, Shown),
    Saw(Shown),
    SawOther(Shown),
}

#[derive(Clone, Copy, Debug)]
struct Request {
    kind: Kind,
    /// It may never take effect.
    optional: bool,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Edge {
    Begin(usize),
    End(usize),
}

/// The judgement of a block's answers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    /// There is an order.
    Sound,
    /// There is none: the observation that ended at this moment cannot be explained.
    Impossible(Moment),
    /// Too many orders to tell.
    TooMuch,
}

/// A possible state: the value of the register, and those changes under way that have taken effect.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct World {
    /// Tag; 0 for zeroes.
    value: u64,
    done: Vec<usize>,
}

/// Checks all that was seen of block `lba`.
#[must_use]
pub(crate) fn check(
    history: &History,
    lba: u64,
    seen: &[(Shown, bool, Moment, Moment)],
) -> Verdict {
    let mut requests: Vec<Request> = Vec::new();
    let mut edges: Vec<(Moment, Edge)> = Vec::new();
    for change in history.of_block(lba).filter(|change| change.fate != Fate::Refused) {
        if change.harmed || change.shaken {
            return Verdict::Sound;
        }
        let value = if change.zero { Shown::Zero } else { Shown::Tag(change.tag) };
        edges.push((change.invoked, Edge::Begin(requests.len())));
        edges.push((change.ended.unwrap_or(Moment::MAX), Edge::End(requests.len())));
        let kind = match history.expected(change, lba) {
            Some(expected) => Kind::Swap(expected, value),
            None => Kind::Put(value),
        };
        requests.push(Request { kind, optional: change.fate == Fate::Open });
    }
    for (shown, differs, invoked, ended) in seen {
        let kind = if *differs { Kind::SawOther(*shown) } else { Kind::Saw(*shown) };
        edges.push((*invoked, Edge::Begin(requests.len())));
        edges.push((*ended, Edge::End(requests.len())));
        requests.push(Request { kind, optional: false });
    }
    edges.sort_unstable();
    explain(&requests, &edges)
}

fn explain(requests: &[Request], edges: &[(Moment, Edge)]) -> Verdict {
    let mut worlds = BTreeSet::from([World { value: 0, done: Vec::new() }]);
    let mut open: Vec<usize> = Vec::new();
    for (moment, edge) in edges {
        match *edge {
            Edge::Begin(request) => open.push(request),
            Edge::End(request) => {
                let Some(settled) = settle(requests, &open, worlds, request) else {
                    return Verdict::TooMuch;
                };
                worlds = settled;
                open.retain(|other| *other != request);
                if worlds.is_empty() {
                    return Verdict::Impossible(*moment);
                }
            }
        }
    }
    Verdict::Sound
}

/// The worlds in which `request` has taken effect, or never will; `None` if there are too many to look at all.
fn settle(
    requests: &[Request],
    open: &[usize],
    worlds: BTreeSet<World>,
    request: usize,
) -> Option<BTreeSet<World>> {
    let mut settled = BTreeSet::new();
    let mut known = worlds.clone();
    let mut stack: Vec<World> = worlds.into_iter().collect();
    while let Some(world) = stack.pop() {
        let is_done = world.done.contains(&request);
        if is_done || requests[request].optional {
            let mut world = world.clone();
            world.done.retain(|other| *other != request);
            settled.insert(world);
        }
        if is_done {
            continue;
        }
        for next in open.iter().filter(|next| !world.done.contains(next)) {
            let Some(value) = step(world.value, requests[*next].kind) else { continue };
            let mut world = World { value, done: world.done.clone() };
            world.done.push(*next);
            world.done.sort_unstable();
            if known.insert(world.clone()) {
                stack.push(world);
            }
        }
        if known.len() > WORLDS_MAX {
            return None;
        }
    }
    Some(settled)
}

fn number(shown: Shown) -> u64 {
    if let Shown::Tag(tag) = shown { tag } else { 0 }
}

fn step(value: u64, kind: Kind) -> Option<u64> {
    match kind {
        Kind::Put(shown) => Some(number(shown)),
        Kind::Swap(from, to) => (number(from) == value).then_some(number(to)),
        Kind::Saw(shown) => (number(shown) == value).then_some(value),
        Kind::SawOther(shown) => (number(shown) != value).then_some(value),
    }
}

/// Checks every block of a volume that was read, or compared and written; returns how many were too much.
///
/// # Errors
/// What cannot be explained.
pub(crate) fn check_all(history: &History) -> Result<u64, String> {
    let mut by_block: std::collections::BTreeMap<u64, Vec<_>> = std::collections::BTreeMap::new();
    for seen in history.observations() {
        let entry = (seen.shown, seen.differs, seen.invoked, seen.ended);
        by_block.entry(seen.lba).or_default().push(entry);
    }
    for lba in history.swapped() {
        by_block.entry(lba).or_default();
    }
    let mut too_much = 0;
    for (lba, seen) in &by_block {
        match check(history, *lba, seen) {
            Verdict::Sound => {}
            Verdict::TooMuch => too_much += 1,
            Verdict::Impossible(moment) => {
                let at = seen.iter().find(|(.., ended)| *ended == moment);
                return Err(format!("block {lba}: no order explains {at:?} at {moment}"));
            }
        }
    }
    Ok(too_much)
}

#[cfg(test)]
mod tests {
    use units::{Lba, LbaRange};

    use super::*;

    fn history(changes: &[(u64, Moment, Option<Moment>)]) -> History {
        let mut history = History::default();
        for (tag, invoked, ended) in changes.iter().copied() {
            history.begin(tag, LbaRange::new(Lba(0), 1), false, invoked);
            if let Some(ended) = ended {
                history.end(tag, Fate::Done, ended);
            }
        }
        history
    }

    fn verdict(history: &History, reads: &[(u64, Moment, Moment)]) -> bool {
        let shown = |tag: u64| if tag == 0 { Shown::Zero } else { Shown::Tag(tag) };
        let seen: Vec<_> =
            reads.iter().map(|(tag, begin, end)| (shown(*tag), false, *begin, *end)).collect();
        check(history, 0, &seen) == Verdict::Sound
    }

    #[test]
    fn a_read_sees_the_last_write_or_one_under_way() {
        let history = history(&[(1, 1, Some(2)), (2, 5, Some(9))]);
        assert!(verdict(&history, &[(1, 3, 4), (1, 6, 7), (2, 10, 11)]));
        assert!(verdict(&history, &[(2, 6, 7)]));
        assert!(!verdict(&history, &[(0, 3, 4)]), "the first was acknowledged");
        assert!(!verdict(&history, &[(1, 10, 11)]), "the second was acknowledged");
        assert!(!verdict(&history, &[(2, 3, 4)]), "from the future");
    }

    #[test]
    fn what_was_seen_is_not_unseen() {
        let history = history(&[(1, 1, Some(20)), (2, 2, None)]);
        assert!(verdict(&history, &[(0, 3, 4), (1, 5, 6), (2, 7, 8)]));
        assert!(!verdict(&history, &[(1, 3, 4), (0, 5, 6)]));
        assert!(!verdict(&history, &[(1, 3, 4), (2, 5, 6), (1, 7, 8)]), "each is written once");
    }

    /// Method: so many writes are under way that not all orders are looked at; what is read can be explained by one.
    #[test]
    fn what_is_too_much_is_not_called_impossible() {
        let open: Vec<_> = (1..=24).map(|tag| (tag, tag, None)).collect();
        let seen: Vec<_> =
            (1..=24).map(|tag| (Shown::Tag(tag), false, 100 + 2 * tag, 101 + 2 * tag)).collect();
        let verdict = check(&history(&open), 0, &seen);
        assert!(!matches!(verdict, Verdict::Impossible(_)), "{verdict:?}");
    }
}
