//! `disco worker`

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use disco::{JoinOptions, Token};

use crate::{run, values};

/// Join a session of nodes from this machine, and serve until it is over
///
/// Its workers run the worker functions of PROGRAM, which calls `disco::init()` and is the controller's program, or those that
/// Disco itself has.
#[derive(Args)]
pub(crate) struct Worker {
    /// Where the controller listens
    #[arg(long, value_name = "HOST:PORT", value_parser = values::addresses)]
    connect: String,
    /// How many workers this machine has [default: as the controller says]
    #[arg(long, value_name = "K")]
    workers_per_node: Option<u32>,
    /// Which node this is, from 1 on [default: the controller chooses]
    #[arg(long, value_name = "ID")]
    node_id: Option<u32>,
    /// A file with the session's token [default: DISCO_TOKEN_FILE, or the token itself in DISCO_TOKEN]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// A folder for files with what each worker N on this machine prints: N/stdout.log and N/stderr.log, which are appended to
    /// [default: DISCO_LOG_DIR, else none]
    #[arg(long, value_name = "FOLDER", env = "DISCO_LOG_DIR", hide_env = true)]
    log_dir: Option<PathBuf>,
    /// How many seconds the controller may take to be there
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    wait: u64,
    /// The program and its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

impl Worker {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if let [program, args @ ..] = &self.program[..] {
            return self.become_program(program, args);
        }
        let token = self.token_file.as_deref().map_or_else(Token::required, Token::read)?;
        let mut options = JoinOptions::new(self.connect, token);
        (options.node, options.per_node) = (self.node_id, self.workers_per_node);
        (options.start, options.log_dir) = (Duration::from_secs(self.wait), self.log_dir);
        options.say = |text| _ = writeln!(io::stderr(), "disco: {text}");
        disco::join(&options)?;
        Ok(ExitCode::SUCCESS)
    }

    /// The program joins by itself.
    fn become_program(&self, program: &str, args: &[String]) -> anyhow::Result<ExitCode> {
        let mut command = Command::new(program);
        command.args(args).env("DISCO_CONNECT", &self.connect).env("DISCO_JOIN_SECONDS", self.wait.to_string());
        let numbers = [("DISCO_NODE_ID", self.node_id), ("DISCO_WORKERS_PER_NODE", self.workers_per_node)];
        for (name, number) in numbers {
            number.map(|number| command.env(name, number.to_string()));
        }
        if let Some(folder) = &self.log_dir {
            command.env("DISCO_LOG_DIR", folder);
        }
        if let Some(path) = &self.token_file {
            command.env("DISCO_TOKEN_FILE", path).env_remove("DISCO_TOKEN");
        }
        run::replace(command).with_context(|| format!("can't run `{program}`"))
    }
}
