//! `disco trace`

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use disco_trace::{Trace as Recorded, explain, flight_recorder};

use crate::{log, output};

/// Explain a trace that a session has written, or convert it
#[derive(Args)]
pub(crate) struct Trace {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Explain(Explain),
    Export(Export),
}

/// Print hanging operations, calls that differ between workers, the time of each worker, and slow operations
#[derive(Args)]
struct Explain {
    /// Trace: `.json` or `.json.gz`
    file: PathBuf,
}

/// Write the collectives of a trace for other tools
#[derive(Args)]
struct Export {
    /// Trace: `.json` or `.json.gz`
    file: PathBuf,
    /// Dumps of PyTorch's flight recorder, a file `rank_N` for each worker
    #[arg(long, required = true)]
    pytorch: bool,
    /// Folder to write to
    #[arg(short, long, value_name = "FOLDER")]
    out: PathBuf,
}

impl Trace {
    pub(crate) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Explain(Explain { file }) => output::text(out, &explain(&Recorded::read(&file)?).to_string())?,
            Command::Export(Export { file, out, .. }) => flight_recorder::write(&read(&file)?, &out)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Reads a trace, and tells the user if its file ends early.
fn read(path: &Path) -> anyhow::Result<Recorded> {
    let trace = Recorded::read(path)?;
    if !trace.missing.is_empty() {
        log::tell("disco", &format!("warning: {}: {}", path.display(), trace.missing));
    }
    Ok(trace)
}
