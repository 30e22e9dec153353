//! A mistake in a TOML file that a person wrote, in one line: unlike the parser's own message, it fits into a line
//! of a log, and into a message that begins with the name of the file.

use std::collections::BTreeMap;
use std::fmt;

use toml::{Spanned, Value};

/// A mistake in a TOML file: where it is, and what it is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TomlMistake {
    /// The line, from 1 on.
    line: usize,
    /// The key on that line, where the message does not name it.
    key: Option<String>,
    message: String,
}

impl TomlMistake {
    /// Describes `error` in `text`.
    #[must_use]
    pub fn new(text: &str, error: &toml::de::Error) -> Self {
        let line = line_at(text, error.span().map_or(0, |span| span.start));
        let message = error.message().to_owned();
        let key = text.lines().nth(line - 1).and_then(|line| line.split_once('='));
        let key = key.map(|(key, _)| key.trim().to_owned());
        let is_about_another =
            |key: &String| message.contains(&format!("`{key}`")) || message.starts_with("missing");
        let key = key.filter(|key| !is_about_another(key));
        Self { line, key, message }
    }

    /// A mistake in what `text`, which is TOML, says of the top-level `key`; `message` names the key. `None` if it says
    /// nothing of it.
    #[must_use]
    pub fn of_key(text: &str, key: &str, message: String) -> Option<Self> {
        let values: BTreeMap<String, Spanned<Value>> = toml::from_str(text).ok()?;
        let line = line_at(text, values.get(key)?.span().start);
        Some(Self { line, key: None, message })
    }
}

/// The line, from 1 on, of a place in a text.
fn line_at(text: &str, start: usize) -> usize {
    text.get(..start).unwrap_or_default().matches('\n').count() + 1
}

impl fmt::Display for TomlMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: ", self.line)?;
        if let Some(key) = &self.key {
            write!(f, "`{key}`: ")?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for TomlMistake {}
