//! The controller's end.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use disco_core::channel::{Progress, Signal};
use disco_core::link::Shared;
use disco_core::{Channel, Command, Error, Frame, Inbox, Result, WorkerId, WorkerRange};

use super::crew::Crew;
use super::endpoint::ThreadEndpoint;
use super::work::Run;
use crate::ring::{self, Refused};

/// The lane to workers that are threads of this process. Dropping it lets them go: they leave at the next opportunity,
/// nobody waits for them.
pub struct ThreadLane {
    workers: WorkerRange,
    shared: Arc<Shared>,
    /// Taken at the start.
    run: Mutex<Option<Arc<Run>>>,
    crew: OnceLock<Crew>,
}

impl ThreadLane {
    /// Makes a lane to `workers`. Its [start](Channel::start) makes a thread for each, named like `disco-worker-3`, that
    /// calls `run` with the worker's id and its end of the lane: nothing comes up before there is an inbox.
    ///
    /// `run` returns when its endpoint is closed or after [`Command::Shutdown`]; a worker for which it ends in another
    /// way, an error or panic included, is reported as [lost](Inbox::lost). Links of the workers use `shared`. The inbox
    /// must not own the lane, which owns the inbox.
    pub fn new<F>(workers: WorkerRange, shared: Arc<Shared>, run: F) -> Self
    where
        F: Fn(WorkerId, ThreadEndpoint) -> Result<()> + Send + Sync + 'static,
    {
        Self { workers, shared, run: Mutex::new(Some(Arc::new(run))), crew: OnceLock::new() }
    }

    fn crew(&self) -> Result<&Crew> {
        self.crew.get().ok_or_else(|| self.error("was not started"))
    }

    fn error(&self, why: &str) -> Error {
        Error::state(format!("{}: {why}", self.name()))
    }

    fn name(&self) -> String {
        format!("lane to the threads of workers {:?}", self.workers.indices())
    }
}

impl Channel for ThreadLane {
    fn workers(&self) -> WorkerRange {
        self.workers
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// It was started before, there are no workers or more than [`MAX_READERS`](ring::MAX_READERS), or the system
    /// refuses a thread; those that were started leave.
    fn start(&self, inbox: Arc<dyn Inbox>) -> Result<()> {
        let count = self.workers.len();
        if !(1..=ring::MAX_READERS).contains(&count) {
            return Err(Error::invalid(format!("{}: 1 to {} workers are possible", self.name(), ring::MAX_READERS)));
        }
        let run = self.run.lock().unwrap_or_else(PoisonError::into_inner).take();
        let run = run.ok_or_else(|| self.error("was started before"))?;
        let crew = Crew::start(self.workers, &self.shared, &run, &inbox)?;
        self.crew.set(crew).map_err(|_| self.error("was started before"))
    }

    fn room(&self) -> usize {
        self.crew.get().map_or(0, |crew| crew.ring.room())
    }

    fn send(&self, frame: &Arc<Frame>) -> Result<()> {
        let crew = self.crew()?;
        if matches!(frame.command(), Command::Shutdown) {
            crew.exits.expect();
        }
        crew.send(frame).map_err(|refused| match refused {
            Refused::Full => self.error("is full"),
            Refused::Closed => Error::Closed(self.name()),
        })
    }

    fn urgent(&self, signal: Signal) -> Result<()> {
        let crew = self.crew()?;
        match signal {
            Signal::Abort { epoch, cause } => crew.links.iter().for_each(|link| link.abort(epoch, &cause)),
            Signal::Shutdown => crew.let_go(),
            other => return Err(self.error(&format!("can't pass on {other:?}"))),
        }
        Ok(())
    }

    fn progress(&self, worker: WorkerId) -> Progress {
        let index = self.workers.position(worker);
        let link = index.and_then(|index| self.crew.get()?.links.get(index));
        link.map(|link| link.activity().progress()).unwrap_or_default()
    }

    /// Workers that left are joined, so that destructors of their thread-local values have run, too.
    fn close(&self, limit: Duration) -> Result<()> {
        let Some(crew) = self.crew.get() else { return Ok(()) };
        let stuck = crew.dismiss(limit).into_iter().filter_map(|index| self.workers.get(index));
        let stuck: Vec<_> = stuck.map(|worker| format!("{worker} ({}; detached)", self.progress(worker))).collect();
        match stuck.is_empty() {
            true => Ok(()),
            false => Err(Error::Stuck { workers: stuck.join(", "), after: limit }),
        }
    }
}

impl fmt::Debug for ThreadLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ring = self.crew.get().map(|crew| &crew.ring);
        f.debug_struct("ThreadLane").field("workers", &self.workers).field("ring", &ring).finish()
    }
}
