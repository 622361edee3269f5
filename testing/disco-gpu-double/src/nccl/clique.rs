//! State that the ranks of a communicator share, and waits for its changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use super::abi::Code;
use super::across::link::{HostReplies, Link};
use super::background::Failure;
use super::collective::PendingCollective;
use super::comm::Comm;
use super::connection::Connection;
use super::point_to_point::UnmatchedTransfers;
use super::split::PendingSplit;
use crate::sync::{lock, wait, wait_for};

/// The ranks of one communicator.
pub(crate) struct Clique {
    ranks: usize,
    /// The connection to the host, if this process is not the host.
    link: Option<Link>,
    state: Mutex<CliqueState>,
    changed: Condvar,
}

/// The shared state of the ranks.
pub(crate) struct CliqueState {
    /// Communicators of the ranks that have joined.
    pub(crate) members: Vec<Option<Weak<Comm>>>,
    /// The reason why these ranks cannot form a communicator.
    pub(crate) refusal: Option<String>,
    /// Whether the ranks made an error; then no more work is done.
    pub(crate) has_failed: bool,
    failure: Option<(Code, String)>,
    /// Unfinished collectives, by number.
    pub(crate) collectives: BTreeMap<u64, PendingCollective>,
    /// Connections that ranks have requested.
    pub(crate) requested_connections: BTreeSet<(usize, Connection)>,
    /// Sends and receives.
    pub(crate) unmatched: UnmatchedTransfers,
    /// Unfinished splits, by number.
    pub(crate) splits: BTreeMap<u64, PendingSplit>,
    /// Number of units that each rank has completed.
    pub(crate) finished: Vec<u64>,
    /// Ranks that have finalized.
    pub(crate) has_finalized: Vec<bool>,
    /// Time of the first abort.
    pub(crate) aborted_at: Option<Instant>,
    /// Answers of the host in another process.
    pub(crate) replies: HostReplies,
    /// Number of threads that wait for a change.
    waiting: usize,
}

/// The communicator was aborted while its rank waited.
#[derive(Debug)]
pub(crate) struct Aborted;

impl Clique {
    /// A clique of `size` ranks, none of which has joined yet.
    pub(crate) fn new(ranks: usize) -> Self {
        let state = CliqueState {
            members: vec![None; ranks],
            refusal: None,
            has_failed: false,
            failure: None,
            collectives: BTreeMap::new(),
            requested_connections: BTreeSet::new(),
            unmatched: UnmatchedTransfers::default(),
            splits: BTreeMap::new(),
            finished: vec![0; ranks],
            has_finalized: vec![false; ranks],
            aborted_at: None,
            replies: HostReplies::default(),
            waiting: 0,
        };
        Self { ranks, link: None, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The clique of one rank that reaches the others through the host.
    pub(crate) fn with_link(ranks: usize, link: Link) -> Self {
        Self { link: Some(link), ..Self::new(ranks) }
    }

    /// The connection to the host, or `None` in the host.
    pub(crate) fn link(&self) -> Option<&Link> {
        self.link.as_ref()
    }

    /// Whether both are the same clique: in this process, or by the same unique id.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let has_same_unique_id =
            self.link.as_ref().zip(other.link.as_ref()).is_some_and(|(one, other)| one.has_same_unique_id(other));
        has_same_unique_id || std::ptr::eq(self, other)
    }

    /// Number of ranks.
    pub(crate) fn ranks(&self) -> usize {
        self.ranks
    }

    /// The shared state of the ranks.
    pub(crate) fn lock(&self) -> MutexGuard<'_, CliqueState> {
        lock(&self.state)
    }

    /// Changes the state and wakes all waiting threads.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut CliqueState) -> T) -> T {
        let mut state = self.lock();
        let answer = change(&mut state);
        let is_waited_for = state.waiting > 0;
        drop(state);
        if is_waited_for {
            self.changed.notify_all();
        }
        answer
    }

    /// Waits until `ready` returns a value, or until `comm` is aborted. A value that is already available is returned
    /// even after an abort.
    pub(crate) fn wait<T>(
        &self,
        comm: &Comm,
        mut ready: impl FnMut(&mut CliqueState) -> Option<T>,
    ) -> Result<T, Aborted> {
        let mut state = self.lock();
        loop {
            if let Some(answer) = ready(&mut state) {
                return Ok(answer);
            }
            if comm.is_aborted() {
                return Err(Aborted);
            }
            state = self.wait_for_change(state, None);
        }
    }

    /// Waits until `ready`, regardless of aborts.
    pub(crate) fn wait_regardless(&self, mut ready: impl FnMut(&CliqueState) -> bool) {
        let mut state = self.lock();
        while !ready(&state) {
            state = self.wait_for_change(state, None);
        }
    }

    /// Waits until `ready` or until `limit` has passed, regardless of aborts.
    pub(crate) fn wait_at_most(&self, limit: Duration, mut ready: impl FnMut(&CliqueState) -> bool) {
        let start = Instant::now();
        let mut state = self.lock();
        while !ready(&state) && start.elapsed() < limit {
            state = self.wait_for_change(state, Some(limit.saturating_sub(start.elapsed())));
        }
    }

    /// Waits until `comm` is aborted, or until `limit` has passed, if any. Returns whether it was aborted.
    pub(crate) fn wait_for_abort(&self, comm: &Comm, limit: Option<Duration>) -> bool {
        let start = Instant::now();
        let mut state = self.lock();
        while !comm.is_aborted() {
            let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
            if left == Some(Duration::ZERO) {
                return false;
            }
            state = self.wait_for_change(state, left);
        }
        true
    }

    fn wait_for_change<'a>(
        &self,
        mut state: MutexGuard<'a, CliqueState>,
        limit: Option<Duration>,
    ) -> MutexGuard<'a, CliqueState> {
        state.waiting += 1;
        let mut state = match limit {
            Some(limit) => wait_for(&self.changed, state, limit),
            None => wait(&self.changed, state),
        };
        state.waiting -= 1;
        state
    }

    /// Fails the clique: no more of its work is done, and every communicator has the error.
    pub(crate) fn fail(&self, code: Code, why: &str) {
        let members = self.change(|state| {
            state.has_failed = true;
            state.failure.get_or_insert_with(|| (code, why.to_owned()));
            state.members.iter().flatten().filter_map(Weak::upgrade).collect::<Vec<Arc<Comm>>>()
        });
        for comm in members {
            comm.fail(code, why);
        }
    }
}

impl CliqueState {
    /// The error of the clique.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.failure.as_ref().map(|(code, why)| Failure(*code, why.clone()))
    }
}
