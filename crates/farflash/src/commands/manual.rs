//! `farflash completions` and `farflash man`: what follows from the definition of the command line.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;
use user_messages::Failure;
use user_messages::output;

pub(super) const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  farflash completions bash > /usr/share/bash-completion/completions/farflash
  farflash completions zsh  > /usr/share/zsh/vendor-completions/_farflash
  farflash completions fish > ~/.config/fish/completions/farflash.fish";

pub(super) const PAGES_EXAMPLES: &str = "\
Examples:
  farflash man /usr/local/share/man/man1
  farflash man . && man ./farflash-serve.1";

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Shell for which they are printed
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Pages {
    /// Existing directory for the pages; pages of the same names are replaced
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

impl Completions {
    pub(crate) fn run(self, mut command: Command) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "farflash", &mut script);
        output::print("redirect it to a file that can be written", |out| out.write_all(&script))
    }
}

impl Pages {
    pub(crate) fn run(self, mut command: Command) -> Result<(), Failure> {
        // Gives subcommands their full names, by which their pages are called.
        command.build();
        write_pages(&command, "farflash", &self.directory)
    }
}

/// Writes the page of a command and those of its subcommands. `farflash help …` has none.
fn write_pages(command: &Command, name: &str, directory: &Path) -> Result<(), Failure> {
    let path = directory.join(format!("{name}.1"));
    let mut page = Vec::new();
    let manual = clap_mangen::Man::new(command.clone()).section("1");
    manual.render(&mut page).and_then(|()| fs::write(&path, &page)).map_err(|error| {
        let what = format!("{} cannot be written: {error}", path.display());
        Failure::runtime(what, "name a directory that is there and can be written")
    })?;
    let subcommands = command.get_subcommands().filter(|command| command.get_name() != "help");
    for subcommand in subcommands {
        write_pages(subcommand, &format!("{name}-{}", subcommand.get_name()), directory)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::commands::CommandLine;

    #[test]
    fn each_command_has_a_page_that_tells_its_options() {
        let directory = tempfile::tempdir().expect("a directory");
        let pages = Pages { directory: directory.path().to_owned() };
        pages.run(CommandLine::command()).expect("written");
        let read = |name: &str| {
            fs::read_to_string(directory.path().join(name)).unwrap_or_else(|_| panic!("no {name}"))
        };
        assert!(read("farflash.1").contains("serve"));
        assert!(read("farflash-serve.1").contains("map\\-memory"));
        assert!(read("farflash-volume-create.1").contains("size"));
        assert!(fs::metadata(directory.path().join("farflash-help.1")).is_err());
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error_that_names_it() {
        let pages = Pages { directory: "/no/such/place".into() };
        let error = pages.run(CommandLine::command()).expect_err("not written").to_string();
        assert!(error.contains("/no/such/place/farflash.1"), "{error}");
    }
}
