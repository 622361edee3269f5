//! The command: its subcommands, and how it ends.

use std::io::{self, IsTerminal as _, Write};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches as _, Parser, Subcommand};
use clap_complete::Shell;
use disco::error::causes;
use tracing_subscriber::EnvFilter;

#[cfg(target_os = "linux")]
use crate::token;
#[cfg(feature = "nccl")]
use crate::topo;
#[cfg(target_os = "linux")]
use crate::worker;
use crate::{backends, bench, check, ping, plot, run};

/// SPMD sessions for distributed inference and training.
#[derive(Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Backends(backends::Backends),
    Bench(bench::Bench),
    Check(check::Check),
    Ping(ping::Ping),
    Plot(plot::Plot),
    Run(run::Run),
    #[cfg(target_os = "linux")]
    Token(token::Token),
    #[cfg(feature = "nccl")]
    Topo(topo::Topo),
    #[cfg(target_os = "linux")]
    Worker(worker::Worker),
    /// Print completions for a shell
    Completions {
        /// Which shell
        shell: Shell,
    },
}

/// Runs the command line of this process, as the command `name`, and returns its exit status: 0, 1 for a failure, which is printed
/// to standard error. Does not return for `--help`, `--version` and a command line that is refused (status 2). It calls
/// [`disco::init`], so it comes first in `main`.
pub fn main(name: &'static str) -> ExitCode {
    disco::init();
    let filter = EnvFilter::builder().with_env_var("DISCO_LOG").from_env_lossy();
    // Without escape codes in files; a standard error that is closed is no reason to panic.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(io::stderr().is_terminal());
    log.log_internal_errors(false).with_writer(io::stderr).init();
    let matches = Cli::command().name(name).bin_name(name).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let mut out = io::stdout().lock();
    let ended = execute(cli.command, name, &mut out).and_then(|code| {
        out.flush()?;
        Ok(code)
    });
    match ended {
        Ok(code) => code,
        // The reader of the output has seen enough.
        Err(error) if broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let causes = causes(error.as_ref()).into_iter().map(|cause| format!(": {cause}")).collect::<String>();
            // `eprintln!` panics where standard error is closed.
            _ = writeln!(io::stderr(), "{name}: {error}{causes}");
            ExitCode::FAILURE
        }
    }
}

fn execute(command: Command, name: &str, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    match command {
        Command::Backends(backends) => backends.run(out),
        Command::Bench(bench) => bench.run(out),
        Command::Check(check) => check.run(out),
        Command::Ping(ping) => ping.run(out),
        Command::Plot(plot) => plot.run(),
        Command::Run(run) => run.run(),
        #[cfg(target_os = "linux")]
        Command::Token(token) => token.run(),
        #[cfg(feature = "nccl")]
        Command::Topo(topo) => topo.run(out),
        #[cfg(target_os = "linux")]
        Command::Worker(worker) => worker.run(),
        Command::Completions { shell } => {
            // Not straight to `out`: it would panic where that is closed.
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
