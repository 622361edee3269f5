//! Output of results: JSON, texts and tables on standard output.

use std::io::{self, IsTerminal as _, Write};

use serde::Serialize;
use terminal_size::{Width, terminal_size_of};

/// Writes one JSON value and a line end. An error of `out` is returned as an [`io::Error`].
pub(crate) fn json(out: &mut impl Write, value: &impl Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    Ok(out.write_all(&text)?)
}

/// Maximum line width: the width of the terminal, or unlimited if standard output is no terminal.
pub(crate) fn columns() -> usize {
    match (io::stdout().is_terminal(), terminal_size_of(io::stdout())) {
        (false, _) => usize::MAX,
        (true, Some((Width(columns), _))) => columns.into(),
        (true, None) => 80,
    }
}

/// Writes a text, whose lines are [wrapped] at the width of the terminal.
pub(crate) fn text(out: &mut impl Write, text: &str) -> io::Result<()> {
    let width = columns();
    text.lines().flat_map(|line| wrapped(line, width, 4)).try_for_each(|line| writeln!(out, "{line}"))
}

/// Writes a table with aligned columns, or if it is wider than the terminal a paragraph for each row. An error of `out` is
/// returned as an [`io::Error`].
pub(crate) fn table<const N: usize>(
    out: &mut impl Write,
    head: &[&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> io::Result<()> {
    let rows: Vec<[String; N]> = std::iter::once(head.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: [usize; N] = std::array::from_fn(width);
    let most = columns();
    if widths.iter().sum::<usize>() + 2 * (N - 1) > most {
        return rows[1..]
            .iter()
            .flat_map(|row| paragraph(head, row, most))
            .try_for_each(|line| writeln!(out, "{line}"));
    }
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

/// A row in words: its first cell, then each other one behind its head.
fn paragraph<const N: usize>(head: &[&str; N], row: &[String; N], width: usize) -> Vec<String> {
    let cells = head.iter().zip(row).skip(1).map(|(head, cell)| format!("{head} {cell}"));
    wrapped(&format!("{} {}: {}", head[0], row[0], cells.collect::<Vec<_>>().join(", ")), width, 4)
}

/// The lines of a text, wrapped at `width`: between words, or inside a word wider than a line. Continuation lines are
/// indented by at most `indent`.
pub(crate) fn wrapped(text: &str, width: usize, indent: usize) -> Vec<String> {
    let (mut lines, mut rest, mut column) = (Vec::new(), text, 0);
    while rest.chars().count() > width.saturating_sub(column) {
        let room = width.saturating_sub(column).max(1);
        let end = rest.char_indices().nth(room).map_or(rest.len(), |(at, _)| at);
        // A space right after the last column that fits also ends a word. Leading spaces pad columns and are no place
        // to break.
        let lead = rest.len() - rest.trim_start().len();
        let space = rest[..end + usize::from(rest[end..].starts_with(' '))].rfind(' ').filter(|at| *at > lead);
        let (head, tail) = rest.split_at(space.unwrap_or(end));
        lines.push(format!("{:column$}{}", "", head.trim_end()));
        (rest, column) = (tail.trim_start(), indent.min(width / 2));
    }
    lines.push(format!("{:column$}{rest}", ""));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_is_wider_than_the_terminal_is_a_paragraph() {
        let row = ["3", "node 1", "all_reduce, in sum"].map(str::to_owned);
        let lines = paragraph(&["worker", "where", "inside"], &row, 30);
        assert_eq!(lines, ["worker 3: where node 1, inside", "    all_reduce, in sum"]);
    }

    #[test]
    fn wide_lines_are_wrapped_between_words_and_inside_words_wider_than_a_line() {
        assert_eq!(wrapped("mpi      unavailable  no MPI", usize::MAX, 11), ["mpi      unavailable  no MPI"]);
        assert_eq!(wrapped("mpi      unavailable  no MPI", 24, 11), ["mpi      unavailable  no", "           MPI"]);
        let long = wrapped(&format!("mpi      unavailable  tried /{}/lib.so", "folder".repeat(20)), 40, 11);
        assert!(long.iter().all(|line| line.chars().count() <= 40), "{long:?}");
        assert_eq!(long[0], "mpi      unavailable  tried");
        assert_eq!(long.iter().skip(1).map(|line| line.trim()).collect::<String>().len(), 20 * 6 + 8);
    }
}
