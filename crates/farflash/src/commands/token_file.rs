//! Files with tokens and passwords, as their owners name them.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use auth::{token_in, without_mark};
use user_messages::output;
use user_messages::shell;

/// A secret, and comments about it.
const FILE_BYTES_MAX: u64 = 4096;
/// Mode bit by which a file can be read by users that neither own it nor are of its group.
const OTHERS_READ: u32 = 0o004;

/// Returns the token in the file at `path`. Says on stderr if every user can read the file.
pub(super) fn read(path: &Path) -> io::Result<String> {
    let text = read_text(path, "token")?;
    token_in(&text).map(str::to_owned).map_err(io::Error::other)
}

/// Returns the password in the first line of the file at `path`. Says on stderr if every user can read the file.
pub(super) fn read_password(path: &Path) -> io::Result<String> {
    let text = read_text(path, "password")?;
    password(&text).map(str::to_owned).map_err(io::Error::other)
}

fn read_text(path: &Path, what: &str) -> io::Result<String> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.permissions().mode() & OTHERS_READ != 0 {
        let (shown, word) = (path.display(), shell::path(path));
        output::note(&format!(
            "warning: every user of this machine can read the {what} in {shown}: `chmod 600 {word}`"
        ));
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Returns the password in `text`: its first line, whatever characters it has.
fn password(text: &str) -> Result<&str, &'static str> {
    let line = without_mark(text).lines().next().unwrap_or_default();
    if line.is_empty() { Err("there is no password in its first line") } else { Ok(line) }
}

#[cfg(test)]
mod tests {
    use super::password;

    #[test]
    fn a_password_is_the_first_line_behind_a_mark() {
        for text in ["# a b\n", "\u{feff}# a b\r\nold\n", "# a b"] {
            assert_eq!(password(text), Ok("# a b"), "{text:?}");
        }
        assert!(["", "\n# a b", "\u{feff}"].iter().all(|text| password(text).is_err()));
    }
}
