//! The `disco` command: which backends are there, are they right, how fast is the control plane, how are GPUs linked, start a
//! program, join one.

mod backends;
mod bench;
mod check;
mod ping;
mod plot;
mod report;
mod run;
#[cfg(target_os = "linux")]
mod token;
#[cfg(feature = "nccl")]
mod topo;
#[cfg(target_os = "linux")]
mod worker;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use disco::error::causes;
use tracing_subscriber::EnvFilter;

/// SPMD sessions for distributed inference and training.
#[derive(Parser)]
#[command(name = "disco", version, propagate_version = true)]
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

fn main() -> ExitCode {
    disco::init();
    let filter = EnvFilter::builder().with_env_var("DISCO_LOG").from_env_lossy();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
    match execute(Cli::parse().command, &mut io::stdout().lock()) {
        Ok(code) => code,
        // Whoever read our output has seen enough.
        Err(error) if broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let causes = causes(error.as_ref()).into_iter().map(|cause| format!(": {cause}")).collect::<String>();
            eprintln!("disco: {error}{causes}");
            ExitCode::FAILURE
        }
    }
}

fn execute(command: Command, out: &mut impl Write) -> anyhow::Result<ExitCode> {
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
            clap_complete::generate(shell, &mut Cli::command(), "disco", &mut script);
            out.write_all(&script)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
