//! What a lane's methods and its reactor thread share.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use disco_core::channel::{Progress, Signal};
use disco_core::wire::Message;
use disco_core::{Error, Result, WorkerId};

use super::table::Table;
use crate::engine::controller::{Action, Conn, Controller, Event, Order, Write};
use crate::process::Process;
use crate::reactor::{Connection, Descriptor, Waker};

/// How often a thread that closes a lane looks whether the reactor thread has done it.
const LOOK: Duration = Duration::from_millis(100);

/// The engine of a lane and its connections.
pub(crate) struct Lane {
    state: Mutex<State>,
    changed: Condvar,
    /// Wakes the reactor thread.
    pub(super) waker: Arc<Waker>,
    /// The memory of the ring, which peers get with their welcome.
    ring: Option<Descriptor>,
}

struct State {
    controller: Controller,
    table: Table,
    /// Whether the lane has come about, once that is known.
    started: Option<Result<()>>,
    /// Processes that were started, for the reactor thread to take.
    processes: Vec<Process>,
    /// The reactor thread is gone.
    is_over: bool,
}

impl Lane {
    pub(crate) fn new(controller: Controller, waker: Arc<Waker>, ring: Option<Descriptor>) -> Self {
        let table = Table::default();
        let state = State { controller, table, started: None, processes: Vec::new(), is_over: false };
        Self { state: Mutex::new(state), changed: Condvar::new(), waker, ring }
    }

    /// Has the engine do something, writes what follows from it, and wakes the reactor thread if that has something to do.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Controller, Instant) -> T) -> T {
        let mut state = self.lock();
        let result = act(&mut state.controller, Instant::now());
        self.write(&mut state);
        if state.controller.take_wake() {
            self.waker.wake();
        }
        result
    }

    /// Only looks at the engine.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Controller) -> T) -> T {
        look(&self.lock().controller)
    }

    /// What a worker is doing, and the bytes that its connection has moved.
    pub(crate) fn progress(&self, worker: WorkerId) -> Progress {
        let state = self.lock();
        let conn = state.controller.conn_of(worker).and_then(|conn| state.table.find(conn));
        let mut progress = state.controller.progress(worker);
        progress.moved = conn.map_or(0, |connection| connection.moved());
        progress
    }

    /// Has the engine note something of which nothing follows.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Controller) -> T) -> T {
        change(&mut self.lock().controller)
    }

    /// Passes a signal on to all peers.
    ///
    /// # Errors
    /// No peer knows it.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), String> {
        match signal {
            Signal::Abort { .. } | Signal::Shutdown => {
                self.with(|engine, now| engine.handle(Event::Signal(signal), now));
                Ok(())
            }
            other => Err(format!("can't pass on {other:?}")),
        }
    }

    /// Hands over processes that were started, in the order of peers.
    pub(crate) fn adopt(&self, processes: Vec<Process>) {
        self.lock().processes = processes;
        self.waker.wake();
    }

    /// Waits until the lane has come about.
    ///
    /// # Errors
    /// Why it does not.
    pub(super) fn wait_for_start(&self) -> Result<()> {
        let mut state = self.lock();
        loop {
            match state.started.take() {
                Some(started) => return started,
                None if state.is_over => return Err(Error::state("the service thread of a lane has ended")),
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Closes the lane, and waits for it. Returns the workers that did not leave within `limit`.
    pub(super) fn close(&self, limit: Duration) -> Vec<String> {
        self.with(|controller, now| controller.handle(Event::Close(limit), now));
        loop {
            // The reactor thread may be busy, or gone.
            self.with(Controller::go_on_closing);
            let state = self.lock();
            if let Some(stuck) = state.controller.stuck() {
                return stuck.to_vec();
            }
            drop(self.changed.wait_timeout(state, LOOK));
        }
    }

    /// Has the engine take an event in, on the reactor thread, and appends what is to be done to `actions`.
    pub(super) fn step(&self, event: Event, actions: &mut VecDeque<Action>) {
        let mut state = self.lock();
        state.controller.handle(event, Instant::now());
        self.write(&mut state);
        self.take_actions(&mut state, actions);
    }

    /// Takes what other threads have left for the reactor thread: appends what is to be done to `actions`, and returns processes that
    /// were started.
    pub(super) fn collect(&self, actions: &mut VecDeque<Action>) -> Vec<Process> {
        let mut state = self.lock();
        self.take_actions(&mut state, actions);
        std::mem::take(&mut state.processes)
    }

    fn take_actions(&self, state: &mut State, actions: &mut VecDeque<Action>) {
        while let Some(action) = state.controller.next_action() {
            actions.push_back(action);
        }
        // The thread looks for timeouts by itself.
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

    fn write(&self, state: &mut State) {
        while let Some(write) = state.controller.next_write() {
            let Some(connection) = state.table.find(write.conn) else { continue };
            let conn = write.conn;
            let Err(error) = self.write_to(connection, write) else { continue };
            if connection.is_full() {
                state.controller.handle(Event::Full(conn, connection.backlog()), Instant::now());
            } else {
                // That the other end is gone shows when it is listened to: it may have said why.
                tracing::debug!(?conn, %error, "can't be told");
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").finish_non_exhaustive()
    }
}
