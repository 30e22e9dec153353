//! The command line of `cargo xtask mutants run`.

use std::io;
use std::time::Duration;

pub(super) const USAGE: &str = "usage: cargo xtask mutants run [--package NAME]... [--file PART]... [--jobs N] \
    [--shard K/N] [--minutes N] [--sample N --seed N] [--keep-caught] [--quick] [--all-tests] [--diff BASE]\n       cargo xtask mutants report";

/// Part `index` of `count`, from 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shard {
    pub(super) index: u64,
    pub(super) count: u64,
}

/// Options of a run: its mutants and its time.
#[derive(Clone, Debug)]
pub(super) struct Options {
    /// None: all that have a plan.
    pub(super) packages: Vec<String>,
    /// Parts of the paths of files; none: all.
    pub(super) files: Vec<String>,
    pub(super) jobs: usize,
    pub(super) shard: Shard,
    /// No mutant is begun after this time.
    pub(super) time: Option<Duration>,
    /// This many mutants of each crate, chosen by `seed`.
    pub(super) sample: Option<usize>,
    pub(super) seed: u64,
    /// A mutant that tests of another content caught is taken for caught.
    pub(super) keep_caught: bool,
    /// Leave out the mutants that need a build of their own.
    pub(super) quick: bool,
    /// Take the files and test programs that a crate's plan leaves out.
    pub(super) all_tests: bool,
    /// Only mutants in lines that differ from this commit. The committed results stay as they are.
    pub(super) diff: Option<String>,
}

impl Options {
    pub(super) fn parse(arguments: &[&str]) -> io::Result<Self> {
        let mut options = Self {
            packages: Vec::new(),
            files: Vec::new(),
            jobs: 2,
            shard: Shard { index: 0, count: 1 },
            time: None,
            sample: None,
            seed: 1,
            keep_caught: false,
            quick: false,
            all_tests: false,
            diff: None,
        };
        let mut rest = arguments.iter();
        while let Some(name) = rest.next() {
            match *name {
                "--keep-caught" => options.keep_caught = true,
                "--quick" => options.quick = true,
                "--all-tests" => options.all_tests = true,
                _ => {
                    let value = rest.next().ok_or_else(|| io::Error::other(USAGE))?;
                    options.set(name, value).ok_or_else(|| io::Error::other(USAGE))?;
                }
            }
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "--package" => self.packages.push(value.to_owned()),
            "--file" => self.files.push(value.to_owned()),
            "--jobs" => self.jobs = value.parse().ok()?,
            "--shard" => {
                let (index, count) = value.split_once('/')?;
                self.shard = Shard { index: index.parse().ok()?, count: count.parse().ok()? };
                if self.shard.index >= self.shard.count {
                    return None;
                }
            }
            "--minutes" => {
                self.time = Some(Duration::from_secs_f64(value.parse::<f64>().ok()? * 60.0))
            }
            "--sample" => self.sample = Some(value.parse().ok()?),
            "--seed" => self.seed = value.parse().ok()?,
            "--diff" => self.diff = Some(value.to_owned()),
            _ => return None,
        }
        Some(())
    }
}
