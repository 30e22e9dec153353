//! The code of a file without its comments and its layout: verdicts on mutants outlive changes of these.

use std::io;
use std::str::FromStr as _;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::decided::hash;
use super::list::Position;

/// The tokens of a file, in order. Documentation is none of them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Code {
    tokens: Vec<(Position, String)>,
}

impl Code {
    /// # Errors
    /// The text is no Rust.
    pub(super) fn parse(text: &str) -> io::Result<Self> {
        let stream = TokenStream::from_str(text).map_err(|error| {
            let at = error.span().start();
            io::Error::other(format!("no Rust at line {}, column {}", at.line, at.column + 1))
        })?;
        let mut tokens = Vec::new();
        flatten(stream, &mut tokens);
        Ok(Self { tokens })
    }

    /// Hashes all tokens.
    pub(super) fn hash(&self, seed: u64) -> u64 {
        self.tokens.iter().fold(seed, |sum, (_, token)| hash(b" ", hash(token.as_bytes(), sum)))
    }

    /// Returns how many tokens begin before `position`.
    pub(super) fn before(&self, position: Position) -> usize {
        self.tokens.partition_point(|(start, _)| *start < position)
    }
}

fn flatten(stream: TokenStream, out: &mut Vec<(Position, String)>) {
    let mut trees = stream.into_iter().peekable();
    while let Some(tree) = trees.next() {
        let start = position(tree.span().start());
        match tree {
            TokenTree::Punct(hash) if hash.as_char() == '#' => {
                let bang = trees
                    .next_if(|next| matches!(next, TokenTree::Punct(it) if it.as_char() == '!'));
                if trees.next_if(is_documentation).is_none() {
                    out.push((start, "#".to_owned()));
                    out.extend(bang.map(|_| (start, "!".to_owned())));
                }
            }
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                out.push((start, open.to_owned()));
                let end = position(group.span_close().start());
                flatten(group.stream(), out);
                out.push((end, close.to_owned()));
            }
            other => out.push((start, other.to_string())),
        }
    }
}

/// Returns true for the brackets of `#[doc = …]`, as which comments of documentation come.
fn is_documentation(tree: &TokenTree) -> bool {
    let TokenTree::Group(group) = tree else { return false };
    let mut inner = group.stream().into_iter();
    matches!(inner.next(), Some(TokenTree::Ident(name)) if name == "doc")
        && matches!(inner.next(), Some(TokenTree::Punct(sign)) if sign.as_char() == '=')
}

fn position(at: proc_macro2::LineColumn) -> Position {
    Position { line: at.line, column: at.column + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_layout_are_no_code() {
        let short = Code::parse("fn f(a: u8) -> u8 { a + 1 }").expect("Rust");
        let long = Code::parse(
            "//! A.\n/// B.\n#[doc = \"C\"]\nfn f(\n    a: u8, // D\n) -> u8 {\n    a + 1\n}\n",
        )
        .expect("Rust");
        // The comma behind the last argument is one.
        assert_eq!(long.tokens.len(), short.tokens.len() + 1);
        let long = Code::parse("//! A.\n/// B.\nfn f(a: u8)\n    -> u8 { /* D */ a + 1\n}\n")
            .expect("Rust");
        assert_eq!(long.hash(7), short.hash(7));
        assert_ne!(long.hash(7), short.hash(8));
        let at = |line, column| Position { line, column };
        assert_eq!(long.before(at(4, 23)), short.before(at(1, 23)), "the sum");
        for other in [
            "fn f(a: u8) -> u8 { a + 2 }",
            "fn f(a: u8) -> u8 { a 1 }",
            "#[test] fn f(a: u8) -> u8 { a + 1 }",
        ] {
            assert_ne!(Code::parse(other).expect("Rust").hash(7), short.hash(7), "{other}");
        }
        Code::parse("fn f( {").expect_err("no Rust");
    }
}
