//! The log and the messages of the program on standard error.

use std::io::{self, IsTerminal as _, Write as _};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// Format of the log and the messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Lines of text
    #[default]
    Text,
    /// One JSON object in each line
    Json,
}

impl Format {
    /// Starts the log.
    pub(crate) fn start(self) {
        let filter = EnvFilter::try_from_env("DISCO_LOG").unwrap_or_else(|_| "info".into());
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(io::stderr().is_terminal());
        let log = log.log_internal_errors(false).with_writer(io::stderr);
        match self {
            Self::Text => log.init(),
            Self::Json => log.json().flatten_event(true).init(),
        }
    }

    /// Tells the user something that is no part of the log.
    pub(crate) fn tell(self, text: &str) {
        match self {
            // `eprintln!` panics if standard error is closed.
            Self::Text => _ = writeln!(io::stderr(), "disco-serve: {text}"),
            Self::Json => tracing::info!("{text}"),
        }
    }

    /// Tells the user why the program fails.
    pub(crate) fn fail(self, text: &str) {
        match self {
            Self::Text => self.tell(text),
            Self::Json => tracing::error!("{text}"),
        }
    }
}
