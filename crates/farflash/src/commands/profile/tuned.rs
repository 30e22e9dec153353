//! `farflash profile --tuned`: drives before and after settings of `farflash tune`.

use std::path::{Path, PathBuf};

use clap::Args;
use host_tune::settings::Setting;
use profile::{Profile, show};
use serde_json::{Value, json};
use user_messages::Failure;
use user_messages::output::{self, note};
use user_messages::shell;

use super::{Results, save_as};
use crate::commands::tune::apply_named;

#[derive(Debug, Args)]
pub(super) struct Tuned {
    /// Measure before and after these settings of `farflash tune` [default: those that the first report proposes]
    #[arg(long, value_name = "SETTINGS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    tuned: Option<String>,
    /// Directory that stands for / where settings are applied
    #[arg(long, value_name = "DIR", default_value = "/", requires = "tuned")]
    root: PathBuf,
    /// Record of old values [default: /var/lib/farflash/tune.jsonl below the root]
    #[arg(long, value_name = "FILE", requires = "tuned")]
    record: Option<PathBuf>,
}

impl Tuned {
    fn named(&self) -> impl Iterator<Item = &str> {
        let lists = self.tuned.iter().flat_map(|list| list.split(','));
        lists.map(str::trim).filter(|name| !name.is_empty())
    }

    /// Refuses settings that do not exist before anything is measured.
    pub(super) fn check(&self) -> Result<(), Failure> {
        match self.named().find(|name| Setting::find(name).is_none()) {
            None => Ok(()),
            Some(name) => {
                let what = format!("--tuned: there is no setting `{name}`");
                Err(Failure::usage(what, "`farflash tune explain` lists all settings"))
            }
        }
    }

    /// The settings to apply: none without `--tuned`.
    pub(super) fn settings(&self, before: &Profile) -> Vec<String> {
        if self.tuned.is_none() {
            return Vec::new();
        }
        let named: Vec<String> = self.named().map(str::to_owned).collect();
        if !named.is_empty() {
            return named;
        }
        let proposed = show::proposed_settings(before);
        if proposed.is_empty() {
            note(
                "the report proposes no setting, so nothing was changed; name settings with --tuned=SETTINGS",
            );
        }
        proposed.into_iter().map(str::to_owned).collect()
    }

    /// Applies settings; returns the outcomes in words and as JSON.
    pub(super) fn apply(
        &self,
        settings: Vec<String>,
        cores: Option<Vec<u32>>,
    ) -> Result<(String, Value), Failure> {
        apply_named(self.root.clone(), self.record.clone(), settings, cores)
    }

    /// Returns the command that gives the old values back.
    fn undo_command(&self) -> String {
        let mut command = "farflash tune undo".to_owned();
        if self.root != Path::new("/") {
            command += &format!(" --root {}", shell::path(&self.root));
        }
        if let Some(record) = &self.record {
            command += &format!(" --record {}", shell::path(record));
        }
        command
    }

    /// Shows both measurements, and what changed in between. The settings stay.
    pub(super) fn give(
        &self,
        results: &Results,
        [before, after]: [&Profile; 2],
        said: &str,
        steps: &Value,
    ) -> Result<(), Failure> {
        results.save(after)?;
        if let Some(path) = &results.out {
            let mut name = path.clone().into_os_string();
            name.push(".before");
            save_as(&PathBuf::from(name), before)?;
        }
        let compared = profile::compare(before, after);
        let undo = self.undo_command();
        output::print("give the result somewhere to go", |out| match results.json {
            true => {
                let mut comparison = json!(compared);
                comparison["verdict"] = show::verdict(&compared).into();
                let document = json!({
                    "before": show::json(before),
                    "after": show::json(after),
                    "settings": steps,
                    "comparison": comparison,
                    "undo": undo,
                });
                writeln!(out, "{document:#}")
            }
            false => {
                write!(out, "Before\n\n{}\n", show::text(before))?;
                write!(out, "Settings\n\n{said}\n")?;
                write!(out, "After\n\n{}\n", show::text(after))?;
                write!(out, "Comparison\n\n{}", show::comparison(&compared))?;
                writeln!(out, "\nThe settings stay; `{undo}` gives the old values back.")
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_undoes_names_the_same_tree_and_record() {
        let plain = Tuned { tuned: None, root: "/".into(), record: None };
        assert_eq!(plain.undo_command(), "farflash tune undo");
        let odd = Tuned { root: "/tmp/a tree".into(), record: Some("/tmp/it's".into()), ..plain };
        let expected = r#"farflash tune undo --root '/tmp/a tree' --record "/tmp/it's""#;
        assert_eq!(odd.undo_command(), expected);
    }
}
