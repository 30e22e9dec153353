//! Verdicts on single mutants on this machine, so that a run goes on where the last one ended.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Mutex;

use super::list::Mutant;

/// The verdict on a mutant.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    /// A test failed.
    Caught,
    /// A test did not end.
    TimedOut,
    /// All tests passed.
    Missed,
    /// It does not compile.
    Unviable,
}

const WORDS: [(Verdict, &str); 4] = [
    (Verdict::Caught, "caught"),
    (Verdict::TimedOut, "timeout"),
    (Verdict::Missed, "missed"),
    (Verdict::Unviable, "unviable"),
];

/// Hashes of the code that a verdict depends on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Content {
    /// The file with the mutant.
    pub(super) source: u64,
    /// All files of the crate with tests.
    pub(super) tests: u64,
}

/// The verdicts, kept in a file to which each is appended.
#[derive(Debug)]
pub(super) struct Decided {
    file: Mutex<File>,
    /// By the file's content and the mutant; with the content of the tests.
    verdicts: BTreeMap<String, (u64, Verdict)>,
    /// Take for caught what tests of another content caught.
    keep_caught: bool,
}

impl Decided {
    pub(super) fn open(path: &Path, keep_caught: bool) -> io::Result<Self> {
        let text = fs::read_to_string(path).unwrap_or_default();
        let mut verdicts = BTreeMap::new();
        for line in text.lines() {
            let mut parts = line.splitn(3, '\t');
            let (Some(word), Some(tests), Some(key)) = (parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            let verdict = WORDS.iter().find(|(_, name)| *name == word).map(|(verdict, _)| *verdict);
            if let (Some(verdict), Ok(tests)) = (verdict, u64::from_str_radix(tests, 16)) {
                verdicts.insert(key.to_owned(), (tests, verdict));
            }
        }
        let file = Mutex::new(File::options().create(true).append(true).open(path)?);
        Ok(Self { file, verdicts, keep_caught })
    }

    /// Returns what was found out with the same content.
    pub(super) fn verdict(&self, mutant: &Mutant, content: Content) -> Option<Verdict> {
        let (tests, verdict) = *self.verdicts.get(&key(mutant, content))?;
        let kept = match verdict {
            Verdict::Unviable => true,
            Verdict::Caught | Verdict::TimedOut => self.keep_caught,
            Verdict::Missed => false,
        };
        (kept || tests == content.tests).then_some(verdict)
    }

    pub(super) fn record(
        &self,
        mutant: &Mutant,
        content: Content,
        verdict: Verdict,
    ) -> io::Result<()> {
        let word = WORDS.iter().find(|(each, _)| *each == verdict).map_or("", |(_, word)| word);
        let line = format!("{word}\t{:016x}\t{}\n", content.tests, key(mutant, content));
        self.file.lock().expect("no holder panics").write_all(line.as_bytes())
    }
}

fn key(mutant: &Mutant, content: Content) -> String {
    format!("{:016x} {} {}", content.source, mutant.file, mutant.place)
}

/// Hashes bytes, FNV-1a: only to tell contents apart.
pub(super) fn hash(bytes: &[u8], seed: u64) -> u64 {
    bytes.iter().fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
