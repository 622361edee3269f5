//! Sessions whose workers a launcher has started: ranks of MPI, and tasks without MPI.

use disco_channel::nodes::Announce;
#[cfg(feature = "mpi")]
use disco_channel::nodes::{Token, everywhere};
use disco_core::Result;
#[cfg(feature = "mpi")]
use disco_core::env::Variable;

#[cfg(feature = "mpi")]
use super::NodeOptions;
use crate::{Builder, SessionKind};

/// Prepares the start of a session: the tasks of a launcher become its workers. From now on, a write to a file that is too
/// large is an error in this process.
///
/// # Errors
/// The launcher's tasks do not suffice for the session, or the environment is wrong.
pub(crate) fn with_launcher(builder: Builder) -> Result<Builder> {
    #[cfg(feature = "mpi")]
    let builder = builder.with_ranks()?;
    crate::remote::signals::get_errors_of_large_files();
    builder.with_tasks()
}

impl Builder {
    /// Uses the ranks that an MPI launcher has started, if any, as workers: as processes if all are on this machine,
    /// else as nodes, with a random token that only the ranks get.
    #[cfg(feature = "mpi")]
    fn with_ranks(mut self) -> Result<Self> {
        let has_launch = self.kind == SessionKind::Processes && self.remote.processes.launch.is_some();
        let ranks = crate::remote::ranks::of_session(self.kind, self.workers, self.remote.apart)?;
        let Some(ranks) = ranks.filter(|_| !has_launch) else { return Ok(self) };
        let (are_here, machines, limit) = (ranks.are_here(), ranks.machines(), self.start_limit());
        if are_here && self.kind == SessionKind::Processes {
            self.remote.processes.launch = Some(ranks.launch(limit));
            return Ok(self);
        }
        let token = Token::random()?;
        let listen = Variable::read("DISCO_LISTEN").text()?.map(str::to_owned);
        let given = self.remote.nodes;
        self.remote.nodes = NodeOptions {
            // If machines have unequal numbers of ranks, each rank is its own node.
            count: match machines {
                1 if are_here => given.count,
                machines if self.workers.is_multiple_of(machines) => machines,
                _ => self.workers,
            },
            workers: SessionKind::Threads,
            one_worker_each: true,
            names: ranks.names(),
            listen: given.listen.or(listen).or_else(|| (!are_here).then(|| format!("{}:0", everywhere()))),
            announce: Some(ranks.announce(&token, limit)),
            token: Some(token),
            ..given
        };
        self.kind = SessionKind::Nodes;
        Ok(self)
    }

    /// Uses the tasks that a launcher without MPI has started, if any, as workers: as processes if all are on this
    /// machine, else as nodes.
    fn with_tasks(mut self) -> Result<Self> {
        if self.kind == SessionKind::Threads || self.remote.processes.launch.is_some() {
            return Ok(self);
        }
        let Some(tasks) = crate::remote::tasks::tasks()? else { return Ok(self) };
        // Machines may start at different times. What the program says holds.
        self.start_deadline = self.start_deadline.or(crate::remote::node::join_limit()?);
        let nodes = &mut self.remote.nodes;
        match (self.kind, tasks.kind()) {
            (SessionKind::Nodes, SessionKind::Processes) => return Ok(self),
            (SessionKind::Processes, SessionKind::Processes) => {
                tasks.check(self.kind, self.workers)?;
                self.remote.processes.launch = tasks.launch(self.start_limit(), self.remote.apart)?;
            }
            _ => {
                let count = if self.kind == SessionKind::Nodes { nodes.count } else { tasks.size() };
                tasks.check(SessionKind::Nodes, count)?;
                (self.kind, nodes.count) = (SessionKind::Nodes, count);
                nodes.listen.get_or_insert_with(|| tasks.listen());
                // The tasks know the address.
                nodes.announce = Some(Announce::default().only_once());
            }
        }
        Ok(self)
    }
}
