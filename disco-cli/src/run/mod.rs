//! `disco run`

mod copy;
mod host_list;
mod hosts;
mod script;
mod ssh;
mod start_node;

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, ensure};
use clap::Args;
use disco::launcher::Place;
use disco::{SessionKind, World, backend};
use disco_core::env::Variable;

use self::host_list::Host;
pub(crate) use self::start_node::StartNode;
use crate::session::Layout;
use crate::values::{self, Words};
use crate::watch::Watcher;
use crate::{restart, supervisor};

/// Run a program that makes its session with `disco::from_env()`
///
/// The program replaces this process, so it gets the signals and its exit status is that of the command. Under a launcher
/// (srun, torchrun, mpiexec, Kubernetes), each task runs this command; the launcher's tasks are the workers.
#[derive(Args)]
pub(crate) struct Run {
    /// Backend of the data plane [default: DISCO_BACKEND, else tcp for several nodes, else local]
    #[arg(long, value_parser = values::backends())]
    backend: Option<String>,
    /// Number of workers on all machines together [default: 1 per machine; under a launcher 1 per task]
    #[arg(long, value_parser = values::workers)]
    workers: Option<usize>,
    /// Number of equal groups that the workers are split in
    #[arg(long, default_value_t = 1, value_parser = values::groups)]
    groups: usize,
    /// Kind of session: where the workers run [default: nodes if --nodes is above 1, processes for backend mpi and with
    /// --apart, else threads]
    #[arg(long, value_parser = values::sessions())]
    session: Option<SessionKind>,
    /// Make worker 0 a process, too, so that the program's process outlives any worker [default: DISCO_APART, else off]
    #[arg(long)]
    apart: bool,
    /// Number of machines, including this one; prints the command to run on the others, which need the token
    #[arg(long, default_value_t = 1, value_parser = values::nodes)]
    nodes: usize,
    #[command(flatten)]
    hosts: hosts::Options,
    /// Address where the other machines connect [default: any free port of the loopback address; with --hosts any of all interfaces]
    #[arg(long, value_name = "HOST:PORT", value_parser = values::addresses)]
    listen: Option<String>,
    /// Processes that are started ahead, and take the places of workers that are lost, for `--session processes` [default:
    /// DISCO_SPARES, else 0]
    #[arg(long, value_name = "PROCESSES")]
    spares: Option<u32>,
    /// Folder for the output of workers that are processes of this machine: that of worker N is appended to
    /// N/stdout.log and N/stderr.log [default: DISCO_LOG_DIR, else none]
    #[arg(long, value_name = "FOLDER")]
    log_dir: Option<PathBuf>,
    /// File for the timeline of all workers, written when the session ends: Chrome's trace events, compressed if the name
    /// ends with `.gz`, for Perfetto and `disco trace` [default: DISCO_TRACE, else none]
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// File with the token that all nodes share, made by `disco token` [default: the file in DISCO_TOKEN_FILE, or the
    /// token in DISCO_TOKEN]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Device of each worker, separated by commas [default: the i-th worker of a machine uses device i]
    #[arg(long, value_delimiter = ',', value_name = "ORDINALS")]
    devices: Vec<i32>,
    /// Command that starts the MPI ranks, without the program, in words as a shell splits them [default: the launcher of the
    /// MPI library, if it needs one]
    #[arg(long, value_name = "COMMAND")]
    launcher: Option<Words>,
    /// Times that the program is started again after it has failed, with pauses of 1, 2, 4 s and so on up to a minute;
    /// DISCO_RESTARTS tells it the number of restarts, and it has to load its last checkpoint [default: 0]
    #[arg(long, value_name = "TIMES")]
    restart: Option<u32>,
    /// The process that has started this one because of --restart
    #[arg(long, value_name = "PID", hide = true, conflicts_with = "restart")]
    supervisor: Option<i32>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

impl Run {
    pub(crate) fn run(mut self) -> anyhow::Result<ExitCode> {
        let others = self.take_machines()?;
        let usual = if self.is_on_several(&others) { SessionKind::Nodes } else { SessionKind::of(self.backend()) };
        let apart = self.apart || Variable::read("DISCO_APART").flag()?.unwrap_or(false);
        let layout = Layout::new(self.session, usual, apart)?;
        let place = match Place::from_env() {
            // The options say what the launcher does not.
            Err(_) if self.workers.is_some() || self.is_on_several(&others) || self.session.is_some() => None,
            place => place?.filter(Place::is_one_of_several),
        };
        ensure!(
            others.is_empty() || place.is_none(),
            "--hosts has no effect under a launcher, which starts the program on its machines itself"
        );
        ensure!(
            others.is_empty() || layout.kind == SessionKind::Nodes,
            "--session {} runs on one machine, but --hosts names others",
            layout.kind
        );
        let is_task = place.is_some();
        let serves = place.as_ref().is_some_and(|place| place.rank > 0);
        let tasks = place.and_then(|place| self.workers_of(&place, layout));
        let workers = self.workers.or(tasks).unwrap_or(self.nodes);
        World::new(workers, self.groups)?.on_nodes(self.nodes)?;
        if let Some(name) = &self.backend {
            backend::find(name)?.probe()?;
        }
        if is_task {
            // The launcher decides where the workers run.
            values::check_devices(self.backend(), &self.devices)?
        } else {
            self.check_effects(layout.kind)?
        }
        let launcher =
            if is_task && self.launcher.is_none() { Vec::new() } else { self.launcher(workers, layout, &others)? };
        ensure!(
            self.log_dir.is_none() || launcher.is_empty(),
            "--log-dir has no effect on ranks started by MPI's launcher: their output goes through the launcher"
        );
        if let Some(times) = self.restart.filter(|times| *times > 0) {
            ensure!(!is_task, "--restart has no effect under a launcher, which starts its tasks itself");
            return restart::run(times);
        }
        if let Some(supervisor) = self.supervisor {
            supervisor::end_with(supervisor)?;
        }
        let is_watched = launcher.is_empty() && !serves && self.has_settings();
        let words: Vec<&OsString> = launcher.iter().chain(&self.program).collect();
        let [program, args @ ..] = &words[..] else { anyhow::bail!("no program to run") };
        let mut command = Command::new(program);
        command.args(args);
        self.set_variables(&mut command, workers, layout, is_task);
        self.hosts.prepare(&mut command, &others, &self.program)?;
        let untold =
            |error: &io::Error| tracing::debug!(%error, "nothing tells whether the program reads the settings");
        let watcher = if is_watched { Watcher::start(&mut command, program).inspect_err(untold).ok() } else { None };
        let failed = replace(command);
        watcher.inspect(Watcher::cancel);
        failed.with_context(|| format!("can't run `{}`", program.display()))
    }
}

impl Run {
    /// Sets the options that the machines of `--hosts` determine. Returns the other machines than this one.
    ///
    /// # Errors
    /// The hostfile is wrong, or the numbers of workers contradict each other.
    fn take_machines(&mut self) -> anyhow::Result<Vec<Host>> {
        let Some(machines) = self.hosts.machines()? else { return Ok(Vec::new()) };
        if let (Some(asked), Some(given)) = (self.workers, machines.workers) {
            ensure!(asked == given, "--workers asks for {asked} workers, but the hosts have {given} together");
        }
        self.workers = self.workers.or(machines.workers);
        self.nodes = machines.count();
        if !machines.others.is_empty() {
            self.apart |= !machines.has_here;
            let named = Variable::read("DISCO_LISTEN").text()?.map(str::to_owned);
            self.listen = self.listen.take().or(named).or_else(|| Some(format!("{}:0", disco::internal::everywhere())));
        }
        Ok(machines.others)
    }

    /// The backend that the options name; without one, the program chooses a backend of the host.
    fn backend(&self) -> &str {
        self.backend.as_deref().unwrap_or("local")
    }

    /// Whether the session has nodes on other machines.
    fn is_on_several(&self, others: &[Host]) -> bool {
        self.nodes > 1 || !others.is_empty()
    }

    /// Sets the variables of the program.
    fn set_variables(&self, command: &mut Command, workers: usize, layout: Layout, is_task: bool) {
        command.env("DISCO_GROUPS", self.groups.to_string());
        if let Some(backend) = &self.backend {
            command.env("DISCO_BACKEND", backend);
        }
        // The launcher determines the settings that no option sets.
        if !is_task || self.workers.is_some() {
            command.env("DISCO_WORKERS", workers.to_string());
        }
        if !is_task || self.nodes > 1 {
            command.env("DISCO_NODES", self.nodes.to_string());
        }
        if !is_task || self.session.is_some() {
            command.env("DISCO_SESSION", layout.kind.name());
        }
        if layout.apart {
            command.env("DISCO_APART", "1");
        }
        if !self.devices.is_empty() {
            let devices: Vec<_> = self.devices.iter().map(i32::to_string).collect();
            command.env("DISCO_DEVICES", devices.join(","));
        }
        if let Some(address) = &self.listen {
            command.env("DISCO_LISTEN", address);
        }
        self.spares.map(|number| command.env("DISCO_SPARES", number.to_string()));
        if let Some(folder) = &self.log_dir {
            command.env("DISCO_LOG_DIR", folder);
        }
        if let Some(path) = &self.trace {
            command.env("DISCO_TRACE", path);
        }
        if let Some(path) = &self.token_file {
            command.env("DISCO_TOKEN_FILE", path).env_remove("DISCO_TOKEN");
        }
    }

    /// Rejects options that have no effect on a session of this kind.
    fn check_effects(&self, session: SessionKind) -> anyhow::Result<()> {
        values::check_devices(self.backend(), &self.devices)?;
        ensure!(
            self.log_dir.is_none() || session != SessionKind::Threads,
            "--log-dir has no effect on workers that are threads, whose output is that of the program; use `--session processes`"
        );
        let has_spares = self.spares.is_some_and(|number| number > 0);
        ensure!(
            !has_spares || session == SessionKind::Processes,
            "--spares has no effect without `--session processes`"
        );
        if session == SessionKind::Nodes {
            return Ok(());
        }
        ensure!(self.nodes == 1, "--session {session} runs on one machine, but --nodes asks for {}", self.nodes);
        ensure!(self.token_file.is_none(), "--token-file has no effect without --nodes");
        // Ranks that a launcher starts on other machines connect to rank 0 at this address.
        let is_launched = self.launcher.is_some() || (self.backend() == "mpi" && session == SessionKind::Processes);
        ensure!(self.listen.is_none() || is_launched, "--listen has no effect without --nodes");
        Ok(())
    }

    /// Whether options describe the session that a program makes with `disco::from_env()`.
    fn has_settings(&self) -> bool {
        self.workers.is_some()
            || self.session.is_some()
            || self.apart
            || self.nodes > 1
            || self.groups > 1
            || self.backend.is_some()
            || !self.devices.is_empty()
            || self.listen.is_some()
            || self.spares.is_some()
            || self.log_dir.is_some()
    }

    /// Number of workers that the tasks of a launcher have, if the launcher says how many tasks it has started.
    fn workers_of(&self, place: &Place, layout: Layout) -> Option<usize> {
        let are_ranks = self.backend() == "mpi" && place.starts_mpi;
        // If worker 0 is a process of its own, rank 0 has no worker.
        place.size.map(|tasks| tasks - usize::from(layout.apart && are_ranks))
    }

    /// The words of the launcher, which precede the program; empty if the program is run directly.
    #[cfg_attr(not(feature = "mpi"), expect(unused_variables))]
    fn launcher(&self, workers: usize, layout: Layout, others: &[Host]) -> anyhow::Result<Vec<OsString>> {
        if let Some(Words(launcher)) = &self.launcher {
            return Ok(launcher.iter().map(OsString::from).collect());
        }
        #[cfg(feature = "mpi")]
        if self.backend() == "mpi" && workers > 1 && !self.is_on_several(others) {
            return Ok(disco::mpi::launcher(workers + usize::from(layout.apart))?);
        }
        Ok(Vec::new())
    }
}

/// Replaces this process by the program; returns only if that fails.
pub(crate) fn replace(mut command: Command) -> io::Result<ExitCode> {
    Err(command.exec())
}
