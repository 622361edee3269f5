//! The thread of a lane to workers of TVM: it reads replies, sends waiting bytes, and reports the ends of workers.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use disco_core::channel::{Notice, Reply};
use disco_core::error::{ErrorKind, LossCause, LostPeer};
use disco_core::{Error, Inbox, Result, Value, WorkerId, WorkerRange, sync};
use rustix::event::{PollFd, PollFlags};

use super::connection::{Arrived, Connection, ShutdownState, failure};
use super::translate::{Owed, Then};
use crate::remote::output::Output;
use crate::remote::reactor::{Waker, poll};

/// Unsent bytes of one connection from which on the lane is full.
const FULL_BYTES: usize = 4 << 20;
/// Unsent packets of one connection from which on the lane is full.
const FULL_PACKETS: usize = 1024;
/// How long the exit status of a process may take after its connection has closed, and the reverse.
const STATUS_GRACE: Duration = Duration::from_millis(500);
/// Longest time between two turns.
const IDLE: Duration = Duration::from_secs(3600);

/// State that the lane and its thread share.
#[derive(Debug)]
pub(super) struct Shared {
    workers: WorkerRange,
    state: Mutex<State>,
    pub(super) changed: Condvar,
    waker: Waker,
    /// The session's epoch, for notices.
    pub(super) epoch: AtomicU64,
}

/// The state of a lane.
#[derive(Debug)]
pub(super) struct State {
    pub(super) connections: Vec<Connection>,
    /// The lane was full when a sender asked for room.
    is_awaited: bool,
    /// Whether the lane has started: from then on ends of workers are reported to the session.
    pub(super) has_started: bool,
    /// When remaining workers are killed.
    pub(super) kill_at: Option<Instant>,
    /// Workers that were killed.
    pub(super) killed: Vec<WorkerId>,
    /// Whether the thread has ended.
    pub(super) is_over: bool,
}

/// A report to the session, which is made without the lock.
#[derive(Debug)]
enum Report {
    Arrived(Arrived),
    Room,
    Left(WorkerRange),
    Lost(WorkerRange, LossCause),
}

impl Shared {
    pub(super) fn new(workers: WorkerRange, connections: Vec<Connection>) -> Result<Arc<Self>> {
        let waker = Waker::new().map_err(|error| Error::system("the system refuses an eventfd", error))?;
        let state = State {
            connections,
            is_awaited: false,
            has_started: false,
            kill_at: None,
            killed: Vec::new(),
            is_over: false,
        };
        Ok(Arc::new(Self {
            workers,
            state: Mutex::new(state),
            changed: Condvar::new(),
            waker,
            epoch: AtomicU64::new(0),
        }))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }

    /// Wakes the thread.
    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    /// Runs until all connections are over. Reports to `inbox` once the lane has started.
    pub(super) fn run(&self, inbox: &Arc<dyn Inbox>, output: Option<Output>) {
        loop {
            let (sockets, exits, limit) = {
                let state = self.lock();
                if state.connections.iter().all(|connection| connection.is_over) {
                    break;
                }
                (state.sockets(), state.exits(), state.limit())
            };
            let mut polled: Vec<PollFd<'_>> =
                sockets.iter().map(|(socket, flags)| PollFd::from_borrowed_fd(socket.as_fd(), *flags)).collect();
            polled.extend(exits.iter().map(|exit| PollFd::new(exit, PollFlags::IN)));
            polled.push(PollFd::new(&self.waker, PollFlags::IN));
            poll(&mut polled, limit);
            self.waker.reset();
            let (reports, has_started) = {
                let mut state = self.lock();
                (state.turn(), state.has_started)
            };
            self.changed.notify_all();
            if has_started {
                reports.into_iter().for_each(|report| report.deliver(self, &**inbox));
            }
        }
        // The last lines of workers come before the lane counts as closed.
        output.into_iter().for_each(Output::finish);
        self.lock().is_over = true;
        self.changed.notify_all();
    }
}

impl State {
    /// Number of frames that the lane accepts now.
    pub(super) fn room(&mut self) -> usize {
        let room = self.connections.iter().map(|connection| {
            if connection.queued < FULL_BYTES {
                FULL_PACKETS.saturating_sub(connection.unsent())
            } else if connection.is_open() {
                0
            } else {
                FULL_PACKETS
            }
        });
        let room = room.min().unwrap_or(0);
        self.is_awaited |= room == 0;
        room
    }

    /// Tells all workers to end.
    pub(super) fn shut_down(&mut self, after_commands: bool) -> Result<()> {
        self.connections.iter_mut().try_for_each(|connection| {
            connection.shut_down(after_commands)?;
            connection.flush();
            Ok(())
        })
    }

    /// Kills the remaining workers.
    pub(super) fn kill(&mut self) {
        for connection in self.connections.iter().filter(|connection| !connection.is_over) {
            connection.kill();
            // Concurrent callers of `close` may both come here.
            if !self.killed.contains(&connection.workers.first()) {
                self.killed.extend(connection.workers);
            }
        }
    }

    fn sockets(&self) -> Vec<(Arc<OwnedFd>, PollFlags)> {
        let open = self.connections.iter().filter(|it| !it.is_over && it.closed.is_none());
        let flags = |it: &Connection| if it.has_unsent() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        open.map(|connection| (connection.socket.clone(), flags(connection))).collect()
    }

    /// Duplicates of the pidfds of running processes.
    fn exits(&self) -> Vec<OwnedFd> {
        let running = self.connections.iter().filter(|connection| connection.ended.is_none());
        running.filter_map(|connection| connection.process.as_ref()?.exit()?.try_clone().ok()).collect()
    }

    fn limit(&self) -> Duration {
        let grace = self.connections.iter().filter(|connection| !connection.is_over);
        let grace = grace.filter_map(|connection| Some(connection.closed.or(connection.ended)? + STATUS_GRACE));
        let next = grace.chain(self.kill_at).min();
        next.map_or(IDLE, |next| next.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)))
    }

    fn turn(&mut self) -> Vec<Report> {
        let mut reports = Vec::new();
        let mut arrived = Vec::new();
        if self.kill_at.is_some_and(|at| at <= Instant::now()) {
            self.kill_at = None;
            self.kill();
        }
        for connection in self.connections.iter_mut().filter(|connection| !connection.is_over) {
            connection.flush();
            // The end of the process is noted first: all that it has sent can be read then.
            connection.reap();
            connection.read(&mut arrived);
            reports.extend(arrived.drain(..).map(Report::Arrived));
            if connection.violation.is_some() {
                connection.kill();
            }
            if connection_is_over(connection) {
                connection.kill();
                connection.is_over = true;
                let was_killed = connection.workers.iter().any(|worker| self.killed.contains(&worker));
                reports.push(if has_left(connection) || was_killed {
                    Report::Left(connection.workers)
                } else {
                    Report::Lost(connection.workers, connection.loss())
                });
            }
        }
        if self.is_awaited && self.room() > 0 {
            self.is_awaited = false;
            reports.push(Report::Room);
        }
        reports
    }
}

fn connection_is_over(connection: &Connection) -> bool {
    if connection.violation.is_some() {
        return true;
    }
    let has_process = connection.process.is_some();
    match (connection.closed, connection.ended) {
        (Some(_), Some(_)) => true,
        (Some(_), None) if !has_process => true,
        (None, None) => false,
        (closed, ended) => closed.or(ended).is_some_and(|since| since.elapsed() >= STATUS_GRACE),
    }
}

/// Whether the workers ended because they were told to.
fn has_left(connection: &Connection) -> bool {
    let status = connection.process.as_ref().and_then(|process| process.status());
    match connection.shutdown {
        ShutdownState::Running => false,
        ShutdownState::Now => connection.violation.is_none(),
        ShutdownState::AfterCommands => connection.violation.is_none() && status.is_none_or(|status| status.success()),
    }
}

impl Report {
    fn deliver(self, shared: &Shared, inbox: &dyn Inbox) {
        match self {
            Self::Arrived(Arrived { owed, reply }) => deliver_reply(owed, reply, shared, inbox),
            Self::Room => inbox.room(shared.workers),
            Self::Left(workers) => inbox.left(workers),
            Self::Lost(workers, why) => {
                inbox.lost(workers, Error::peer_lost(LostPeer::Workers { workers, node: None }, why));
            }
        }
    }
}

fn deliver_reply(owed: Owed, reply: Reply, shared: &Shared, inbox: &dyn Inbox) {
    let copied = match (&owed.then, reply) {
        (Then::Reply, reply) => return inbox.reply(owed.worker, owed.seq, reply),
        (Then::Start, _) | (Then::Ignore, Ok(_)) => return,
        (Then::Ignore, Err(failure)) => Err(failure),
        (Then::CopyTo(host), Ok(Value::Tensor(tensor))) => {
            host.copy_from(&tensor).map_err(|error| Arc::new(failure(&owed, error.to_string(), ErrorKind::of(&error))))
        }
        (Then::CopyTo(_), Ok(other)) => {
            let message = format!("the register holds {}, not a tensor", other.kind());
            Err(Arc::new(failure(&owed, message, ErrorKind::Invalid)))
        }
        (Then::CopyTo(_), Err(failure)) => Err(failure),
    };
    if let Err(failure) = copied {
        inbox.notice(owed.worker, Notice::Failed { epoch: shared.epoch.load(Ordering::Acquire), failure });
    }
}
