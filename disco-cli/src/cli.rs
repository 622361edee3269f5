//! The command line: subcommands and exit status.

use std::env;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches as _, Parser, Subcommand};
use clap_complete::Shell;
use disco::error::causes;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::status;
use crate::token;
#[cfg(feature = "nccl")]
use crate::topo;
use crate::tvm;
use crate::watch;
use crate::worker;
use crate::{backends, bench, check, log, ping, run, trace};

/// SPMD sessions for distributed inference and training.
#[derive(Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    /// Format of this command's log, messages and errors on standard error, after its options are read; a program that it starts
    /// has its own log
    #[arg(long, global = true, value_enum, default_value_t = log::Format::Text, value_name = "FORMAT")]
    log_format: log::Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Backends(backends::Backends),
    Bench(bench::Bench),
    Check(check::Check),
    Ping(ping::Ping),
    Run(Box<run::Run>),
    StartNode(run::StartNode),
    Status(status::Status),
    Token(token::Token),
    #[cfg(feature = "nccl")]
    Topo(topo::Topo),
    Trace(trace::Trace),
    TvmNode(tvm::Node),
    TvmWorker(tvm::Worker),
    Watch(watch::Watch),
    Worker(worker::Worker),
    /// Print the completion script of a shell
    Completions {
        /// Shell to complete for
        shell: Shell,
    },
}

/// Runs the command line of this process as the command `name`. Call it first in `main`, because it calls
/// [`disco::init`].
///
/// Returns the exit status: 0, or 1 after a failure, whose error is printed to standard error. Does not return for
/// `--help`, `--version` (status 0) and an invalid command line (status 2).
pub fn main(name: &'static str) -> ExitCode {
    take_role();
    let matches = Cli::command().name(name).bin_name(name).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    log::start(match cli.command {
        Command::StartNode(_) => run::StartNode::log_format(),
        _ => cli.log_format,
    });
    let mut out = io::stdout().lock();
    let ended = execute(cli.command, name, &mut out).and_then(|code| {
        out.flush()?;
        Ok(code)
    });
    match ended {
        Ok(code) => code,
        // The reader of the output has closed its end of the pipe.
        Err(error) if broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let causes = causes(error.as_ref()).into_iter().map(|cause| format!(": {cause}")).collect::<String>();
            log::fail(name, &format!("{error}{causes}"));
            ExitCode::FAILURE
        }
    }
}

/// Makes this process a worker or a node if it was started as one. Only commands that start sessions take the role that
/// a launcher gives: `disco run` leaves it to its program, since a launcher of MPI accepts one greeting of a process.
fn take_role() {
    const WITH_SESSIONS: [&str; 3] = ["bench", "check", "ping"];
    let mut args = env::args_os().skip(1);
    let mut command = args.next().unwrap_or_default();
    if command.to_string_lossy().starts_with("--log-format") {
        // The value is the next argument unless it follows `=`.
        command = args.nth(usize::from(command == "--log-format")).unwrap_or_default();
    }
    // The variables of a node are those of the program that it starts.
    if command == disco::internal::START_NODE {
        return;
    }
    if !WITH_SESSIONS.iter().any(|name| command == *name) {
        return disco::internal::init_without_launcher();
    }
    disco::init();
}

fn execute(command: Command, name: &str, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    if !matches!(command, Command::Run(_) | Command::Worker(_)) {
        disco::internal::signals::end_process_1(&[SIGHUP, SIGINT, SIGTERM])?;
    }
    match command {
        Command::Backends(backends) => backends.run(out),
        Command::Bench(bench) => bench.run(out),
        Command::Check(check) => check.run(out),
        Command::Ping(ping) => ping.run(out),
        Command::Run(run) => run.run(),
        Command::StartNode(node) => node.run(),
        Command::Status(status) => status.run(out),
        Command::Token(token) => token.run(),
        #[cfg(feature = "nccl")]
        Command::Topo(topo) => topo.run(out),
        Command::Trace(trace) => trace.run(out),
        Command::TvmNode(node) => node.run(),
        Command::TvmWorker(worker) => worker.run(out),
        Command::Watch(watch) => watch.run(),
        Command::Worker(worker) => worker.run(),
        Command::Completions { shell } => {
            // Written through a buffer: `generate` panics if it can't write, as on a closed pipe.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), name, &mut script);
            out.write_all(&script)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
