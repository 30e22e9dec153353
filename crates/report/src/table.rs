//! Tables of text.

use serde::Serialize;

/// Alignment of a column's text.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Align {
    /// Words.
    #[default]
    Left,
    /// Numbers.
    Right,
}

/// Rows of text under headings.
#[derive(Clone, Debug, Default)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    #[must_use]
    pub fn new(columns: &[(&str, Align)]) -> Self {
        let columns = columns.iter().map(|(name, align)| ((*name).to_owned(), *align)).collect();
        Self { columns, rows: Vec::new() }
    }

    /// Appends a row. Panics if it has not one cell for each column.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        assert_eq!(cells.len(), self.columns.len(), "cells and columns");
        self.rows.push(cells);
    }

    /// Returns true if there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn widths(&self) -> Vec<usize> {
        let heading = |index: usize| self.columns[index].0.chars().count();
        let cell = |index: usize| self.rows.iter().map(move |row| row[index].chars().count());
        (0..self.columns.len())
            .map(|index| cell(index).max().unwrap_or(0).max(heading(index)))
            .collect()
    }

    fn line<'a>(
        &self,
        cells: impl Iterator<Item = &'a str>,
        widths: &[usize],
        separator: &str,
    ) -> String {
        let padded: Vec<String> = cells
            .zip(widths)
            .zip(&self.columns)
            .map(|((cell, width), (_, align))| match align {
                Align::Left => format!("{cell:<width$}"),
                Align::Right => format!("{cell:>width$}"),
            })
            .collect();
        padded.join(separator)
    }

    /// Columns aligned with spaces, for a terminal. Ends with a line feed.
    #[must_use]
    pub fn to_text(&self) -> String {
        let widths = self.widths();
        let headings = self.columns.iter().map(|(name, _)| name.as_str());
        let mut text = self.line(headings, &widths, "  ").trim_end().to_owned() + "\n";
        let rule: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
        text += &(rule.join("  ").trim_end().to_owned() + "\n");
        for row in &self.rows {
            let line = self.line(row.iter().map(String::as_str), &widths, "  ");
            text += line.trim_end();
            text.push('\n');
        }
        text
    }

    /// A Markdown table, aligned as well. Ends with a line feed.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let escaped = Self {
            columns: self.columns.iter().map(|(name, align)| (escape(name), *align)).collect(),
            rows: self.rows.iter().map(|row| row.iter().map(|c| escape(c)).collect()).collect(),
        };
        let widths: Vec<usize> = escaped.widths().into_iter().map(|width| width.max(3)).collect();
        let headings = escaped.columns.iter().map(|(name, _)| name.as_str());
        let mut text = format!("| {} |\n", escaped.line(headings, &widths, " | "));
        let rule: Vec<String> = widths
            .iter()
            .zip(&self.columns)
            .map(|(width, (_, align))| match align {
                Align::Left => "-".repeat(*width),
                Align::Right => "-".repeat(width - 1) + ":",
            })
            .collect();
        text += &format!("| {} |\n", rule.join(" | "));
        for row in &escaped.rows {
            let line = escaped.line(row.iter().map(String::as_str), &widths, " | ");
            text += &format!("| {line} |\n");
        }
        text
    }

    /// Comma-separated values with a heading line (RFC 4180, but with plain line feeds).
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut text = String::new();
        let headings = self.columns.iter().map(|(name, _)| name.as_str()).collect();
        let rows = self.rows.iter().map(|row| row.iter().map(String::as_str).collect());
        for cells in std::iter::once::<Vec<&str>>(headings).chain(rows) {
            let quoted: Vec<String> = cells.into_iter().map(quote).collect();
            text += &(quoted.join(",") + "\n");
        }
        text
    }

    /// An object for each row, its fields named like the columns; what is aligned as numbers, and is one,
    /// as a number.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        let value = |cell: &str, align: Align| match cell.parse::<f64>() {
            Ok(number) if align == Align::Right => serde_json::json!(number),
            _ => serde_json::json!(cell),
        };
        let object = |row: &Vec<String>| -> serde_json::Map<String, serde_json::Value> {
            let cells = self.columns.iter().zip(row);
            cells.map(|((name, align), cell)| (name.clone(), value(cell, *align))).collect()
        };
        self.rows.iter().map(|row| serde_json::Value::Object(object(row))).collect()
    }
}

fn escape(cell: &str) -> String {
    cell.replace('|', "\\|")
}

fn quote(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

/// `value` as one line of JSON, with its line feed.
pub fn json_line<T: Serialize>(value: &T) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string(value)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Table {
        let mut table = Table::new(&[("server", Align::Left), ("IOPS", Align::Right)]);
        table.row(["null", "1.04 M"]);
        table.row(["a,\"b\"|c", "7"]);
        table
    }

    #[test]
    fn columns_line_up() {
        assert_eq!(
            sample().to_text(),
            "server     IOPS\n───────  ──────\nnull     1.04 M\na,\"b\"|c       7\n"
        );
    }

    /// A column for remarks has no heading, and often nothing in it.
    #[test]
    fn no_line_ends_in_spaces() {
        let mut table = Table::new(&[("FREE", Align::Right), ("", Align::Left)]);
        table.row(["1 GiB", ""]);
        assert_eq!(table.to_text(), " FREE\n─────\n1 GiB\n");
    }

    #[test]
    fn separators_in_cells_are_escaped() {
        assert!(sample().to_markdown().contains("| a,\"b\"\\|c |      7 |"));
        assert_eq!(sample().to_csv(), "server,IOPS\nnull,1.04 M\n\"a,\"\"b\"\"|c\",7\n");
    }

    #[test]
    fn numbers_are_numbers_for_programs() {
        let rows = serde_json::json!([
            { "server": "null", "IOPS": "1.04 M" },
            { "server": "a,\"b\"|c", "IOPS": 7.0 },
        ]);
        assert_eq!(sample().to_json(), rows);
    }
}
