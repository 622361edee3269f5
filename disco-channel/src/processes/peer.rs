//! One worker, as the service thread of its lane sees it.

use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::channel::{Inbox, Notice};
use disco_core::link::{Shared, SharedFd};
use disco_core::store::Store;
use disco_core::wire::{self, Message, Packet, StoreCall};
use disco_core::{Error, Result, Value, WorkerId};

use super::connection::{Connection, Incoming};
use super::lane::INLINE;
use super::launch::Started;
use super::roster::Roster;

/// How long after its connection was closed a worker's process may take to end, until it is reported without its status.
const STATUS: Duration = Duration::from_millis(500);

/// How often one worker is listened to before the next.
const ROUNDS: usize = 16;

/// One worker.
pub(super) struct Peer {
    index: usize,
    pub(super) worker: WorkerId,
    /// None: somebody else has started it.
    child: Option<Child>,
    /// Readable once the process has ended.
    pub(super) exit: Option<OwnedFd>,
    status: Option<ExitStatus>,
    line: Option<Line>,
    /// When the connection was closed, and why if that is known.
    closed: Option<(Instant, Option<String>)>,
    /// Its end was seen, and reported if it was none that was expected.
    is_over: bool,
}

/// The way to a worker that has introduced itself.
struct Line {
    connection: Arc<Connection>,
    incoming: Incoming,
    /// When it was heard last.
    heard: Instant,
}

impl Peer {
    pub(super) fn started(index: usize, worker: WorkerId, started: Option<Started>) -> Self {
        let (child, exit) = started.map(|started| (started.child, started.exit)).unzip();
        Self { index, worker, child, exit, status: None, line: None, closed: None, is_over: false }
    }

    /// The id of its process, if this lane has started it.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub(super) fn has_come(&self) -> bool {
        self.line.is_some()
    }

    /// It has introduced itself.
    pub(super) fn come(&mut self, connection: Arc<Connection>, incoming: Incoming) {
        self.line = Some(Line { connection, incoming, heard: Instant::now() });
    }

    /// Its connection, while that is open.
    pub(super) fn connection(&self) -> Option<&Arc<Connection>> {
        self.line.as_ref().filter(|_| self.closed.is_none()).map(|line| &line.connection)
    }

    /// Takes in what it sends.
    pub(super) fn listen(&mut self, roster: &Roster, inbox: &Arc<dyn Inbox>, shared: &Arc<Shared>) {
        if self.closed.is_some() {
            return;
        }
        let Some(line) = &mut self.line else { return };
        let result = line.listen(self.index, self.worker, roster, inbox, shared);
        match result {
            Ok(None) if line.incoming.is_closed() => self.close(None),
            Ok(None) => {}
            Ok(Some(bye)) => self.close(Some(bye)),
            Err(error) => self.close(Some(format!("it sent garbage: {error}"))),
        }
        // Nothing comes of a process that has ended, whoever else may hold its end of the connection.
        if self.status.is_some() {
            self.close(None);
        }
    }

    /// Goes on sending what the socket did not take.
    pub(super) fn flush(&mut self) {
        if self.connection().is_some_and(|connection| connection.flush().is_err()) {
            self.close(None);
        }
    }

    /// Hears nothing more of it, nor does it of this side, which ends it if nothing else does.
    pub(super) fn close(&mut self, why: Option<String>) {
        self.closed.get_or_insert((Instant::now(), why));
        if let Some(line) = &self.line {
            line.connection.close();
        }
    }

    /// Whether its process ended as a worker does that was told to leave.
    pub(super) fn is_clean(&self) -> bool {
        let is_silent = self.closed.as_ref().is_none_or(|(_, why)| why.is_none());
        is_silent && self.status.is_none_or(|status| status.success())
    }

    /// Gives it up if it has been silent for `limit`.
    pub(super) fn check_silence(&mut self, limit: Duration) {
        let silent = self.line.as_ref().is_some_and(|line| line.heard.elapsed() > limit);
        if silent && self.closed.is_none() {
            self.close(Some(format!("it has said nothing for {limit:?}")));
        }
    }

    /// Nobody could hear it meanwhile: its silence counts from now.
    pub(super) fn excuse_silence(&mut self) {
        if let Some(line) = &mut self.line {
            line.heard = Instant::now();
        }
    }

    /// Its process has ended, perhaps.
    pub(super) fn reap(&mut self) {
        let Some(child) = &mut self.child else { return };
        match child.try_wait() {
            Ok(None) => return,
            Ok(status) => self.status = status,
            Err(error) => tracing::warn!(worker = %self.worker, %error, "its process can't be waited for"),
        }
        self.exit = None;
        self.child = None;
        // What it has sent before is in the socket.
        if self.line.is_none() {
            self.close(None);
        }
    }

    /// Ends its process.
    pub(super) fn kill(&mut self) {
        if let Some(error) = self.child.as_mut().and_then(|child| child.kill().err()) {
            tracing::warn!(worker = %self.worker, %error, "its process can't be killed");
        }
    }

    /// Whether nothing is left of it.
    pub(super) fn is_gone(&self) -> bool {
        self.is_over && self.child.is_none()
    }

    /// Why it is gone, once that is known. Told once.
    pub(super) fn end(&mut self) -> Option<String> {
        let (since, why) = self.closed.as_ref()?;
        let is_clear = self.status.is_some() || self.child.is_none() || why.is_some() || since.elapsed() > STATUS;
        if self.is_over || !is_clear {
            return None;
        }
        self.is_over = true;
        Some(match (why, self.status) {
            (Some(why), _) => why.clone(),
            (None, Some(status)) => format!("its process ended: {status}"),
            (None, None) => "its connection was closed".to_owned(),
        })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // No thread is there to wait for it.
            _ = child.kill();
            _ = child.wait();
        }
    }
}

impl Line {
    /// Takes in what is there. Some: the worker leaves, and why.
    fn listen(
        &mut self,
        index: usize,
        worker: WorkerId,
        roster: &Roster,
        inbox: &Arc<dyn Inbox>,
        shared: &Arc<Shared>,
    ) -> Result<Option<String>> {
        // Others have something to say, too: what is left comes up again.
        for _ in 0..ROUNDS {
            let more = self.incoming.fill(&self.connection)?;
            while let Some(message) = self.incoming.next()? {
                self.heard = Instant::now();
                match message {
                    Message::Reply { reply: Err(failure), .. } if failure.worker != worker => {
                        return Err(Error::invalid(format!("a failure of {}", failure.worker)));
                    }
                    Message::Reply { seq, reply } => inbox.reply(worker, seq, reply),
                    Message::Notice(packet) => {
                        let notice = wire::decode_notice(Packet::split(&packet)?.0)?;
                        if matches!(&notice, Notice::Failed { failure, .. } if failure.worker != worker) {
                            return Err(Error::invalid("a notice of another worker"));
                        }
                        inbox.notice(worker, notice);
                    }
                    Message::Progress(progress) => *roster.seat(index).progress() = progress,
                    Message::Room { frames, bytes } => {
                        roster.acknowledge(index, frames, bytes);
                        if roster.room(INLINE) > 0 {
                            inbox.room(roster.workers.clone());
                        }
                    }
                    Message::Ask { id, epoch, call } => self.call_store(id, epoch, call, shared)?,
                    Message::Share { id, name } => {
                        shared.put(SharedFd::from_bits(name), self.incoming.take_fd()?);
                        answer(&self.connection, id, Ok(Value::None))?;
                    }
                    Message::Unshare(name) => shared.remove(SharedFd::from_bits(name)),
                    Message::Receive { id, name } => self.hand(id, SharedFd::from_bits(name), shared)?,
                    Message::Bye(why) => return Ok(Some(why)),
                    other => return Err(Error::invalid(format!("{other:?}"))),
                }
            }
            if !more {
                break;
            }
        }
        Ok(None)
    }

    fn call_store(&self, id: u64, epoch: u64, call: StoreCall, shared: &Shared) -> Result<()> {
        let store = shared.store();
        if let Err(over) = store.enter(epoch) {
            return answer(&self.connection, id, Err(over));
        }
        let result = match call {
            StoreCall::Set(key, value) => store.set(&key, &value).map(|()| Value::None),
            StoreCall::Get(key) => store.get(&key).map(|value| value.map_or(Value::None, Value::from)),
            StoreCall::Add(key, amount) => store.add(&key, amount).map(Value::Int),
            StoreCall::CompareAndSet(key, expected, new) => {
                store.compare_and_set(&key, expected.as_deref(), &new).map(Value::from)
            }
            StoreCall::Delete(key) => store.delete(&key).map(Value::Bool),
            StoreCall::Wait(key) => {
                let connection = self.connection.clone();
                store.watch(&key, move |value| {
                    if let Err(error) = answer(&connection, id, value.map(Value::from)) {
                        tracing::debug!(%error, "nobody to tell of a value");
                    }
                });
                return Ok(());
            }
            other => Err(Error::invalid(format!("{other:?}"))),
        };
        answer(&self.connection, id, result)
    }

    fn hand(&self, id: u64, name: SharedFd, shared: &Shared) -> Result<()> {
        match shared.copy(name) {
            Ok(fd) => self.connection.send(Message::Handed { id }.encode()?, Some(fd)),
            Err(error) => answer(&self.connection, id, Err(error)),
        }
    }
}

/// Sends an answer. That the other end is gone shows when it is listened to.
fn answer(connection: &Connection, id: u64, result: Result<Value>) -> Result<()> {
    let packet = Message::Answer { id, result }.encode()?;
    if let Err(error) = connection.send(packet, None) {
        tracing::debug!(%error, "nobody to answer");
    }
    Ok(())
}
