//! The reactor thread of a lane.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use disco_core::channel::Inbox;
use disco_core::error::LossCause;
use disco_core::link::Shared;
use disco_core::wire::{Message, WireError};
use disco_engine::controller::{Action, Conn, Event};
use disco_engine::handshake::Keys;
use rustix::event::{PollFd, PollFlags};

use super::lane::Lane;
use super::status::Clients;
use super::transport::{Accepted, Transport};
use crate::remote::open_files;
use crate::remote::process::Process;
use crate::remote::reactor::{Connection, DESCRIPTOR_RETRY_DELAY, Incoming, Poller};

/// Connections that are accepted before other events are handled.
const MAX_ACCEPTS_PER_TURN: usize = 64;
/// Reads from one connection before the next one has its turn.
const MAX_READS_PER_TURN: usize = 16;
/// Interval at which held large replies are offered to the inbox again.
const HELD_REPLY_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The state of the reactor thread.
pub(crate) struct Reactor<T: Transport> {
    pub(super) lane: Arc<Lane>,
    pub(super) inbox: Arc<dyn Inbox>,
    pub(super) shared: Arc<Shared>,
    /// Clients that have asked for the status of the session.
    pub(super) clients: Arc<Clients>,
    transport: T,
    pub(super) connections: BTreeMap<Conn, Reading>,
    /// The processes of peers.
    processes: Vec<Process>,
    /// Actions that were not carried out yet.
    pub(super) actions: VecDeque<Action>,
    poller: Poller,
    /// An action was carried out since the last wait: more may follow soon.
    is_busy: bool,
    ticked: Instant,
    is_over: bool,
    /// Limit of unsent bytes of each peer's connection, in place of the default.
    max_unsent: Option<usize>,
}

/// The receiving half of a connection.
pub(super) struct Reading {
    pub(super) connection: Arc<Connection>,
    pub(super) incoming: Incoming,
    /// Bytes of the handshake that are still to come before messages.
    bytes: usize,
}

/// A descriptor that is ready.
#[derive(Clone, Copy)]
enum Source {
    Waker,
    Listener,
    Connection(Conn),
    /// A process has ended.
    Process(usize),
}

impl<T: Transport> Reactor<T> {
    /// Serves a lane to `peers` peers. Their messages go to `inbox` and `shared`.
    pub(crate) fn new(lane: Arc<Lane>, inbox: Arc<dyn Inbox>, shared: Arc<Shared>, peers: usize, transport: T) -> Self {
        Self {
            lane,
            inbox,
            shared,
            clients: Arc::default(),
            transport,
            connections: BTreeMap::new(),
            processes: (0..peers).map(|_| Process::Unknown).collect(),
            actions: VecDeque::new(),
            poller: Poller::default(),
            is_busy: false,
            ticked: Instant::now(),
            is_over: false,
            max_unsent: None,
        }
    }

    /// Sets the limit of unsent bytes of each peer's connection.
    pub(crate) fn limit_unsent(mut self, bytes: Option<usize>) -> Self {
        self.max_unsent = bytes;
        self
    }

    /// Serves until all peers have ended.
    pub(super) fn run(mut self) {
        loop {
            let started = self.lane.collect(&mut self.actions);
            self.adopt(started);
            self.act();
            if self.is_over {
                break;
            }
            self.release();
            let held = self.held();
            let (timeout, accepts) = self.lane.read(|engine| (engine.next_timeout(), engine.accepts()));
            for source in self.wait(timeout, accepts, &held) {
                match source {
                    Source::Waker => {
                        self.lane.waker.reset();
                        self.close_full();
                    }
                    Source::Listener => self.accept(),
                    Source::Connection(conn) => self.read_and_write(conn, held.contains(&conn)),
                    Source::Process(index) => self.reap(index),
                }
            }
            // Held connections are not read, so their silence must not count.
            held.into_iter().for_each(|conn| self.step(Event::PartReceived(conn)));
            if timeout.is_some_and(|timeout| Instant::now() >= timeout) {
                self.step(Event::Timer);
            }
            if self.ticked.elapsed() >= self.transport.interval() {
                self.ticked = Instant::now();
                self.transport.tick();
            }
        }
        self.transport.finish();
    }

    /// Connections that are not to be read (back-pressure): inside a large reply, or before one in shared memory, while
    /// the inbox accepts none.
    fn held(&self) -> Vec<Conn> {
        let accepts = self.inbox.accepts_large_replies();
        // A reply that was left unread stays held until `release` reads it: its socket may never become ready again.
        let large = |incoming: &Incoming| incoming.is_held() || !accepts && incoming.is_inside_large_packet();
        self.connections.iter().filter(|(_, it)| large(&it.incoming)).map(|(conn, _)| *conn).collect()
    }

    /// Continues connections whose progress no socket event reports: those with sent transfers, those with a held large
    /// reply that the inbox now accepts, and those whose descriptor the system has refused.
    fn release(&mut self) {
        self.connections.values().for_each(|it| it.connection.notify_sent());
        for Reading { connection, .. } in self.connections.values().filter(|it| it.connection.is_paused()) {
            // An error is noticed when the connection is read.
            _ = connection.flush();
        }
        let held: Vec<_> =
            self.connections.iter().filter(|(_, it)| it.incoming.is_held()).map(|(conn, _)| *conn).collect();
        for conn in held {
            if !self.inbox.accepts_large_replies() {
                break;
            }
            self.read(conn, true);
        }
    }

    /// Waits until a descriptor is ready or `timeout`. Does not read from `held` connections.
    fn wait(&mut self, timeout: Option<Instant>, accepts: bool, held: &[Conn]) -> Vec<Source> {
        let mut sources = vec![Source::Waker];
        let mut polled = vec![PollFd::new(&*self.lane.waker, PollFlags::IN)];
        if let Some(listener) = self.transport.listener().filter(|_| accepts) {
            sources.push(Source::Listener);
            polled.push(PollFd::from_borrowed_fd(listener, PollFlags::IN));
        }
        for (conn, Reading { connection, .. }) in &self.connections {
            let (is_behind, is_held) = (connection.is_behind(), held.contains(conn));
            if is_behind || !is_held {
                let mut events = PollFlags::empty();
                events.set(PollFlags::IN, !is_held);
                events.set(PollFlags::OUT, is_behind);
                sources.push(Source::Connection(*conn));
                polled.push(PollFd::from_borrowed_fd(connection.as_fd(), events));
            }
        }
        for (index, process) in self.processes.iter().enumerate() {
            if let Some(exit) = process.exit() {
                sources.push(Source::Process(index));
                polled.push(PollFd::new(exit, PollFlags::IN));
            }
        }
        let now = Instant::now();
        let timeout = timeout.map_or(Duration::MAX, |timeout| timeout.saturating_duration_since(now));
        let tick = self.transport.interval().saturating_sub(self.ticked.elapsed());
        let held = if held.is_empty() { Duration::MAX } else { HELD_REPLY_POLL_INTERVAL };
        let is_paused = self.connections.values().any(|it| it.connection.is_paused());
        let pause = if is_paused { DESCRIPTOR_RETRY_DELAY } else { Duration::MAX };
        if !std::mem::take(&mut self.is_busy) {
            self.poller.rest();
        }
        self.poller.wait(&mut polled, timeout.min(tick).min(held).min(pause), &[]);
        let ready = polled.iter().map(|polled| !polled.revents().is_empty());
        sources.into_iter().zip(ready).filter_map(|(source, ready)| ready.then_some(source)).collect()
    }

    /// Handles an event, and carries out the actions that follow.
    fn step(&mut self, event: Event) {
        let event = self.with_better_reason(event);
        self.lane.step(event, &mut self.actions);
        self.act();
    }

    /// Replaces the end of a connection on which large packets do not arrive: the other end has given up for want of
    /// messages, and the reason that it gives does not explain that.
    fn with_better_reason(&self, event: Event) -> Event {
        match event {
            Event::Hung(conn, _) | Event::Message(conn, Message::Bye(_)) => {
                self.stuck(conn).map_or(event, |bytes| Event::Unacknowledged(conn, bytes))
            }
            event => event,
        }
    }

    /// Bytes of a connection that the other end's machine does not acknowledge.
    fn stuck(&self, conn: Conn) -> Option<usize> {
        self.connections.get(&conn)?.connection.stuck()
    }

    fn accept(&mut self) {
        for accepted in 0..MAX_ACCEPTS_PER_TURN {
            match self.transport.accept() {
                Ok(None) => {}
                Ok(Some(Accepted { connection, origin, bytes, limit })) => {
                    let connection = Arc::new(connection);
                    let conn = self.lane.insert(connection.clone());
                    self.connections.insert(conn, Reading { connection, incoming: Incoming::new(limit), bytes });
                    self.step(Event::Opened(conn, origin));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The other end has closed the connection already.
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {
                }
                // The system refuses a descriptor before it looks for a connection, and none may wait.
                Err(error) if accepted > 0 && open_files::is_at_limit(&error) => break,
                // For instance, too many descriptors are open.
                Err(error) => return self.step(Event::Closed(error)),
            }
        }
    }

    /// Reads from and writes to a connection that is ready.
    fn read_and_write(&mut self, conn: Conn, is_held: bool) {
        let Some(Reading { connection, .. }) = self.connections.get(&conn) else { return };
        let connection = connection.clone();
        // Reads first: the last message may give the reason of an error of writing.
        let is_all_read = is_held || self.read(conn, true);
        if let Err(error) = connection.flush()
            && is_all_read
            && self.connections.contains_key(&conn)
        {
            tracing::debug!(?conn, %error, "a connection can't be written to");
            self.step(Event::Hung(conn, None));
        }
    }

    /// Reads from a connection and handles its messages. Stops after some reads for fairness; the socket then stays
    /// ready. Returns whether all was read. With `may_hold`, stops before a large reply that the inbox does not accept
    /// now.
    fn read(&mut self, conn: Conn, may_hold: bool) -> bool {
        for _ in 0..MAX_READS_PER_TURN {
            if self.connections.get(&conn).is_some_and(|reading| reading.incoming.is_held()) {
                if let Err(error) = self.take_messages(conn, may_hold) {
                    self.step(Event::InvalidMessage(conn, error.into()));
                    return true;
                }
                if self.connections.get(&conn).is_some_and(|reading| reading.incoming.is_held()) {
                    return true;
                }
            }
            let Some(reading) = self.connections.get_mut(&conn) else { return true };
            let event = if reading.bytes > 0 {
                match reading.read_bytes() {
                    Ok(bytes) if bytes.is_empty() => Event::Hung(conn, None),
                    Ok(bytes) => {
                        self.step(Event::Bytes(conn, bytes));
                        continue;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => Event::Hung(conn, Some(error.to_string())),
                }
            } else {
                match reading.incoming.fill(&reading.connection) {
                    Ok(came) => match self.take_messages(conn, may_hold) {
                        Ok(()) if came => continue,
                        Ok(()) if self.connections.get(&conn).is_some_and(|reading| reading.incoming.is_held()) => {
                            return true;
                        }
                        Ok(()) if self.connections.get(&conn).is_some_and(|reading| reading.incoming.is_closed()) => {
                            Event::Hung(conn, None)
                        }
                        Ok(()) => return true,
                        Err(error) => Event::InvalidMessage(conn, error.into()),
                    },
                    Err(error) => Event::InvalidMessage(conn, error),
                }
            };
            self.step(event);
            return true;
        }
        false
    }

    /// Handles all complete messages.
    fn take_messages(&mut self, conn: Conn, may_hold: bool) -> Result<(), WireError> {
        while let Some(reading) = self.connections.get_mut(&conn) {
            let message = reading.incoming.next_if(|| !may_hold || self.inbox.accepts_large_replies())?;
            reading.connection.note_received(reading.incoming.moved());
            let has_part = reading.incoming.take_part();
            let Some(message) = message else {
                if has_part {
                    self.step(Event::PartReceived(conn));
                }
                break;
            };
            self.step(Event::Message(conn, message));
        }
        Ok(())
    }

    /// Closes connections that have refused a packet: their peers have missed a message.
    fn close_full(&mut self) {
        let full = self.connections.iter().filter(|(_, reading)| reading.connection.is_full());
        let full: Vec<_> = full.map(|(conn, reading)| (*conn, reading.connection.backlog())).collect();
        full.into_iter().for_each(|(conn, unread)| self.step(Event::Full(conn, unread)));
    }

    /// Handles the possible end of a peer's process, after reading the messages that it has sent before.
    fn reap(&mut self, index: usize) {
        let why = self.processes[index].reap().unwrap_or_else(|error| {
            tracing::warn!(peer = index, %error, "the process of a peer can't be waited for");
            None
        });
        if self.processes[index].has_ended() {
            if let Some(conn) = self.lane.read(|engine| engine.conn(index)) {
                _ = self.read(conn, false);
                why.into_iter().for_each(|why| self.step(Event::Accused(index, LossCause::Other(why))));
            }
            let status = self.processes[index].status();
            self.step(Event::Ended(index, status));
        }
    }

    /// Takes over started processes.
    fn adopt(&mut self, started: Vec<Process>) {
        for (index, process) in started.into_iter().enumerate() {
            let Some(place) = self.processes.get_mut(index) else { return };
            let child = process.child_id();
            *place = process;
            if child.is_some() {
                self.step(Event::Started(index, child));
            }
        }
    }

    /// Carries out all queued actions.
    fn act(&mut self) {
        while let Some(action) = self.actions.pop_front() {
            self.perform(action);
        }
    }

    fn encrypt(&mut self, conn: Conn, keys: Keys) {
        let Some(Reading { connection, incoming, .. }) = self.connections.get_mut(&conn) else { return };
        incoming.decrypt(keys.clone());
        if let Err(error) = connection.encrypt(keys) {
            self.step(Event::InvalidMessage(conn, error));
        }
    }

    fn perform(&mut self, action: Action) {
        self.is_busy = true;
        match action {
            Action::Encrypt(conn, keys) => self.encrypt(conn, keys),
            Action::Listen(conn, limit) => {
                if let Some(reading) = self.connections.get_mut(&conn) {
                    reading.bytes = 0;
                    reading.incoming.set_limit(limit);
                    // Frames within the credit, and one more large one.
                    reading.connection.serve(2, limit);
                    self.max_unsent.into_iter().for_each(|bytes| reading.connection.limit_unsent(bytes));
                }
            }
            Action::Close(conn) => {
                self.connections.remove(&conn);
                self.lane.remove(conn);
            }
            Action::Flush => {
                for Reading { connection, .. } in self.connections.values() {
                    // An error is noticed when the connection is read.
                    _ = connection.flush();
                }
            }
            Action::StopAccepting => self.transport.stop_accepting(),
            Action::SendStatus(conn) => self.send_status(conn),
            Action::Watch { peer, pid, conn } => self.watch(peer, pid, conn),
            Action::Kill(peer) => {
                if let Some(Err(error)) = self.processes.get(peer).map(Process::kill) {
                    tracing::warn!(peer, %error, "the process of a peer can't be killed");
                }
            }
            Action::Started(started) => self.lane.set_started(started),
            Action::Replies { workers, seq } => self.inbox.replies(workers, seq),
            Action::Reply { worker, seq, reply } => self.inbox.reply(worker, seq, reply),
            Action::Recording { worker, bytes } => self.inbox.recording(worker, bytes),
            Action::Notice { worker, notice } => self.inbox.notice(worker, notice),
            Action::Room => self.inbox.room(self.lane.read(|engine| engine.workers())),
            Action::Left(workers) => {
                // Replies that came before the end.
                self.transport.deliver_replies(&*self.inbox);
                self.inbox.left(workers);
            }
            Action::Lost(workers, why) => {
                self.transport.deliver_replies(&*self.inbox);
                self.inbox.lost(workers, why.clone());
                self.transport.note_lost(workers, &why);
            }
            Action::CallStore { conn, id, epoch, call } => self.ask(conn, id, epoch, call),
            Action::Share { conn, id, name } => self.share(conn, id, name),
            Action::Unshare(name) => self.shared.remove(name),
            Action::Receive { conn, id, name } => self.hand(conn, id, name),
            Action::CallKeeper { conn, id, worker, call } => self.call_keeper(conn, id, worker, &call),
            Action::Forget(worker) => self.shared.remove_all_of(worker),
            Action::Discard(worker) => self.shared.discard_all_of(worker),
            Action::Output { node, worker, is_err, line } => {
                self.transport.print(node, self.inbox.number(worker), is_err, line);
            }
            Action::Retire(peer) => self.transport.retire(peer),
            Action::Over => self.is_over = true,
        }
    }

    /// Watches the process at the other end of a connection.
    fn watch(&mut self, peer: usize, pid: u32, conn: Conn) {
        let Some(Reading { connection, .. }) = self.connections.get(&conn) else { return };
        match watch(pid, connection) {
            Ok(process) => {
                self.processes[peer] = process;
                self.lane.step(Event::Started(peer, None), &mut self.actions);
            }
            Err(error) => tracing::warn!(peer, %error, "the process of a peer can't be watched"),
        }
    }
}

impl<T: Transport> Drop for Reactor<T> {
    /// If this thread has panicked, all peers are lost and told to stop, since no thread handles their messages any
    /// more.
    fn drop(&mut self) {
        if thread::panicking() {
            self.actions.clear();
            self.processes.clear();
            self.step(Event::Broken("the service thread of the lane panicked".into()));
        }
        self.lane.end();
    }
}

impl Reading {
    /// Reads bytes of the handshake; empty if the other end has closed the connection.
    fn read_bytes(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.bytes];
        let came = self.connection.receive(&mut bytes)?;
        bytes.truncate(came);
        self.bytes -= came;
        Ok(bytes)
    }
}

/// Watches the process at the other end of a connection of this machine.
fn watch(pid: u32, connection: &Connection) -> io::Result<Process> {
    let process = Process::foreign(pid)?;
    // The other end is still open, so its process is alive and its id was not reused before the pidfd was opened.
    if connection.is_hung_up() { Err(io::ErrorKind::NotConnected.into()) } else { Ok(process) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::remote::reactor::Waker;

    #[test]
    fn a_process_with_a_reused_id_is_not_watched() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let connection = Connection::new(ours, Arc::new(Waker::new().unwrap())).unwrap();
        assert!(watch(std::process::id(), &connection).unwrap().exit().is_some());
        drop(theirs);
        assert_eq!(watch(std::process::id(), &connection).unwrap_err().kind(), io::ErrorKind::NotConnected);
    }
}
