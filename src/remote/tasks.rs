//! Tasks that a launcher has started without MPI: `srun`, `torchrun`, pods of Kubernetes. Task 0 is the controller's
//! process, and the other tasks are its workers.
//!
//! - On one machine, each task is a worker process; [`job_socket`](crate::remote::job_socket) gives it its invitation. Worker 0 is a
//!   thread of task 0, or [a process](crate::Builder::apart) that task 0 starts.
//! - On several machines, each task is a node. All tasks know the machine and the port of task 0 from the launcher's
//!   variables, and need the same token.

use std::process;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use disco_channel::nodes::{self, JoinOptions, Token, everywhere, host_and_port};
use disco_channel::processes::{Invitation, Launch};
use disco_core::env::Variable;
use disco_core::launcher::Place;
use disco_core::{Error, Result};

use crate::SessionKind;
use crate::remote::job_socket::{Claim, JobSocket};

/// How long a task of this machine waits for task 0 to call `disco::init`, by default.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);

/// The tasks whose task 0 this process is; unset without a launcher, and for ranks of MPI.
static TASKS: OnceLock<Result<Tasks>> = OnceLock::new();

/// The tasks of a job, of which this process is task 0.
#[derive(Debug)]
pub(crate) struct Tasks {
    place: Place,
    size: usize,
    /// None if the tasks are on several machines.
    socket: Option<Arc<JobSocket>>,
}

/// Whether each task is a program of its own, because the environment asks for threads.
pub(crate) fn are_alone() -> bool {
    Variable::read("DISCO_SESSION").text().is_ok_and(|kind| kind == Some(SessionKind::Threads.name()))
}

/// Takes the role that the launcher gave this process. Returns on task 0 and without a launcher. Other tasks serve the
/// sessions of task 0, for which they wait, and exit when it ends.
pub(crate) fn become_task() {
    let place = match Place::from_env() {
        Ok(Some(place)) if !are_alone() => place,
        Ok(_) => return,
        // A program that asks for the launcher's tasks gets the error from `Settings::from_env`.
        Err(error) => return tracing::warn!(%error, "the launcher's variables are ignored"),
    };
    let Some(size) = place.size.filter(|size| *size > 1) else { return };
    if place.rank == 0 {
        // An error is that of the first session: this program may be a child of task 0 and start none.
        TASKS.get_or_init(|| Tasks::new(place, size));
        return;
    }
    let ended = match Claim::take(&place.job, place.rank) {
        // This program is a child of the task.
        Ok(None) => {
            let Place { launcher, rank, .. } = place;
            TASKS.get_or_init(|| {
                Err(Error::invalid(format!(
                    "{launcher} has started this process as task {rank}, but another process serves as this task, which may be the \
                     parent: set DISCO_SESSION=threads, or remove the launcher's variables, for a program that a task starts"
                )))
            });
            return;
        }
        Ok(Some(_claim)) => serve(&place),
        Err(error) => Err(error),
    };
    if let Err(error) = &ended {
        disco_core::tell(format_args!("disco: {error}"));
    }
    process::exit(i32::from(ended.is_err()));
}

/// The tasks, if this process is task 0 of several.
///
/// # Errors
/// Another process has the socket of the job.
pub(crate) fn tasks() -> Result<Option<&'static Tasks>> {
    TASKS.get().map(|tasks| tasks.as_ref().map_err(Clone::clone)).transpose()
}

/// Serves the sessions of task 0: on one machine until it ends, otherwise one session.
fn serve(place: &Place) -> Result<()> {
    let limit = crate::remote::node::join_limit()?;
    if place.is_one_machine() {
        let limit = limit.unwrap_or(JOIN_TIMEOUT);
        return JobSocket::serve(&place.job, place.rank, limit, |invitation| crate::serve(&invitation));
    }
    nodes::check(&format!("joining the session of task 0 of {}, which is on another machine,", place.launcher))?;
    let address = place.host.as_deref().ok_or_else(|| {
        Error::invalid(format!(
            "{} has started this process as task {}, but its variables name no machine of task 0: set DISCO_CONNECT=HOST:PORT for \
             this process, and DISCO_LISTEN for task 0",
            place.launcher, place.rank
        ))
    })?;
    let mut options = JoinOptions::new(host_and_port(address, place.port()), Token::required()?);
    options.node = Some(place.rank as u32);
    options.start = limit.unwrap_or(options.start);
    // Tasks start in any order, so a wait is normal. Its end without the controller is an error.
    options.report = |text| tracing::info!("{text}");
    super::node::be_node(options)
}

impl Tasks {
    fn new(place: Place, size: usize) -> Result<Self> {
        let socket = if place.is_one_machine() { Some(Arc::new(JobSocket::listen(&place.job)?)) } else { None };
        Ok(Self { place, size, socket })
    }

    /// Number of tasks.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The kind of sessions whose workers are the tasks.
    pub(crate) fn kind(&self) -> SessionKind {
        if self.socket.is_some() { SessionKind::Processes } else { SessionKind::Nodes }
    }

    /// The address where the controller waits for nodes: all interfaces of this machine, and the port that the other
    /// tasks know.
    pub(crate) fn listen(&self) -> String {
        format!("{}:{}", everywhere(), self.place.port())
    }

    /// Checks that the tasks suffice for a session.
    ///
    /// # Errors
    /// There are fewer tasks than `needed`, or more than a session of nodes has nodes.
    pub(crate) fn check(&self, kind: SessionKind, needed: usize) -> Result<()> {
        let (launcher, size) = (self.place.launcher, self.size);
        match kind {
            SessionKind::Processes if needed > size => Err(Error::invalid(format!(
                "{launcher} has started {size} tasks, but the session has {needed} workers: start at least {needed} tasks, or set \
                 DISCO_SESSION=threads, which makes each task a program of its own"
            ))),
            SessionKind::Nodes if needed != size => Err(Error::invalid(format!(
                "{launcher} has started {size} tasks, each of which is a node, but the session has {needed} nodes: leave \
                 DISCO_NODES unset, or start {needed} tasks"
            ))),
            _ => Ok(()),
        }
    }

    /// Launches the tasks of this machine as worker processes. A task that does not come within `limit` is an error. If the
    /// worker 0 is a process (`apart`), this program is executed again for worker 0.
    ///
    /// # Errors
    /// This program can't be executed as a worker.
    pub(crate) fn launch(&self, limit: Duration, apart: bool) -> Result<Option<Launch>> {
        let Some(socket) = self.socket.clone() else { return Ok(None) };
        let send = move |invitation: &Invitation| socket.send(invitation.worker.index(), &invitation.text(), limit);
        let launch = Launch::elsewhere(send).only_once();
        Ok(Some(if apart { launch.starting_worker_0(crate::remote::role::launch()?) } else { launch }))
    }
}
