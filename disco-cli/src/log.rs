//! The log and the messages of the command on standard error: text, or one JSON object in each line.

use std::io::{self, IsTerminal as _};
use std::sync::OnceLock;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Format of the log, the messages and the errors.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Lines of text
    Text,
    /// One JSON object in each line
    Json,
}

/// The format of this process.
static FORMAT: OnceLock<Format> = OnceLock::new();

/// Starts the log.
pub(crate) fn start(format: Format) {
    _ = FORMAT.set(format);
    // As text, the command prints its own error, which a log of the same error would repeat.
    let level = if is_json() { LevelFilter::INFO } else { LevelFilter::OFF };
    let filter = EnvFilter::builder().with_default_directive(level.into()).with_env_var("DISCO_LOG").from_env_lossy();
    // Escape codes only on a terminal. Logging to a closed standard error must not panic.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(io::stderr().is_terminal());
    let log = log.log_internal_errors(false).with_writer(io::stderr);
    if is_json() { log.json().flatten_event(true).init() } else { log.init() }
}

/// Tells the user the progress of the command `name`.
pub(crate) fn tell(name: &str, text: &str) {
    if is_json() { tracing::info!(command = name, "{text}") } else { write(name, text) }
}

/// Tells the user why the command `name` fails.
pub(crate) fn fail(name: &str, text: &str) {
    if is_json() { tracing::error!(command = name, "{text}") } else { write(name, text) }
}

/// Whether messages are lines of JSON.
pub(crate) fn is_json() -> bool {
    FORMAT.get() == Some(&Format::Json)
}

fn write(name: &str, text: &str) {
    disco_core::tell(format_args!("{name}: {text}"));
}
