//! Sessions whose workers a launcher has started: ranks of MPI, and tasks without MPI.

use disco_channel::nodes::Announce;
#[cfg(feature = "mpi")]
use disco_channel::nodes::{Token, everywhere};
use disco_core::Result;
#[cfg(feature = "mpi")]
use disco_core::env::Variable;

use super::Builder;
#[cfg(feature = "mpi")]
use super::Nodes;
use crate::SessionKind;

impl Builder {
    /// Uses the ranks that an MPI launcher has started, if any, as workers: as processes if all are on this machine,
    /// else as nodes, with a random token that only the ranks get.
    #[cfg(feature = "mpi")]
    pub(super) fn with_ranks(mut self) -> Result<Self> {
        let has_launch = self.kind == SessionKind::Processes && self.launch.is_some();
        let Some(ranks) = crate::ranks::of_session(self.kind, self.workers, self.apart)?.filter(|_| !has_launch) else {
            return Ok(self);
        };
        let (are_here, machines, limit) = (ranks.are_here(), ranks.machines(), self.start_limit());
        if are_here && self.kind == SessionKind::Processes {
            self.launch = Some(ranks.launch(limit));
            return Ok(self);
        }
        let token = Token::random()?;
        let listen = Variable::read("DISCO_LISTEN").text()?.map(str::to_owned);
        self.nodes = Nodes {
            // If machines have unequal numbers of ranks, each rank is its own node.
            count: match machines {
                1 if are_here => self.nodes.count,
                machines if self.workers.is_multiple_of(machines) => machines,
                _ => self.workers,
            },
            workers: SessionKind::Threads,
            one_worker_each: true,
            names: ranks.names(),
            listen: self.nodes.listen.or(listen).or_else(|| (!are_here).then(|| format!("{}:0", everywhere()))),
            announce: Some(ranks.announce(&token, limit)),
            token: Some(token),
            encrypts: self.nodes.encrypts,
            max_pending: self.nodes.max_pending,
            max_unsent: self.nodes.max_unsent,
            fan_out: self.nodes.fan_out,
        };
        self.kind = SessionKind::Nodes;
        Ok(self)
    }

    /// Uses the tasks that a launcher without MPI has started, if any, as workers: as processes if all are on this
    /// machine, else as nodes.
    pub(super) fn with_tasks(mut self) -> Result<Self> {
        if self.kind == SessionKind::Threads || self.launch.is_some() {
            return Ok(self);
        }
        let Some(tasks) = crate::tasks::tasks()? else { return Ok(self) };
        // Machines may start at different times. What the program says holds.
        self.start_deadline = self.start_deadline.or(crate::node::join_limit()?);
        match (self.kind, tasks.kind()) {
            (SessionKind::Nodes, SessionKind::Processes) => return Ok(self),
            (SessionKind::Processes, SessionKind::Processes) => {
                tasks.check(self.kind, self.workers)?;
                self.launch = tasks.launch(self.start_limit(), self.apart)?;
            }
            _ => {
                let nodes = if self.kind == SessionKind::Nodes { self.nodes.count } else { tasks.size() };
                tasks.check(SessionKind::Nodes, nodes)?;
                (self.kind, self.nodes.count) = (SessionKind::Nodes, nodes);
                self.nodes.listen.get_or_insert_with(|| tasks.listen());
                // The tasks know the address.
                self.nodes.announce = Some(Announce::default().only_once());
            }
        }
        Ok(self)
    }
}
