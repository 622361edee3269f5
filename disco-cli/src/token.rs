//! `disco token`

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

/// Make a token for a session of nodes: a new file that only you can read, to be copied to the other machines
#[derive(Args)]
pub(crate) struct Token {
    /// Where to write it; nothing must be there
    file: PathBuf,
}

impl Token {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        disco::Token::create(&self.file)?;
        Ok(ExitCode::SUCCESS)
    }
}
