//! Admission of worker processes. A process is admitted if its HELLO has the lane's token, names a worker that has not
//! joined, and lists the same worker functions.

use std::sync::Arc;
use std::time::Instant;

use disco_core::wire::{Hello, Message};
use disco_core::{Error, WorkerId, function};
use subtle::ConstantTimeEq as _;

use super::pending::{MAX_PENDING, Pending};
use crate::controller::event::Conn;
use crate::controller::outbox::Outbox;
use crate::handshake::HANDSHAKE_TIMEOUT;

/// Connections that may be worker processes.
#[derive(Debug)]
pub(crate) struct Processes {
    token: Arc<[u8]>,
    pending: Pending<Candidate>,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    pid: Option<u32>,
    /// Whether this lane has started the process. Such a connection is never evicted.
    is_child: bool,
}

/// The decision on a connection.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// It has the right token and the same functions.
    Worker { pid: Option<u32>, hello: Hello },
    /// It is refused. `worker` is set if it has proved to be that worker.
    Refused { pid: Option<u32>, worker: Option<WorkerId>, error: Error },
}

impl Processes {
    pub(crate) fn new(token: Arc<[u8]>) -> Self {
        Self { token, pending: Pending::new() }
    }

    pub(crate) fn open(&mut self, conn: Conn, pid: Option<u32>, is_child: bool, now: Instant, out: &mut Outbox) {
        if self.pending.count(|it| !it.is_child) >= MAX_PENDING
            && let Some((conn, Candidate { pid, .. })) = self.pending.take_oldest(|it| !it.is_child)
        {
            tracing::debug!(pid, "evicted to make room for another connection");
            out.refuse(
                conn,
                &Error::refused(format!("it sent no HELLO while {MAX_PENDING} other processes connected")),
            );
        }
        self.pending.push(conn, now, Candidate { pid, is_child });
    }

    /// Handles the first message of a connection.
    pub(crate) fn message(&mut self, conn: Conn, message: Message, out: &mut Outbox) -> Option<Verdict> {
        let (worker, error) = match message {
            Message::Hello(hello) if hello.token.ct_eq(&self.token).into() => match function::compare(&hello.functions)
            {
                Ok(()) => {
                    let Candidate { pid, .. } = self.pending.remove(conn)?;
                    return Some(Verdict::Worker { pid, hello });
                }
                Err(error) => (Some(hello.worker), error),
            },
            Message::Hello(_) => (None, Error::refused("its token is that of another session")),
            other => (None, Error::protocol(format!("it sent {other} instead of HELLO"))),
        };
        self.refuse(conn, worker, error, out)
    }

    /// Drops a connection that has failed.
    pub(crate) fn lose(&mut self, conn: Conn, why: Error, out: &mut Outbox) -> Option<Verdict> {
        self.refuse(conn, None, why, out)
    }

    /// Refuses a connection whose handshake has timed out.
    pub(crate) fn expire(&mut self, now: Instant, out: &mut Outbox) -> Option<Verdict> {
        let (conn, Candidate { pid, .. }) = self.pending.expire(now)?;
        let error = Error::refused(format!("it sent no HELLO within {HANDSHAKE_TIMEOUT:?}"));
        out.refuse(conn, &error);
        Some(Verdict::Refused { pid, worker: None, error })
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.pending.next_timeout()
    }

    /// Ends admission, and closes pending connections.
    pub(crate) fn end(mut self, out: &mut Outbox) {
        self.pending.drain().for_each(|conn| out.act(crate::controller::event::Action::Close(conn)));
    }

    fn refuse(&mut self, conn: Conn, worker: Option<WorkerId>, error: Error, out: &mut Outbox) -> Option<Verdict> {
        let Candidate { pid, .. } = self.pending.remove(conn)?;
        out.refuse(conn, &error);
        Some(Verdict::Refused { pid, worker, error })
    }
}
