//! `disco token`

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

/// Create a token for a session of nodes, in a new file that only you can read; copy it to the other machines
#[derive(Args)]
pub(crate) struct Token {
    /// File to create; it must not exist
    file: PathBuf,
}

impl Token {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        disco::Token::create(&self.file)?;
        Ok(ExitCode::SUCCESS)
    }
}
