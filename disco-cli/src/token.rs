//! `disco token`

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::ensure;
use clap::Args;

use crate::log;

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

/// Checks the token of a command, in `file` or the environment: tells the user if other users can read its file, which a
/// service (`is_service`) refuses. For a service, the token must be there.
///
/// # Errors
/// The token of a service is missing, invalid, or in a file that all users can read.
pub(crate) fn check(file: Option<&Path>, is_service: bool) -> anyhow::Result<()> {
    if is_service {
        file.map_or_else(disco::Token::required, disco::Token::read)?;
    }
    let has_text = env::var_os("DISCO_TOKEN").is_some_and(|text| !text.is_empty());
    let named = env::var_os("DISCO_TOKEN_FILE").filter(|path| !path.is_empty() && !has_text).map(PathBuf::from);
    let Some(path) = file.map(Path::to_owned).or(named) else { return Ok(()) };
    // The group is not checked: systemd's credentials give the service's user access by an access control list, which
    // shows as a right of the group.
    let is_open = fs::metadata(&path).is_ok_and(|data| data.mode() & 0o007 != 0);
    let path = path.display();
    let text =
        format!("all users can read the token file {path}, and so join or command the session: run `chmod 600 {path}`");
    ensure!(!is_open || !is_service, "{text}");
    if is_open {
        log::tell("disco", &format!("warning: {text}"));
    }
    Ok(())
}
