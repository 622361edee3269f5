//! The log and the messages of the command on standard error: text, or one JSON object in each line.

use std::env;
use std::io::{self, IsTerminal as _, Write as _};

use anyhow::bail;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Environment variable of the format.
const FORMAT: &str = "DISCO_LOG_FORMAT";

/// Starts the log.
///
/// # Errors
/// `DISCO_LOG_FORMAT` names no format.
pub(crate) fn start() -> anyhow::Result<()> {
    let is_json = match env::var(FORMAT).as_deref() {
        Err(_) | Ok("" | "text") => false,
        Ok("json") => true,
        Ok(other) => bail!("{FORMAT} is `{other}`, but must be `text` or `json`"),
    };
    // As text, the command prints its own error, which a log of the same error would repeat.
    let level = if is_json { LevelFilter::INFO } else { LevelFilter::OFF };
    let filter = EnvFilter::builder().with_default_directive(level.into()).with_env_var("DISCO_LOG").from_env_lossy();
    // Escape codes only on a terminal. Logging to a closed standard error must not panic.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(io::stderr().is_terminal());
    let log = log.log_internal_errors(false).with_writer(io::stderr);
    if is_json {
        log.json().flatten_event(true).init()
    } else {
        log.init()
    }
    Ok(())
}

/// Tells the user the progress of the command `name`.
pub(crate) fn tell(name: &str, text: &str) {
    if is_json() { tracing::info!(command = name, "{text}") } else { write(name, text) }
}

/// Tells the user why the command `name` fails.
pub(crate) fn fail(name: &str, text: &str) {
    if is_json() { tracing::error!(command = name, "{text}") } else { write(name, text) }
}

fn is_json() -> bool {
    env::var(FORMAT).is_ok_and(|format| format == "json")
}

fn write(name: &str, text: &str) {
    // `eprintln!` panics if standard error is closed.
    _ = writeln!(io::stderr(), "{name}: {text}");
}
