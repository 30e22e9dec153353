//! Plain words: how doc comments begin, words that comments, names, messages and documents do without,
//! and the width of Markdown.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Finding;
use super::rules::{FIRST_WORDS, MARKDOWN_WIDTH_MAX, PLAIN_WORDS, PlainWord};
use super::source::{File, Token, find};

const FIRST_WORD: &str = "first-word";
const PLAIN_WORD: &str = "plain-word";
/// The tables that must spell the words out.
const TABLES: &str = "xtask/src/tidy/rules.rs";
/// This file: its tests spell them out, too.
const TESTS: &str = "xtask/src/tidy/language.rs";

/// Checks one Rust file.
pub(super) fn check(file: &File) -> Vec<Finding> {
    if [TABLES, TESTS].iter().any(|table| file.path.ends_with(table)) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let mut in_docs = None;
    for (index, line) in file.text.lines().enumerate() {
        let line = line.trim_start();
        let marker = ["//!", "///"].into_iter().find(|marker| line.starts_with(marker));
        if let Some(marker) = marker
            && in_docs != Some(marker)
            && let Some(word) = FIRST_WORDS.iter().find(|word| first_word(&line[3..]) == **word)
        {
            let message =
                format!("a doc comment begins with a verb or names the thing, not with `{word}`");
            findings.push(finding(&file.path, index + 1, FIRST_WORD, message));
        }
        in_docs = marker;
        if let Some((_, comment)) = line.split_once("//") {
            findings.extend(banned(&file.path, index + 1, comment, true));
        }
    }
    findings.extend(check_tokens(file));
    findings
}

/// Checks identifiers and literals. Doc comments are tokens, too, but were seen as lines.
fn check_tokens(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut is_doc = false;
    for Token { text, line, literal } in file.tokens() {
        let words = match literal {
            Some(_) if is_doc => continue,
            Some(literal) => Cow::Borrowed(&**literal),
            None => Cow::Owned(spaced(text)),
        };
        findings.extend(banned(&file.path, *line, &words, false));
        // `doc`, `=` and the literal are one attribute.
        is_doc = text == "doc" || is_doc && text == "=";
    }
    findings
}

/// The words of an identifier.
fn spaced(name: &str) -> String {
    let mut out = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() || letter == '_' {
            out.push(' ');
        }
        out.extend(letter.to_lowercase().filter(|letter| *letter != '_'));
    }
    out
}

fn first_word(text: &str) -> &str {
    text.trim_start().split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default()
}

/// Banned words of a line, once each. Some are banned only in comments.
fn banned(path: &Path, line: usize, text: &str, is_comment: bool) -> Vec<Finding> {
    let lower = text.to_lowercase();
    let words: Vec<&str> = lower.split(|letter: char| !letter.is_alphanumeric()).collect();
    let applies = |word: &&PlainWord| is_comment || !word.only_in_comments;
    let contains =
        |word: &&PlainWord| words.windows(word.words.len()).any(|window| window == word.words);
    PLAIN_WORDS
        .iter()
        .filter(applies)
        .filter(contains)
        .map(|word| {
            let message = format!("`{}`: say {}", word.words.join(" "), word.instead);
            finding(path, line, PLAIN_WORD, message)
        })
        .collect()
}

/// Checks the Markdown files.
pub(super) fn check_documents(root: &Path) -> io::Result<Vec<Finding>> {
    let mut files = Vec::new();
    find(root, Path::new(""), "md", &mut files)?;
    let mut findings = Vec::new();
    for file in files {
        let text = fs::read_to_string(root.join(&file))?;
        findings.extend(check_document(&file, &text));
    }
    Ok(findings)
}

fn check_document(path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut fenced = false;
    for (index, line) in text.lines().enumerate() {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        if fenced || is_fence {
            continue;
        }
        // A table has one line for each row, and a link cannot be broken.
        let breakable =
            !line.trim_start().starts_with('|') && line.trim_start().split("](").count() == 1;
        let width = line.chars().count();
        if breakable && width > MARKDOWN_WIDTH_MAX {
            let message = format!("{width} columns; wrap at {MARKDOWN_WIDTH_MAX}");
            findings.push(finding(path, index + 1, "markdown-width", message));
        }
        findings.extend(banned(path, index + 1, line, false));
    }
    findings
}

fn finding(path: &Path, line: usize, rule: &'static str, message: String) -> Finding {
    Finding { file: PathBuf::from(path), line, rule, message, warning: false }
}

#[cfg(test)]
mod tests {
    use super::super::source::file_for_test;
    use super::*;

    fn found(text: &str) -> Vec<(&'static str, usize)> {
        let file = file_for_test("crates/units/src/lib.rs", text);
        check(&file).into_iter().map(|finding| (finding.rule, finding.line)).collect()
    }

    #[test]
    fn the_first_word_of_a_doc_comment_is_held_to_the_table() {
        let text = "//! What it is.\n//! What follows.\n\n/// Whether it is.\nfn a() {}\n/// Returns it.\nfn b() {}\n";
        assert_eq!(found(text), [(FIRST_WORD, 1), (FIRST_WORD, 4)]);
    }

    #[test]
    fn banned_words_are_found_in_comments_names_and_literals() {
        let text = "// Nobody waits.\nfn begin_anew() {\n    log(\"somebody else\");\n    let NobodyKnows = 1;\n}\n";
        assert_eq!(
            found(text),
            [(PLAIN_WORD, 1), (PLAIN_WORD, 2), (PLAIN_WORD, 3), (PLAIN_WORD, 4)]
        );
    }

    #[test]
    fn parts_of_words_are_other_words() {
        assert_eq!(found("// A wholesale manewer.\nfn a() {}\n"), []);
    }

    #[test]
    fn a_word_may_be_banned_in_comments_alone() {
        assert_eq!(
            found("// Those who wait.\nfn a() { log(\"who may open it\") }\n"),
            [(PLAIN_WORD, 1)]
        );
    }

    #[test]
    fn a_word_in_a_doc_comment_is_found_once() {
        assert_eq!(found("/// It is read anew.\nfn a() {}\n"), [(PLAIN_WORD, 1)]);
    }

    #[test]
    fn markdown_is_wrapped_but_for_tables_links_and_code() {
        let long = "word ".repeat(30);
        let text = format!("{long}\n| {long} |\n```\n{long}\n```\n[{long}](a.md)\n");
        let rules: Vec<_> = check_document(Path::new("a.md"), &text)
            .into_iter()
            .map(|finding| (finding.rule, finding.line))
            .collect();
        assert_eq!(rules, [("markdown-width", 1)]);
    }
}
