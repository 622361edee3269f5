//! Where workers introduce themselves.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::wire::{Hello, Message};
use disco_core::{Error, Result, WorkerId, function};
use rustix::net::sockopt;

use crate::connection::{Connection, Incoming, Waker};
use crate::{hearing, random};

/// The largest packet of one who has not proved who it is: names of functions take the most of it.
const HELLO: usize = 1 << 20;
/// How long one may take to introduce itself.
const LIMIT: Duration = Duration::from_secs(5);
/// How many may be about it at a time, beside the processes that this lane has started.
const STRANGERS: usize = 256;
/// How many are let in before anything else is done.
const AT_ONCE: usize = 64;

/// A socket without a file, on which workers of this user come in.
pub(super) struct Door {
    listener: UnixListener,
    pub(super) name: String,
    pub(super) token: Arc<[u8]>,
    /// The oldest first.
    strangers: VecDeque<Stranger>,
}

/// One who has connected and not introduced itself yet.
struct Stranger {
    connection: Arc<Connection>,
    incoming: Incoming,
    pid: Option<u32>,
    /// It is a process that this lane has started.
    is_child: bool,
    since: Instant,
}

/// What came of a stranger.
pub(super) enum Arrival {
    /// It has introduced itself, with the right token and the same functions.
    Worker { pid: Option<u32>, hello: Hello, connection: Arc<Connection>, incoming: Incoming },
    /// It can't be a worker of ours: its process, which worker it is if it has proved that, and why not.
    Refused { pid: Option<u32>, worker: Option<WorkerId>, error: Error },
    /// The system lets nobody in.
    Closed(io::Error),
}

impl Door {
    /// Opens a door under a name that is free. All users of the machine can see it; the token is what nobody can guess.
    pub(super) fn open() -> io::Result<Self> {
        let (name, token) = (random::bytes::<16>()?, random::bytes::<32>()?);
        let name = format!("disco-{}", random::hex(&name));
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, name, token: token.into(), strangers: VecDeque::new() })
    }

    /// Those whose packets are waited for.
    pub(super) fn strangers(&self) -> impl Iterator<Item = &Connection> {
        self.strangers.iter().map(|stranger| &*stranger.connection)
    }

    /// Accepts connections and reads their first packets. Connections of processes for which `is_child` is true are never
    /// evicted.
    pub(super) fn attend(&mut self, waker: &Arc<Waker>, is_child: impl Fn(u32) -> bool) -> Vec<Arrival> {
        let mut arrivals = Vec::new();
        for _ in 0..AT_ONCE {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    arrivals.push(Arrival::Closed(error));
                    break;
                }
            };
            let is_ours = sockopt::socket_peercred(&stream);
            let (Ok(peer), Ok(connection)) = (is_ours, Connection::new(stream, waker.clone())) else { continue };
            if peer.uid != rustix::process::geteuid() {
                tracing::warn!(?peer, "another user's process was sent away");
                continue;
            }
            let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).ok();
            let (connection, since, is_child) = (Arc::new(connection), Instant::now(), pid.is_some_and(&is_child));
            self.make_room();
            self.strangers.push_back(Stranger { connection, incoming: Incoming::new(HELLO), pid, is_child, since });
        }
        for mut stranger in std::mem::take(&mut self.strangers) {
            match stranger.listen(&self.token) {
                Ok(Some(hello)) => {
                    let Stranger { pid, connection, incoming, .. } = stranger;
                    arrivals.push(Arrival::Worker { pid, hello, connection, incoming });
                }
                Ok(None) => self.strangers.push_back(stranger),
                Err((worker, error)) => {
                    hearing::refuse(&stranger.connection, &error);
                    arrivals.push(Arrival::Refused { pid: stranger.pid, worker, error });
                }
            }
        }
        arrivals
    }

    /// Evicts the oldest connection that is not a child's, where too many wait.
    fn make_room(&mut self) {
        let mut others = self.strangers.iter().enumerate().filter(|(_, stranger)| !stranger.is_child);
        let oldest = others.next().map(|(index, _)| index);
        let is_full = others.count() + 1 >= STRANGERS;
        if let Some(stranger) = oldest.filter(|_| is_full).and_then(|oldest| self.strangers.remove(oldest)) {
            tracing::debug!(pid = stranger.pid, "sent away to make room");
            let why = format!("it said nothing while {STRANGERS} other processes connected");
            hearing::refuse(&stranger.connection, &Error::invalid(why));
        }
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Stranger {
    /// Whether it has introduced itself; or why not, and which worker of ours it is.
    fn listen(&mut self, token: &[u8]) -> Result<Option<Hello>, (Option<WorkerId>, Error)> {
        let unknown = |text: String| (None, Error::Invalid(text));
        self.incoming.fill(&self.connection).map_err(|error| (None, error))?;
        match self.incoming.next().map_err(|error| (None, error.into()))? {
            Some(Message::Hello(hello)) if is_same(&hello.token, token) => match function::compare(&hello.functions) {
                Ok(()) => Ok(Some(hello)),
                Err(error) => Err((Some(hello.worker), error)),
            },
            Some(Message::Hello(_)) => Err(unknown("its token is another session's".into())),
            Some(other) => Err(unknown(format!("it says {other} instead of hello"))),
            None if self.incoming.is_closed() => Err(unknown("it left without a word".into())),
            None if self.since.elapsed() > LIMIT => Err(unknown(format!("it said nothing for {LIMIT:?}"))),
            None => Ok(None),
        }
    }
}

/// Compares without telling by the time how much is right.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}
