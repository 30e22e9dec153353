//! One mutant through cargo-mutants itself.

use std::fs;
use std::io;
use std::process::Command;

use super::deadline::Deadline;
use super::decided::Verdict;
use super::list::Mutant;
use super::plan::Plan;
use super::tree::Tree;

/// Seconds for the tests of a mutant, and for its build.
const TEST_SECONDS: u32 = 120;
const BUILD_SECONDS: u32 = 900;

/// Files of `mutants.out` that name the mutants of one verdict each.
const LISTS: [(&str, Verdict); 4] = [
    ("caught.txt", Verdict::Caught),
    ("timeout.txt", Verdict::TimedOut),
    ("missed.txt", Verdict::Missed),
    ("unviable.txt", Verdict::Unviable),
];

/// Builds and tests `mutant` in the copy, which has no other.
pub(super) fn run(
    tree: &Tree,
    plan: &Plan,
    mutant: &Mutant,
    deadline: Deadline,
) -> io::Result<Verdict> {
    let output = tree.root.with_file_name("one");
    drop(fs::remove_dir_all(&output));
    let mut command = Command::new("cargo");
    command.current_dir(&tree.root).args([
        "mutants",
        "--no-config",
        "--in-place",
        "--package",
        plan.package,
    ]);
    // Deleted fields of a structure come along whatever the pattern is: so it is one file, and the name is looked for.
    command.arg("--file").arg(&mutant.file);
    command.arg("--re").arg(format!("^{}$", escape(&mutant.name))).arg("--output").arg(&output);
    command.args(["--baseline", "skip", "--timeout", &TEST_SECONDS.to_string()]);
    command.args(["--build-timeout", &BUILD_SECONDS.to_string(), "--cargo-arg=--locked"]);
    command.arg("--").args(plan.slow_tests).arg("--");
    for test in plan.skip_tests {
        command.args(["--skip", test]);
    }
    tree.environment(&mut command);
    let result = deadline.output(command.envs(plan.environment.iter().copied()))?;
    for (list, verdict) in LISTS {
        let names = fs::read_to_string(output.join("mutants.out").join(list)).unwrap_or_default();
        if names.lines().any(|name| name == mutant.name) {
            return Ok(verdict);
        }
    }
    let message = String::from_utf8_lossy(&result.stderr).into_owned();
    Err(io::Error::other(format!("cargo mutants did not decide {}: {message}", mutant.name)))
}

/// Makes of a name a pattern that matches that name alone. Only what has a meaning is escaped: `\<` would get one.
fn escape(name: &str) -> String {
    let mut out = String::new();
    for character in name.chars() {
        if r"\.+*?()|[]{}^$".contains(character) {
            out.push('\\');
        }
        out.push(character);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_has_escapes_where_a_character_has_a_meaning() {
        let name = "src/a.rs:1:2: replace f -> Vec<u8> with vec![0]";
        assert_eq!(escape(name), r"src/a\.rs:1:2: replace f -> Vec<u8> with vec!\[0\]");
    }
}
