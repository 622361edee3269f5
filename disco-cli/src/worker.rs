//! `disco worker`

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use disco::{JoinOptions, Token};

use crate::{log, reconnect, run, supervisor, token, values};

/// Join a session of nodes from this machine, and serve until the session ends
///
/// The node's workers run the worker functions of PROGRAM: the controller's program, which calls `disco::init()`.
/// Without PROGRAM they have only Disco's own worker functions.
#[derive(Args)]
pub(crate) struct Worker {
    /// Address where the controller listens; of several, separated by commas, one must answer
    #[arg(long, value_name = "HOST:PORT", value_parser = values::addresses)]
    connect: String,
    /// Number of workers on this machine, only without PROGRAM [default: chosen by the controller]
    #[arg(long, value_name = "K")]
    workers_per_node: Option<u32>,
    /// Refuse a session that has more workers for this machine [default: DISCO_MAX_WORKERS, else no limit]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..), env = "DISCO_MAX_WORKERS", hide_env = true)]
    max_workers: Option<u32>,
    /// Id of this node, from 1 on [default: chosen by the controller]
    #[arg(long, value_name = "ID")]
    node_id: Option<u32>,
    /// Stand by until a machine of the session is lost and its place is free, or the session ends
    #[arg(long)]
    spare: bool,
    /// The rack of this machine, or another name of its part of the network: nodes of one rack relay for each other
    /// [default: DISCO_RACK, else none]
    #[arg(long, value_name = "NAME", env = "DISCO_RACK", hide_env = true)]
    rack: Option<String>,
    /// File with the session's token [default: the file in DISCO_TOKEN_FILE, or the token in DISCO_TOKEN]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Folder for the output of this machine's workers: that of worker N is appended to N/stdout.log and N/stderr.log
    /// [default: DISCO_LOG_DIR, else none]
    #[arg(long, value_name = "FOLDER", env = "DISCO_LOG_DIR", hide_env = true)]
    log_dir: Option<PathBuf>,
    /// Seconds to wait for the controller to listen [default: 30; with --reconnect: a day]
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,
    /// Serve sessions one after another, each in a new process, until this command is ended; needs a token file that
    /// only its owner (and perhaps its group) can read
    #[arg(long)]
    reconnect: bool,
    /// The process that has started this one because of --reconnect
    #[arg(long, value_name = "PID", hide = true, conflicts_with = "reconnect")]
    supervisor: Option<i32>,
    /// The program and its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

impl Worker {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        self.check_effects()?;
        token::check(self.token_file.as_deref(), self.reconnect)?;
        if self.reconnect {
            return reconnect::serve();
        }
        if let Some(supervisor) = self.supervisor {
            supervisor::end_with(supervisor)?;
        }
        if let [program, args @ ..] = &self.program[..] {
            return self.become_program(program, args);
        }
        let wait = self.wait();
        let token = self.token_file.as_deref().map_or_else(Token::required, Token::read)?;
        let mut options = JoinOptions::new(self.connect, token);
        (options.node, options.per_node) = (self.node_id, self.workers_per_node);
        (options.max_workers, options.rack) = (self.max_workers, self.rack);
        options.is_spare = self.spare;
        (options.start, options.log_dir) = (Duration::from_secs(wait), self.log_dir);
        options.report = |text| log::tell("disco", text);
        disco::internal::be_node(options)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Rejects options that have no effect on a program.
    fn check_effects(&self) -> anyhow::Result<()> {
        ensure!(
            self.program.is_empty() || self.workers_per_node.is_none(),
            "--workers-per-node has no effect on PROGRAM: the controller chooses the number; a program that calls `disco::join` itself \
             can set `JoinOptions::per_node`"
        );
        Ok(())
    }

    /// Seconds to wait for the controller.
    fn wait(&self) -> u64 {
        self.wait.unwrap_or(if self.supervisor.is_some() { 24 * 60 * 60 } else { 30 })
    }

    /// Replaces this process by the program, whose `disco::init()` joins the session.
    fn become_program(&self, program: &OsStr, args: &[OsString]) -> anyhow::Result<ExitCode> {
        let mut command = Command::new(program);
        command.args(args).env("DISCO_CONNECT", &self.connect).env("DISCO_JOIN_SECONDS", self.wait().to_string());
        self.node_id.map(|id| command.env("DISCO_NODE_ID", id.to_string()));
        self.max_workers.map(|most| command.env("DISCO_MAX_WORKERS", most.to_string()));
        if let Some(folder) = &self.log_dir {
            command.env("DISCO_LOG_DIR", folder);
        }
        if self.spare {
            command.env("DISCO_SPARE", "1");
        }
        self.rack.iter().for_each(|rack| _ = command.env("DISCO_RACK", rack));
        if let Some(path) = &self.token_file {
            command.env("DISCO_TOKEN_FILE", path).env_remove("DISCO_TOKEN");
        }
        run::replace(command).with_context(|| format!("can't run `{}`", program.display()))
    }
}
