//! The situations that runs reached.

use std::collections::BTreeMap;

use situations::Situation;

/// How many seeds reached each situation, and how often.
#[derive(Clone, Debug, Default)]
pub struct Reached(BTreeMap<Situation, (u64, u64)>);

impl Reached {
    /// Adds what one seed reached.
    pub fn add(&mut self, of_seed: &BTreeMap<Situation, u64>) {
        for (situation, times) in of_seed {
            let (seeds, sum) = self.0.entry(*situation).or_default();
            *seeds += 1;
            *sum += times;
        }
    }

    /// The seeds that reached `situation`, and how often they did together.
    #[must_use]
    pub fn of(&self, situation: Situation) -> (u64, u64) {
        self.0.get(&situation).copied().unwrap_or_default()
    }

    /// The situations that no seed reached.
    pub fn never(&self) -> impl Iterator<Item = Situation> {
        Situation::ALL.iter().copied().filter(|situation| self.of(*situation).0 == 0)
    }
}

/// The table of all situations as `docs/simulation.md` has it, where so many seeds reached these.
#[must_use]
pub fn table(reached: &Reached, seeds: u64) -> String {
    let row = |situation: &Situation| {
        let per_thousand = reached.of(*situation).0 as f64 * 1000.0 / seeds.max(1) as f64;
        let share = match per_thousand {
            0.0 => "0".into(),
            1.0.. => format!("{per_thousand:.0}"),
            _ => format!("{per_thousand:.2}"),
        };
        let (name, text, workload) = (situation.name(), situation.text(), situation.workload());
        format!("| `{name}` | {text} | `{workload}` | {share} |\n")
    };
    let head =
        "| situation | what it is | soonest in | seeds of 1000 |\n| --- | --- | --- | --- |\n";
    head.to_owned() + &Situation::ALL.iter().map(row).collect::<String>()
}
