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

    /// Whether all workers are processes, worker 0 too, so that this process outlives any of them: worker 0 is lost,
    /// [replaced](crate::Session::replace_lost) and [resized](crate::Session::resize) away like the others. For sessions of
    /// processes, and of nodes whose workers are processes. Default: false, and worker 0 is a thread of this process.
    ///
    /// Tensors go to worker 0 and come back by value then, as to other workers: `copy_to_worker_0`, `copy_from_worker_0`,
    /// `broadcast` and `scatter` of a tensor, `set` and `get` copy them through shared memory. The first two return when the
    /// copy is complete.
    ///
    /// Under `srun` or `torchrun`, this process starts worker 0 itself. Under MPI's launcher, rank 0 is the controller and
    /// computes nothing, so `n` workers need `n` + 1 ranks.
    pub fn apart(mut self, apart: bool) -> Self {
        self.apart = apart;
        self
    }

    /// Rejects sessions with workers that are threads of this process.
    pub(super) fn check_apart(&self) -> Result<()> {
        let workers = match self.kind {
            SessionKind::Threads => "the workers of this session are threads",
            // Ranks of MPI are no threads of this process.
            SessionKind::Nodes if self.nodes.workers == SessionKind::Threads && !self.nodes.one_worker_each => {
                "the workers of its nodes are threads"
            }
            _ => return Ok(()),
        };
        match self.apart {
            true => Err(Error::invalid(format!("a session apart needs workers that are processes, but {workers}"))),
            false => Ok(()),
        }
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

    /// Options for starting those of the first `workers` workers as processes that are no threads of this process.
    fn process_options(&self, config: WorkerConfig, workers: u32) -> Result<processes::Options> {
        let mut options = processes::Options::new(config);
        (options.start, options.heartbeat, options.silence) =
            (self.start_limit(), self.heartbeat_interval(), self.silence);
        (options.launch, options.apart) = (self.launch.clone().map_or_else(crate::role::launch, Ok)?, self.apart);
        let processes = WorkerRange::new(u32::from(!self.apart)..workers);
        if let Some(folder) = self.log_dir.as_ref().filter(|_| !processes.is_empty()) {
            options.output = log_files::tee(options.output, folder, processes)?;
        }
        Ok(options)
    }

    pub(super) fn start_with_nodes(&self, config: WorkerConfig) -> Result<LaneSession> {
        let Nodes { count, workers: kind, one_worker_each, names, listen, token, encrypts, announce, .. } = &self.nodes;
        let world = config.world;
        let (nodes, here) = match one_worker_each {
            true => (world.size() - usize::from(!self.apart), u32::from(!self.apart)),
            false => (count - 1, world.per_node() as u32),
        };
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
            false => {
                let mut local = processes::Options::new(config);
                local.apart = self.apart;
                local
            }
        };
        session::nodes(options, here, local, self.deadlines)
    }
}
