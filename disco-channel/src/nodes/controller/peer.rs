//! One node, as the service thread sees it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::channel::Inbox;
use disco_core::link::Shared;
use disco_core::wire::Message;
use disco_core::{Error, Result, WorkerId};

use super::printer::Printer;
use super::roster::Roster;
use crate::connection::{Connection, Incoming};
use crate::hearing;

/// One node that has been told what it is.
pub(super) struct Peer {
    pub(super) index: usize,
    connection: Arc<Connection>,
    incoming: Incoming,
    /// When it was told that this end is alive.
    said: Instant,
    /// All its workers have started.
    pub(super) is_ready: bool,
    /// Its workers have left.
    pub(super) has_left: bool,
    /// It was given up because it was silent: it may be frozen, and then does not end by itself.
    pub(super) is_silent: bool,
    /// Nothing more comes of it; why, if that is known.
    closed: Option<Option<String>>,
    is_over: bool,
}

impl Peer {
    pub(super) fn new(index: usize, connection: Arc<Connection>, incoming: Incoming) -> Self {
        Self {
            index,
            connection,
            incoming,
            said: Instant::now(),
            is_ready: false,
            has_left: false,
            is_silent: false,
            closed: None,
            is_over: false,
        }
    }

    /// Its connection, while that is open.
    pub(super) fn connection(&self) -> Option<&Arc<Connection>> {
        self.closed.is_none().then_some(&self.connection)
    }

    /// Takes in what it sends, and sends what the socket did not take.
    pub(super) fn listen(&mut self, roster: &Roster, inbox: &Arc<dyn Inbox>, shared: &Arc<Shared>, printer: &Printer) {
        if self.closed.is_some() {
            return;
        }
        // It runs another program than the others from now on.
        if self.connection.is_full() {
            return self.close(Some(format!("it has left {} bytes unread", self.connection.backlog())));
        }
        let Self { index, connection, incoming, is_ready, has_left, .. } = self;
        let result = incoming.listen(connection, |_, message| {
            match message {
                Message::Alive => {}
                Message::Ready => *is_ready = true,
                Message::Room { frames, bytes } => {
                    roster.seat(*index).credit.acknowledge(frames, bytes);
                    if roster.room() > 0 {
                        inbox.room(roster.workers.clone());
                    }
                }
                Message::Ask { id, epoch, call } => {
                    hearing::call_store(connection, shared, roster.epoch(), (id, epoch, call))?;
                }
                Message::From { worker, message } => {
                    if !roster.members(*index).contains(&worker) {
                        return Err(Error::invalid(format!("{worker} is none of its workers")));
                    }
                    hear_worker(*index, worker, *message, roster, inbox, printer)?;
                }
                Message::Left(stuck) => {
                    _ = roster.seat(*index).stuck.set(stuck);
                    *has_left = true;
                    return Ok(Some(None));
                }
                Message::Bye(why) => return Ok(Some(Some(why))),
                other => return Err(Error::invalid(other.to_string())),
            }
            Ok(None)
        });
        match result {
            Ok(Some(farewell)) => self.close(farewell),
            Ok(None) if self.incoming.is_closed() => self.close(None),
            // As above.
            Ok(None) => _ = self.connection.flush(),
            Err(error) => self.close(Some(format!("it sent garbage: {error}"))),
        }
    }

    /// Says that this end is alive, if that was not said for so long.
    pub(super) fn say_alive(&mut self, heartbeat: Duration) {
        if self.closed.is_some() || self.said.elapsed() < heartbeat {
            return;
        }
        self.said = Instant::now();
        // That it is gone shows when it is listened to: it may have said why.
        _ = Message::Alive.encode().and_then(|packet| self.connection.send(packet, None));
    }

    /// Gives it up if it has been silent for `limit`.
    pub(super) fn check_silence(&mut self, limit: Duration) {
        if self.closed.is_none() && self.incoming.silence() > limit {
            self.is_silent = true;
            self.close(Some(format!("it has said nothing for {limit:?}")));
        }
    }

    /// Nobody could hear it meanwhile: its silence counts from now.
    pub(super) fn excuse_silence(&mut self) {
        self.incoming.excuse();
    }

    /// Hears nothing more of it, nor does it of this side, which ends it if nothing else does.
    pub(super) fn close(&mut self, why: Option<String>) {
        self.closed.get_or_insert(why);
        self.connection.close();
    }

    /// Whether its end was seen.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Why it is gone, once it is. Told once.
    pub(super) fn end(&mut self) -> Option<String> {
        let why = self.closed.clone()?;
        if std::mem::replace(&mut self.is_over, true) {
            return None;
        }
        Some(why.unwrap_or_else(|| "its connection was closed".to_owned()))
    }
}

/// Takes in what a worker of a node says.
fn hear_worker(
    index: usize,
    worker: WorkerId,
    message: Message,
    roster: &Roster,
    inbox: &Arc<dyn Inbox>,
    printer: &Printer,
) -> Result<()> {
    match message {
        Message::Output { is_err, line } => {
            printer.print(format!("node {} {worker}", index + 1), is_err, line);
        }
        Message::Lost(why) => {
            let name = roster.seat(index).name.get().map_or("", String::as_str);
            let why = format!("on {name}: {why}");
            inbox.lost(hearing::one(worker), Error::Lost { workers: worker.to_string(), why });
        }
        Message::Shutdown if roster.is_leaving() => inbox.left(hearing::one(worker)),
        message => {
            hearing::hear(worker, message, inbox, roster.epoch(), |progress| roster.set_progress(worker, progress))?;
        }
    }
    Ok(())
}
