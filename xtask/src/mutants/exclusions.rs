//! Mutants that no test has to catch: patterns in `.cargo/mutants.toml`, each with its reason, and planted bugs.

use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;

/// Path of the patterns, relative to the repository.
pub(super) const PATH: &str = ".cargo/mutants.toml";

/// Returns the lines, from 1, of patterns that no comment stands above.
pub(super) fn without_reason(root: &Path) -> io::Result<Vec<usize>> {
    Ok(unexplained(&fs::read_to_string(root.join(PATH))?))
}

/// A comment explains the patterns below it, up to the next empty line.
fn unexplained(text: &str) -> Vec<usize> {
    let mut explained = false;
    let mut out = Vec::new();
    for (index, line) in text.lines().enumerate() {
        match line.trim().chars().next() {
            Some('#') => explained = true,
            Some('\'' | '"') if !explained => out.push(index + 1),
            Some('\'' | '"') => {}
            _ => explained = false,
        }
    }
    out
}

/// Returns the lines, from 1, that only a planted bug runs: blocks behind `if broken(…)`, and the arm of `true` behind
/// `match broken(…)`. Tests turn these on one by one, and the switches are off where mutants are tried.
pub(super) fn planted(text: &str) -> Vec<RangeInclusive<usize>> {
    let lines: Vec<&str> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut out = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let statement = line.trim_start();
        if statement.starts_with("if broken(") && !line.contains("||") {
            let ends = |at: &usize| indent(lines[*at]) == indent(line) && lines[*at].contains('}');
            let end = (index + 1..lines.len()).find(ends).unwrap_or(index);
            out.push(index + 1..=end + 1);
        } else if statement.contains("match broken(") {
            let arm = lines.get(index + 1).filter(|arm| arm.trim_start().starts_with("true =>"));
            out.extend(arm.map(|_| index + 2..=index + 2));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_planted_bugs_are_found() {
        let text = "\
fn f() {
    if broken(A) && x > 1 {
        y += 1;
    }
    if x > 1 || broken(B) {
        real();
    }
    if !broken(C) {
        real();
    }
    let z = match broken(D) {
        true => x - 1,
        false => x,
    };
}
";
        assert_eq!(planted(text), [2..=4, 12..=12]);
    }

    #[test]
    fn a_pattern_needs_a_comment_in_its_paragraph() {
        let text = "exclude_re = [\n  # Text.\n  'a',\n  'b',\n\n  'c',\n]\n";
        assert_eq!(unexplained(text), [6]);
    }
}
