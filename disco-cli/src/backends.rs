//! `disco backends`

use std::io::{self, IsTerminal as _, Write};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use disco::{Probe, Unavailable, backend};
use serde::Serialize;
use terminal_size::{Width, terminal_size_of};

use crate::output::json;

/// List the backends of this program: the version of each, or why it is unavailable on this machine
#[derive(Args)]
pub(crate) struct Backends {
    /// Print the list as one JSON array
    #[arg(long)]
    json: bool,
    /// Fail unless this backend is available on this machine (may be repeated)
    #[arg(long, value_name = "NAME")]
    require: Vec<String>,
}

/// One backend, as JSON.
#[derive(Serialize)]
struct Row {
    name: &'static str,
    available: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    library: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    details: Vec<(String, String)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl Row {
    fn new(name: &'static str, probe: Result<Probe, Unavailable>) -> Self {
        match probe {
            Ok(Probe { library, version, details, .. }) => {
                Self { name, available: true, library: Some(library), version: Some(version), details, reason: None }
            }
            Err(absent) => {
                let reason = Some(absent.to_string());
                Self { name, available: false, library: None, version: None, details: Vec::new(), reason }
            }
        }
    }
}

impl Backends {
    pub(crate) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        let rows: Vec<Row> = backend::all().iter().map(|backend| Row::new(backend.name(), backend.probe())).collect();
        if self.json {
            json(out, &rows)?;
        } else {
            let width = columns();
            rows.iter().try_for_each(|row| print(row, width, out))?;
        }
        for name in &self.require {
            let found = backend::find(name).and_then(|backend| Ok(backend.probe()?));
            found.with_context(|| format!("backend `{name}` is required"))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Maximum line width: the width of the terminal, or unlimited if standard output is no terminal.
fn columns() -> usize {
    match (io::stdout().is_terminal(), terminal_size_of(io::stdout())) {
        (false, _) => usize::MAX,
        (true, Some((Width(columns), _))) => columns.into(),
        (true, None) => 80,
    }
}

fn print(row: &Row, width: usize, out: &mut impl Write) -> io::Result<()> {
    let Row { name, library, version, reason, .. } = row;
    let first = match (library, version, reason) {
        (Some(library), Some(version), _) => format!("{name:<8} available    {version} ({library})"),
        (.., reason) => format!("{name:<8} unavailable  {}", reason.as_deref().unwrap_or("no reason given")),
    };
    wrap(&first, width, out)?;
    row.details.iter().try_for_each(|(what, value)| wrap(&format!("{:<8} {what}: {value}", ""), width, out))
}

/// Writes a line, wrapped at `width`: between words, or inside a word wider than a line. Continuation lines are
/// indented.
fn wrap(line: &str, width: usize, out: &mut impl Write) -> io::Result<()> {
    const INDENT: usize = 11;
    let mut rest = line;
    let mut indent = 0;
    while rest.chars().count() > width.saturating_sub(indent) {
        let room = width.saturating_sub(indent).max(1);
        let end = rest.char_indices().nth(room).map_or(rest.len(), |(at, _)| at);
        // A space right after the last column that fits also ends a word. Leading spaces pad columns and are no place
        // to break.
        let lead = rest.len() - rest.trim_start().len();
        let space = rest[..end + usize::from(rest[end..].starts_with(' '))].rfind(' ').filter(|at| *at > lead);
        let (head, tail) = rest.split_at(space.unwrap_or(end));
        writeln!(out, "{:indent$}{}", "", head.trim_end())?;
        (rest, indent) = (tail.trim_start(), INDENT.min(width / 2));
    }
    writeln!(out, "{:indent$}{rest}", "")
}

#[cfg(test)]
mod tests {
    use super::wrap;

    fn wrapped(line: &str, width: usize) -> Vec<String> {
        let mut out = Vec::new();
        wrap(line, width, &mut out).unwrap();
        String::from_utf8(out).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn wide_lines_are_wrapped_between_words_and_inside_words_wider_than_a_line() {
        assert_eq!(wrapped("mpi      unavailable  no MPI", usize::MAX), ["mpi      unavailable  no MPI"]);
        assert_eq!(wrapped("mpi      unavailable  no MPI", 24), ["mpi      unavailable  no", "           MPI"]);
        let long = wrapped(&format!("mpi      unavailable  tried /{}/lib.so", "folder".repeat(20)), 40);
        assert!(long.iter().all(|line| line.chars().count() <= 40), "{long:?}");
        assert_eq!(long[0], "mpi      unavailable  tried");
        assert_eq!(long.iter().skip(1).map(|line| line.trim()).collect::<String>().len(), 20 * 6 + 8);
    }
}
