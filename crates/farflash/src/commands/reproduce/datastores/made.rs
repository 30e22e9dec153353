//! All that an experiment makes on this machine: processes, mounts, files. Taken back in reverse, whatever happens.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use user_messages::Failure;
use user_messages::output::note;

use super::super::real_time::Server;

/// Something that was made, to be taken back.
enum Step {
    Process(Child),
    Server(Server),
    Command(Vec<String>),
}

/// All that was made, taken back in reverse when this is dropped.
pub(super) struct Made {
    pub(super) directory: PathBuf,
    steps: Vec<Step>,
}

/// A state to which [`Made::back_to`] returns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark(usize);

impl Drop for Made {
    fn drop(&mut self) {
        self.back_to(Mark(0));
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            note(&format!("{} is left behind: {error}", self.directory.display()));
        }
    }
}

pub(super) fn failed(what: String) -> Failure {
    Failure::runtime(
        what,
        "run it as root, with losetup, mkfs.ext4 and /dev/fuse, and 4 GiB free in --out",
    )
}

impl Made {
    pub(super) fn new(out: &Path) -> Result<Self, Failure> {
        let out = out.canonicalize().map_err(|error| failed(format!("--out: {error}")))?;
        let directory = out.join("datastores");
        fs::create_dir(&directory).map_err(|error| {
            let what = format!("{} cannot be made: {error}", directory.display());
            Failure::runtime(what, "remove what another run left there, or name another --out")
        })?;
        Ok(Self { directory, steps: Vec::new() })
    }

    pub(super) fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    pub(super) fn mark(&self) -> Mark {
        Mark(self.steps.len())
    }

    /// Takes back all that was made since `mark`.
    pub(super) fn back_to(&mut self, mark: Mark) {
        while self.steps.len() > mark.0 {
            match self.steps.pop() {
                Some(Step::Process(mut child)) => {
                    let _ = child.kill();
                    let _ = child.wait();
                }
                Some(Step::Command(words)) => {
                    if let Err(error) = run_command(&words) {
                        note(&format!("something is left behind: {error}"));
                    }
                }
                // It ends by being dropped.
                Some(Step::Server(server)) => drop(server),
                None => {}
            }
        }
    }

    /// Runs a command, and `back` at the end.
    pub(super) fn command(&mut self, words: &[&str], back: &[&str]) -> Result<String, Failure> {
        let output = run_command(&owned(words)).map_err(failed)?;
        if !back.is_empty() {
            self.at_the_end(back);
        }
        Ok(output)
    }

    /// Runs a command when all is taken back.
    pub(super) fn at_the_end(&mut self, words: &[&str]) {
        self.steps.push(Step::Command(owned(words)));
    }

    /// Runs a command in the background, with what it says on stderr in `log`, and returns its process.
    pub(super) fn process(
        &mut self,
        mut command: Command,
        log: &str,
    ) -> Result<&mut Child, Failure> {
        let file = fs::File::create(log).map_err(|error| failed(format!("{log}: {error}")))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        // Ctrl-C is for this process, which ends its children in order.
        let child = command.process_group(0).spawn();
        let program = command.get_program().to_string_lossy().into_owned();
        let child =
            child.map_err(|error| failed(format!("{program} cannot be started: {error}")))?;
        self.steps.push(Step::Process(child));
        let Some(Step::Process(child)) = self.steps.last_mut() else { unreachable!("just made") };
        Ok(child)
    }

    pub(super) fn keep(&mut self, server: Server) {
        self.steps.push(Step::Server(server));
    }
}

pub(super) fn own_program() -> Result<String, Failure> {
    let path = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    Ok(path.display().to_string())
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

pub(super) fn run_command(words: &[String]) -> Result<String, String> {
    let (program, arguments) = words.split_first().expect("a program");
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program} cannot be run: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{}` failed: {}", words.join(" "), said.trim()));
    }
    String::from_utf8(output.stdout).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps are taken back in reverse, and one that fails does not keep the others.
    #[test]
    fn all_that_was_made_is_taken_back_in_reverse() {
        let out = tempfile::tempdir().unwrap();
        let log = out.path().join("log");
        let mut made = Made::new(out.path()).unwrap();
        assert!(Made::new(out.path()).is_err(), "another run is under way");
        let mut mark = made.mark();
        for number in 0..4 {
            if number == 3 {
                mark = made.mark();
            }
            let say = format!("echo {number} >>{}", log.display());
            let back = ["sh", "-c", if number == 1 { "exit 1" } else { &say }];
            made.command(&["true"], &back).unwrap();
        }
        made.back_to(mark);
        assert_eq!(fs::read_to_string(&log).unwrap(), "3\n", "nothing before the mark");
        let error = made.command(&["sh", "-c", "echo no >&2; exit 1"], &["false"]).unwrap_err();
        assert!(format!("{error:?}").contains("no"), "{error:?}");
        let directory = made.directory.clone();
        drop(made);
        assert_eq!(fs::read_to_string(log).unwrap(), "3\n2\n0\n");
        assert!(!directory.exists());
    }
}
