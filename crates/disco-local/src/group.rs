//! The state that the ranks of one communicator share, and the waits of a rank.

use std::cell::Cell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::abort::AbortRegistry;
use disco_core::sync;
use disco_core::tensor::Access;
use disco_core::{Abort, AbortCause, Error, Result};

use crate::address_space::AddressSpace;
use crate::board::{Board, Presence};
use crate::failure::Failure;
use crate::placement;
use crate::spin_policy::SpinPolicy;

/// The shared state of one communicator. Ranks that are threads of one process share one group. Ranks in processes have
/// a group each, on the same board.
pub(crate) struct Group {
    pub(crate) board: Board,
    pub(crate) address_space: AddressSpace,
    spin_policy: SpinPolicy,
    /// Claims on tensors of threads that left while a stopped peer was inside a copy. They are released with the group,
    /// which the peer keeps alive.
    kept: Mutex<Vec<Access>>,
    /// The groups of child communicators. An abort of this group aborts them.
    children: AbortRegistry,
    /// Keeps the parent alive: a link holds only the group of the root communicator, weakly, and aborts the children
    /// through it.
    _parent: Option<Arc<Group>>,
}

/// A time limit that starts when the clock is first read, so that a wait that succeeds while it polls does not read it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LazyTimeout {
    limit: Duration,
    /// The first reading of the clock, after the wait has stopped polling.
    started: Option<Instant>,
}

/// Interval of checks whether a stopped process has continued or ended, which releases the kept claims.
const KEPT_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long other ranks wait for the failed rank to finish its record.
const RECORD_WRITE_GRACE: Duration = Duration::from_secs(1);

impl Group {
    /// A group on a board.
    pub(crate) fn new(board: Board, address_space: AddressSpace) -> Arc<Self> {
        Arc::new(Self::of(board, address_space, None))
    }

    /// A group of threads that have not arrived yet.
    pub(crate) fn awaited(size: usize) -> Arc<Self> {
        Self::new(Board::new(size), AddressSpace::Threads)
    }

    /// A group of threads that are all connected.
    pub(crate) fn present(size: usize) -> Arc<Self> {
        Self::new(present(size), AddressSpace::Threads)
    }

    /// A child group of `size` threads of this group. The child is aborted with this group and keeps it alive.
    pub(crate) fn child(self: &Arc<Self>, size: usize) -> Arc<Self> {
        self.child_on(present(size), AddressSpace::Threads)
    }

    /// Like [`Group::child`], on an existing board.
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

    /// Breaks the group, unless it is broken already. Returns whether this failure is the one that broke it.
    pub(crate) fn fail(&self, failure: &Failure) -> bool {
        self.board.fail(&failure.to_record())
    }

    /// The failure that broke the group. Waits a limited time for its record, because the process of the failed rank
    /// may end while it writes the record.
    fn failure(&self) -> Failure {
        let mut timeout = LazyTimeout::new(RECORD_WRITE_GRACE);
        loop {
            match self.board.record() {
                None if timeout.remaining().is_some() => std::thread::yield_now(),
                record => return Failure::from_record(record),
            }
        }
    }

    /// The error of `rank`, whose operation ends because of the failure.
    pub(crate) fn failure_for(&self, rank: usize) -> Error {
        self.failure().error_for(rank)
    }

    /// Returns the error of `rank` if the group is broken.
    pub(crate) fn check(&self, rank: usize) -> Result<()> {
        if self.board.has_failed() { Err(self.failure_for(rank)) } else { Ok(()) }
    }

    /// Returns the error of a new `operation` if the group is broken.
    pub(crate) fn check_unbroken(&self, operation: impl FnOnce() -> String) -> Result<()> {
        if self.board.has_failed() { Err(self.failure().broken(operation())) } else { Ok(()) }
    }

    /// Whether a rank may be accessing published memory. Once this was false after a failure, no rank accesses
    /// published memory again.
    pub(crate) fn is_accessed(&self) -> bool {
        let may_run = |rank| match &self.address_space {
            AddressSpace::Threads => true,
            AddressSpace::Processes(arenas) => !arenas.has_ended(rank),
        };
        (0..self.size()).any(|rank| self.board.is_accessing(rank) && may_run(rank))
    }

    /// Keeps the claims on tensors that a stopped peer may still access. Among threads they last as long as the group,
    /// which the peer holds. Among processes they last until the peer continues or its process has ended.
    pub(crate) fn keep(self: &Arc<Self>, claims: Vec<Access>) {
        if claims.is_empty() {
            return;
        }
        if let AddressSpace::Threads = self.address_space {
            return sync::lock(&self.kept).extend(claims);
        }
        // If the thread can't be started, the closure is dropped but the claims must not be released.
        let (group, claims) = (self.clone(), ManuallyDrop::new(claims));
        let wait = move || {
            while group.is_accessed() {
                thread::sleep(KEPT_POLL_INTERVAL);
            }
            drop(ManuallyDrop::into_inner(claims));
        };
        if let Err(error) = thread::Builder::new().name("disco-local-keep".into()).spawn(wait) {
            let ranks = self.size();
            tracing::warn!(
                %error,
                ranks,
                "a stopped peer may still access tensors, and no thread could be started to wait for it; the tensors are leaked"
            );
        }
    }

    /// Waits until `has_arrived` is true for all ranks. Fails if a rank has left for which it is false.
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
            // The order matters: a rank that has left may have arrived before, so its arrival is read afterwards.
            let is_lost = |peer: &usize| self.board.has_left(*peer) && !has_arrived(*peer);
            if next == self.size() {
                Ok(Some(()))
            } else if !self.board.is_alarmed() {
                Ok(None)
            } else {
                (next..self.size()).find(is_lost).map_or(Ok(None), |peer| Err(Failure::lost(peer)))
            }
        };
        self.wait(rank, timeout, ready, late)
    }

    /// Waits until `ready` returns a value, or the group fails. A failure that `ready` returns breaks the group, as
    /// does the error of `late` once the deadline has passed.
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
            // The loop below finds the failure again and reports it.
            Err(_) => Some(None),
        };
        if self.spin_policy.takes_turns() {
            placement::count_wait(&self.board, rank);
        }
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

    /// Breaks the group with `failure`, unless another failure came first, and returns the error of `rank`.
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
    fn abort(&self, cause: &AbortCause) {
        self.fail(&Failure::abort(cause));
        self.children.abort(0, cause);
    }
}

impl LazyTimeout {
    /// A limit that starts at the first call of [`LazyTimeout::remaining`].
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, started: None }
    }

    /// The remaining time, or none once the limit has passed.
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
