//! Our Rust files: their tokens, and which of their lines are tests.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::spanned::Spanned;

use super::rules::REASON_LEN_MIN;

/// One token with its line. A literal's text stands apart, so that no pattern matches inside a string.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Token {
    pub(super) text: String,
    pub(super) line: usize,
    pub(super) literal: Option<String>,
}

impl Token {
    fn new(text: impl Into<String>, line: usize) -> Self {
        Self { text: text.into(), line, literal: None }
    }
}

/// One Rust file.
pub(super) struct File {
    /// Relative to the repository.
    pub(super) path: PathBuf,
    /// The crate's directory name.
    pub(super) krate: String,
    pub(super) text: String,
    pub(super) syntax: syn::File,
    tokens: OnceCell<Vec<Token>>,
    /// Lines, from 1, that are tests; all of them in a file of tests.
    pub(super) test_lines: BTreeSet<usize>,
}

impl File {
    fn new(path: &Path, text: String, syntax: syn::File, all_tests: bool) -> Self {
        let lines = text.lines().count();
        let test_lines = if all_tests { (1..=lines).collect() } else { lines_of_tests(&syntax) };
        let (path, krate) = (path.to_owned(), crate_of(path));
        Self { path, krate, text, syntax, tokens: OnceCell::new(), test_lines }
    }

    /// All tokens in order, groups opened up.
    pub(super) fn tokens(&self) -> &[Token] {
        self.tokens.get_or_init(|| tokens(&self.text))
    }

    /// Returns true if a comment at `line`, or for a whole file anywhere, allows `rule` with a reason.
    pub(super) fn allows(&self, rule: &str, line: usize) -> bool {
        let marker = format!("tidy: allow({rule})");
        self.text.lines().enumerate().any(|(index, text)| {
            let near = line.saturating_sub(1) == index || line.saturating_sub(2) == index;
            let reason = text.split_once(&marker).map(|(_, reason)| reason.trim());
            (near || rule == "file-length")
                && reason.is_some_and(|reason| reason.len() >= REASON_LEN_MIN)
        })
    }
}

/// The tokens of `text`, groups opened up; nothing if it is not Rust.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let mut out = Vec::new();
    if let Ok(stream) = text.parse::<TokenStream>() {
        flatten(stream, &mut out);
    }
    out
}

fn flatten(stream: TokenStream, out: &mut Vec<Token>) {
    for tree in stream {
        let line = tree.span().start().line;
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                out.push(Token::new(open, line));
                let end = group.span_close().start().line;
                flatten(group.stream(), out);
                out.push(Token::new(close, end));
            }
            TokenTree::Literal(literal) => {
                let literal = Some(literal.to_string());
                out.push(Token { literal, ..Token::new("literal", line) });
            }
            TokenTree::Ident(ident) => out.push(Token::new(ident.to_string(), line)),
            TokenTree::Punct(punct) => {
                out.push(Token::new(punct.as_char().to_string(), line));
            }
        }
    }
}

/// Returns true if `#[cfg(test)]` or `#[test]` stands on an item.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string() == "test")
    })
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Const(item) => &item.attrs,
        _ => &[],
    }
}

fn lines_of_tests(syntax: &syn::File) -> BTreeSet<usize> {
    let mut lines = BTreeSet::new();
    for item in &syntax.items {
        if is_test(attributes(item)) {
            let span = item.span();
            lines.extend(span.start().line..=span.end().line);
        }
    }
    lines
}

/// Files that a `#[cfg(test)] mod name;` in `path` may mean.
fn test_modules(path: &Path, syntax: &syn::File) -> Vec<PathBuf> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let parent = path.parent().unwrap_or(Path::new(""));
    let base = match stem.as_str() {
        "lib" | "main" | "mod" => parent.to_owned(),
        _ => parent.join(stem),
    };
    let mut out = Vec::new();
    for item in &syntax.items {
        if let syn::Item::Mod(module) = item
            && module.content.is_none()
            && is_test(&module.attrs)
        {
            let name = module.ident.to_string();
            out.push(base.join(format!("{name}.rs")));
            out.push(base.join(name));
        }
    }
    out
}

/// The crate that a file belongs to: the directory under `crates`, or the top one.
fn crate_of(path: &Path) -> String {
    let mut parts = path.iter().map(|part| part.to_string_lossy().into_owned());
    match parts.next() {
        Some(first) if first == "crates" => parts.next().unwrap_or_default(),
        first => first.unwrap_or_default(),
    }
}

/// Directories of a crate that hold only tests, benches and examples.
const TEST_DIRECTORIES: &[&str] = &["tests", "benches", "examples"];

/// Every Rust file of the workspace.
pub(super) fn load_all(root: &Path) -> io::Result<Vec<File>> {
    let mut paths = Vec::new();
    for top in ["crates", "python", "xtask", "bench", "fuzz"] {
        find(root, Path::new(top), "rs", &mut paths)?;
    }
    let mut parsed = Vec::new();
    let mut tests: Vec<PathBuf> = Vec::new();
    for path in paths {
        let text = fs::read_to_string(root.join(&path))?;
        let syntax = syn::parse_file(&text).map_err(|error| {
            io::Error::other(format!("{}:{}: {error}", path.display(), error.span().start().line))
        })?;
        tests.extend(test_modules(&path, &syntax));
        parsed.push((path, text, syntax));
    }
    let file = |(path, text, syntax): (PathBuf, String, syn::File)| {
        let in_directory = path
            .iter()
            .any(|part| TEST_DIRECTORIES.iter().any(|name| part.to_string_lossy() == *name));
        let in_module = tests.iter().any(|test| path.starts_with(test));
        File::new(&path, text, syntax, in_directory || in_module)
    };
    Ok(parsed.into_iter().map(file).collect())
}

/// Adds the files below `directory` that end in `.extension`, in order.
pub(super) fn find(
    root: &Path,
    directory: &Path,
    extension: &str,
    out: &mut Vec<PathBuf>,
) -> io::Result<()> {
    let full = root.join(directory);
    if !full.is_dir() {
        return Ok(());
    }
    let mut entries: Vec<_> = fs::read_dir(full)?.collect::<io::Result<_>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = directory.join(entry.file_name());
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type()?;
        if kind.is_dir() && name != "target" && name != "no-std" && !name.starts_with('.') {
            find(root, &path, extension, out)?;
        } else if kind.is_file() && name.ends_with(&format!(".{extension}")) {
            out.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
pub(super) fn file_for_test(path: &str, text: &str) -> File {
    let syntax = syn::parse_file(text).expect("the test's source is Rust");
    File::new(Path::new(path), text.to_owned(), syntax, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A module of tests inside a file is not counted, whatever stands around it.
    #[test]
    fn lines_of_a_test_module_are_tests() {
        let file = file_for_test(
            "crates/units/src/lib.rs",
            "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n",
        );
        assert_eq!(file.test_lines.into_iter().collect::<Vec<_>>(), [2, 3, 4, 5]);
    }

    #[test]
    fn a_test_module_in_its_own_file_is_found_beside_or_below() {
        let source = "#[cfg(test)]\nmod tests;\nmod other;\n";
        let syntax = syn::parse_file(source).expect("Rust");
        let below = test_modules(Path::new("crates/a/src/b.rs"), &syntax);
        assert!(below.contains(&PathBuf::from("crates/a/src/b/tests.rs")));
        let beside = test_modules(Path::new("crates/a/src/lib.rs"), &syntax);
        assert!(beside.contains(&PathBuf::from("crates/a/src/tests.rs")));
        assert_eq!(beside.len(), 2, "`other` is no test");
    }

    #[test]
    fn a_crate_is_the_directory_under_crates_or_the_top() {
        assert_eq!(crate_of(Path::new("crates/volume/src/map.rs")), "volume");
        assert_eq!(crate_of(Path::new("bench/src/main.rs")), "bench");
    }

    #[test]
    fn an_allow_needs_its_own_rule_a_near_line_and_a_reason() {
        let text = "// tidy: allow(clock) the sampler's own time\nfn a() {}\nfn b() {}\n\
                    // tidy: allow(print) no\nfn c() {}\n";
        let file = file_for_test("crates/units/src/lib.rs", text);
        assert!(file.allows("clock", 1) && file.allows("clock", 2));
        assert!(!file.allows("clock", 3), "too far away");
        assert!(!file.allows("thread", 2), "another rule");
        assert!(!file.allows("print", 5), "no reason");
    }
}
