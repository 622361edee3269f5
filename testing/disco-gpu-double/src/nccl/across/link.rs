//! The connection of a rank to the host, in the rank's process.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::call::SentCall;
use super::message::{Child, Hosted, Outcome, Reply, Request};
use super::wire::{self, Sender};
use crate::nccl::abi::{Code, UniqueId};
use crate::nccl::background::Failure;
use crate::nccl::call::Call;
use crate::nccl::clique::{Aborted, Clique};
use crate::nccl::comm::Comm;
use crate::nccl::connection::Connection;
use crate::nccl::unique_id;

/// Timeout of replies that do not depend on other ranks.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// The connection. The drop closes it.
pub(crate) struct Link {
    id: UniqueId,
    sender: Sender,
    /// Number of units sent.
    units: AtomicU64,
}

/// Replies of the host that the rank has not read yet.
#[derive(Default)]
pub(crate) struct HostReplies {
    joined: Option<Outcome<Hosted>>,
    /// Whether the host has ranks; known once all ranks have joined.
    hosted: Option<Hosted>,
    /// Number of completed units.
    units: u64,
    is_stopped: bool,
    /// Results of splits, by the number of the split.
    splits: BTreeMap<u64, Option<Child>>,
    /// Whether the connection has ended.
    is_lost: bool,
}

/// Connects to the host of a unique id of another process, and returns the clique that waits for its replies.
///
/// # Errors
/// The host has ended, is in another network namespace or does not reply; or it refuses the connection.
pub(crate) fn open(id: &UniqueId, ranks: usize) -> Outcome<Arc<Clique>> {
    open_connection(id, &Request::Open { id: id.internal.to_vec(), ranks }, ranks, None)
}

fn open_child(id: &UniqueId, child: Child) -> Outcome<Arc<Clique>> {
    open_connection(id, &Request::OpenChild { token: child.token }, child.ranks, Some(child.hosted))
}

/// Opens a connection, sends its first request, and creates the clique that has the connection.
fn open_connection(id: &UniqueId, request: &Request, ranks: usize, hosted: Option<Hosted>) -> Outcome<Arc<Clique>> {
    let (stream, sender) = connect(id).map_err(|error| lost(&error))?;
    sender.send(request);
    match read_first(&stream).map_err(|error| lost(&error))? {
        Reply::Opened(placed) => placed?,
        _ => return Err(lost(&"its reply is invalid")),
    }
    let link = Link { id: *id, sender, units: AtomicU64::new(0) };
    let clique = Arc::new(Clique::with_link(ranks, link));
    clique.change(|state| state.replies.hosted = hosted);
    let heard = Arc::downgrade(&clique);
    thread::spawn(move || receive_replies(&stream, &heard));
    Ok(clique)
}

fn connect(id: &UniqueId) -> io::Result<(UnixStream, Sender)> {
    let stream = UnixStream::connect_addr(&unique_id::address(id)?)?;
    let sender = Sender::new(&stream)?;
    Ok((stream, sender))
}

/// Reads the reply to the first request, which does not depend on other ranks.
fn read_first(stream: &UnixStream) -> io::Result<Reply> {
    stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
    let answer = wire::read(stream)?;
    stream.set_read_timeout(None)?;
    Ok(answer)
}

fn lost(why: &dyn fmt::Display) -> Failure {
    let what = "the process that made the unique id cannot be reached";
    Failure(Code::SYSTEM_ERROR, format!("{what}: {why}"))
}

/// Stores the host's replies until the connection ends or the clique is dropped.
fn receive_replies(stream: &UnixStream, clique: &Weak<Clique>) {
    while let Ok(reply) = wire::read(stream) {
        let Some(clique) = clique.upgrade() else { return };
        apply(&clique, reply);
    }
    if let Some(clique) = clique.upgrade() {
        handle_disconnect(&clique);
    }
}

fn apply(clique: &Clique, reply: Reply) {
    match reply {
        // The first reply is read before this thread starts.
        Reply::Opened(_) => {}
        Reply::Joined(joined) => clique.change(|state| {
            state.replies.hosted = joined.as_ref().ok().copied();
            state.replies.joined = Some(joined);
        }),
        Reply::Done => clique.change(|state| state.replies.units += 1),
        Reply::Stopped => clique.change(|state| state.replies.is_stopped = true),
        Reply::Split { number, child } => clique.change(|state| _ = state.replies.splits.insert(number, child)),
        Reply::Failed(Failure(code, why)) => clique.fail(code, &why),
        Reply::PeerAborted => clique.change(|state| _ = state.aborted_at.get_or_insert_with(Instant::now)),
        Reply::AllLeft => clique.change(|state| state.has_finalized.fill(true)),
        Reply::ConnectionRequested(rank, connection) => {
            clique.change(|state| _ = state.requested_connections.insert((rank, connection)))
        }
    }
}

/// Handles the end of the host. If the host has ranks of the communicator, they have aborted, as at the end of any
/// process. Otherwise this rank gets an error: with the real NCCL, the communicator would continue without that
/// process.
fn handle_disconnect(clique: &Clique) {
    let has_ranks = clique.change(|state| {
        state.replies.is_lost = true;
        state.aborted_at.get_or_insert_with(Instant::now);
        state.has_finalized.fill(true);
        state.replies.hosted.is_none_or(|hosted| hosted.has_ranks)
    });
    if !has_ranks {
        let why = "the process that made the unique id has ended; ranks of the double communicate through it";
        clique.fail(Code::SYSTEM_ERROR, why);
    }
}

impl Link {
    /// Whether both connections belong to the same unique id.
    pub(crate) fn has_same_unique_id(&self, other: &Self) -> bool {
        self.id == other.id
    }

    /// Joins the communicator, and waits for the other ranks.
    pub(crate) fn join(&self, comm: &Arc<Comm>, clique: &Clique, rank: usize) -> Outcome<()> {
        clique.change(|state| state.members[rank] = Some(Arc::downgrade(comm)));
        self.sender.send(&Request::Join { rank, device: comm.device.ordinal });
        let joined = clique.wait(comm, |state| {
            let lost = || Err(remote("while ranks joined the communicator"));
            state.replies.joined.take().or_else(|| state.replies.is_lost.then(lost))
        });
        joined?.map(|_| ())
    }

    /// Requests connections to other ranks.
    pub(crate) fn request_connections(&self, connections: &[Connection]) {
        self.sender.send(&Request::Connect { connections: connections.to_vec() });
    }

    /// Sends a unit to the host, and waits until the unit is done or the communicator has failed.
    pub(crate) fn communicate(
        &self,
        comm: &Comm,
        clique: &Clique,
        first_collective: u64,
        calls: &[Arc<Call>],
    ) -> Result<(), Aborted> {
        let Some(calls) = calls.iter().map(|call| SentCall::of(call)).collect::<Option<_>>() else {
            clique.fail(Code::UNHANDLED_CUDA_ERROR, "other processes cannot open the memory of a call");
            return Ok(());
        };
        let unit = self.units.fetch_add(1, SeqCst) + 1;
        self.sender.send(&Request::Unit { first_collective, calls });
        clique
            .wait(comm, |state| (state.has_failed || state.replies.units >= unit).then_some(()))
            .inspect_err(|_| self.stop(clique))
    }

    /// Waits until the host does not access this rank's memory any more, for at most [`REPLY_TIMEOUT`].
    fn stop(&self, clique: &Clique) {
        self.sender.send(&Request::Stop);
        clique.wait_at_most(REPLY_TIMEOUT, |state| state.replies.is_stopped || state.replies.is_lost);
    }

    /// Takes part in a split, and sets the membership of the child, if there is one.
    pub(crate) fn split(
        &self,
        parent: &Comm,
        clique: &Clique,
        (number, color, key): (u64, i32, i32),
        child: Option<&Arc<Comm>>,
    ) -> Outcome<()> {
        self.sender.send(&Request::Split { number, color, key });
        let place = clique.wait(parent, |state| {
            let lost = || Err(remote("in ncclCommSplit"));
            state.replies.splits.remove(&number).map(Ok).or_else(|| state.replies.is_lost.then(lost))
        });
        let (Some(place), Some(child)) = (place??, child) else { return Ok(()) };
        let clique = open_child(&self.id, place)?;
        clique.change(|state| state.members[place.rank] = Some(Arc::downgrade(child)));
        child.set_membership(clique, place.rank);
        Ok(())
    }

    /// Reports that this rank has completed its work and leaves the communicator.
    pub(crate) fn leave(&self) {
        self.sender.send(&Request::Leave);
    }

    /// Reports that this rank aborts the communicator.
    pub(crate) fn abort(&self) {
        self.sender.send(&Request::Abort);
    }

    /// Ends the connection.
    pub(crate) fn shut_down(&self) {
        self.sender.shut_down();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shut_down();
    }
}

fn remote(when: &str) -> Failure {
    Failure(Code::REMOTE_ERROR, format!("the process that made the unique id has ended {when}"))
}
