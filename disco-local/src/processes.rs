//! How processes of one machine find each other: through the session's store, and descriptors that their links pass on.
//!
//! ```text
//! who                     what                                                  where
//! the first to come       makes the board, shares it                            store: its name
//! each rank               opens the board, shows its arena's name and its
//!                         process, has come                                     board
//!                         maps the others' arenas, is here                      board
//! once all are here       names are taken back: no descriptor is left
//! ```
//!
//! What is mapped stays mapped, whoever ends. A rank that does not come, or can't, ends the wait of all others with an
//! error that names it.

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

/// Meets the other ranks under `token`.
///
/// # Errors
/// As between threads; a link or the system that refuses memory.
pub(crate) fn meet(token: Token, rank: usize, size: usize, deadline: Duration, link: &Link) -> Result<Arc<Group>> {
    if rank >= size {
        return Err(Error::invalid(format!("connect: rank {rank} of {size} ranks does not exist")));
    }
    let mut meeting = Meeting::new(token, deadline, link);
    let met = meeting.run(rank, size);
    met.map_err(|error| during("connect", error))
}

/// The same error, from inside an operation.
pub(crate) fn during(operation: &str, error: Error) -> Error {
    match error {
        Error::Deadline { operation: what, after, state } if what != operation => {
            Error::Deadline { operation: operation.into(), after, state: format!("{what}: {state}") }
        }
        other => match other.as_text().filter(|(_, text)| !text.starts_with(operation)) {
            Some((variant, text)) => Error::from_text(variant, format!("{operation}: {text}")).unwrap_or(other),
            None => other,
        },
    }
}

/// What a rank has done to meet, which is undone when this is dropped.
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
        // Heard before anything is waited for on the board.
        link.on_abort(&(group.clone() as Arc<dyn Abort>));
        let name = self.share(arena.segment())?;
        if size == group.size() {
            group.board.set_arena(rank, name);
            group.board.set_process(rank, ProcessIdentity::own());
        }
        meeting::arrive(&group, rank, size, LazyTimeout::new(self.left()), Presence::Arrived)?;
        // Whoever can't map is told by its own error, the others by this.
        self.map(&group, rank).inspect_err(|error| _ = group.fail(&Failure::of(rank, error)))?;
        group.board.set_presence(rank, Presence::Connected);
        meeting::await_all(&group, rank, LazyTimeout::new(self.left()), Presence::Connected)?;
        Ok(group)
    }

    /// Makes the board, or opens it.
    fn board(&mut self, size: usize) -> Result<Board> {
        if self.store.add(&self.count_key(), 1)? == 1 {
            let made = self.make_board(size);
            // The others must not wait for what will not come.
            return made.inspect_err(|error| _ = self.store.set(&self.key, error.to_string().as_bytes()));
        }
        let name = self.store.wait(&self.key, self.left())?;
        let why = |name: Vec<u8>| Error::protocol(format!("who came first: {}", String::from_utf8_lossy(&name)));
        open_board(&**self.link.descriptors(), u64::from_le_bytes(name.try_into().map_err(why)?), self.left())
    }

    fn make_board(&mut self, size: usize) -> Result<Board> {
        let board = Board::create(size, Presence::Absent)?;
        let name = self.share(board.segment().ok_or_else(|| Error::state("a board without a segment"))?)?;
        self.store.set(&self.key, &name.to_le_bytes())?;
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
            // Another meeting may have the same name. An aborted store forgets its keys by itself.
            _ = self.store.delete(&self.key);
            _ = self.store.delete(&self.count_key());
        }
    }
}

/// Hands a segment to peers, who take it by the name returned.
///
/// # Errors
/// The link refuses.
pub(crate) fn share(descriptors: &dyn Descriptors, segment: Option<&Arc<Segment>>) -> Result<u64> {
    let segment = segment.ok_or_else(|| Error::state("there is no segment to share"))?;
    let fd = segment.as_fd().try_clone_to_owned();
    let fd = fd.map_err(|error| Error::system(format!("{segment:?} can't be shared"), error))?;
    descriptors.share(fd).map(SharedFd::to_bits)
}

/// Takes a name back.
pub(crate) fn take_back(descriptors: &dyn Descriptors, name: u64) {
    descriptors.unshare(SharedFd::from_bits(name));
}

/// The board of that name.
///
/// # Errors
/// There is none, or it is something else.
pub(crate) fn open_board(descriptors: &dyn Descriptors, name: u64, deadline: Duration) -> Result<Board> {
    Board::open(receive(descriptors, name, deadline)?)
}

fn receive(descriptors: &dyn Descriptors, name: u64, deadline: Duration) -> Result<Segment> {
    Segment::open(descriptors.receive(SharedFd::from_bits(name), deadline)?, size_of::<u64>())
}
