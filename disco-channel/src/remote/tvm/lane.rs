//! The controller's end of a lane to workers of TVM.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::channel::{FrameSize, LaneFacts, Progress, Signal};
use disco_core::{Channel, Command, Error, Frame, Inbox, Owner, Result, WorkerId, WorkerRange};

use super::connection::Connection;
use super::nodes::NodeOptions;
use super::opened::{LastLines, Opened};
use super::processes::{self, Options};
use super::service::{Shared, State};
use super::{nodes, translate};
use crate::remote::join_timeout;

/// How long workers have to end after the lane was dropped.
const DROP_GRACE: Duration = Duration::from_secs(5);
/// How long killed workers have to end.
const KILL_GRACE: Duration = Duration::from_secs(2);

/// The lane to workers that are processes or nodes of TVM's Disco. Dropping the lane tells the workers to end and
/// returns at once; workers that are left after 5 s are killed. In a forked child, dropping it does nothing.
pub struct Lane {
    workers: WorkerRange,
    peers: Peers,
    /// Held while the lane starts.
    starting: Mutex<()>,
    running: OnceLock<Arc<Shared>>,
    owner: Owner,
}

#[derive(Debug)]
enum Peers {
    Processes(Options),
    Nodes(NodeOptions),
}

impl Lane {
    /// A lane to `workers`. [`Channel::start`] starts a process of TVM for each.
    pub fn processes(workers: WorkerRange, options: Options) -> Self {
        Self::new(workers, Peers::Processes(options))
    }

    /// A lane to `workers`, which are on nodes of TVM. [`Channel::start`] waits for the nodes.
    pub fn nodes(workers: WorkerRange, options: NodeOptions) -> Self {
        Self::new(workers, Peers::Nodes(options))
    }

    fn new(workers: WorkerRange, peers: Peers) -> Self {
        Self { workers, peers, starting: Mutex::default(), running: OnceLock::new(), owner: Owner::default() }
    }

    fn running(&self) -> Result<&Arc<Shared>> {
        self.running.get().ok_or_else(|| self.error("the lane was not started"))
    }

    fn error(&self, why: &str) -> Error {
        Error::state(format!("{}: {why}", self.name()))
    }

    fn name(&self) -> String {
        format!("lane to workers {:?} of TVM", self.workers.indices())
    }

    fn start_limit(&self) -> Duration {
        match &self.peers {
            Peers::Processes(options) => options.start,
            Peers::Nodes(options) => options.start,
        }
    }

    fn value_limit(&self) -> usize {
        match &self.peers {
            Peers::Processes(options) => options.config.value_limit,
            Peers::Nodes(options) => options.config.value_limit,
        }
    }

    /// Waits until all workers have answered.
    fn await_start(&self, shared: &Shared, begun: Instant, last_lines: &LastLines) -> Result<()> {
        let limit = self.start_limit();
        let mut state = shared.lock();
        loop {
            if let Some(ended) = state.connections.iter().position(|connection| connection.is_over) {
                state.kill();
                drop(state);
                shared.wake();
                // Until then, the last lines may be on their way.
                wait_until_over(shared, KILL_GRACE);
                let state = shared.lock();
                return Err(processes::ended_early(&state.connections[ended], last_lines));
            }
            let missing: Vec<String> = state.connections.iter().filter(|it| it.starting > 0).map(name_of).collect();
            if missing.is_empty() {
                state.has_started = true;
                return Ok(());
            }
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                state.kill();
                drop(state);
                shared.wake();
                wait_until_over(shared, KILL_GRACE);
                let state = format!("no answer from {}", missing.join(", "));
                return Err(Error::Deadline { operation: "start of TVM's workers".into(), after: limit, state });
            }
            state = shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn send_to(&self, state: &mut State, frame: &Frame) -> Result<()> {
        if matches!(frame.command(), Command::Shutdown) {
            return state.shut_down(true);
        }
        for packet in translate::packets(frame, self.workers)? {
            match packet.to {
                Some(worker) => {
                    let owner = state.connections.iter_mut().find(|it| it.workers.contains(worker));
                    owner.map_or(Ok(()), |connection| connection.push(frame.seq(), packet))?;
                }
                None => {
                    for connection in &mut state.connections {
                        let bytes = packet.bytes.clone();
                        connection.push(frame.seq(), translate::Outgoing { to: None, bytes, owed: None })?;
                    }
                }
            }
        }
        state.connections.iter_mut().for_each(Connection::flush);
        Ok(())
    }
}

fn name_of(connection: &Connection) -> String {
    connection.workers.to_string()
}

/// Waits until the thread of the lane has ended. Returns whether it has.
fn wait_until_over(shared: &Shared, limit: Duration) -> bool {
    let state = shared.lock();
    let waited = shared.changed.wait_timeout_while(state, limit, |state| !state.is_over);
    !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
}

impl Channel for Lane {
    fn facts(&self) -> LaneFacts {
        let mut facts = LaneFacts::new(self.workers);
        (facts.needs_bytes, facts.runs_this_program) = (true, false);
        facts.value_limit = self.value_limit();
        facts.understands = Some(match self.peers {
            Peers::Processes(_) => translate::check,
            Peers::Nodes(_) => translate::check_for_nodes,
        });
        facts
    }

    /// Starts the processes or waits for the nodes, and blocks until all workers have answered.
    ///
    /// # Errors
    /// The lane was started before; a process can't be started or ends (the error has the last line of its standard
    /// error); a node does not connect; a worker does not answer in time.
    fn start(&self, inbox: Arc<dyn Inbox>) -> Result<()> {
        let _starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if self.running.get().is_some() {
            return Err(self.error("the lane was started before"));
        }
        let begun = Instant::now();
        let opened = match &self.peers {
            Peers::Processes(options) => processes::open(self.workers, options)?,
            Peers::Nodes(options) => nodes::open(self.workers, options)?,
        };
        let Opened { mut connections, output, last_lines } = opened;
        for connection in &mut connections {
            for worker in connection.workers {
                connection.push(0, translate::start(worker)?)?;
            }
            connection.flush();
        }
        let shared = Shared::new(self.workers, connections)?;
        let thread = thread::Builder::new().name("disco-tvm".into()).spawn({
            let shared = shared.clone();
            move || shared.run(&inbox, output)
        });
        let thread = thread.map_err(|error| Error::system(format!("{}: no thread", self.name()), error))?;
        if let Err(error) = self.await_start(&shared, begun, &last_lines) {
            join_timeout::within(thread, KILL_GRACE);
            return Err(error);
        }
        self.running.set(shared).map_err(|_| self.error("the lane was started before"))
    }

    fn room(&self, _: FrameSize) -> usize {
        self.running.get().map_or(0, |shared| shared.lock().room())
    }

    fn send(&self, frame: &Arc<Frame>) -> Result<()> {
        let shared = self.running()?;
        if let Command::Recover { epoch } = frame.command() {
            shared.epoch.store(*epoch, Ordering::Release);
        }
        let has_unsent = {
            let mut state = shared.lock();
            if state.is_over {
                return Err(Error::Closed(self.name()));
            }
            if state.room() == 0 {
                return Err(self.error("the lane is full"));
            }
            self.send_to(&mut state, frame)?;
            state.connections.iter().any(Connection::has_unsent)
        };
        if has_unsent {
            shared.wake();
        }
        Ok(())
    }

    /// Workers of TVM do not understand aborts, so an abort has no effect.
    fn signal(&self, signal: Signal) -> Result<()> {
        let shared = self.running()?;
        self.owner.check()?;
        match signal {
            Signal::Abort { cause, .. } => {
                tracing::debug!(%cause, workers = %self.workers, "workers of TVM can't be aborted");
            }
            Signal::Shutdown => {
                shared.lock().shut_down(false)?;
                shared.wake();
            }
            other => return Err(self.error(&format!("TVM's workers do not understand the signal {other:?}"))),
        }
        Ok(())
    }

    fn progress(&self, worker: WorkerId) -> Progress {
        let Some(shared) = self.running.get() else { return Progress::default() };
        let state = shared.lock();
        let connection = state.connections.iter().find(|connection| connection.workers.contains(worker));
        connection.map(|connection| connection.progress(worker)).unwrap_or_default()
    }

    /// After `limit`, processes are killed, and connections to nodes are closed.
    fn close(&self, limit: Duration) -> Result<()> {
        let Some(shared) = self.running.get().filter(|_| self.owner.is_here()) else { return Ok(()) };
        if !wait_until_over(shared, limit) {
            let mut state = shared.lock();
            state.kill();
            drop(state);
            shared.wake();
            wait_until_over(shared, KILL_GRACE);
        }
        let state = shared.lock();
        let stuck: Vec<String> = state.killed.iter().map(|worker| format!("{worker} (killed)")).collect();
        if stuck.is_empty() { Ok(()) } else { Err(Error::Stuck { workers: stuck.join(", "), after: limit }) }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if let Some(shared) = self.running.get().filter(|_| self.owner.is_here()) {
            let mut state = shared.lock();
            state.kill_at = Instant::now().checked_add(DROP_GRACE);
            // The packet is valid, so this can't fail.
            _ = state.shut_down(false);
            drop(state);
            shared.wake();
        }
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("workers", &self.workers).field("peers", &self.peers).finish_non_exhaustive()
    }
}
