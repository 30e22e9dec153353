//! Source in which every mutant of a file is present, and a number in the environment selects one.
//!
//! cargo-mutants builds the crate once for each mutant, and the build is nearly all of the time. Here a function with
//! mutants gets its body once for each of them and once unchanged:
//! ```text
//! fn free(&self) -> u64 {
//!     match crate::mutant_switch::active(7) {
//!         31 => { self.total + self.used }
//!         32 => { 0 }
//!         _ => { self.total - self.used }
//!     }
//! }
//! ```
//! The crate is then built once. A mutant that does not compile is left out, and found by the line of the error. Two
//! kinds of functions do not take this form, and are left to cargo-mutants itself:
//! - those that return `impl Trait`: the bodies have different types;
//! - those that the compiler evaluates: the switch stays off there, so that a mutant looks as if no test reached it.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use proc_macro2::LineColumn;
use syn::visit::{self, Visit};

use super::list::{Mutant, Position};

/// The environment variable that selects a mutant, by its number.
pub(super) const ACTIVE: &str = "FARFLASH_MUTANT";
/// The environment variable that names a file to which the numbers of functions are appended when they are first called.
pub(super) const REACHED: &str = "FARFLASH_MUTANTS_REACHED";

/// Code at the end of `lib.rs`. The compiler's evaluation of constants sees the functions as they are.
const SWITCH: &str = r#"
#[doc(hidden)]
pub(crate) mod mutant_switch {
    extern crate std;
    use self::std::io::Write as _;
    use self::std::prelude::rust_2021::*;
    use self::std::sync::OnceLock;
    use self::std::sync::atomic::{AtomicBool, Ordering};

    struct State { active: u32, reached: Option<std::path::PathBuf> }
    static STATE: OnceLock<State> = OnceLock::new();
    static SEEN: [AtomicBool; FUNCTIONS] = [const { AtomicBool::new(false) }; FUNCTIONS];

    fn state() -> &'static State {
        STATE.get_or_init(|| State {
            active: std::env::var("ACTIVE_VARIABLE").ok().and_then(|text| text.parse().ok()).unwrap_or(0),
            reached: std::env::var_os("REACHED_VARIABLE").map(Into::into),
        })
    }
    fn look(function: usize) -> u32 {
        let state = state();
        if let Some(path) = &state.reached && !SEEN[function].swap(true, Ordering::Relaxed) {
            let mut file = std::fs::File::options().create(true).append(true).open(path).unwrap();
            file.write_all(std::format!("{function}\n").as_bytes()).unwrap();
        }
        state.active
    }
    const fn none(_: usize) -> u32 { 0 }
    #[inline]
    pub(crate) const fn active(function: usize) -> u32 {
        core::intrinsics::const_eval_select((function,), none, look)
    }
}
"#;

/// A function as its file has it: byte ranges of the file.
#[derive(Clone, Debug)]
struct Function {
    /// Between the braces.
    body: Range<usize>,
    returns_impl: bool,
    constant: bool,
}

/// A mutant's number, the bytes that it replaces, and with what.
type Replacement<'a> = (u32, Range<usize>, &'a str);

/// Outcome of splicing the mutants of one file.
#[derive(Debug, Default)]
pub(super) struct Spliced {
    pub(super) text: String,
    /// Lines, from 1, of the body of each mutant that is in.
    pub(super) lines: Vec<(Range<usize>, u32)>,
    /// The function of each mutant that is in.
    pub(super) functions: BTreeMap<u32, usize>,
    /// Mutants that do not take this form.
    pub(super) left: Vec<u32>,
    /// Mutants of functions that the compiler may evaluate.
    pub(super) constant: Vec<u32>,
}

/// Returns `text` with all of `mutants`, each with its number. Functions are numbered from `first_function`.
pub(super) fn splice(
    text: &str,
    mutants: &[(u32, &Mutant)],
    first_function: usize,
) -> io::Result<Spliced> {
    let starts = line_starts(text);
    let functions = functions(text, &starts)?;
    let mut of_function: BTreeMap<usize, Vec<Replacement<'_>>> = BTreeMap::new();
    let mut out = Spliced::default();
    for (number, mutant) in mutants {
        let range = offset(text, &starts, mutant.start)..offset(text, &starts, mutant.end);
        let holder = functions
            .iter()
            .position(|function| {
                function.body.start <= range.start && range.end <= function.body.end
            })
            .filter(|index| !functions[*index].returns_impl);
        let Some(index) = holder else {
            out.left.push(*number);
            continue;
        };
        if functions[index].constant {
            out.constant.push(*number);
        }
        of_function.entry(index).or_default().push((*number, range, &mutant.replacement));
    }
    let mut copied = 0;
    for (position, (index, mutants)) in of_function.iter().enumerate() {
        let body = functions[*index].body.clone();
        out.text.push_str(&text[copied..body.start]);
        copied = body.end;
        let function = first_function + position;
        bodies(text, body, function, mutants, &mut out);
    }
    out.text.push_str(&text[copied..]);
    Ok(out)
}

/// Writes the body of a function, once with each mutant and once as it is.
fn bodies(
    text: &str,
    body: Range<usize>,
    function: usize,
    mutants: &[Replacement<'_>],
    out: &mut Spliced,
) {
    out.text.push_str(&format!("\nmatch crate::mutant_switch::active({function}) {{\n"));
    for (number, range, replacement) in mutants {
        let first = out.text.matches('\n').count() + 1;
        let (before, behind) = (&text[body.start..range.start], &text[range.end..body.end]);
        out.text.push_str(&format!("{number} => {{ {before}{replacement} {behind}\n}}\n"));
        let end = out.text.matches('\n').count() + 1;
        out.lines.push((first..end, *number));
        out.functions.insert(*number, function);
    }
    out.text.push_str(&format!("_ => {{ {}\n}}\n}}\n", &text[body]));
}

/// Returns `lib.rs` with the switch.
pub(super) fn with_switch(lib: &str, functions: usize) -> String {
    let switch = SWITCH
        .replace("FUNCTIONS", &functions.max(1).to_string())
        .replace("ACTIVE_VARIABLE", ACTIVE)
        .replace("REACHED_VARIABLE", REACHED);
    // On one line with what was the first, so that lines keep their numbers.
    format!("#![allow(warnings)] #![feature(core_intrinsics, const_eval_select)] {lib}{switch}")
}

/// Finds the outermost functions: those that lie within another are part of its body.
fn functions(text: &str, starts: &[usize]) -> io::Result<Vec<Function>> {
    struct Visitor<'a> {
        text: &'a str,
        starts: &'a [usize],
        out: Vec<Function>,
    }
    impl Visitor<'_> {
        fn add(&mut self, signature: &syn::Signature, block: &syn::Block) {
            let braces = block.brace_token.span;
            let at = |place: LineColumn| {
                let position = Position { line: place.line, column: place.column + 1 };
                offset(self.text, self.starts, position)
            };
            self.out.push(Function {
                body: at(braces.open().end())..at(braces.close().start()),
                returns_impl: returns_impl(&signature.output),
                constant: signature.constness.is_some(),
            });
        }
    }
    impl<'ast> Visit<'ast> for Visitor<'_> {
        fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
            self.add(&item.sig, &item.block);
        }
        fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
            self.add(&item.sig, &item.block);
        }
        fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
            if let Some(block) = &item.default {
                self.add(&item.sig, block);
            }
        }
    }
    let syntax = syn::parse_file(text).map_err(|error| {
        io::Error::other(format!("{error} in line {}", error.span().start().line))
    })?;
    let mut visitor = Visitor { text, starts, out: Vec::new() };
    visitor.visit_file(&syntax);
    Ok(visitor.out)
}

/// Returns true if `impl` stands anywhere in the type that a function returns.
fn returns_impl(output: &syn::ReturnType) -> bool {
    struct Finder(bool);
    impl<'ast> Visit<'ast> for Finder {
        fn visit_type_impl_trait(&mut self, item: &'ast syn::TypeImplTrait) {
            self.0 = true;
            visit::visit_type_impl_trait(self, item);
        }
    }
    let mut finder = Finder(false);
    finder.visit_return_type(output);
    finder.0
}

fn line_starts(text: &str) -> Vec<usize> {
    std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect()
}

/// Returns the byte at which `position` is.
fn offset(text: &str, starts: &[usize], position: Position) -> usize {
    let line = starts[position.line - 1];
    let mut characters = text[line..].char_indices();
    characters.nth(position.column - 1).map_or(text.len(), |(at, _)| line + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
const SIZE: usize = 4 + 4;
fn sum(a: u8, b: u8) -> u8 {
    let é = \"é\"; a + b
}
fn all() -> impl Iterator<Item = u8> { 0..1 + 1 }
const fn twice(a: u8) -> u8 { a * 2 }
";

    fn mutant(line: usize, column: usize, replacement: &str) -> Mutant {
        Mutant {
            place: String::new(),
            name: format!("{line}:{column}"),
            file: String::new(),
            start: Position { line, column },
            end: Position { line, column: column + 1 },
            replacement: replacement.to_owned(),
            argued: false,
        }
    }

    /// Each mutant has a body of its own, found by its lines; what does not take this form is left as it is.
    #[test]
    fn a_function_has_a_body_for_each_mutant_and_one_without() {
        let mutants = [
            mutant(1, 23, "-"),
            mutant(3, 20, "-"),
            mutant(3, 20, "*"),
            mutant(5, 44, "-"),
            mutant(6, 33, "+"),
        ];
        let numbered: Vec<(u32, &Mutant)> = (1..).zip(&mutants).collect();
        let spliced = splice(SOURCE, &numbered, 7).expect("it is Rust");
        assert_eq!((spliced.left, spliced.constant), (vec![1, 4], vec![5]));
        assert_eq!(spliced.functions, BTreeMap::from([(2, 7), (3, 7), (5, 8)]));
        let lines: Vec<&str> = spliced.text.lines().collect();
        for (range, number) in &spliced.lines {
            let body = lines[range.start - 1..range.end - 1].join("\n");
            let expected = ["a - b", "a * b", "a + 2"]
                [[2, 3, 5].iter().position(|n| n == number).expect("in")];
            assert!(body.starts_with(&format!("{number} => ")), "{body}");
            let words: Vec<&str> = body.split_whitespace().collect();
            assert!(words.join(" ").contains(expected), "{body}");
        }
        assert_eq!(spliced.text.matches("a + b").count(), 1);
        assert!(syn::parse_file(&with_switch(&spliced.text, 9)).is_ok());
    }
}
