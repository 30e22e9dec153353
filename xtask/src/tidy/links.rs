//! Links between the Markdown files lead somewhere. Links out of the repository are not followed.

use std::fs;
use std::io;
use std::path::Path;

use super::Finding;
use super::source::find;

pub(super) fn check(root: &Path) -> io::Result<Vec<Finding>> {
    let mut files = Vec::new();
    find(root, Path::new(""), "md", &mut files)?;
    let mut findings = Vec::new();
    for file in files {
        let text = fs::read_to_string(root.join(&file))?;
        let directory = root.join(file.parent().unwrap_or(Path::new("")));
        for (line, target) in targets(&text) {
            if !directory.join(&target).exists() {
                findings.push(Finding {
                    file: file.clone(),
                    line,
                    rule: "link",
                    message: format!("`{target}` does not exist"),
                    warning: false,
                });
            }
        }
    }
    Ok(findings)
}

/// The relative targets of a text's links, with their lines; fenced code is passed over.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut out = Vec::new();
    let mut fenced = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for rest in line.split("](").skip(1) {
            let target = rest.split([')', '#', ' ']).next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:") {
                out.push((index + 1, target.to_owned()));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_links_are_found_and_others_left_alone() {
        let text =
            "[a](docs/a.md#part) and [b](https://example.org)\n```\n[c](no.md)\n```\n[d](#e)\n";
        assert_eq!(targets(text), [(1, "docs/a.md".to_owned())]);
    }
}
