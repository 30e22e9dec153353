//! Lengths of files and functions. Tests are not counted.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::Finding;
use super::rules::{FILE_LINES_MAX, FILE_LINES_WARN, FUNCTION_LINES_MAX};
use super::source::File;

pub(super) fn check(file: &File) -> Vec<Finding> {
    let mut functions = Functions { file, findings: Vec::new() };
    functions.visit_file(&file.syntax);
    let mut findings = functions.findings;
    findings.extend(file_length(file));
    findings
}

fn file_length(file: &File) -> Option<Finding> {
    let lines = file.text.lines().count() - file.test_lines.len();
    (lines > FILE_LINES_WARN).then(|| Finding {
        file: file.path.clone(),
        line: 1,
        rule: "file-length",
        message: format!(
            "{lines} lines without tests; aim below {FILE_LINES_WARN}, split at {FILE_LINES_MAX}"
        ),
        warning: lines <= FILE_LINES_MAX,
    })
}

struct Functions<'a> {
    file: &'a File,
    findings: Vec<Finding>,
}

impl Functions<'_> {
    fn measure(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let line = signature.fn_token.span().start().line;
        let lines = block.span().end().line - line + 1;
        if lines > FUNCTION_LINES_MAX && !self.file.test_lines.contains(&line) {
            self.findings.push(Finding {
                file: self.file.path.clone(),
                line,
                rule: "function-length",
                message: format!(
                    "`{}` has {lines} lines; at most {FUNCTION_LINES_MAX}",
                    signature.ident
                ),
                warning: false,
            });
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.measure(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.measure(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.measure(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::super::source::file_for_test;
    use super::*;

    fn function_of(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    step();\n".repeat(lines - 2))
    }

    #[test]
    fn the_longest_function_allowed_passes_and_one_line_more_fails() {
        let path = "crates/units/src/a.rs";
        assert_eq!(check(&file_for_test(path, &function_of(FUNCTION_LINES_MAX))), []);
        let findings = check(&file_for_test(path, &function_of(FUNCTION_LINES_MAX + 1)));
        assert_eq!(findings.len(), 1);
        assert_eq!((findings[0].rule, findings[0].line), ("function-length", 1));
    }

    #[test]
    fn a_method_is_a_function() {
        let text = format!("impl A {{\n{}}}\n", function_of(FUNCTION_LINES_MAX + 1));
        assert_eq!(check(&file_for_test("crates/units/src/a.rs", &text)).len(), 1);
    }

    #[test]
    fn a_file_warns_then_fails_and_its_tests_do_not_count() {
        let of = |lines: usize| "const A: u8 = 0;\n".repeat(lines);
        let path = "crates/units/src/a.rs";
        assert_eq!(check(&file_for_test(path, &of(FILE_LINES_WARN))), []);
        assert!(check(&file_for_test(path, &of(FILE_LINES_WARN + 1)))[0].warning);
        assert!(!check(&file_for_test(path, &of(FILE_LINES_MAX + 1)))[0].warning);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", of(FILE_LINES_MAX));
        assert_eq!(check(&file_for_test(path, &tests)), []);
    }
}
