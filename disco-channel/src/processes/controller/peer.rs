//! One worker, as the service thread of its lane sees it.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::channel::Inbox;
use disco_core::link::{Shared, SharedFd};
use disco_core::wire::Message;
use disco_core::{Error, Result, Value, WorkerId};

use super::roster::Roster;
use crate::connection::{Connection, Incoming};
use crate::hearing;
use crate::process::Process;
use crate::processes::frames::INLINE;

/// How long after its connection was closed a worker's process may take to end, until it is reported without its status.
const STATUS: Duration = Duration::from_millis(500);

/// One worker.
pub(super) struct Peer {
    pub(super) index: usize,
    pub(super) worker: WorkerId,
    pub(super) process: Process,
    line: Option<Line>,
    /// It has said that it leaves.
    has_left: bool,
    /// When the connection was closed, and why if that is known.
    closed: Option<(Instant, Option<String>)>,
    /// Its end was seen, and reported if it was none that was expected.
    is_over: bool,
}

/// What a worker says last.
enum Farewell {
    /// It was told to leave.
    Left,
    /// Why it leaves.
    Bye(String),
}

/// The way to a worker that has introduced itself.
struct Line {
    connection: Arc<Connection>,
    incoming: Incoming,
}

impl Peer {
    pub(super) fn new(index: usize, worker: WorkerId, process: Process) -> Self {
        Self { index, worker, process, line: None, has_left: false, closed: None, is_over: false }
    }

    pub(super) fn has_come(&self) -> bool {
        self.line.is_some()
    }

    /// It has introduced itself, and is that process.
    pub(super) fn come(&mut self, pid: Option<u32>, connection: Arc<Connection>, incoming: Incoming) {
        if let (Process::Unknown, Some(pid)) = (&self.process, pid) {
            // The peer's socket is still open, so its process is alive and the id has not been used again.
            let watched = Process::stranger(pid).and_then(|process| match connection.is_hung_up() {
                true => Err(io::ErrorKind::NotConnected.into()),
                false => Ok(process),
            });
            let watched =
                watched.inspect_err(|error| tracing::warn!(worker = %self.worker, %error, "can't be watched"));
            self.process = watched.unwrap_or(Process::Unknown);
        }
        self.line = Some(Line { connection, incoming });
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
            Ok(Some(Farewell::Left)) => {
                self.has_left = true;
                self.close(None);
            }
            Ok(Some(Farewell::Bye(why))) => self.close(Some(why)),
            Err(error) => self.close(Some(format!("it sent garbage: {error}"))),
        }
        // Nothing comes of a process that has ended, whoever else may hold its end of the connection.
        if self.process.has_ended() {
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
        is_silent && self.process.status().is_none_or(|status| status.success())
    }

    /// Gives it up if it has been silent for `limit`.
    pub(super) fn check_silence(&mut self, limit: Duration) {
        let silent = self.line.as_ref().is_some_and(|line| line.incoming.silence() > limit);
        if silent && self.closed.is_none() {
            self.close(Some(format!("it has said nothing for {limit:?}")));
        }
    }

    /// Whether the next bytes that it sends belong to a large message.
    pub(super) fn is_inside_large_message(&self) -> bool {
        self.line.as_ref().is_some_and(|line| line.incoming.is_inside_large_packet())
    }

    /// Nobody could hear it meanwhile: its silence counts from now.
    pub(super) fn excuse_silence(&mut self) {
        if let Some(line) = &mut self.line {
            line.incoming.excuse();
        }
    }

    /// Its process has ended, perhaps.
    pub(super) fn reap(&mut self) {
        if let Err(error) = self.process.reap() {
            tracing::warn!(worker = %self.worker, %error, "its process can't be waited for");
        }
        // What it has sent before is in the socket.
        if self.process.has_ended() && self.line.is_none() {
            self.close(None);
        }
    }

    /// Ends its process.
    pub(super) fn kill(&mut self) {
        if self.is_free() {
            return;
        }
        if let Err(error) = self.process.kill() {
            tracing::warn!(worker = %self.worker, %error, "its process can't be killed");
        }
    }

    /// Whether nothing is left of it.
    pub(super) fn is_gone(&self) -> bool {
        self.is_over && (!self.process.is_running() || self.is_free())
    }

    /// Whether it has left and its process is nobody's business here: others have started it, and may have plans for it.
    fn is_free(&self) -> bool {
        self.has_left && matches!(self.process, Process::Stranger(_))
    }

    /// Why it is gone, once that is known. Told once.
    pub(super) fn end(&mut self) -> Option<String> {
        let (since, why) = self.closed.as_ref()?;
        let is_clear = !self.process.is_running() || self.is_free() || why.is_some() || since.elapsed() > STATUS;
        if self.is_over || !is_clear {
            return None;
        }
        self.is_over = true;
        Some(match (why, &self.process) {
            (Some(why), _) => why.clone(),
            (None, Process::Ended(Some(status))) => format!("its process ended: {status}"),
            (None, Process::Ended(None)) => "its process ended".to_owned(),
            (None, _) => "its connection was closed".to_owned(),
        })
    }
}

impl Line {
    /// Takes in what is there. Some: the worker leaves.
    fn listen(
        &mut self,
        index: usize,
        worker: WorkerId,
        roster: &Roster,
        inbox: &Arc<dyn Inbox>,
        shared: &Arc<Shared>,
    ) -> Result<Option<Farewell>> {
        let Self { connection, incoming } = self;
        incoming.listen(connection, |incoming, message| {
            match message {
                Message::Room { frames, bytes } => {
                    roster.acknowledge(index, frames, bytes);
                    if roster.room(INLINE) > 0 {
                        inbox.room(roster.workers.clone());
                    }
                }
                Message::Share { name, .. } | Message::Unshare(name)
                    if SharedFd::from_bits(name).owner() != Some(worker) =>
                {
                    return Err(Error::invalid(format!("another worker's name of a descriptor: {name:#x}")));
                }
                Message::Share { id, name } => {
                    shared.put(SharedFd::from_bits(name), incoming.take_fd()?);
                    hearing::answer(connection, id, Ok(Value::None))?;
                }
                Message::Unshare(name) => shared.remove(SharedFd::from_bits(name)),
                Message::Receive { id, name } => hand(connection, id, SharedFd::from_bits(name), shared)?,
                Message::Shutdown => return Ok(Some(Farewell::Left)),
                Message::Bye(why) => return Ok(Some(Farewell::Bye(why))),
                Message::Ask { id, epoch, call } => {
                    hearing::call_store(connection, shared, roster.epoch(), (id, epoch, call))?;
                }
                message => {
                    let progress = |new| *roster.seat(index).progress() = new;
                    hearing::hear(worker, message, inbox, roster.epoch(), progress)?;
                }
            }
            Ok(None)
        })
    }
}

fn hand(connection: &Connection, id: u64, name: SharedFd, shared: &Shared) -> Result<()> {
    match shared.copy(name) {
        Ok(fd) => connection.send(Message::Handed { id }.encode()?, Some(fd)),
        Err(error) => hearing::answer(connection, id, Err(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::connection::Waker;

    /// A worker that somebody else has started, and that introduces itself with the id of this process.
    fn come(is_there: bool) -> Peer {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let theirs = is_there.then_some(theirs);
        let connection = Connection::new(ours, Arc::new(Waker::new().unwrap())).unwrap();
        let mut peer = Peer::new(0, WorkerId::new(1), Process::Unknown);
        peer.come(Some(std::process::id()), Arc::new(connection), Incoming::new(100));
        drop(theirs);
        peer
    }

    #[test]
    fn a_process_with_a_reused_id_is_not_watched() {
        assert!(come(true).process.is_running());
        assert!(!come(false).process.is_running());
    }
}
