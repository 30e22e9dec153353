//! Layering of crates: the crates that each may use, ours and others'.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Finding;
use super::rules::{EXTERNALS, LAYERS, Layer, ONE_BUILD};

pub(super) fn check(root: &Path) -> io::Result<Vec<Finding>> {
    let mut manifests: Vec<PathBuf> = vec!["xtask/Cargo.toml".into(), "bench/Cargo.toml".into()];
    for entry in fs::read_dir(root.join("crates"))? {
        let manifest = Path::new("crates").join(entry?.file_name()).join("Cargo.toml");
        if root.join(&manifest).is_file() {
            manifests.push(manifest);
        }
    }
    manifests.sort();
    let mut findings = Vec::new();
    for manifest in manifests {
        let text = fs::read_to_string(root.join(&manifest))?;
        findings.extend(check_manifest(&manifest, &text)?);
    }
    Ok(findings)
}

fn check_manifest(manifest: &Path, text: &str) -> io::Result<Vec<Finding>> {
    let broken = |error| io::Error::other(format!("{}: {error}", manifest.display()));
    let table: toml::Table = text.parse().map_err(broken)?;
    let name = table
        .get("package")
        .and_then(|package| package.get("name"))
        .and_then(toml::Value::as_str)
        .unwrap_or_default();
    let finding = |dependency: &str, message: String| Finding {
        file: manifest.to_owned(),
        line: line_of(text, dependency),
        rule: "edge",
        message,
        warning: false,
    };
    let mut findings = Vec::new();
    if position(name).is_none() {
        let message = format!("`{name}` is in no layer; give it one in xtask/src/tidy/rules.rs");
        findings.push(finding("name", message));
    }
    for dependency in dependencies(&table) {
        if let Err(message) = judge(name, &dependency) {
            findings.push(finding(&dependency, message));
        }
    }
    Ok(findings)
}

/// Returns the crates that the crate itself is built from: everything but its development dependencies.
fn dependencies(table: &toml::Table) -> Vec<String> {
    let mut tables = vec![table];
    if let Some(targets) = table.get("target").and_then(toml::Value::as_table) {
        tables.extend(targets.values().filter_map(toml::Value::as_table));
    }
    let mut names = Vec::new();
    for table in tables {
        for section in ["dependencies", "build-dependencies"] {
            if let Some(section) = table.get(section).and_then(toml::Value::as_table) {
                names.extend(section.keys().cloned());
            }
        }
    }
    names
}

/// A crate's layer, and its rank over all layers.
fn position(name: &str) -> Option<(&'static Layer, usize)> {
    LAYERS
        .iter()
        .flat_map(|layer| layer.crates.iter().map(move |krate| (layer, *krate)))
        .enumerate()
        .find(|(_, (_, krate))| *krate == name)
        .map(|(rank, (layer, _))| (layer, rank))
}

fn judge(name: &str, dependency: &str) -> Result<(), String> {
    if let Some(external) = EXTERNALS.iter().find(|external| external.name == dependency)
        && !external.only_in.contains(&name)
        && name != ONE_BUILD
    {
        return Err(format!("`{name}` must not use `{dependency}`: {}", external.why));
    }
    let (Some((layer, rank)), Some((below, rank_below))) = (position(name), position(dependency))
    else {
        return Ok(());
    };
    if layer.must_not_use.contains(&dependency) {
        return Err(format!("`{name}` ({}) must not use `{dependency}`", layer.name));
    }
    if rank_below >= rank {
        return Err(format!(
            "`{name}` ({}) must not use `{dependency}` ({}), which is above it",
            layer.name, below.name
        ));
    }
    Ok(())
}

fn line_of(text: &str, key: &str) -> usize {
    text.lines().position(|line| line.starts_with(key)).map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(name: &str, rest: &str) -> Vec<String> {
        let text = format!("[package]\nname = \"{name}\"\n{rest}");
        check_manifest(Path::new("crates/x/Cargo.toml"), &text)
            .expect("the manifest is TOML")
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }

    #[test]
    fn downward_edges_pass() {
        let rest = "[dependencies]\nunits.workspace = true\nlayout.workspace = true\n";
        assert_eq!(messages("volume", rest), [""; 0]);
    }

    #[test]
    fn an_upward_edge_fails_and_a_development_one_does_not() {
        let upward = messages("volume", "[dependencies]\ndataplane.workspace = true\n");
        assert_eq!(
            upward,
            ["`volume` (storage) must not use `dataplane` (data plane), which is above it"]
        );
        let development = "[dev-dependencies]\nsim.workspace = true\n";
        assert_eq!(messages("volume", development), [""; 0]);
    }

    #[test]
    fn storage_knows_no_protocol_although_protocols_are_lower() {
        let found = messages("volume", "[dependencies]\nnvme-wire.workspace = true\n");
        assert_eq!(found, ["`volume` (storage) must not use `nvme-wire`"]);
    }

    #[test]
    fn the_core_of_the_data_plane_knows_no_protocol() {
        for protocol in ["auth", "nvme-wire", "nvme-target", "nvme-initiator"] {
            let manifest = format!("[dependencies]\n{protocol}.workspace = true\n");
            let expected = format!("`dataplane` (data plane) must not use `{protocol}`");
            assert_eq!(messages("dataplane", &manifest), [expected]);
        }
        let upward = "[dependencies]\nnvme-frontend.workspace = true\n";
        assert_eq!(messages("dataplane", upward).len(), 1);
        assert_eq!(
            messages("nvme-frontend", "[dependencies]\ndataplane.workspace = true\n"),
            [""; 0]
        );
    }

    #[test]
    fn a_dependency_for_one_target_counts_and_so_do_other_peoples_crates() {
        let rest = "[target.'cfg(unix)'.dependencies]\ntokio.workspace = true\n";
        assert_eq!(messages("dataplane", rest).len(), 1);
        assert_eq!(messages("control", rest), [""; 0]);
    }

    #[test]
    fn a_crate_without_a_layer_is_found() {
        assert!(messages("novelty", "")[0].contains("in no layer"));
    }

    /// The table itself: no crate twice, and nothing forbidden that does not exist.
    #[test]
    fn the_layers_name_each_crate_once() {
        let mut names: Vec<_> = LAYERS.iter().flat_map(|layer| layer.crates).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
        for layer in LAYERS {
            assert!(layer.must_not_use.iter().all(|name| position(name).is_some()));
        }
    }
}
