//! A copy of the repository in which a crate is built with all of its mutants.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::deadline::Deadline;
use super::list::Mutant;
use super::splice::{self, Spliced};

/// Builds until all mutants that do not compile are found. Each finds more: the compiler checks types, then borrows.
const BUILDS_MAX: usize = 20;

/// The package of the simulator, and the name of its program among those of tests.
const SIMULATOR: &str = "simulate";

/// The copy, and where it is built. Both stay, so that the next build is short.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) root: PathBuf,
    target: PathBuf,
}

/// One program of tests.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Program {
    /// `lib`, or the name of the file or folder in `tests/`.
    pub(super) name: String,
    pub(super) executable: PathBuf,
    /// The crate's folder, in which its tests run.
    pub(super) directory: PathBuf,
}

/// A crate built with its mutants. Numbers are indices into the list of mutants, plus one.
#[derive(Debug, Default)]
pub(super) struct Built {
    pub(super) programs: Vec<Program>,
    /// The function of each mutant that a test can be run with.
    pub(super) functions: BTreeMap<u32, usize>,
    pub(super) unviable: BTreeSet<u32>,
    /// Mutants that are left to cargo-mutants.
    pub(super) left: BTreeSet<u32>,
    /// Mutants of functions that the compiler may evaluate.
    pub(super) constant: BTreeSet<u32>,
}

impl Tree {
    /// Makes the copy under `parent` equal to the repository at `root`. Files that are equal keep their times.
    pub(super) fn prepare(root: &Path, parent: &Path) -> io::Result<Self> {
        let tree = Self { root: parent.join("tree"), target: parent.join("target") };
        let list = Command::new("git")
            .current_dir(root)
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .output()?;
        let names: BTreeSet<PathBuf> = list
            .stdout
            .split(|byte| *byte == 0)
            .map(|name| PathBuf::from(String::from_utf8_lossy(name).into_owned()))
            .filter(|name| !name.as_os_str().is_empty() && root.join(name).is_file())
            .collect();
        for name in &names {
            let copy = tree.root.join(name);
            let content = fs::read(root.join(name))?;
            if fs::read(&copy).ok().as_ref() != Some(&content) {
                fs::create_dir_all(copy.parent().expect("a file lies in a folder"))?;
                // With its permissions: scripts are run by tests.
                fs::copy(root.join(name), &copy)?;
                touch(&copy)?;
            }
        }
        tree.remove_others(&tree.root, &names)?;
        Ok(tree)
    }

    fn remove_others(&self, directory: &Path, names: &BTreeSet<PathBuf>) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.strip_prefix(&self.root).expect("it lies within");
            if path.is_dir() {
                self.remove_others(&path, names)?;
            } else if !names.contains(name) {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// Builds the test programs of `package` with all of `mutants` that compile.
    pub(super) fn build(
        &self,
        package: &str,
        mutants: &[Mutant],
        deadline: Deadline,
    ) -> io::Result<Built> {
        let mut built = Built::default();
        let originals = self.originals(package, mutants)?;
        for _ in 0..BUILDS_MAX {
            let spliced = self.write(package, mutants, &originals, &mut built)?;
            if built.functions.is_empty() {
                return Ok(built);
            }
            let output =
                self.cargo(package, &["test", "--no-run", "--lib", "--tests"], deadline)?;
            let errors = errors(&output)?;
            if errors.is_empty() {
                built.programs = programs(&output)?;
                return Ok(built);
            }
            let before = built.unviable.len() + built.left.len();
            for error in &errors {
                blame(error, &spliced, &mut built)?;
            }
            assert!(
                built.unviable.len() + built.left.len() > before,
                "each error leaves out a mutant"
            );
        }
        Err(io::Error::other(format!("{package}: {BUILDS_MAX} builds were not enough")))
    }

    /// Builds the simulator with the mutants that the last [`Tree::build`] left in the copy.
    pub(super) fn build_simulator(&self, deadline: Deadline) -> io::Result<Program> {
        let messages = self.cargo(SIMULATOR, &["build", "--bins"], deadline)?;
        let mut artifacts = messages.iter().filter(|message| message["target"]["kind"][0] == "bin");
        let found = artifacts.find_map(|message| message["executable"].as_str());
        let executable = found.ok_or_else(|| io::Error::other("no simulator was built"))?;
        Ok(Program {
            name: SIMULATOR.to_owned(),
            executable: executable.into(),
            directory: self.root.clone(),
        })
    }

    /// Reads the files with mutants, and `lib.rs`, as they are without.
    fn originals(&self, package: &str, mutants: &[Mutant]) -> io::Result<BTreeMap<String, String>> {
        let lib = format!("crates/{package}/src/lib.rs");
        let files: BTreeSet<&str> =
            mutants.iter().map(|mutant| mutant.file.as_str()).chain([lib.as_str()]).collect();
        files
            .into_iter()
            .map(|file| Ok((file.to_owned(), fs::read_to_string(self.root.join(file))?)))
            .collect()
    }

    fn write(
        &self,
        package: &str,
        mutants: &[Mutant],
        originals: &BTreeMap<String, String>,
        built: &mut Built,
    ) -> io::Result<BTreeMap<String, Spliced>> {
        built.functions.clear();
        let mut spliced = BTreeMap::new();
        let mut functions = 0;
        for (file, text) in originals {
            let of_file: Vec<(u32, &Mutant)> = (1..)
                .zip(mutants)
                .filter(|(number, mutant)| {
                    mutant.file == *file
                        && !built.unviable.contains(number)
                        && !built.left.contains(number)
                })
                .collect();
            let result = splice::splice(text, &of_file, functions)?;
            functions = result.functions.values().max().map_or(functions, |last| last + 1);
            built.left.extend(&result.left);
            built.constant.extend(&result.constant);
            built.functions.extend(&result.functions);
            spliced.insert(file.clone(), result);
        }
        let lib = format!("crates/{package}/src/lib.rs");
        for (file, result) in &spliced {
            let path = self.root.join(file);
            let text = if *file == lib {
                splice::with_switch(&result.text, functions)
            } else {
                result.text.clone()
            };
            if fs::read_to_string(&path)? != text {
                fs::write(&path, text)?;
            }
        }
        Ok(spliced)
    }

    /// Lets cargo build as all builds of mutants do, so that they share what they build.
    pub(super) fn environment(&self, command: &mut Command) {
        command.env("CARGO_TARGET_DIR", &self.target);
        command.env("CARGO_PROFILE_DEV_DEBUG", "false");
    }

    /// Writes the script through which the compiler is called for crates of the workspace.
    fn wrapper(&self) -> io::Result<PathBuf> {
        let path = self.target.with_file_name("rustc-wrapper");
        if !path.exists() {
            fs::write(&path, "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec \"$@\"\n")?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
        Ok(path)
    }

    fn cargo(
        &self,
        package: &str,
        arguments: &[&str],
        deadline: Deadline,
    ) -> io::Result<Vec<Value>> {
        let mut command = Command::new("cargo");
        self.environment(&mut command);
        command
            .current_dir(&self.root)
            .args(arguments)
            .args(["--package", package, "--locked", "--message-format=json"])
            // The switch of functions that are `const` is made of what stable Rust does not have. Set for cargo, the
            // variable would let dependencies build themselves in another way.
            .env("RUSTC_WORKSPACE_WRAPPER", self.wrapper()?);
        let output = deadline.output(&mut command)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let messages: Vec<Value> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if !output.status.success() && errors(&messages)?.is_empty() {
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            let command = arguments[0];
            return Err(io::Error::other(format!("cargo {command} of {package}: {message}")));
        }
        Ok(messages)
    }
}

/// Gives a file the time of now: a copy has a new content, and cargo goes by time.
fn touch(path: &Path) -> io::Result<()> {
    fs::File::options().append(true).open(path)?.set_modified(std::time::SystemTime::now())
}

/// Leaves out the mutants in whose bodies an error lies, or the function if its own body does not compile so.
fn blame(error: &Value, files: &BTreeMap<String, Spliced>, built: &mut Built) -> io::Result<()> {
    let spans = error["spans"].as_array().map(Vec::as_slice).unwrap_or_default();
    let (primary, others): (Vec<&Value>, Vec<&Value>) =
        spans.iter().partition(|span| span["is_primary"] == true);
    for span in primary.into_iter().chain(others) {
        if let Some(number) = mutant_at(outermost(span), files) {
            built.unviable.insert(number);
            return Ok(());
        }
    }
    Err(io::Error::other(format!("an error outside of all mutants: {}", error["rendered"])))
}

/// Returns the place in our own file from which a macro was expanded.
fn outermost(span: &Value) -> &Value {
    let mut span = span;
    while span["expansion"].is_object() {
        span = &span["expansion"]["span"];
    }
    span
}

fn mutant_at(span: &Value, files: &BTreeMap<String, Spliced>) -> Option<u32> {
    let line = usize::try_from(span["line_start"].as_u64()?).ok()?;
    let lines: &[(Range<usize>, u32)] = &files.get(span["file_name"].as_str()?)?.lines;
    lines.iter().find(|(range, _)| range.contains(&line)).map(|(_, number)| *number)
}

fn errors(messages: &[Value]) -> io::Result<Vec<Value>> {
    let errors: Vec<Value> = messages
        .iter()
        .filter(|message| message["reason"] == "compiler-message")
        .map(|message| message["message"].clone())
        .filter(|message| {
            let spans = message["spans"].as_array().is_some_and(|spans| !spans.is_empty());
            message["level"] == "error" && spans
        })
        .collect();
    match messages
        .iter()
        .any(|message| message["message"]["level"] == "error: internal compiler error")
    {
        true => Err(io::Error::other("the compiler failed")),
        false => Ok(errors),
    }
}

fn programs(messages: &[Value]) -> io::Result<Vec<Program>> {
    let programs: Vec<Program> = messages.iter().filter_map(program).collect();
    match programs.is_empty() {
        true => Err(io::Error::other("no test program was built")),
        false => Ok(programs),
    }
}

fn program(message: &Value) -> Option<Program> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let kind = message["target"]["kind"][0].as_str()?;
    let name = if kind == "test" { message["target"]["name"].as_str()? } else { "lib" };
    let manifest = Path::new(message["manifest_path"].as_str()?);
    Some(Program {
        name: name.to_owned(),
        executable: PathBuf::from(message["executable"].as_str()?),
        directory: manifest.parent()?.to_owned(),
    })
}
