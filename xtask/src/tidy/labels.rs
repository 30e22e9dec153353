//! Labels of invariants: each is defined once, and what cites one can be found.
//!
//! A list in a module's header defines them, `//! - CLAIM-2: a claim passes ...`, and each list has a prefix of its own.
//! So a label alone says which promise is meant, in any crate, and a search finds all that rests on it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Finding;
use super::rules::{NO_LABELS, NoLabel};
use super::source::{File, find};

const RULE: &str = "label";
/// This file: labels in its tests are examples.
const TESTS: &str = "xtask/src/tidy/labels.rs";

/// All labels of the workspace.
pub(super) struct Labels {
    /// Each label with the file and line of its first definition.
    defined: BTreeMap<String, (PathBuf, usize)>,
    prefixes: BTreeSet<String>,
}

impl Labels {
    pub(super) fn of(files: &[File]) -> Self {
        let mut labels = Self { defined: BTreeMap::new(), prefixes: BTreeSet::new() };
        for file in files.iter().filter(|file| !file.path.ends_with(TESTS)) {
            for (index, line) in file.text.lines().enumerate() {
                if let Some((label, prefix)) = definition(line) {
                    let place = (file.path.clone(), index + 1);
                    labels.defined.entry(label.to_owned()).or_insert(place);
                    labels.prefixes.insert(prefix.to_owned());
                }
            }
        }
        labels
    }

    /// Checks one Rust file: what it defines, and what its comments and literals cite.
    pub(super) fn check(&self, file: &File) -> Vec<Finding> {
        if file.path.ends_with(TESTS) {
            return Vec::new();
        }
        let mut findings = Vec::new();
        for (index, line) in file.text.lines().enumerate() {
            let mut add = |message| findings.push(finding(&file.path, index + 1, message));
            if let Some((label, _)) = definition(line)
                && let Some((path, first)) = self.defined.get(label)
                && (path, *first) != (&file.path, index + 1)
            {
                let path = path.display();
                add(format!("`{label}` is defined at {path}:{first}; a list has its own prefix"));
            }
            self.undefined(line).for_each(&mut add);
            if let Some((_, comment)) = line.split_once("//") {
                without_prefix(comment, &file.krate).for_each(&mut add);
            }
        }
        findings
    }

    /// Checks the Markdown files: what they cite.
    pub(super) fn check_documents(&self, root: &Path) -> io::Result<Vec<Finding>> {
        let mut files = Vec::new();
        find(root, Path::new(""), "md", &mut files)?;
        let mut findings = Vec::new();
        for file in files {
            let text = fs::read_to_string(root.join(&file))?;
            findings.extend(self.check_document(&file, &text));
        }
        Ok(findings)
    }

    fn check_document(&self, path: &Path, text: &str) -> Vec<Finding> {
        let lines = text.lines().enumerate();
        lines
            .flat_map(|(index, line)| {
                self.undefined(line).map(move |message| finding(path, index + 1, message))
            })
            .collect()
    }

    /// The labels of a line that have the prefix of a list, and are not in it. Code has none: there a minus stands alone.
    fn undefined(&self, line: &str) -> impl Iterator<Item = String> {
        let words = line.split(|letter: char| !is_of_word(letter) && letter != '-');
        words
            .map(|word| word.trim_matches('-'))
            .filter(|word| {
                prefix(word).is_some_and(|prefix| self.prefixes.contains(prefix))
                    && !self.defined.contains_key(*word)
            })
            .map(|word| format!("`{word}` is not defined"))
    }
}

/// The label that a line of a doc comment defines, and its prefix.
fn definition(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start();
    let text = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"))?;
    let (label, _) = text.trim_start().strip_prefix("- ")?.split_once(':')?;
    Some((label, prefix(label)?))
}

/// The prefix of a label: words in capitals before its number, which may have a letter behind it.
fn prefix(label: &str) -> Option<&str> {
    let (prefix, number) = label.rsplit_once('-')?;
    let digits = number.strip_suffix(|letter: char| letter.is_ascii_lowercase()).unwrap_or(number);
    let is_word = |word: &str| !word.is_empty() && word.chars().all(|it| it.is_ascii_uppercase());
    let is_number = !digits.is_empty() && digits.chars().all(|it| it.is_ascii_digit());
    (is_number && prefix.split('-').all(is_word)).then_some(prefix)
}

/// Words of a comment that may be labels of any list: one to three capitals and one or two digits.
fn without_prefix(comment: &str, krate: &str) -> impl Iterator<Item = String> {
    comment
        .split(|letter: char| !is_of_word(letter))
        .filter(|word| {
            let digits = word.trim_start_matches(|letter: char| letter.is_ascii_uppercase());
            (1..=3).contains(&(word.len() - digits.len()))
                && (1..=2).contains(&digits.len())
                && digits.chars().all(|it| it.is_ascii_digit())
        })
        .filter(move |word| {
            let is_none = |row: &NoLabel| row.words.contains(word) && row.crates.contains(&krate);
            !NO_LABELS.iter().any(is_none)
        })
        .map(|word| format!("`{word}`: a label begins with the prefix of its list"))
}

fn is_of_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

fn finding(path: &Path, line: usize, message: String) -> Finding {
    Finding { file: PathBuf::from(path), line, rule: RULE, message, warning: false }
}

#[cfg(test)]
mod tests {
    use super::super::source::file_for_test;
    use super::*;

    const LISTS: &str = "//! - HOLD-1: it waits.\n//! - HOLD-2a: it ends.\n//! - TWO-WORDS-1: and so on:\n//!   1.\n";

    fn found(texts: &[&str]) -> Vec<(usize, usize, String)> {
        let file = |(index, text): (usize, &&str)| {
            file_for_test(&format!("crates/volume/src/{index}.rs"), text)
        };
        let files: Vec<File> = texts.iter().enumerate().map(file).collect();
        let labels = Labels::of(&files);
        let of_file = |(index, file): (usize, &File)| {
            let findings = labels.check(file).into_iter();
            findings.map(move |it| (index, it.line, it.message)).collect::<Vec<_>>()
        };
        files.iter().enumerate().flat_map(of_file).collect()
    }

    fn places(texts: &[&str]) -> Vec<(usize, usize)> {
        found(texts).into_iter().map(|(file, line, _)| (file, line)).collect()
    }

    #[test]
    fn a_label_is_defined_once_in_all_files() {
        let again = "mod a {\n    /// - HOLD-1: it waits.\n    struct A;\n}\n";
        assert_eq!(places(&[LISTS, again]), [(1, 2)]);
        assert!(found(&[LISTS, again])[0].2.contains("crates/volume/src/0.rs:1"));
        assert_eq!(places(&["//! - HOLD-1: it waits.\n//! - HOLD-1: it ends.\n"]), [(0, 2)]);
        assert_eq!(places(&[LISTS, "// - HOLD-1: no list.\n//! HOLD-1: it waits.\n"]), []);
    }

    #[test]
    fn a_label_with_the_prefix_of_a_list_is_in_it() {
        let cites = "\
/// HOLD-1, HOLD-2a to HOLD-3.
fn a() {
    assert!(b, \"HOLD-2: it ends\"); // (TWO-WORDS-2)
    c(\"TWO-WORDS-1 of SHA-256, and A-HOLD-9\", HOLD - 7);
}
";
        assert_eq!(places(&[LISTS, cites]), [(1, 1), (1, 3), (1, 3)]);
        assert_eq!(places(&[cites]), [], "no list has these prefixes");
    }

    #[test]
    fn a_document_cites_what_is_defined() {
        let labels = Labels::of(&[file_for_test("crates/volume/src/lib.rs", LISTS)]);
        let text = "It waits (HOLD-1).\n\nIt ends (HOLD-2) by UTF-8.\n";
        let findings = labels.check_document(Path::new("docs/a.md"), text);
        assert_eq!(findings.iter().map(|it| it.line).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn a_label_in_a_comment_has_a_prefix() {
        let text = "//! - E1: it waits.\n/// (F10, and ABC12-ABC13)\nfn a() {\n    b(\"E1\"); // E2's\n}\n";
        assert_eq!(places(&[text]), [(0, 1), (0, 2), (0, 2), (0, 2), (0, 4)]);
        assert_eq!(places(&["// e1, E, E1h, ABCD1, E123, CRC32c, X_1, 0xE1, UTF-8\n"]), []);
    }

    #[test]
    fn words_that_are_no_labels_are_so_in_their_crates() {
        let text = "// A cache (L2).\n";
        let rows = |path: &str| {
            let file = file_for_test(path, text);
            Labels::of(&[]).check(&file).len()
        };
        assert_eq!((rows("bench/src/main.rs"), rows("crates/volume/src/lib.rs")), (0, 1));
    }
}
