//! Words of commands in advice.

/// Returns `text` as one word of a shell. What no shell can be given is left out.
#[must_use]
pub fn shell_word(text: &str) -> String {
    // Such are the arguments of `--device`; the library quotes `,` and `=` as well.
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_@%+=:,./-".contains(letter);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    let text = text.replace('\0', "");
    // Only a NUL is refused.
    shlex::try_quote(&text).map_or_else(|_| String::new(), std::borrow::Cow::into_owned)
}
