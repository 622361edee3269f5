//! The state that a lane's methods and its reactor thread share.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use disco_core::channel::{Progress, Signal};
use disco_core::status::{NodeStatus, SpareStatus};
use disco_core::wire::Message;
use disco_core::{Error, Result, WorkerId};
use disco_engine::controller::{Action, Conn, Controller, Event, Order, Write};

use super::table::Table;
use crate::remote::process::Process;
use crate::remote::reactor::{Connection, Descriptor, Waker};

/// How often a thread that starts or closes a lane checks how far the lane is.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The engine of a lane and its connections, behind a lock.
pub(crate) struct Lane {
    state: Mutex<LaneState>,
    changed: Condvar,
    /// Wakes the reactor thread.
    pub(super) waker: Arc<Waker>,
    /// The memory of the ring, which peers get with WELCOME.
    ring: Option<Descriptor>,
}

struct LaneState {
    controller: Controller,
    table: Table,
    /// The result of the start, once known.
    started: Option<Result<()>>,
    /// Started processes that the reactor thread has to take over.
    processes: Vec<Process>,
    /// The reactor thread has ended.
    is_over: bool,
}

impl Lane {
    pub(crate) fn new(controller: Controller, waker: Arc<Waker>, ring: Option<Descriptor>) -> Self {
        let table = Table::default();
        let state = LaneState { controller, table, started: None, processes: Vec::new(), is_over: false };
        Self { state: Mutex::new(state), changed: Condvar::new(), waker, ring }
    }

    /// Calls the engine, writes the packets that follow, and wakes the reactor thread if it has something to do.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Controller, Instant) -> T) -> T {
        let mut state = self.lock();
        let result = act(&mut state.controller, Instant::now());
        self.write(&mut state);
        if state.controller.take_wake() {
            self.waker.wake();
        }
        result
    }

    /// Reads the engine's state.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Controller) -> T) -> T {
        read(&self.lock().controller)
    }

    /// The progress of a worker, with the bytes that its connection has moved.
    pub(crate) fn progress(&self, worker: WorkerId) -> Progress {
        let state = self.lock();
        let conn = state.controller.conn_of(worker).and_then(|conn| state.table.find(conn));
        let mut progress = state.controller.progress(worker);
        progress.moved += conn.map_or(0, |connection| connection.moved());
        progress
    }

    /// Bytes that the lane's connections have sent.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.lock().table.sent_bytes()
    }

    /// The state of the lane's nodes and their connections.
    pub(crate) fn nodes(&self) -> Vec<NodeStatus> {
        let state = self.lock();
        let nodes = state.controller.nodes(Instant::now()).into_iter();
        nodes
            .map(|(conn, mut node)| {
                let connection = conn.and_then(|conn| state.table.find(conn));
                node.connection.iter_mut().zip(connection).for_each(|(status, it)| it.describe(status));
                node
            })
            .collect()
    }

    /// The nodes that stand by, and their connections.
    pub(crate) fn spares(&self) -> Vec<SpareStatus> {
        let state = self.lock();
        let spares = state.controller.spares(Instant::now()).into_iter();
        spares
            .map(|(conn, mut spare)| {
                let connection = state.table.find(conn);
                spare.connection.iter_mut().zip(connection).for_each(|(status, it)| it.describe(status));
                spare
            })
            .collect()
    }

    /// Calls the engine for a change that causes no writes or actions.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Controller) -> T) -> T {
        change(&mut self.lock().controller)
    }

    /// Wakes the reactor thread.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// Sends a signal to all peers.
    ///
    /// # Errors
    /// The protocol does not have this signal.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), String> {
        match signal {
            Signal::Abort { .. }
            | Signal::Cancel { .. }
            | Signal::Settle { .. }
            | Signal::Taken { .. }
            | Signal::Replace { .. }
            | Signal::Shutdown
            | Signal::Collect { .. } => {
                self.with(|engine, now| engine.handle(Event::Signal(signal), now));
                Ok(())
            }
            other => Err(format!("the lane does not know the signal {other:?}")),
        }
    }

    /// Hands started processes over to the reactor thread, in the order of peers.
    pub(crate) fn adopt(&self, processes: Vec<Process>) {
        self.lock().processes = processes;
        self.waker.wake();
    }

    /// Waits until all peers have started. Calls `check` at intervals meanwhile.
    ///
    /// # Errors
    /// The start has failed, or `check` fails.
    pub(super) fn wait_for_start(&self, check: impl Fn() -> Result<()>) -> Result<()> {
        let mut state = self.lock();
        loop {
            match state.started.take() {
                Some(started) => return started,
                None if state.is_over => return Err(Error::state("the service thread of the lane has ended")),
                None => check()?,
            }
            let waited = self.changed.wait_timeout(state, POLL_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Closes the lane, and waits until it is closed. Returns the workers that did not leave within `limit`.
    pub(super) fn close(&self, limit: Duration) -> Vec<String> {
        self.with(|controller, now| controller.handle(Event::Close(limit), now));
        loop {
            // The reactor thread may be busy or have ended, so this thread drives the timeouts of closing, too.
            self.with(Controller::go_on_closing);
            let state = self.lock();
            if let Some(stuck) = state.controller.stuck() {
                return stuck.to_vec();
            }
            drop(self.changed.wait_timeout(state, POLL_INTERVAL));
        }
    }

    /// Handles an event on the reactor thread, and appends the actions that follow to `actions`.
    pub(super) fn step(&self, event: Event, actions: &mut VecDeque<Action>) {
        let mut state = self.lock();
        state.controller.handle(event, Instant::now());
        self.write(&mut state);
        self.take_actions(&mut state, actions);
    }

    /// Collects the work that other threads have left for the reactor thread: appends to `actions`, and returns started
    /// processes.
    pub(super) fn collect(&self, actions: &mut VecDeque<Action>) -> Vec<Process> {
        let mut state = self.lock();
        self.take_actions(&mut state, actions);
        std::mem::take(&mut state.processes)
    }

    fn take_actions(&self, state: &mut LaneState, actions: &mut VecDeque<Action>) {
        while let Some(action) = state.controller.next_action() {
            actions.push_back(action);
        }
        // The reactor thread computes its timeout anyway, so it needs no wake-up.
        state.controller.take_wake();
        if state.controller.stuck().is_some() {
            self.changed.notify_all();
        }
    }

    pub(super) fn insert(&self, connection: Arc<Connection>) -> Conn {
        self.lock().table.insert(connection)
    }

    pub(super) fn remove(&self, conn: Conn) {
        let removed = self.lock().table.remove(conn);
        removed.inspect(|connection| connection.close());
    }

    pub(super) fn set_started(&self, started: Result<()>) {
        self.lock().started = Some(started);
        self.changed.notify_all();
    }

    pub(super) fn end(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    fn write(&self, state: &mut LaneState) {
        while let Some(write) = state.controller.next_write() {
            let Some(connection) = state.table.find(write.conn) else { continue };
            let conn = write.conn;
            let Err(error) = self.write_to(connection, write) else { continue };
            if connection.is_full() {
                state.controller.handle(Event::Full(conn, connection.backlog()), Instant::now());
            } else {
                // The reactor thread notices the closed connection when it reads, where the reason may still be found.
                tracing::debug!(?conn, %error, "a packet can't be written");
                self.waker.wake();
            }
        }
    }

    fn write_to(
        &self,
        connection: &Connection,
        Write { bytes, order, snapshot, pieces, transfer, .. }: Write,
    ) -> Result<()> {
        match (order, transfer, &pieces) {
            (Order::Ahead, Some(transfer), Some(content)) => return connection.send_ahead(transfer, content.clone()),
            (Order::Withdrawn, Some(transfer), _) => return connection.withdraw(&transfer),
            (_, Some(transfer), None) => return connection.send_last_after(bytes, transfer),
            _ => {}
        }
        if let Some(pieces) = pieces {
            return connection.send_pieces(pieces);
        }
        if let Some(snapshot) = snapshot {
            return connection.send_last_behind(Message::Beside.encode()?, snapshot, bytes);
        }
        match order {
            Order::Urgent => connection.send(bytes, None),
            Order::WithRing => connection.send(bytes, self.ring.clone()),
            Order::Last | Order::Ahead | Order::Withdrawn => connection.send_last(bytes),
            Order::Held => connection.hold_last(bytes),
        }
    }

    fn lock(&self) -> MutexGuard<'_, LaneState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

disco_core::format_as!(Debug for Lane, |_| "Lane {{ .. }}");
