//! Messages in the form that Rust prints for debugging: `{:?}` in a text, `?field` in a line of the log.
//!
//! People read names of variants and fields there that are in no document. Assertions and panics are not looked at, nor
//! `impl Debug`, nor tests.

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::Visit;

use super::Finding;
use super::rules::{DEBUG_FORM_EXEMPT, LOG_MACROS, TEXT_MACROS};
use super::source::File;

pub(super) fn check(file: &File) -> Vec<Finding> {
    if DEBUG_FORM_EXEMPT.contains(&file.krate.as_str()) {
        return Vec::new();
    }
    let mut visitor = Messages { file, findings: Vec::new() };
    visitor.visit_file(&file.syntax);
    visitor.findings
}

struct Messages<'a> {
    file: &'a File,
    findings: Vec<Finding>,
}

impl<'ast> Visit<'ast> for Messages<'_> {
    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let of = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
        if of.is_none_or(|of| of.ident != "Debug") {
            syn::visit::visit_item_impl(self, item);
        }
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if let syn::Meta::List(list) = &attribute.meta
            && list.path.is_ident("error")
        {
            self.look_at_text(list.tokens.clone());
        }
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        let Some(name) = called.path.segments.last().map(|last| last.ident.to_string()) else {
            return;
        };
        let is_log = LOG_MACROS.contains(&name.as_str());
        if is_log {
            self.look_at_fields(called.tokens.clone());
        }
        if is_log || TEXT_MACROS.contains(&name.as_str()) {
            self.look_at_text(called.tokens.clone());
        }
        self.look_within(called.tokens.clone());
    }
}

impl Messages<'_> {
    fn look_at_text(&mut self, tokens: TokenStream) {
        // What an argument calls is looked at for itself.
        for tree in tokens {
            if let TokenTree::Literal(literal) = tree {
                let text = literal.to_string();
                if text.starts_with(['"', 'r'])
                    && [":?}", ":#?}"].iter().any(|it| text.contains(it))
                {
                    self.find(literal.span().start().line, "a text");
                }
            }
        }
    }

    fn look_at_fields(&mut self, tokens: TokenStream) {
        let mut begins = true;
        for tree in tokens {
            match &tree {
                TokenTree::Punct(punct) if punct.as_char() == '?' && begins => {
                    self.find(punct.span().start().line, "a field of the log");
                }
                TokenTree::Punct(punct) => begins = [',', '='].contains(&punct.as_char()),
                _ => begins = false,
            }
        }
    }

    /// Looks at macros in the arguments of a macro, which are tokens and no syntax.
    fn look_within(&mut self, tokens: TokenStream) {
        let trees: Vec<TokenTree> = tokens.into_iter().collect();
        for (index, tree) in trees.iter().enumerate() {
            let TokenTree::Group(group) = tree else { continue };
            let name = match index.checked_sub(2).map(|at| (&trees[at], &trees[at + 1])) {
                Some((TokenTree::Ident(name), TokenTree::Punct(mark))) if mark.as_char() == '!' => {
                    name.to_string()
                }
                _ => String::new(),
            };
            if TEXT_MACROS.contains(&name.as_str()) {
                self.look_at_text(group.stream());
            }
            self.look_within(group.stream());
        }
    }

    fn find(&mut self, line: usize, what: &str) {
        if self.file.test_lines.contains(&line) {
            return;
        }
        let message =
            format!("{what} has a value as Rust prints it for debugging; say it in words");
        let file = self.file.path.clone();
        self.findings.push(Finding { file, line, rule: "debug-form", message, warning: false });
    }
}

#[cfg(test)]
mod tests {
    use super::super::source::file_for_test;
    use super::*;

    #[test]
    fn no_message_has_the_form_for_debugging() {
        let text = "\
fn f() {
    let text = format!(\"{x:?}\");
    tracing::warn!(?pause, shard, \"is not back\");
    tracing::warn!(shard = index, found = ?pause, %error, \"is not back\");
    say(&format!(\"{} at {:#?}\", a, b));
    assert!(x, \"{x:?}\");
    unreachable!(\"{x:?}\");
    println!(\"{}\", vec![format!(\"{x:?}\")].join(\" \"));
    tracing::warn!(shard = find()?, %error, \"{x}\");
}
#[derive(thiserror::Error)]
enum E {
    #[error(\"no {0:?}\")]
    Some(u8),
    #[error(\"no {0}\")]
    Other(u8),
}
impl fmt::Debug for E {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, \"E({:?})\", self.0)
    }
}
impl fmt::Display for E {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, \"{:?}\", self.0)
    }
}
";
        let lines = |path: &str| -> Vec<usize> {
            check(&file_for_test(path, text)).iter().map(|finding| finding.line).collect()
        };
        assert_eq!(lines("crates/volume/src/error.rs"), [2, 3, 4, 5, 8, 13, 25]);
        assert!(lines("crates/simulate/src/main.rs").is_empty());
    }
}
