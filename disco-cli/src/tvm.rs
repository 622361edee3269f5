//! `disco tvm-worker` and `disco tvm-node`

use std::ffi::OsString;
use std::io::Write;
use std::path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use disco::tvm::{self, Authentication, JoinOptions, Place};

use crate::{run, values};

/// The module for `ProcessSession(entrypoint="disco_tvm")`.
const ENTRY_MODULE: &str = include_str!("../python/disco_tvm.py");
/// The module's line with the program that it runs.
const ENTRY_PROGRAM: &str = "PROGRAM = [\"disco\"]\n";

/// Serve as a worker of TVM's `ProcessSession`, or print the Python module that starts such workers
///
/// TVM starts its workers with the entry module: save the output of `disco tvm-worker --entry-module` as `disco_tvm.py`
/// where Python finds it, and write `ProcessSession(3, entrypoint="disco_tvm")`. The module runs PROGRAM, or `disco`.
#[derive(Args)]
pub(crate) struct Worker {
    /// Id of the worker, from 1
    #[arg(value_name = "ID", required_unless_present = "entry_module")]
    worker: Option<u32>,
    /// Number of workers of the session, with TVM's worker 0
    #[arg(value_name = "WORKERS", required_unless_present = "entry_module")]
    workers: Option<u32>,
    /// Number of groups of TVM's workers
    #[arg(value_name = "GROUPS", required_unless_present = "entry_module")]
    groups: Option<u32>,
    /// Descriptor of the pipe with commands
    #[arg(value_name = "READ_FD", required_unless_present = "entry_module")]
    input: Option<u32>,
    /// Descriptor of the pipe for replies
    #[arg(value_name = "WRITE_FD", required_unless_present = "entry_module")]
    output: Option<u32>,
    /// Print the Python module
    #[arg(long)]
    entry_module: bool,
    /// The program and its arguments, which calls `disco::init()` and has the feature `tvm` of `disco-runtime` [default: this
    /// command, with Disco's own functions]
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

impl Worker {
    pub(crate) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        let Self { worker, workers, groups, input, output, entry_module, program } = self;
        if entry_module {
            out.write_all(module_of(&program)?.as_bytes())?;
            return Ok(ExitCode::SUCCESS);
        }
        let (Some(worker), Some(workers), Some(groups), Some(input), Some(output)) =
            (worker, workers, groups, input, output)
        else {
            // clap requires them.
            anyhow::bail!("ID WORKERS GROUPS READ_FD WRITE_FD are missing");
        };
        let place = Place { worker, workers, groups, input, output };
        if let [program, args @ ..] = &program[..] {
            let mut command = Command::new(program);
            command.args(args).env(Place::VARIABLE, place.text());
            return run::replace(command).with_context(|| format!("can't run `{}`", program.display()));
        }
        tvm::serve(&place)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The module, which runs `program` as the worker: by its absolute path if it is a path.
///
/// # Errors
/// A word of the program is not UTF-8.
fn module_of(program: &[OsString]) -> anyhow::Result<String> {
    let words = program.iter().map(|word| word.to_str().with_context(|| format!("{word:?} is not UTF-8")));
    let mut words = words.map(|word| word.map(str::to_owned)).collect::<anyhow::Result<Vec<_>>>()?;
    let Some(first) = words.first_mut() else { return Ok(ENTRY_MODULE.to_owned()) };
    if first.contains('/') {
        *first = path::absolute(&*first)?.display().to_string();
    }
    // A list of strings in JSON is one in Python.
    Ok(ENTRY_MODULE.replace(ENTRY_PROGRAM, &format!("PROGRAM = {}\n", serde_json::to_string(&words)?)))
}

/// Serve as a node of TVM's `SocketSession` until the session ends
///
/// The workers of the node are threads, and a world of their own. TVM's sessions over sockets have no authentication.
#[derive(Args)]
pub(crate) struct Node {
    /// Address where TVM's controller listens
    #[arg(long, value_name = "HOST:PORT", value_parser = values::one_address)]
    connect: String,
    /// Permit an address outside of this machine, only without PROGRAM: any process there can run any function here
    #[arg(long)]
    without_authentication: bool,
    /// Seconds to wait for the controller to listen
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    wait: u64,
    /// The program and its arguments, which calls `disco::init()` and has the feature `tvm` of `disco-runtime` [default: this
    /// command, with Disco's own functions]
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

impl Node {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if let [program, args @ ..] = &self.program[..] {
            ensure!(
                !self.without_authentication,
                "--without-authentication has no effect on PROGRAM: start it without this command, and let it call `disco::tvm::join` with \
                 `Authentication::Without`"
            );
            let mut command = Command::new(program);
            command.args(args).env(tvm::CONNECT, &self.connect).env("DISCO_JOIN_SECONDS", self.wait.to_string());
            return run::replace(command).with_context(|| format!("can't run `{}`", program.display()));
        }
        let mut options = JoinOptions::new(self.connect);
        options.start = Duration::from_secs(self.wait);
        if self.without_authentication {
            options.authentication = Authentication::Without;
        }
        tvm::join(&options)?;
        Ok(ExitCode::SUCCESS)
    }
}
