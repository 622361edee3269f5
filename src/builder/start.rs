//! The start of sessions whose workers are processes, here or on other nodes.

use std::io::{self, Write as _};

use disco_channel::nodes::{Announce, Options as NodeOptions, Token};
use disco_channel::{processes, session};
use disco_core::session::LaneSession;
use disco_core::worker::WorkerConfig;
use disco_core::{Error, Result, WorkerRange};

use super::{Builder, Nodes};
use crate::{SessionKind, log_files};

impl Builder {
    /// Number of worker processes that are started ahead, in the background, and wait to take the places of lost ones; see
    /// [`Session::replace_lost`](crate::Session::replace_lost). A replacement then need not wait for the start of the
    /// program. Another process is started for each that is used or ends. A spare takes the memory of a program that has
    /// reached [`init`](crate::init). For sessions of processes that this program starts. Default: 0.
    pub fn spares(mut self, processes: usize) -> Self {
        self.spares = processes;
        self
    }

    /// Rejects log files for workers that are threads: their output is that of the program.
    pub(super) fn check_log_dir(&self) -> Result<()> {
        let has_processes = match self.kind {
            SessionKind::Threads => false,
            SessionKind::Processes => true,
            SessionKind::Nodes => self.nodes.workers == SessionKind::Processes,
        };
        if let Some(folder) = self.log_dir.as_ref().filter(|_| !has_processes) {
            let folder = folder.display();
            return Err(Error::invalid(format!(
                "log files in {folder} need workers that are processes, but these are threads, whose output is that of the program"
            )));
        }
        Ok(())
    }

    /// Rejects spares that no process could use.
    pub(super) fn check_spares(&self) -> Result<()> {
        let why = match (self.spares, self.kind) {
            (0, _) | (_, SessionKind::Processes) => return Ok(()),
            (_, SessionKind::Threads) => "threads can't be replaced",
            (_, SessionKind::Nodes) => "nodes stand by themselves (`disco worker --spare`)",
        };
        Err(Error::invalid(format!("{} spares need workers that are processes of this machine: {why}", self.spares)))
    }

    pub(super) fn start_with_processes(&self, config: WorkerConfig) -> Result<LaneSession> {
        let mut options = self.process_options(config, config.world.size() as u32)?;
        options.spares = (self.spares > 0).then(|| processes::Spares::new(self.spares));
        session::processes(options, self.deadlines)
    }

    /// Options for starting workers 1 to `workers` - 1 as processes.
    fn process_options(&self, config: WorkerConfig, workers: u32) -> Result<processes::Options> {
        let mut options = processes::Options::new(config);
        (options.start, options.heartbeat, options.silence) =
            (self.start_limit(), self.heartbeat_interval(), self.silence);
        options.launch = self.launch.clone().map_or_else(crate::role::launch, Ok)?;
        if let Some(folder) = self.log_dir.as_ref().filter(|_| workers > 1) {
            options.output = log_files::tee(options.output, folder, WorkerRange::new(1..workers))?;
        }
        Ok(options)
    }

    pub(super) fn start_with_nodes(&self, config: WorkerConfig) -> Result<LaneSession> {
        let Nodes { count, workers: kind, one_worker_each, names, listen, token, encrypts, announce, .. } = &self.nodes;
        let world = config.world;
        let (nodes, here) = if *one_worker_each { (world.size() - 1, 1) } else { (count - 1, world.per_node() as u32) };
        let given = token.clone().map_or_else(Token::from_env, |token| Ok(Some(token)))?;
        let token = match (given, announce) {
            (Some(token), _) => token,
            // Nodes that this program starts get the token from it.
            (None, None) => Token::random()?,
            (None, Some(_)) => Token::required()?,
        };
        let mut options = NodeOptions::new(nodes, token.clone(), config);
        (options.start, options.heartbeat, options.silence) =
            (self.start_limit(), self.heartbeat_interval(), self.silence);
        (options.processes, options.names) = (*kind == SessionKind::Processes, names.clone());
        options.listen = listen.clone().unwrap_or(options.listen);
        (options.encrypts, options.fan_out) = (*encrypts, self.nodes.fan_out);
        options.max_pending = self.nodes.max_pending.unwrap_or(options.max_pending);
        options.max_unsent = self.nodes.max_unsent;
        // Nodes that this program starts have its functions and its token.
        if announce.is_some() {
            options.report = |text| _ = writeln!(io::stderr(), "disco: {text}");
        }
        // Clients have the token only if the user has.
        options.answers_status = announce.is_some() && !one_worker_each;
        options.announce = match announce {
            Some(announce) => announce.clone(),
            None => {
                crate::role::check()?;
                let (start, log_dir, encrypts) = (self.start_limit(), self.log_dir.clone(), *encrypts);
                Announce::starting(move |announcement| {
                    crate::node::start_here(announcement, &token, encrypts, start, log_dir.as_deref())
                })
            }
        };
        let local = match options.processes {
            true => self.process_options(config, here)?,
            false => processes::Options::new(config),
        };
        session::nodes(options, here, local, self.deadlines)
    }
}
