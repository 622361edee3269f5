//! The start of sessions whose workers are processes, here or on other nodes.

use disco_channel::nodes::{self, Announce, Options as LaneOptions, Token};
use disco_channel::{processes, programs, session};
use disco_core::session::{LaneSession, SessionConfig};
use disco_core::worker::WorkerConfig;
use disco_core::{Result, WorkerRange};

use super::NodeOptions;
use crate::remote::start_nodes::start_nodes;
use crate::remote::{log_files, role};
use crate::{Builder, SessionKind};

impl Builder {
    /// Starts a session of processes or of nodes.
    pub(crate) fn start_remote(&self, config: WorkerConfig, settings: SessionConfig) -> Result<LaneSession> {
        match self.kind {
            SessionKind::Nodes => self.start_with_nodes(config, settings),
            _ => self.start_with_processes(config, settings),
        }
    }

    fn start_with_processes(&self, config: WorkerConfig, settings: SessionConfig) -> Result<LaneSession> {
        let mut options = self.lane_to_processes(config, config.world.size() as u32)?;
        let spares = self.remote.processes.spares;
        options.spares = (spares > 0).then(|| processes::Spares::new(spares));
        session::processes(options, settings)
    }

    /// Options for starting those of the first `workers` workers as processes that are no threads of this process.
    fn lane_to_processes(&self, config: WorkerConfig, workers: u32) -> Result<processes::Options> {
        let apart = self.remote.apart;
        let given = &self.remote.processes;
        let mut options = processes::Options::new(config);
        (options.start, options.heartbeat, options.silence) =
            (self.start_limit(), self.heartbeat_interval(), self.silence);
        options.launch = given.launch.clone().map_or_else(role::launch, Ok)?;
        options.apart = apart;
        let processes = WorkerRange::new(u32::from(!apart)..workers);
        if let Some(folder) = given.log_dir.as_ref().filter(|_| !processes.is_empty()) {
            options.output = log_files::tee(options.output, folder, processes)?;
        }
        Ok(options)
    }

    fn start_with_nodes(&self, config: WorkerConfig, settings: SessionConfig) -> Result<LaneSession> {
        nodes::check("a session of nodes")?;
        let (given, apart, world) = (&self.remote.nodes, self.remote.apart, config.world);
        let NodeOptions { count, one_worker_each, encrypts, .. } = *given;
        let (others, here) = match &given.launcher {
            _ if one_worker_each => (world.size() - usize::from(!apart), u32::from(!apart)),
            // This machine has the controller alone.
            Some(launcher) if launcher.hosts.len() == count => (count, 0),
            _ => (count - 1, world.per_node() as u32),
        };
        let has_launcher = given.launcher.is_some();
        let listen = given.listen.as_ref().filter(|_| !has_launcher);
        let announce = given.announce.clone().or_else(|| listen.map(|_| Announce::default()));
        let token = given.token.clone().map_or_else(Token::from_env, |token| Ok(Some(token)))?;
        let has_token = token.is_some();
        let token = match (token, &announce) {
            (Some(token), _) => token,
            // Nodes that this program starts get the token from it.
            (None, None) => Token::random()?,
            (None, Some(_)) => Token::required()?,
        };
        let mut options = LaneOptions::new(others, token.clone(), config);
        (options.start, options.heartbeat, options.silence) =
            (self.start_limit(), self.heartbeat_interval(), self.silence);
        (options.processes, options.names) = (given.workers == SessionKind::Processes, given.names.clone());
        options.listen = given.listen.clone().unwrap_or(options.listen);
        options.encrypts = encrypts;
        options.fan_out = given.fan_out.unwrap_or(options.fan_out);
        options.max_pending = given.max_pending.unwrap_or(options.max_pending);
        options.max_unsent = given.max_unsent;
        // Nodes that this program starts here have its functions and its token.
        if announce.is_some() || has_launcher {
            options.report = |text| disco_core::tell(format_args!("disco: {text}"));
        }
        // Clients have the token only if the user has.
        options.answers_status = (announce.is_some() || has_launcher && has_token) && !one_worker_each;
        options.announce = match announce {
            Some(announce) => announce,
            None => {
                let launcher = given.launcher.clone();
                match &launcher {
                    Some(launcher) => (options.names, options.prefixes) = (launcher.names(), launcher.prefixes()),
                    None => role::check()?,
                }
                let (start, log_dir) = (self.start_limit(), self.remote.processes.log_dir.clone());
                Announce::starting(move |announcement| {
                    start_nodes(announcement, launcher.as_ref(), &token, encrypts, start, log_dir.as_deref())
                })
            }
        };
        let local = if options.processes {
            self.lane_to_processes(config, here)?
        } else {
            let mut local = processes::Options::new(config);
            local.apart = apart;
            local
        };
        session::nodes(options, here, local, settings)
    }
}

/// Lets other programs ask for the status of a session, and SIGUSR1 write its flight recorders, as the environment says.
///
/// # Errors
/// The system refuses a signal handler or a thread.
pub(crate) fn attach(session: &LaneSession) -> Result<()> {
    #[cfg(feature = "trace")]
    crate::remote::dump::attach(session)?;
    let observer = session.observer();
    session.attach(programs::answer(move || observer.status()));
    Ok(())
}
