//! `disco status`

mod stacks;
mod tables;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use disco::programs::{self, Found};
use disco::status::Program;
use disco::{JoinOptions, Token};
use serde_json::json;

use crate::{output, token, values};

/// Show the running programs with sessions, and what each worker is inside
///
/// Without PID, lists the programs of this user on this machine that have sessions; as root, those of all users. With
/// PID, shows the sessions of that program: for each worker the number of the last command that it has received and
/// finished, how many it lags behind, the worker function and operation that it is inside, and for how long. The program
/// answers also while it and its workers are stuck.
///
/// With --connect, asks the controller of a session of nodes, from any machine that reaches it. The controller must have
/// been started with `disco run --nodes`, a launcher's tasks, or `NodeOptions::listen` or `announce`.
///
/// The status of workers in other processes is at most one heartbeat old (1 s). `for` is the time since a worker got
/// further; it is not known for threads of the controller.
///
/// With --stacks, Linux must permit this command to trace the program: it permits root and, unless
/// kernel.yama.ptrace_scope is above 0, processes of the same user.
#[derive(Args)]
pub(crate) struct Status {
    /// Process id of the program, or of a node [default: list all programs]
    #[arg(value_name = "PID")]
    process: Option<u32>,
    /// Address where the controller of a session of nodes listens, as for `disco worker`
    #[arg(long, value_name = "HOST:PORT", value_parser = values::addresses, conflicts_with = "process")]
    connect: Option<String>,
    /// File with the session's token [default: the file in DISCO_TOKEN_FILE, or the token in DISCO_TOKEN]
    #[arg(long, value_name = "FILE", requires = "connect")]
    token_file: Option<PathBuf>,
    /// Show the native stack of each worker's thread on this machine, and of the program's main thread. Each of these
    /// threads is stopped for a moment, as by a debugger that attaches
    #[arg(long, requires = "process")]
    stacks: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Status {
    pub(crate) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        match (self.connect, self.process) {
            (Some(address), _) => {
                token::check(self.token_file.as_deref(), false)?;
                let token = self.token_file.as_deref().map_or_else(Token::required, Token::read)?;
                let status = disco::ask_status(&JoinOptions::new(address, token))?;
                if self.json { output::json(out, &status)? } else { tables::session(out, &status)? }
            }
            (None, Some(process)) if self.stacks => return stacks::run(out, process, self.json),
            (None, Some(process)) => {
                let program = programs::ask(process)?;
                if self.json { output::json(out, &program)? } else { show(out, &program)? }
            }
            (None, None) => {
                let found = programs::list()?;
                if self.json {
                    output::json(out, &found.iter().map(as_json).collect::<Vec<_>>())?
                } else if found.is_empty() {
                    writeln!(out, "no program of this user on this machine has a session")?
                } else {
                    tables::programs(out, &found)?
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn show(out: &mut impl Write, program: &Program) -> anyhow::Result<()> {
    let Program { process, program: name, sessions, notes, .. } = program;
    let count = sessions.len();
    writeln!(out, "process {process} (`{name}`), {count} {}", if count == 1 { "session" } else { "sessions" })?;
    for (name, note) in notes {
        writeln!(out, "{name}: {note}")?;
    }
    for session in sessions {
        writeln!(out)?;
        tables::session(out, session)?;
    }
    Ok(())
}

/// The answer of a program, or why there is none.
fn as_json(found: &Found) -> serde_json::Value {
    match &found.answer {
        Ok(program) => json!(program),
        Err(error) => json!({ "process": found.process, "program": found.name, "error": error.to_string() }),
    }
}
