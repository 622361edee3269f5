//! The lane, as a session has it.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use disco_core::channel::{Progress, Signal};
use disco_core::link::Shared;
use disco_core::wire::Message;
use disco_core::worker::WorkerConfig;
use disco_core::{Channel, Command, Error, Frame, Inbox, Result, WorkerId};

use super::crew::Crew;
use super::launch::Launch;
use super::output::Sink;
use crate::processes::frames::INLINE;
use crate::ring::MAX_READERS;
use crate::terminal;

/// What a [`ProcessLane`] is made of.
#[derive(Clone)]
pub struct Options {
    /// What is started for each worker.
    pub launch: Launch,
    /// How workers behave.
    pub config: WorkerConfig,
    /// Commands go through shared memory. If not, or where there is none, they go over the connections.
    pub ring: bool,
    /// How long workers may take to start.
    pub start: Duration,
    /// How often a worker says something.
    pub heartbeat: Duration,
    /// How long a worker may be silent.
    pub silence: Duration,
    /// Takes what workers print.
    pub output: Sink,
}

/// The lane to workers that are processes of this machine. Dropping it lets them go: they leave at the next opportunity,
/// or are killed after 5 s, and nobody waits for them.
pub struct ProcessLane {
    workers: Range<WorkerId>,
    options: Options,
    shared: Arc<Shared>,
    started: OnceLock<Crew>,
}

impl Options {
    /// This program once more for each worker, the ring, 30 s to start, something said each second, 5 s of silence; what
    /// workers print is printed here, with a prefix, and on a terminal with its control characters written out.
    pub fn new(config: WorkerConfig) -> Self {
        let [start, heartbeat, silence] = [30, 1, 5].map(Duration::from_secs);
        let output =
            Arc::new(|worker: WorkerId, is_err, line: &[u8]| terminal::print(&worker.to_string(), is_err, line));
        Self { launch: Launch::this_program(), config, ring: true, start, heartbeat, silence, output }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("launch", &self.launch).field("config", &self.config).finish_non_exhaustive()
    }
}

impl ProcessLane {
    /// Makes a lane to `workers`, which [starts](Channel::start) a process for each; those share `shared` with the workers
    /// of other lanes.
    pub fn new(workers: Range<WorkerId>, shared: Arc<Shared>, options: Options) -> Self {
        Self { workers, options, shared, started: OnceLock::new() }
    }

    fn crew(&self) -> Result<&Crew> {
        self.started.get().ok_or_else(|| self.error("was not started"))
    }

    fn error(&self, why: &str) -> Error {
        Error::invalid(format!("{}: {why}", self.name()))
    }

    fn name(&self) -> String {
        let (start, end) = (self.workers.start.index(), self.workers.end.index());
        format!("lane to the processes of workers {start}..{end}")
    }
}

#[async_trait]
impl Channel for ProcessLane {
    fn workers(&self) -> Range<WorkerId> {
        self.workers.clone()
    }

    /// Starts the processes, and waits until all have come.
    ///
    /// # Errors
    /// It was started before, there are no workers or more than [`MAX_READERS`]; a process can't be started, ends, is
    /// another program or does not come in time: which worker, and why. Those that were started are killed.
    fn start(&self, inbox: Arc<dyn Inbox>) -> Result<()> {
        let count = self.workers.end.index().saturating_sub(self.workers.start.index());
        if !(1..=MAX_READERS).contains(&count) {
            return Err(self.error(&format!("1 to {MAX_READERS} workers are possible")));
        }
        if self.started.get().is_some() {
            return Err(self.error("was started before"));
        }
        let crew = Crew::start(self.workers.clone(), &self.options, self.shared.clone(), inbox)?;
        self.started.set(crew).map_err(|_| self.error("was started before"))
    }

    fn crosses(&self) -> bool {
        true
    }

    fn room(&self) -> usize {
        self.started.get().map_or(0, |crew| crew.roster.room(INLINE))
    }

    fn send(&self, frame: &Arc<Frame>) -> Result<()> {
        let crew = self.crew()?;
        if crew.roster.closed.load(Ordering::Acquire) {
            return Err(Error::Closed(self.name()));
        }
        let bytes = frame.bytes()?;
        if crew.roster.room(INLINE) == 0 {
            return Err(self.error("is full"));
        }
        match frame.command() {
            Command::Shutdown => crew.roster.leave(),
            Command::Recover { epoch } => crew.roster.begin(*epoch),
            _ => {}
        }
        crew.pass(frame, bytes)
    }

    fn urgent(&self, signal: Signal) -> Result<()> {
        let crew = self.crew()?;
        match signal {
            Signal::Abort { epoch, cause } => crew.urge(&Message::Abort { epoch, cause }),
            Signal::Shutdown => crew.let_go(),
            other => Err(self.error(&format!("can't pass on {other:?}"))),
        }
    }

    fn progress(&self, worker: WorkerId) -> Progress {
        let index = worker.index().checked_sub(self.workers.start.index());
        let crew = self.started.get().zip(index).filter(|(crew, index)| *index < crew.roster.len());
        crew.map(|(crew, index)| crew.roster.seat(index).progress().clone()).unwrap_or_default()
    }

    /// Blocks the calling thread rather than the task: no timer here could wake a task. Workers that have not left in time
    /// are killed.
    async fn close(&self, limit: Duration) -> Result<()> {
        let Some(crew) = self.started.get() else { return Ok(()) };
        let worker = |index| crew.roster.worker(index);
        let stuck: Vec<String> = crew
            .dismiss(limit)?
            .into_iter()
            .map(worker)
            .map(|w| format!("{w} ({}; killed)", self.progress(w)))
            .collect();
        match stuck.is_empty() {
            true => Ok(()),
            false => Err(Error::Stuck { workers: stuck.join(", "), after: limit }),
        }
    }
}

impl fmt::Debug for ProcessLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessLane").field("workers", &self.workers).finish_non_exhaustive()
    }
}
