//! Errors that would be told twice: their message has that of the error below, which they also name as their source.
//!
//! What prints an error with its sources then says the same words again.

use syn::visit::Visit;

use super::Finding;
use super::source::File;

pub(super) fn check(file: &File) -> Vec<Finding> {
    let mut visitor = Errors { file, findings: Vec::new() };
    visitor.visit_file(&file.syntax);
    visitor.findings
}

struct Errors<'a> {
    file: &'a File,
    findings: Vec<Finding>,
}

impl<'ast> Visit<'ast> for Errors<'_> {
    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.look(&variant.attrs, &variant.ident, &variant.fields);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.look(&item.attrs, &item.ident, &item.fields);
    }
}

impl Errors<'_> {
    fn look(&mut self, attributes: &[syn::Attribute], ident: &syn::Ident, fields: &syn::Fields) {
        let Some(message) = attributes.iter().find_map(message) else { return };
        let says = |(number, field): (usize, &syn::Field)| {
            let name = field.ident.as_ref().map_or(number.to_string(), ToString::to_string);
            let is_source = name == "source" || field.attrs.iter().any(names_source);
            is_source
                && [format!("{{{name}}}"), format!("{{{name}:")]
                    .iter()
                    .any(|it| message.contains(it))
        };
        if fields.iter().enumerate().any(says) {
            let message = format!(
                "`{ident}`: its message has that of its source; make it transparent, or name no source"
            );
            self.findings.push(Finding {
                file: self.file.path.clone(),
                line: ident.span().start().line,
                rule: "said-twice",
                message,
                warning: false,
            });
        }
    }
}

/// The text of `#[error("…")]`.
fn message(attribute: &syn::Attribute) -> Option<String> {
    match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("error") => Some(list.tokens.to_string()),
        _ => None,
    }
}

fn names_source(attribute: &syn::Attribute) -> bool {
    attribute.path().is_ident("from") || attribute.path().is_ident("source")
}

#[cfg(test)]
mod tests {
    use super::super::source::file_for_test;
    use super::*;

    #[test]
    fn a_message_does_not_have_that_of_its_source() {
        let text = "\
enum E {
    #[error(\"no disk: {0}\")]
    Twice(#[from] Below),
    #[error(\"no disk: {why:?}\")]
    Named { #[source] why: Below },
    #[error(transparent)]
    Once(#[from] Below),
    #[error(\"no disk: {0}\")]
    NoSource(Below),
    #[error(\"no disk\")]
    Apart(#[from] Below),
}
#[error(\"{source}\")]
struct S { source: Below }
";
        let found = check(&file_for_test("crates/volume/src/error.rs", text));
        let lines: Vec<_> = found.iter().map(|finding| (finding.rule, finding.line)).collect();
        assert_eq!(lines, [("said-twice", 3), ("said-twice", 5), ("said-twice", 14)]);
    }
}
