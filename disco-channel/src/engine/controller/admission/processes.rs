//! Admission of worker processes: a process sends HELLO with the lane's token, as a worker that has not come, and runs the same program.

use std::sync::Arc;
use std::time::Instant;

use disco_core::wire::{Hello, Message};
use disco_core::{Error, WorkerId, function};
use subtle::ConstantTimeEq as _;

use super::pending::{LIMIT, Pending};
use crate::engine::controller::event::Conn;
use crate::engine::controller::outbox::Outbox;
use crate::handshake::HANDSHAKE;

/// Connections that may be worker processes.
#[derive(Debug)]
pub(crate) struct Processes {
    token: Arc<[u8]>,
    pending: Pending<Stranger>,
}

#[derive(Clone, Copy, Debug)]
struct Stranger {
    pid: Option<u32>,
    /// It is a process that this lane has started, and is never evicted.
    is_child: bool,
}

/// What came of a connection.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// It has introduced itself, with the right token and the same functions.
    Worker { pid: Option<u32>, hello: Hello },
    /// It can't be a worker of this lane: its process, which worker it is if it has proved that, and why not.
    Refused { pid: Option<u32>, worker: Option<WorkerId>, error: Error },
}

impl Processes {
    pub(crate) fn new(token: Arc<[u8]>) -> Self {
        Self { token, pending: Pending::new() }
    }

    pub(crate) fn open(&mut self, conn: Conn, pid: Option<u32>, is_child: bool, now: Instant, out: &mut Outbox) {
        if self.pending.count(|it| !it.is_child) >= LIMIT
            && let Some((conn, Stranger { pid, .. })) = self.pending.take_oldest(|it| !it.is_child)
        {
            tracing::debug!(pid, "sent away to make room");
            out.refuse(conn, &Error::refused(format!("it said nothing while {LIMIT} other processes connected")));
        }
        self.pending.push(conn, now, Stranger { pid, is_child });
    }

    /// The first message of a connection came.
    pub(crate) fn message(&mut self, conn: Conn, message: Message, out: &mut Outbox) -> Option<Verdict> {
        let (worker, error) = match message {
            Message::Hello(hello) if hello.token.ct_eq(&self.token).into() => match function::compare(&hello.functions)
            {
                Ok(()) => {
                    let Stranger { pid, .. } = self.pending.remove(conn)?;
                    return Some(Verdict::Worker { pid, hello });
                }
                Err(error) => (Some(hello.worker), error),
            },
            Message::Hello(_) => (None, Error::refused("its token is another session's")),
            other => (None, Error::protocol(format!("it says {other} instead of hello"))),
        };
        self.refuse(conn, worker, error, out)
    }

    /// The connection is of no use any more.
    pub(crate) fn lose(&mut self, conn: Conn, why: Error, out: &mut Outbox) -> Option<Verdict> {
        self.refuse(conn, None, why, out)
    }

    /// A connection whose time is up.
    pub(crate) fn expire(&mut self, now: Instant, out: &mut Outbox) -> Option<Verdict> {
        let (conn, Stranger { pid, .. }) = self.pending.expire(now)?;
        let error = Error::refused(format!("it said nothing for {HANDSHAKE:?}"));
        out.refuse(conn, &error);
        Some(Verdict::Refused { pid, worker: None, error })
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.pending.next_timeout()
    }

    /// Ends: no connection that waits is needed.
    pub(crate) fn end(mut self, out: &mut Outbox) {
        self.pending.drain().for_each(|conn| out.act(crate::engine::controller::event::Action::Close(conn)));
    }

    fn refuse(&mut self, conn: Conn, worker: Option<WorkerId>, error: Error, out: &mut Outbox) -> Option<Verdict> {
        let Stranger { pid, .. } = self.pending.remove(conn)?;
        out.refuse(conn, &error);
        Some(Verdict::Refused { pid, worker, error })
    }
}
