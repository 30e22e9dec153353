//! Tokens and passwords in texts, such as files that their owners edit.

/// A text that has no token, or more than one.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum TokenTextError {
    /// It is empty, but for comments.
    #[error("there is no token in it")]
    Nothing,
    /// It has two lines that are no comments.
    #[error("there is more than one line in it, beside comments that begin with #")]
    Lines,
    /// A token has printable characters of ASCII alone.
    #[error("there is a space or a special character in its token")]
    Character,
}

/// Returns `text` without the byte-order mark with which some editors begin a file.
#[must_use]
pub fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Returns the token in `text`: its only line that is neither empty nor a comment.
///
/// # Errors
/// There is none, or more than that.
pub fn token_in(text: &str) -> Result<&str, TokenTextError> {
    let mut lines = without_mark(text)
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let token = lines.next().ok_or(TokenTextError::Nothing)?;
    if lines.next().is_some() {
        return Err(TokenTextError::Lines);
    }
    match token.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(token),
        false => Err(TokenTextError::Character),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_found_among_comments_and_behind_a_mark() {
        for text in ["ab-1", " ab-1\r\n", "\u{feff}ab-1\n", "# of acme\n\nab-1\n# until May\n"] {
            assert_eq!(token_in(text), Ok("ab-1"), "{text:?}");
        }
    }

    #[test]
    fn anything_else_is_refused_by_its_name() {
        for (text, why) in [
            ("", TokenTextError::Nothing),
            ("# nothing\n", TokenTextError::Nothing),
            ("ab\ncd\n", TokenTextError::Lines),
            ("ab cd", TokenTextError::Character),
            ("ab\u{7}", TokenTextError::Character),
            ("\u{e4}b", TokenTextError::Character),
        ] {
            assert_eq!(token_in(text), Err(why), "{text:?}");
        }
    }
}
