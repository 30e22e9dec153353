//! What is wrong with a TOML file that a person wrote, in one line.

use std::fmt;

/// A mistake in a TOML file: where it is, and what it is. It fits into a line of a log, unlike the parser's own words.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TomlMistake {
    /// The line, from 1 on.
    line: usize,
    /// The key on that line, where the message does not name it.
    key: Option<String>,
    message: String,
}

impl TomlMistake {
    /// What `error` says of `text`.
    #[must_use]
    pub fn new(text: &str, error: &toml::de::Error) -> Self {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let above = before.matches('\n').count();
        let message = error.message().to_owned();
        let key = text.lines().nth(above).and_then(|line| line.split_once('='));
        let key = key.map(|(key, _)| key.trim().to_owned());
        let key = key.filter(|key| !message.contains(&format!("`{key}`")));
        Self { line: above + 1, key, message }
    }
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
