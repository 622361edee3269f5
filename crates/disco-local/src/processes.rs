//! Rendezvous of ranks in processes of one machine, through the session's store and the descriptors of their links.
//!
//! ```text
//! rank                    action                                                written to
//! the first to arrive     makes the board and shares its segment                store: the name of the segment
//! each rank               opens the board, posts the name of its arena and
//!                         its process, sets presence `Arrived`                  board
//!                         maps the arenas of all peers, sets `Connected`        board
//! once all are connected  all names are withdrawn, which closes the descriptors
//! ```
//!
//! Mappings stay valid after the process of a peer has ended. If a rank does not arrive or fails, the other ranks get
//! an error that names it.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::link::{Descriptors, SharedFd};
use disco_core::shared_memory::Segment;
use disco_core::{Abort, Error, Link, Result, Store};

use crate::address_space::{AddressSpace, Peer, SharedArenas};
use crate::board::{Board, Presence};
use crate::failure::Failure;
use crate::group::{Group, LazyTimeout};
use crate::identity::ProcessIdentity;
use crate::meeting::{self, Token};

/// Waits for the other ranks with `token` and returns this rank's group.
///
/// # Errors
/// As [`meeting::meet`]; errors of the link or the system when memory is allocated, shared or mapped.
pub(crate) fn meet(token: Token, rank: usize, size: usize, deadline: Duration, link: &Link) -> Result<Arc<Group>> {
    Meeting::new(token, deadline, link).run(rank, size)
}

/// The error with the name of the operation in which it happened.
pub(crate) fn during(operation: &str, error: Error) -> Error {
    match error {
        Error::Deadline { operation: what, after, state } if what != operation => {
            Error::Deadline { operation: operation.into(), after, state: format!("{what}: {state}") }
        }
        other => match other.as_text() {
            Some((variant, text)) => Error::from_text(variant, format!("{operation}: {text}")).unwrap_or(other),
            None => other,
        },
    }
}

/// What the first rank's key begins with: before the name of the board, or before the reason why there is none.
const MADE: u8 = 0;
const FAILED: u8 = 1;

/// The rendezvous of one rank. Dropping it withdraws the names and removes the keys that it has made.
struct Meeting<'l> {
    link: &'l Link,
    store: Arc<dyn Store>,
    key: String,
    deadline: Duration,
    start: Instant,
    /// Whether this rank has made the board.
    is_first: bool,
    names: Vec<u64>,
}

impl<'l> Meeting<'l> {
    fn new(token: Token, deadline: Duration, link: &'l Link) -> Self {
        let key = format!("disco.local {token}");
        Self { link, store: link.store(), key, deadline, start: Instant::now(), is_first: false, names: Vec::new() }
    }

    fn run(&mut self, rank: usize, size: usize) -> Result<Arc<Group>> {
        let link = self.link;
        let arena = link.arena().ok_or_else(|| Error::missing("the link has no arena"))?;
        let board = self.board(size)?;
        let group =
            Group::new(board, AddressSpace::Processes(SharedArenas::new(link.descriptors().clone(), arena.clone())));
        // Registered before the first wait on the board.
        link.on_abort(&(group.clone() as Arc<dyn Abort>));
        let name = self.share(arena.segment())?;
        if size == group.size() {
            group.board.set_arena(rank, name);
            group.board.set_process(rank, ProcessIdentity::own());
        }
        meeting::arrive(&group, rank, size, LazyTimeout::new(self.left()), Presence::Arrived)?;
        // This rank returns its own error; the failure on the board tells the other ranks.
        self.map(&group, rank).inspect_err(|error| _ = group.fail(&Failure::of(rank, error)))?;
        group.board.set_presence(rank, Presence::Connected);
        meeting::await_all(&group, rank, LazyTimeout::new(self.left()), Presence::Connected)?;
        Ok(group)
    }

    /// Makes the board on the first rank, and opens it on the others.
    fn board(&mut self, size: usize) -> Result<Board> {
        if self.store.add(&self.count_key(), 1)? == 1 {
            let made = self.make_board(size);
            // The other ranks get the error in place of the name, so they don't wait until their deadline.
            return made.inspect_err(|error| {
                _ = self.store.set(&self.key, &[&[FAILED][..], error.to_string().as_bytes()].concat());
            });
        }
        let name = match &self.store.wait(&self.key, self.left())?[..] {
            [MADE, name @ ..] => name.try_into().map(u64::from_le_bytes).ok(),
            [FAILED, why @ ..] => {
                let why = String::from_utf8_lossy(why);
                return Err(Error::protocol(format!("the first rank failed to make the board: {why}")));
            }
            _ => None,
        };
        let name = name.ok_or_else(|| Error::protocol("the first rank's key is no name of a board"))?;
        open_board(&**self.link.descriptors(), name, self.left())
    }

    fn make_board(&mut self, size: usize) -> Result<Board> {
        let board = Board::create(size, Presence::Absent)?;
        let name = self.share(board.segment().ok_or_else(|| Error::state("the board has no shared segment"))?)?;
        self.store.set(&self.key, &[&[MADE][..], &name.to_le_bytes()].concat())?;
        self.is_first = true;
        Ok(board)
    }

    /// Maps the arenas of all ranks.
    fn map(&self, group: &Group, rank: usize) -> Result<()> {
        let AddressSpace::Processes(arenas) = &group.address_space else { return Ok(()) };
        let arena = |peer: usize| match group.board.arena(peer) {
            _ if peer == rank => Ok(arenas.arena.segment().clone()),
            Some(name) => receive(&**self.link.descriptors(), name, self.left()).map(Arc::new),
            None => Err(Error::protocol(format!("rank {peer} shares no memory"))),
        };
        let peer = |rank: usize| Ok(Peer { arena: arena(rank)?, process: group.board.process(rank) });
        arenas.set_peers((0..group.size()).map(peer).collect::<Result<_>>()?);
        Ok(())
    }

    fn share(&mut self, segment: &Arc<Segment>) -> Result<u64> {
        let name = share(&**self.link.descriptors(), Some(segment))?;
        self.names.push(name);
        Ok(name)
    }

    fn count_key(&self) -> String {
        format!("{}: ranks", self.key)
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_sub(self.start.elapsed())
    }
}

impl Drop for Meeting<'_> {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| take_back(&**self.link.descriptors(), *name));
        if self.is_first {
            // A later rendezvous may have the same token. Errors are ignored: an aborted store drops its keys itself.
            _ = self.store.delete(&self.key);
            _ = self.store.delete(&self.count_key());
        }
    }
}

/// Shares a segment with peers and returns its name, with which they open it.
///
/// # Errors
/// There is no segment, or the system or the link fails.
pub(crate) fn share(descriptors: &dyn Descriptors, segment: Option<&Arc<Segment>>) -> Result<u64> {
    let segment = segment.ok_or_else(|| Error::state("there is no segment to share"))?;
    let fd = segment.as_fd().try_clone_to_owned();
    let fd = fd.map_err(|error| Error::system(format!("{segment:?} can't be shared"), error))?;
    descriptors.share(fd).map(SharedFd::to_bits)
}

/// Withdraws the name of a shared segment.
pub(crate) fn take_back(descriptors: &dyn Descriptors, name: u64) {
    descriptors.unshare(SharedFd::from_bits(name));
}

/// Opens the board with this name.
///
/// # Errors
/// The link has no descriptor of this name within `deadline`, or its segment is not a board.
pub(crate) fn open_board(descriptors: &dyn Descriptors, name: u64, deadline: Duration) -> Result<Board> {
    Board::open(receive(descriptors, name, deadline)?)
}

fn receive(descriptors: &dyn Descriptors, name: u64, deadline: Duration) -> Result<Segment> {
    Segment::open(descriptors.receive(SharedFd::from_bits(name), deadline)?, size_of::<u64>())
}
