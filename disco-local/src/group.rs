//! What the ranks of one communicator share: who is where, what they have published, and what broke them.

use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use disco_core::abort::Switchboard;
use disco_core::tensor::Access;
use disco_core::{Abort, Error, Result, Tensor};

use crate::agree::Seats;
use crate::board::Board;
use crate::failure::Failure;
use crate::pace::Pace;
use crate::report::Trace;

/// The shared side of one communicator. Collectives pass over the board; everything rare is decided under the one lock.
pub(crate) struct Group {
    pub(crate) board: Board,
    /// What each rank is doing, for reports.
    pub(crate) traces: Box<[Trace]>,
    /// Something has failed, or somebody has left: whoever waits has to look at the state.
    alarm: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
    /// Ranks that wait under the lock.
    sleepers: AtomicUsize,
    /// Grows with the state's news.
    news: AtomicU64,
    pace: Pace,
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
    /// The split that is under way.
    pub(crate) seats: Seats,
    /// Tensors whose owner left while a peer was frozen inside a copy. Nobody may use them before that peer is gone, and
    /// it is gone when the group is.
    pub(crate) kept: Vec<Access>,
}

/// One rank, as the others see it.
#[derive(Default)]
pub(crate) struct Member {
    pub(crate) presence: Presence,
    /// What it called, once it has seen that others called something else.
    pub(crate) side: Option<String>,
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

/// A tensor on its way to one rank.
pub(crate) struct Letter {
    pub(crate) from: usize,
    pub(crate) src: Tensor,
}

/// How long a wait may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    deadline: Duration,
    /// When the clock was first looked at, which is when the wait outlasted the first looks.
    since: Option<Instant>,
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
            board: Board::new(size),
            traces: (0..size).map(|_| Trace::default()).collect(),
            alarm: AtomicBool::new(false),
            state: Mutex::new(State { members, ..State::default() }),
            changed: Condvar::new(),
            sleepers: AtomicUsize::new(0),
            news: AtomicU64::new(0),
            pace: Pace::new(size),
            children: Switchboard::default(),
            _parent: parent,
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of ranks.
    pub(crate) fn size(&self) -> usize {
        self.board.size()
    }

    /// Changes the state, and wakes whoever waits if that was [news](State::announce).
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state);
        self.publish(&mut state);
        result
    }

    fn publish(&self, state: &mut State) {
        if !mem::take(&mut state.news) {
            return;
        }
        if state.failure.is_some() {
            self.board.fail();
        }
        if state.failure.is_some() || state.gone().next().is_some() {
            self.alarm.store(true, Ordering::Relaxed);
        }
        self.news.fetch_add(1, Ordering::Relaxed);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
    }

    /// Wakes those who sleep, after a change of the board, which is sequentially consistent: either they see it or this
    /// sees them.
    pub(crate) fn awake(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(self.lock());
            self.changed.notify_all();
        }
    }

    /// Waits until `has_come` holds for all ranks. Whoever it does not hold for must not be gone.
    pub(crate) fn wait_for_all(
        &self,
        rank: usize,
        patience: Patience,
        has_come: impl Fn(usize) -> bool,
        late: impl Fn(&State, Duration) -> Error,
    ) -> Result<()> {
        let mut next = 0;
        let mut all = || {
            while next < self.size() && has_come(next) {
                next += 1;
            }
            next == self.size()
        };
        let awake = || match all() {
            true => Some(true),
            false => self.alarm.load(Ordering::Relaxed).then_some(false),
        };
        if self.pace.look(awake) == Some(true) {
            return Ok(());
        }
        let ready = |state: &mut State| match (0..self.size()).all(&has_come) {
            true => Ok(Some(())),
            false => state.gone().find(|&peer| !has_come(peer)).map_or(Ok(None), |peer| Err(Failure::lost(peer))),
        };
        self.sleep_until(rank, patience, ready, late)
    }

    /// Waits until `ready` gives something, or anything fails. A failure that `ready` finds, or the one that `late` makes of
    /// a passed deadline, breaks the group.
    pub(crate) fn wait<T>(
        &self,
        rank: usize,
        patience: Patience,
        mut ready: impl FnMut(&mut State) -> Result<Option<T>, Failure>,
        late: impl Fn(&State, Duration) -> Error,
    ) -> Result<T> {
        let mut seen = None;
        let awake = || {
            let news = self.news.load(Ordering::Relaxed);
            if seen.replace(news) == Some(news) {
                return None;
            }
            match ready(&mut self.lock()) {
                Ok(None) => self.alarm.load(Ordering::Relaxed).then_some(None),
                Ok(found) => Some(found),
                // Found again, and reported, below.
                Err(_) => Some(None),
            }
        };
        match self.pace.look(awake).flatten() {
            Some(found) => Ok(found),
            None => self.sleep_until(rank, patience, ready, late),
        }
    }

    fn sleep_until<T>(
        &self,
        rank: usize,
        mut patience: Patience,
        mut ready: impl FnMut(&mut State) -> Result<Option<T>, Failure>,
        late: impl Fn(&State, Duration) -> Error,
    ) -> Result<T> {
        let mut state = self.lock();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let result = loop {
            let found = ready(&mut state);
            if let Ok(Some(found)) = found {
                break Ok(found);
            }
            if let Err(error) = state.check(rank) {
                break Err(error);
            }
            match (found.err(), patience.left()) {
                (None, Some(left)) => {
                    state = self.sleep(state, left);
                    continue;
                }
                (None, None) => {
                    let error = late(&state, patience.deadline);
                    state.fail(Failure::of(rank, error));
                }
                (Some(failure), _) => state.fail(failure),
            }
            self.publish(&mut state);
        };
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        result
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

    /// Ranks that have dropped their communicator.
    pub(crate) fn gone(&self) -> impl Iterator<Item = usize> {
        let ranks = self.members.iter().enumerate();
        ranks.filter(|(_, member)| member.presence == Presence::Gone).map(|(rank, _)| rank)
    }

    /// What `rank` is told, if anything has failed.
    pub(crate) fn check(&self, rank: usize) -> Result<()> {
        self.failure.as_ref().map_or(Ok(()), |failure| Err(failure.told_to(rank)))
    }

    /// What `rank` is told that is stopped by a failure.
    pub(crate) fn failure_for(&self, rank: usize) -> Error {
        let unknown = || Error::invalid("the communicator failed, and nobody knows why");
        self.check(rank).err().unwrap_or_else(unknown)
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
    /// Starts when the clock is first looked at.
    pub(crate) fn new(deadline: Duration) -> Self {
        Self { deadline, since: None }
    }

    /// What is left of it; none once it has passed.
    pub(crate) fn left(&mut self) -> Option<Duration> {
        let since = *self.since.get_or_insert_with(Instant::now);
        self.deadline.checked_sub(since.elapsed())
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<group of {} ranks>", self.size())
    }
}
