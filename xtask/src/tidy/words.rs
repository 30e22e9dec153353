//! Words and calls that have no place, or only some places.

use syn::visit::Visit;

use super::Finding;
use super::rules::{CALLS, Call, NO_STD, Place, WORDS};
use super::source::{File, Token, tokens};

pub(super) fn check(file: &File) -> Vec<Finding> {
    let mut findings = calls(file);
    findings.extend(words(file));
    findings.extend(missing_no_std(file));
    findings
}

fn applies(place: Place, krate: &str) -> bool {
    match place {
        Place::AllBut(crates) => !crates.contains(&krate),
        Place::Only(crates) => crates.contains(&krate),
    }
}

fn calls(file: &File) -> Vec<Finding> {
    let found_in = file.tokens();
    let mut findings = Vec::new();
    for call in CALLS.iter().filter(|call| applies(call.place, &file.krate)) {
        let pattern = pattern(call);
        for window in found_in.windows(pattern.len()) {
            let line = window[0].line;
            let matches = window.iter().map(|token| &token.text).eq(&pattern);
            if matches && (call.in_tests_too || !file.test_lines.contains(&line)) {
                let message = format!("`{}`: {}", call.pattern, call.why);
                findings.push(finding(file, line, call.rule, message));
            }
        }
    }
    findings
}

/// The pattern's tokens. An open bracket at its end stands for itself: alone it would not be balanced,
/// so it is closed for the tokenizer and cut off again.
fn pattern(call: &Call) -> Vec<String> {
    let opens = call.pattern.ends_with('(');
    let closed = if opens { format!("{})", call.pattern) } else { call.pattern.to_owned() };
    let mut texts: Vec<String> =
        tokens(&closed).into_iter().map(|Token { text, .. }| text).collect();
    if opens {
        texts.pop();
    }
    texts
}

fn words(file: &File) -> Vec<Finding> {
    // These tables are the one place that must spell the words out.
    if file.path.ends_with("xtask/src/tidy/rules.rs") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (index, text) in file.text.lines().enumerate() {
        for word in WORDS.iter().filter(|word| text.contains(**word)) {
            findings.push(finding(file, index + 1, "word", format!("`{word}`: finish it")));
        }
    }
    findings
}

/// Finds `no_std` among a file's own attributes, also inside a `cfg_attr`.
#[derive(Default)]
struct NoStd {
    found: bool,
}

impl<'ast> Visit<'ast> for NoStd {
    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        let tokens = match &attribute.meta {
            syn::Meta::List(list) => list.tokens.to_string(),
            _ => String::new(),
        };
        self.found |= attribute.path().is_ident("no_std")
            || attribute.path().is_ident("cfg_attr") && tokens.ends_with("no_std");
    }
}

fn missing_no_std(file: &File) -> Option<Finding> {
    if !NO_STD.contains(&file.krate.as_str()) || !file.path.ends_with("src/lib.rs") {
        return None;
    }
    let mut visitor = NoStd::default();
    file.syntax.attrs.iter().for_each(|attribute| visitor.visit_attribute(attribute));
    let message = || "this crate decides on bytes alone and says `#![no_std]`".to_owned();
    (!visitor.found).then(|| finding(file, 1, "no-std", message()))
}

fn finding(file: &File, line: usize, rule: &'static str, message: String) -> Finding {
    Finding { file: file.path.clone(), line, rule, message, warning: false }
}

#[cfg(test)]
mod tests {
    use super::super::source::file_for_test;
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<(&'static str, usize)> {
        check(&file_for_test(path, text))
            .into_iter()
            .map(|finding| (finding.rule, finding.line))
            .collect()
    }

    #[test]
    fn a_call_is_found_by_its_tokens_not_in_strings_or_comments() {
        let text = "// todo!()\nfn a() {\n    let _ = \"todo!()\";\n    todo ! ()\n}\n";
        assert_eq!(rules("crates/volume/src/lib.rs", text), [("todo", 4)]);
    }

    #[test]
    fn a_call_inside_a_macro_is_found() {
        let text = "fn a() {\n    assert!(b.unwrap() > 1);\n}\n";
        assert_eq!(rules("crates/layout/src/map.rs", text), [("unwrap", 2)]);
        assert_eq!(rules("crates/volume/src/map.rs", text), []);
    }

    #[test]
    fn tests_may_unwrap_but_not_leave_work_open() {
        let text = "#[cfg(test)]\nmod tests {\n    fn a() { b.unwrap(); todo!() }\n}\n";
        assert_eq!(rules("crates/layout/src/map.rs", text), [("todo", 3)]);
    }

    #[test]
    fn an_ignored_test_needs_a_reason() {
        let text = "#[ignore]\nfn a() {}\n#[ignore = \"slow\"]\nfn b() {}\n";
        let found = rules("crates/volume/src/a.rs", text);
        assert_eq!(found, [("ignored-test", 1)]);
    }

    #[test]
    fn clocks_threads_and_unsafe_have_their_homes() {
        let text =
            "fn a() {\n    Instant::now();\n    std::thread::spawn(f);\n    unsafe { g() }\n}\n";
        let found = rules("crates/volume/src/a.rs", text);
        assert_eq!(found, [("clock", 2), ("thread", 3), ("unsafe", 4)]);
        assert_eq!(rules("crates/reactor/src/a.rs", text), [("unsafe", 4)]);
    }

    #[test]
    fn a_byte_crate_without_no_std_is_found() {
        assert_eq!(rules("crates/units/src/lib.rs", "//! Units.\n"), [("no-std", 1)]);
        assert_eq!(rules("crates/units/src/lib.rs", "#![no_std]\n"), []);
        let conditional = "#![cfg_attr(not(test), no_std)]\n";
        assert_eq!(rules("crates/units/src/lib.rs", conditional), []);
    }
}
