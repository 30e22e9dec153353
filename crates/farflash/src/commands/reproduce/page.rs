//! All figures on one page: Markdown with their findings, and their pictures beside it.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use reproduce::{Figure, Finding, Options, Outcome};

/// A page to be written.
pub(super) struct Page {
    file: PathBuf,
    /// Directory of the pictures, named as the page is.
    pictures: PathBuf,
    summary: String,
    figures: String,
}

impl Page {
    /// Makes the directory of the pictures of `file`.
    pub(super) fn new(file: &Path) -> io::Result<Self> {
        let pictures = file.with_extension("");
        fs::create_dir_all(&pictures)?;
        Ok(Self { file: file.to_owned(), pictures, summary: String::new(), figures: String::new() })
    }

    /// Adds a figure, and writes its picture.
    pub(super) fn add(&mut self, figure: &Figure, outcome: &Outcome) -> io::Result<()> {
        let picture = format!("{}.svg", figure.name);
        fs::write(self.pictures.join(&picture), &outcome.svg)?;
        let place = self.pictures.file_name().unwrap_or_default().to_string_lossy();
        let agreeing = outcome.findings.iter().filter(|finding| finding.agrees).count();
        let (name, about) = (figure.name, figure.about);
        let row =
            format!("| [{name}](#{name}) | {about} | {agreeing} | {} |", outcome.findings.len());
        self.summary += &(row + "\n");
        let heading = format!("\n## {name}\n\n{}{}.\n\n", about[..1].to_uppercase(), &about[1..]);
        self.figures += &heading;
        self.figures += "| statement | paper or goal | here | |\n| --- | --- | --- | --- |\n";
        for Finding { what, paper, here, agrees } in &outcome.findings {
            let verdict = if *agrees { "agrees" } else { "**differs**" };
            let cells = [what, paper, here].map(|cell| cell.replace('|', "\\|"));
            let row = format!("| {} | {verdict} |\n", cells.join(" | "));
            self.figures += &row;
        }
        let _ = writeln!(self.figures, "\n![{name}: {about}]({place}/{picture})");
        Ok(())
    }

    /// Writes the page.
    pub(super) fn save(self, options: &Options) -> io::Result<()> {
        let head = format!(
            "# Figures, made here\n\n\
             Written by `make reproduce`, which runs `farflash reproduce --all` with `--time {}` and\n\
             `--seed {}`, all in simulated time. The models, where their numbers come from, and the\n\
             runs in real time are described in [figures of the papers](reproduce.md). A statement\n\
             agrees if its shape is that of the paper, or if a goal that no paper has is met.\n\n\
             | figure | shows | agree | of |\n| --- | --- | ---: | ---: |\n",
            options.time, options.seed
        );
        fs::write(&self.file, head + &self.summary + &self.figures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every figure has a row that leads to its part, and a picture that is there.
    #[test]
    fn a_page_has_each_figure_with_its_findings_and_its_picture() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("all.md");
        let options = Options { time: 0.5, seed: 3 };
        let mut page = Page::new(&file).expect("it can be written");
        for name in ["cost-example", "eurosys-8"] {
            let figure = Figure::find(name).expect("known");
            let outcome = figure.run(&options, &mut |_| ()).expect("runs");
            page.add(&figure, &outcome).expect("it can be written");
        }
        page.save(&options).expect("it can be written");
        let text = fs::read_to_string(&file).expect("written");
        assert!(text.contains("`--time 0.5`") && text.contains("`--seed 3`"), "{text}");
        let row =
            "| [cost-example](#cost-example) | the worked example of the cost model | 3 | 3 |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("| cost with direct-attached Flash | 960000 | 960000 | agrees |"));
        for name in ["cost-example", "eurosys-8"] {
            assert!(text.contains(&format!("\n## {name}\n")), "{text}");
            assert!(text.contains(&format!("](all/{name}.svg)")), "{text}");
            let svg = fs::read_to_string(directory.path().join("all").join(format!("{name}.svg")));
            assert!(svg.expect("written").ends_with("</svg>\n"));
        }
    }
}
