//! That the option is the one meant: mimalloc knows it by name only in the environment, which it reads once.

use std::process::Command;

use allocator::{Allocator, keep_huge_pages_whole, keeps_huge_pages_whole};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

const NAME: &str = "MIMALLOC_ALLOW_THP";
/// Makes this program say what it finds.
const SAY: &str = "say";

fn main() {
    if std::env::args().nth(1).as_deref() == Some(SAY) {
        let before = keeps_huge_pages_whole();
        keep_huge_pages_whole();
        return print!("{before} {}", keeps_huge_pages_whole());
    }
    assert_eq!(found(None), "false true", "huge pages are kept whole once asked for");
    assert_eq!(found(Some("2")), "true true", "the option has another number");
    assert_eq!(found(Some("1")), "false false", "the environment has the last word");
    assert_eq!(found(Some("0")), "false false", "the environment has the last word");
}

/// The output of a process that reads the option before and after it asks, with `value` in its
/// environment.
fn found(value: Option<&str>) -> String {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.arg(SAY).env_remove(NAME);
    value.map(|value| command.env(NAME, value));
    String::from_utf8(command.output().expect("it runs").stdout).expect("text")
}
