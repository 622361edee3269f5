//! `disco backends`

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use disco::{Probe, Unavailable, backend};
use serde::Serialize;

use crate::output::{columns, json, wrapped};

/// Indent of the further lines of a backend, in columns.
const INDENT: usize = 11;

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

fn print(row: &Row, width: usize, out: &mut impl Write) -> io::Result<()> {
    let Row { name, library, version, reason, .. } = row;
    let first = match (library, version, reason) {
        (Some(library), Some(version), _) => format!("{name:<8} available    {version} ({library})"),
        (.., reason) => format!("{name:<8} unavailable  {}", reason.as_deref().unwrap_or("no reason given")),
    };
    let details = row.details.iter().map(|(what, value)| format!("{:<8} {what}: {value}", ""));
    let mut lines = [first].into_iter().chain(details).flat_map(|line| wrapped(&line, width, INDENT));
    lines.try_for_each(|line| writeln!(out, "{line}"))
}
