//! What the ranks of one communicator share: who is where, what they have published, and what broke them.

use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use disco_core::abort::Switchboard;
use disco_core::op::Claims;
use disco_core::{Abort, Error, Result, Tensor};

use crate::agree::{Call, Round};
use crate::failure::Failure;

/// The shared side of one communicator. Everything is decided under its one lock; only copies run outside of it.
pub(crate) struct Group {
    size: usize,
    /// As `State::failure.is_some()`, for ranks that are copying and hold no lock.
    failed: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
    /// Groups split off from this one: they hear its abort.
    children: Switchboard,
    /// Links know the first group of a family only and hold it weakly: its descendants keep it.
    _parent: Option<Arc<Group>>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) failure: Option<Failure>,
    pub(crate) members: Vec<Member>,
    /// Whether something has changed that others may wait for.
    news: bool,
    /// Tensors whose owner left while a peer was frozen inside a copy. Nobody may use them before that peer is gone, and
    /// it is gone when the group is.
    pub(crate) kept: Vec<Claims>,
}

/// One rank, as the others see it.
#[derive(Default)]
pub(crate) struct Member {
    pub(crate) presence: Presence,
    /// What it is inside of.
    pub(crate) inside: Option<&'static str>,
    /// How many operations it has finished, and the last of them.
    pub(crate) finished: u64,
    pub(crate) last: Option<&'static str>,
    /// Its part in the collective that is forming.
    pub(crate) slot: Slot,
    /// Points inside collectives that it has reached, ever. All ranks pass the same ones.
    pub(crate) steps: u64,
    /// Whether it may be touching published memory now. Only becomes true while nothing has failed.
    pub(crate) copying: bool,
    /// Sent to it and not yet received.
    pub(crate) inbox: Vec<Letter>,
    /// Who has yet to copy a letter of it to the end.
    pub(crate) unread: Vec<usize>,
}

/// Whether a rank can still be waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Has not connected yet.
    #[default]
    Awaited,
    /// Has a communicator.
    Here,
    /// Dropped it.
    Gone,
}

/// A rank's part in the collective that is forming.
#[derive(Default)]
pub(crate) enum Slot {
    /// It has not come.
    #[default]
    Empty,
    /// It has come, others have not.
    Posted(Call),
    /// All have come and agree.
    Met(Arc<Round>),
}

/// A tensor on its way to one rank.
pub(crate) struct Letter {
    pub(crate) from: usize,
    pub(crate) src: Tensor,
}

/// When a wait began and how long it may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    deadline: Duration,
    since: Instant,
}

impl Group {
    /// A group whose ranks have yet to come.
    pub(crate) fn awaited(size: usize) -> Arc<Self> {
        Self::new(size, Presence::Awaited, None)
    }

    /// A group of ranks that are there.
    pub(crate) fn present(size: usize) -> Arc<Self> {
        Self::new(size, Presence::Here, None)
    }

    /// A group of some of this group's ranks. Hears its abort and keeps it alive.
    pub(crate) fn child(self: &Arc<Self>, size: usize) -> Arc<Self> {
        let child = Self::new(size, Presence::Here, Some(self.clone()));
        self.children.listen(&(child.clone() as Arc<dyn Abort>));
        child
    }

    fn new(size: usize, presence: Presence, parent: Option<Arc<Self>>) -> Arc<Self> {
        let members = (0..size).map(|_| Member { presence, ..Member::default() }).collect();
        Arc::new(Self {
            size,
            failed: AtomicBool::new(false),
            state: Mutex::new(State { members, ..State::default() }),
            changed: Condvar::new(),
            children: Switchboard::default(),
            _parent: parent,
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of ranks.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Whether anything has failed, without the lock.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Changes the state, and wakes whoever waits if that was [news](State::announce).
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state);
        self.publish(&mut state);
        result
    }

    fn publish(&self, state: &mut State) {
        if mem::take(&mut state.news) {
            self.failed.store(state.failure.is_some(), Ordering::Relaxed);
            self.changed.notify_all();
        }
    }

    /// Waits until `ready` gives something, or anything fails. A failure that `ready` finds, or the one that `late` makes of
    /// a passed deadline, breaks the group.
    pub(crate) fn wait<T>(
        &self,
        rank: usize,
        patience: Patience,
        mut ready: impl FnMut(&mut State) -> Result<Option<T>, Failure>,
        late: impl Fn(&State) -> Error,
    ) -> Result<T> {
        let mut state = self.lock();
        loop {
            let found = ready(&mut state);
            if let Ok(Some(found)) = found {
                return Ok(found);
            }
            state.check(rank)?;
            match (found.err(), patience.left()) {
                (None, Some(left)) => {
                    state = self.sleep(state, left);
                    continue;
                }
                (None, None) => {
                    let error = late(&state);
                    state.fail(Failure::of(rank, error));
                }
                (Some(failure), _) => state.fail(failure),
            }
            self.publish(&mut state);
        }
    }

    /// Sleeps until something changes, at most for `limit`.
    pub(crate) fn sleep<'g>(&self, state: MutexGuard<'g, State>, limit: Duration) -> MutexGuard<'g, State> {
        self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Abort for Group {
    fn abort(&self, cause: &Arc<str>) {
        self.update(|state| state.fail(Failure::abort(cause)));
        self.children.abort(0, cause);
    }
}

impl Member {
    /// The collective that all have entered, once.
    pub(crate) fn take_round(&mut self) -> Option<Arc<Round>> {
        match mem::take(&mut self.slot) {
            Slot::Met(round) => Some(round),
            other => {
                self.slot = other;
                None
            }
        }
    }
}

impl State {
    /// Breaks the group. The first failure stays.
    pub(crate) fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
        self.announce();
    }

    /// Has those woken who wait.
    pub(crate) fn announce(&mut self) {
        self.news = true;
    }

    /// Whether all ranks have come to this point.
    pub(crate) fn all_at(&self, step: u64) -> bool {
        self.members.iter().all(|member| member.steps >= step)
    }

    /// What `rank` is told, if anything has failed.
    pub(crate) fn check(&self, rank: usize) -> Result<()> {
        self.failure.as_ref().map_or(Ok(()), |failure| Err(failure.told_to(rank)))
    }

    /// What somebody is told who asks for an `operation` after something failed.
    pub(crate) fn check_unbroken(&self, operation: impl FnOnce() -> String) -> Result<()> {
        match &self.failure {
            Some(failure) => Err(failure.broken(operation())),
            None => Ok(()),
        }
    }
}

impl Patience {
    /// Starts now.
    pub(crate) fn new(deadline: Duration) -> Self {
        Self { deadline, since: Instant::now() }
    }

    /// How long a wait may take in all.
    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// What is left of it; none once it has passed.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.deadline.checked_sub(self.since.elapsed())
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<group of {} ranks>", self.size)
    }
}
