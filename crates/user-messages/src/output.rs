//! Results on standard output, and notes on standard error.

use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::time::Instant;

use rustix::fs::{Access, access};

use crate::failure::Failure;

/// Prints a result. A reader that has heard enough (`| head`) is no failure.
pub fn print(
    remedy: &str,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match write(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            let what = format!("the result cannot be printed: {error}");
            Err(Failure::runtime(what, remedy))
        }
        _ => Ok(()),
    }
}

/// Writes a note on progress to stderr. Errors of stderr are ignored.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Says on stderr how far some work is, if it takes long.
pub fn progress(what: &str) -> impl FnMut(u64, u64) + use<> {
    Voice::Notes.progress(what)
}

/// Makes the directory of `--out` if it is missing. Called before the work, so that nothing is done in vain.
pub fn make_directory(path: &Path) -> Result<(), Failure> {
    let made = std::fs::create_dir_all(path).and_then(|()| Ok(access(path, Access::WRITE_OK)?));
    made.map_err(|error| {
        let what = format!("no results can be put into {}: {error}", path.display());
        Failure::runtime(what, "name a directory that can be written with --out")
    })
}

/// A number of things, in words.
pub fn counted(count: u64, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// The channel to which a command reports while it works.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Voice {
    /// By notes on stderr.
    Notes,
    /// In its log.
    Log,
}

impl Voice {
    /// Reports a line of text.
    pub fn say(self, text: &str) {
        match self {
            Self::Notes => note(text),
            Self::Log => tracing::info!("{text}"),
        }
    }

    /// Says how far some work is, if it takes long.
    pub fn progress(self, what: &str) -> impl FnMut(u64, u64) + use<> {
        let (begin, mut progress) = (Instant::now(), report::Progress::new(what));
        move |done, total| {
            if let Some(line) = progress.line(begin.elapsed(), done, total) {
                self.say(&line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_no_several() {
        let counts = [0, 1, 2].map(|count| counted(count, "connection"));
        assert_eq!(counts, ["0 connections", "1 connection", "2 connections"]);
    }
}
