//! `disco backends`

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use disco::{Probe, Unavailable, backend};
use serde::Serialize;

/// List the backends of this program, and why those that can't be used here can't
#[derive(Args)]
pub(crate) struct Backends {
    /// Print one JSON array
    #[arg(long)]
    json: bool,
    /// Fail unless this backend can be used here (may be repeated)
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
            serde_json::to_writer_pretty(&mut *out, &rows)?;
            writeln!(out)?;
        } else {
            rows.iter().try_for_each(|row| print(row, out))?;
        }
        for name in &self.require {
            let found = backend::find(name).and_then(|backend| Ok(backend.probe()?));
            found.with_context(|| format!("backend `{name}` is required"))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn print(row: &Row, out: &mut impl Write) -> std::io::Result<()> {
    let Row { name, library, version, reason, .. } = row;
    match (library, version, reason) {
        (Some(library), Some(version), _) => writeln!(out, "{name:<8} available    {version} ({library})")?,
        (.., reason) => writeln!(out, "{name:<8} unavailable  {}", reason.as_deref().unwrap_or("no reason given"))?,
    }
    row.details.iter().try_for_each(|(what, value)| writeln!(out, "{:<8} {what}: {value}", ""))
}
