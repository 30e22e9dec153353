//! `.cargo/mutants.toml`: patterns of mutants that no test has to catch, each with its reason.

use std::fs;
use std::io;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_needs_a_comment_in_its_paragraph() {
        let text = "exclude_re = [\n  # Text.\n  'a',\n  'b',\n\n  'c',\n]\n";
        assert_eq!(unexplained(text), [6]);
    }
}
