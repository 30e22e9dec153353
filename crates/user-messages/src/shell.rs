//! Words of commands that a person is told to run, as a shell takes them.

use std::path::Path;

pub use control::shell_word as word;

/// The argument of `--device` for a file or drive.
pub fn device(path: &Path) -> String {
    word(&format!("file:{}", path.display()))
}

/// A path.
pub fn path(path: &Path) -> String {
    word(&path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_quoted_where_a_shell_would_take_it_apart() {
        assert_eq!(device(Path::new("/srv/flash.img")), "file:/srv/flash.img");
        for odd in ["/srv/my images/a", "/srv/it's", "/srv/$(reboot)", "/srv/a;b", "/srv/*"] {
            let told = format!("printf %s {}", device(Path::new(odd)));
            let output = std::process::Command::new("sh").args(["-c", &told]).output();
            let said = output.expect("a shell").stdout;
            assert_eq!(String::from_utf8_lossy(&said), format!("file:{odd}"));
        }
    }
}
