//! One communicator as its ranks have it in common: the board, where ranks live, and how they wait.

use std::cell::Cell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::abort::AbortRegistry;
use disco_core::sync;
use disco_core::tensor::Access;
use disco_core::{Abort, Error, Result};

use crate::address_space::AddressSpace;
use crate::board::{Board, Presence};
use crate::failure::Failure;
use crate::spin_policy::SpinPolicy;

/// One communicator: all ranks of a process that are threads have one group, and each rank among processes its own, on
/// the same board.
pub(crate) struct Group {
    pub(crate) board: Board,
    pub(crate) address_space: AddressSpace,
    spin_policy: SpinPolicy,
    /// Among threads, tensors whose owner left while a peer was frozen inside a copy. Nobody may use them before that peer is
    /// gone, and it is gone when the group is.
    kept: Mutex<Vec<Access>>,
    /// Groups split off from this one: they hear its abort.
    children: AbortRegistry,
    /// Links know the first group of a family only and hold it weakly: its descendants keep it.
    _parent: Option<Arc<Group>>,
}

/// How long a wait may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LazyTimeout {
    limit: Duration,
    /// When the clock was first looked at, which is when the wait outlasted the first looks.
    started: Option<Instant>,
}

/// Interval at which kept tensors are looked at: a frozen process may have gone on or ended.
const KEPT_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long whoever breaks a group may take to write down why.
const RECORD_WRITE_GRACE: Duration = Duration::from_secs(1);

impl Group {
    /// A group on a board.
    pub(crate) fn new(board: Board, address_space: AddressSpace) -> Arc<Self> {
        Arc::new(Self::of(board, address_space, None))
    }

    /// A group of threads that have yet to come.
    pub(crate) fn awaited(size: usize) -> Arc<Self> {
        Self::new(Board::new(size), AddressSpace::Threads)
    }

    /// A group of threads that are there.
    pub(crate) fn present(size: usize) -> Arc<Self> {
        Self::new(present(size), AddressSpace::Threads)
    }

    /// A group of some of this group's threads. Hears its abort and keeps it alive.
    pub(crate) fn child(self: &Arc<Self>, size: usize) -> Arc<Self> {
        self.child_on(present(size), AddressSpace::Threads)
    }

    /// As [`Group::child`], on a board.
    pub(crate) fn child_on(self: &Arc<Self>, board: Board, address_space: AddressSpace) -> Arc<Self> {
        let child = Arc::new(Self::of(board, address_space, Some(self.clone())));
        self.children.listen(&(child.clone() as Arc<dyn Abort>));
        child
    }

    fn of(board: Board, address_space: AddressSpace, parent: Option<Arc<Self>>) -> Self {
        let spin_policy = SpinPolicy::new(board.size());
        Self {
            board,
            address_space,
            spin_policy,
            kept: Mutex::default(),
            children: AbortRegistry::default(),
            _parent: parent,
        }
    }

    /// Number of ranks.
    pub(crate) fn size(&self) -> usize {
        self.board.size()
    }

    /// Breaks the group, unless it is broken. Says whether this is what broke it.
    pub(crate) fn fail(&self, failure: &Failure) -> bool {
        self.board.fail(&failure.to_record())
    }

    /// What broke the group, or that nobody knows: whoever did may be gone in the middle of writing it down.
    fn failure(&self) -> Failure {
        let mut timeout = LazyTimeout::new(RECORD_WRITE_GRACE);
        loop {
            match self.board.record() {
                None if timeout.remaining().is_some() => std::thread::yield_now(),
                record => return Failure::from_record(record),
            }
        }
    }

    /// What `rank` is told that is stopped by a failure.
    pub(crate) fn failure_for(&self, rank: usize) -> Error {
        self.failure().error_for(rank)
    }

    /// What `rank` is told, if anything has failed.
    pub(crate) fn check(&self, rank: usize) -> Result<()> {
        if self.board.has_failed() { Err(self.failure_for(rank)) } else { Ok(()) }
    }

    /// What somebody is told who asks for an `operation` after something failed.
    pub(crate) fn check_unbroken(&self, operation: impl FnOnce() -> String) -> Result<()> {
        if self.board.has_failed() { Err(self.failure().broken(operation())) } else { Ok(()) }
    }

    /// Whether a rank may be touching published memory. After a failure, once this was false, no rank touches any again.
    pub(crate) fn is_accessed(&self) -> bool {
        let may_run = |rank| match &self.address_space {
            AddressSpace::Threads => true,
            AddressSpace::Processes(arenas) => !arenas.has_ended(rank),
        };
        (0..self.size()).any(|rank| self.board.is_accessing(rank) && may_run(rank))
    }

    /// Keeps tensors that a frozen peer may still touch. Among threads: as long as the group, which the peer holds. Among
    /// processes: until the peer goes on, or its process has ended.
    pub(crate) fn keep(self: &Arc<Self>, claims: Vec<Access>) {
        if claims.is_empty() {
            return;
        }
        if let AddressSpace::Threads = self.address_space {
            return sync::lock(&self.kept).extend(claims);
        }
        // Never dropped with the closure: the system may refuse the thread.
        let (group, claims) = (self.clone(), ManuallyDrop::new(claims));
        let wait = move || {
            while group.is_accessed() {
                thread::sleep(KEPT_POLL_INTERVAL);
            }
            drop(ManuallyDrop::into_inner(claims));
        };
        if let Err(error) = thread::Builder::new().name("disco-local-keep".into()).spawn(wait) {
            let ranks = self.size();
            tracing::warn!(%error, ranks, "tensors are never freed: no thread can wait for a frozen peer that may touch them");
        }
    }

    /// Waits until `has_come` holds for all ranks. Whoever it does not hold for must not be gone.
    pub(crate) fn wait_for_all(
        &self,
        rank: usize,
        timeout: &Cell<LazyTimeout>,
        has_arrived: impl Fn(usize) -> bool,
        late: impl Fn(Duration) -> Error,
    ) -> Result<()> {
        let mut next = 0;
        let ready = || {
            while next < self.size() && has_arrived(next) {
                next += 1;
            }
            // That it is gone is seen before what it did last is looked for.
            let is_lost = |peer: &usize| self.board.has_left(*peer) && !has_arrived(*peer);
            match next == self.size() {
                true => Ok(Some(())),
                false if !self.board.is_alarmed() => Ok(None),
                false => (next..self.size()).find(is_lost).map_or(Ok(None), |peer| Err(Failure::lost(peer))),
            }
        };
        self.wait(rank, timeout, ready, late)
    }

    /// Waits until `ready` gives something, or anything fails. A failure that `ready` finds, or the one that `late` makes of
    /// a passed deadline, breaks the group.
    pub(crate) fn wait<T>(
        &self,
        rank: usize,
        timeout: &Cell<LazyTimeout>,
        mut ready: impl FnMut() -> Result<Option<T>, Failure>,
        late: impl Fn(Duration) -> Error,
    ) -> Result<T> {
        let spin = || match ready() {
            Ok(None) => self.board.is_alarmed().then_some(None),
            Ok(found) => Some(found),
            // What has failed is found again, and reported, below.
            Err(_) => Some(None),
        };
        if let Some(found) = self.spin_policy.poll(spin).flatten() {
            return Ok(found);
        }
        loop {
            let mut now = timeout.get();
            let left = now.remaining();
            timeout.set(now);
            let poll = || match (ready(), left) {
                (Ok(Some(found)), _) => Some(Ok(found)),
                _ if self.board.has_failed() => Some(Err(self.failure_for(rank))),
                (Err(failure), _) => Some(Err(self.fail_with(rank, &failure))),
                (Ok(None), Some(_)) => None,
                (Ok(None), None) => Some(Err(self.fail_late(rank, late(now.limit)))),
            };
            if let Some(result) = self.board.sleep_unless(left.unwrap_or_default(), poll) {
                return result;
            }
        }
    }

    /// Breaks the group for a reason that others may know, too.
    pub(crate) fn fail_with(&self, rank: usize, failure: &Failure) -> Error {
        self.fail(failure);
        self.failure_for(rank)
    }

    fn fail_late(&self, rank: usize, error: Error) -> Error {
        if self.fail(&Failure::of(rank, &error)) { error } else { self.failure_for(rank) }
    }
}

fn present(size: usize) -> Board {
    let board = Board::new(size);
    (0..size).for_each(|rank| board.set_presence(rank, Presence::Connected));
    board
}

impl Abort for Group {
    fn abort(&self, cause: &Arc<str>) {
        self.fail(&Failure::abort(cause));
        self.children.abort(0, cause);
    }
}

impl LazyTimeout {
    /// Starts when the clock is first looked at.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, started: None }
    }

    /// What is left of it; none once it has passed.
    pub(crate) fn remaining(&mut self) -> Option<Duration> {
        let started = *self.started.get_or_insert_with(Instant::now);
        self.limit.checked_sub(started.elapsed())
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<group of {} ranks>", self.size())
    }
}
