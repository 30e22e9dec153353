//! The document has the table of situations.

use std::collections::BTreeSet;

use simulate::{Reached, Workload, table};
use situations::Situation;

const DOCUMENT: &str = include_str!("../../../docs/simulation.md");

#[test]
fn each_situation_names_a_workload_and_has_a_name_of_its_own() {
    let names: BTreeSet<_> = Situation::ALL.iter().map(|situation| situation.name()).collect();
    assert_eq!(names.len(), Situation::ALL.len());
    for situation in Situation::ALL {
        assert!(Workload::named(situation.workload()).is_some(), "{}", situation.name());
    }
}

/// All but the last two columns, which say what a number of seeds reached, and which.
fn without_shares(table: &str) -> Vec<String> {
    let row = |line: &str| line.rsplitn(4, '|').last().unwrap_or_default().to_owned();
    table.lines().map(row).collect()
}

#[test]
fn the_document_has_the_table() {
    let expected = without_shares(&table(&Reached::default(), 0));
    let rows: Vec<&str> = DOCUMENT
        .lines()
        .skip_while(|line| !line.starts_with("| situation |"))
        .take_while(|line| line.starts_with('|'))
        .collect();
    let again = "again: farflash-sim --seeds 0..20000 --situations";
    assert_eq!(without_shares(&rows.join("\n")), expected, "{again}");
}
