//! The situations that runs reached.

use std::collections::BTreeMap;

use situations::Situation;

use crate::profile::Workload;

/// The count of a situation.
#[derive(Clone, Debug, Default)]
pub struct Count {
    /// Seeds that reached it.
    pub seeds: u64,
    /// The sum over them of how often it was reached.
    pub times: u64,
    /// The workload and the seed of the first run that was added.
    pub example: Option<(Workload, u64)>,
}

/// The number of seeds that reached each situation, and the number of times.
#[derive(Clone, Debug, Default)]
pub struct Reached(BTreeMap<Situation, Count>);

impl Reached {
    /// Adds what one run reached.
    pub fn add(&mut self, (workload, seed): (Workload, u64), of_run: &BTreeMap<Situation, u64>) {
        for (situation, times) in of_run {
            let count = self.0.entry(*situation).or_default();
            count.seeds += 1;
            count.times += times;
            count.example.get_or_insert((workload, seed));
        }
    }

    /// Returns the count of `situation`.
    #[must_use]
    pub fn of(&self, situation: Situation) -> Count {
        self.0.get(&situation).cloned().unwrap_or_default()
    }

    /// The situations that no seed reached.
    pub fn never(&self) -> impl Iterator<Item = Situation> {
        Situation::ALL.iter().copied().filter(|situation| self.of(*situation).seeds == 0)
    }
}

/// The table of all situations as `docs/simulation.md` has it, where so many seeds reached these.
#[must_use]
pub fn table(reached: &Reached, seeds: u64) -> String {
    let row = |situation: &Situation| {
        let count = reached.of(*situation);
        let per_thousand = count.seeds as f64 * 1000.0 / seeds.max(1) as f64;
        let share = match per_thousand {
            0.0 => "0".into(),
            1.0.. => format!("{per_thousand:.0}"),
            _ => format!("{per_thousand:.2}"),
        };
        let (name, text, workload) = (situation.name(), situation.text(), situation.workload());
        let example =
            count.example.map_or_else(String::new, |(of, seed)| format!("`{}` {seed}", of.name()));
        format!("| `{name}` | {text} | `{workload}` | {share} | {example} |\n")
    };
    let head = "| situation | what it is | soonest in | seeds of 1000 | a seed |\n| --- | --- | --- | --- | --- |\n";
    head.to_owned() + &Situation::ALL.iter().map(row).collect::<String>()
}
