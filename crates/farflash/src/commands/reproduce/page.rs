//! All figures on one page: Markdown with their findings, and their pictures beside it.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use reproduce::{Figure, Finding, Options, Outcome};

/// Columns of the text.
const WIDTH: usize = 100;

/// A page to be written.
pub(super) struct Page {
    file: PathBuf,
    /// Directory of the pictures, named as the page is.
    pictures: PathBuf,
    options: Options,
    summary: String,
    figures: String,
}

impl Page {
    /// Makes the directory of the pictures of `file`.
    pub(super) fn new(file: &Path, options: Options) -> io::Result<Self> {
        let pictures = file.with_extension("");
        fs::create_dir_all(&pictures)?;
        let (summary, figures) = (String::new(), String::new());
        Ok(Self { file: file.to_owned(), pictures, options, summary, figures })
    }

    /// Adds a figure, and writes its picture.
    pub(super) fn add(&mut self, figure: &Figure, outcome: &Outcome) -> io::Result<()> {
        let picture = format!("{}.svg", figure.name);
        fs::write(self.pictures.join(&picture), &outcome.svg)?;
        let place = self.pictures.file_name().unwrap_or_default().to_string_lossy();
        let (name, about) = (figure.name, figure.about);
        if let Some(first) = outcome.findings.first() {
            let cells =
                [&first.what, &first.paper, &first.here].map(|cell| cell.replace('|', "\\|"));
            let row = format!(
                "| [{name}](#{name}), [picture]({place}/{picture}) | {} | {} |\n",
                cells.join(" | "),
                shape(outcome)
            );
            self.summary += &row;
        }
        let heading = format!("\n## {name}\n\n{}{}.\n\n", about[..1].to_uppercase(), &about[1..]);
        self.figures += &heading;
        let Options { time, seed, .. } = self.options;
        let command = format!("farflash reproduce {name} --time {time} --seed {seed}");
        let _ = writeln!(self.figures, "```sh\n{command}\n```\n");
        let why = outcome.why.as_deref().unwrap_or_default();
        let verdict = format!("The shape {}. {why}", shape(outcome));
        let _ = writeln!(self.figures, "{}\n", wrapped(&verdict));
        self.figures += "| statement | paper or goal | here | |\n| --- | --- | --- | --- |\n";
        for Finding { what, paper, here, agrees } in &outcome.findings {
            let verdict = if *agrees { "agrees" } else { "**differs**" };
            let cells = [what, paper, here].map(|cell| cell.replace('|', "\\|"));
            let row = format!("| {} | {verdict} |\n", cells.join(" | "));
            self.figures += &row;
        }
        let _ = writeln!(self.figures, "\n![{name}]({place}/{picture})");
        Ok(())
    }

    /// Writes the page.
    pub(super) fn save(self) -> io::Result<()> {
        let Options { time, seed, .. } = self.options;
        let text = format!(
            "Written by `make reproduce`, which runs `farflash reproduce --all` with `--time {time}` and \
             `--seed {seed}`, all in simulated time. The models, and where their numbers come from, are \
             described in [figures of the papers](reproduce.md), and so are runs of real servers on this \
             machine: `farflash reproduce FIGURE --real-time`, for `decibel-13`, `afa-12`, `eurosys-3` to \
             `eurosys-7b`, `table-1` and `tenants-per-core`. A statement agrees \
             if its shape is that of the paper, or if a goal that no paper has is met. This table has the \
             first statement of each figure; all of them follow."
        );
        let head = format!(
            "# Figures, made here\n\n{}\n\n\
             | figure | statement | the paper, or a goal | here | shape of the figure |\n\
             | --- | --- | --- | --- | --- |\n",
            wrapped(&text)
        );
        fs::write(&self.file, head + &self.summary + &self.figures)
    }
}

/// The verdict in words.
fn shape(outcome: &Outcome) -> String {
    let of = outcome.findings.len();
    match outcome.findings.iter().filter(|finding| finding.agrees).count() {
        agreeing if agreeing == of => "agrees".to_owned(),
        0 => "**differs**".to_owned(),
        agreeing => format!("agrees in {agreeing} of {of} statements"),
    }
}

/// `text` in lines of at most [`WIDTH`] columns.
fn wrapped(text: &str) -> String {
    let (mut lines, mut columns) = (String::new(), 0);
    for word in text.split_whitespace() {
        let more = word.chars().count();
        if columns > 0 {
            let fits = columns + 1 + more <= WIDTH;
            lines.push(if fits { ' ' } else { '\n' });
            columns = if fits { columns + 1 } else { 0 };
        }
        lines += word;
        columns += more;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every figure has a row that leads to its part, and a picture that is there.
    #[test]
    fn a_page_has_each_figure_with_its_findings_and_its_picture() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("all.md");
        let options = Options { time: 0.5, seed: 3, ..Options::default() };
        let mut page = Page::new(&file, options).expect("it can be written");
        for name in ["cost-example", "eurosys-8"] {
            let figure = Figure::find(name).expect("known");
            let outcome = figure.run(&options, &mut |_| ()).expect("runs");
            page.add(&figure, &outcome).expect("it can be written");
        }
        page.save().expect("it can be written");
        let text = fs::read_to_string(&file).expect("written");
        assert!(text.contains("`--time 0.5`") && text.contains("`--seed 3`"), "{text}");
        let row = "| [cost-example](#cost-example), [picture](all/cost-example.svg) | cost with \
            direct-attached Flash | 960000 | 960000 | agrees |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("\nfarflash reproduce eurosys-8 --time 0.5 --seed 3\n"), "{text}");
        assert!(text.contains("| cost with direct-attached Flash | 960000 | 960000 | agrees |"));
        for name in ["cost-example", "eurosys-8"] {
            assert!(text.contains(&format!("\n## {name}\n")), "{text}");
            assert!(text.contains(&format!("](all/{name}.svg)")), "{text}");
            let svg = fs::read_to_string(directory.path().join("all").join(format!("{name}.svg")));
            assert!(svg.expect("written").ends_with("</svg>\n"));
        }
    }

    /// The verdict follows from the statements, and the reason stands beside it only if one is not met.
    #[test]
    fn a_verdict_is_said_in_words() {
        let figure = Figure::find("cost-example").expect("known");
        let options = Options { time: 0.01, ..Options::default() };
        let mut outcome = figure.run(&options, &mut |_| ()).expect("runs");
        outcome.findings = vec![outcome.findings.remove(0); 3];
        outcome.findings[2].agrees = false;
        assert_eq!(shape(&outcome), "agrees in 2 of 3 statements");
        outcome.findings.iter_mut().for_each(|finding| finding.agrees = false);
        assert_eq!(shape(&outcome), "**differs**");
        outcome.findings.iter_mut().for_each(|finding| finding.agrees = true);
        assert_eq!(shape(&outcome), "agrees");
    }

    #[test]
    fn text_is_wrapped_between_words() {
        let text = "word ".repeat(60);
        let lines = wrapped(&text);
        assert!(
            lines.lines().count() == 3 && lines.lines().all(|line| line.len() <= WIDTH),
            "{lines}"
        );
        assert_eq!(lines.split_whitespace().count(), 60);
        assert_eq!(wrapped("one"), "one");
    }
}
