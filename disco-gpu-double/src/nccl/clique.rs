//! What the ranks of a communicator share, and how they wait for each other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use super::abi::Code;
use super::across::link::{Answers, Link};
use super::background::Failure;
use super::collective::Step;
use super::comm::Comm;
use super::connection::Connection;
use super::point_to_point::Post;
use super::split::Round;
use crate::sync::{lock, wait, wait_for};

/// The ranks of one communicator.
pub(crate) struct Clique {
    ranks: usize,
    /// Of a rank in another process than the host, which has the others.
    link: Option<Link>,
    state: Mutex<State>,
    changed: Condvar,
}

/// What they have told each other.
pub(crate) struct State {
    /// Who is here.
    pub(crate) members: Vec<Option<Weak<Comm>>>,
    /// Why they cannot be ranks of one communicator.
    pub(crate) refusal: Option<String>,
    /// Something was wrong with what they did; nothing more is done.
    pub(crate) has_failed: bool,
    failure: Option<(Code, String)>,
    /// Collectives that not all have done, by their number.
    pub(crate) steps: BTreeMap<u64, Step>,
    /// Connections that ranks have asked for.
    pub(crate) asked: BTreeSet<(usize, Connection)>,
    /// Sends and receives.
    pub(crate) post: Post,
    /// Splits that not all have done, by their number.
    pub(crate) rounds: BTreeMap<u64, Round>,
    /// Units that each rank has done.
    pub(crate) finished: Vec<u64>,
    /// Ranks that have finalized.
    pub(crate) has_finalized: Vec<bool>,
    /// When the first was aborted.
    pub(crate) aborted_at: Option<Instant>,
    /// What the host of other processes has said.
    pub(crate) answers: Answers,
    /// Threads that wait for a change.
    waiting: usize,
}

/// The communicator was aborted while its rank waited.
#[derive(Debug)]
pub(crate) struct Aborted;

impl Clique {
    /// One of as many ranks, none of which is here yet.
    pub(crate) fn new(ranks: usize) -> Self {
        let state = State {
            members: vec![None; ranks],
            refusal: None,
            has_failed: false,
            failure: None,
            steps: BTreeMap::new(),
            asked: BTreeSet::new(),
            post: Post::default(),
            rounds: BTreeMap::new(),
            finished: vec![0; ranks],
            has_finalized: vec![false; ranks],
            aborted_at: None,
            answers: Answers::default(),
            waiting: 0,
        };
        Self { ranks, link: None, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// That of one rank, which reaches the others through the host.
    pub(crate) fn with_link(ranks: usize, link: Link) -> Self {
        Self { link: Some(link), ..Self::new(ranks) }
    }

    /// The connection to the host, unless this process is it.
    pub(crate) fn link(&self) -> Option<&Link> {
        self.link.as_ref()
    }

    /// Whether ranks of both have met: in this process, or by one unique id.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let is_beside = self.link.as_ref().zip(other.link.as_ref()).is_some_and(|(one, other)| one.is_beside(other));
        is_beside || std::ptr::eq(self, other)
    }

    /// How many ranks there are to be.
    pub(crate) fn ranks(&self) -> usize {
        self.ranks
    }

    /// What they have told each other.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Changes something, and tells all.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let answer = change(&mut state);
        let is_waited_for = state.waiting > 0;
        drop(state);
        if is_waited_for {
            self.changed.notify_all();
        }
        answer
    }

    /// Waits for something, or until `comm` is called off; what is there already is taken all the same.
    pub(crate) fn wait<T>(&self, comm: &Comm, mut ready: impl FnMut(&mut State) -> Option<T>) -> Result<T, Aborted> {
        let mut state = self.lock();
        loop {
            if let Some(answer) = ready(&mut state) {
                return Ok(answer);
            }
            if comm.is_off() {
                return Err(Aborted);
            }
            state = self.wait_for_change(state, None);
        }
    }

    /// Waits for something, whatever happens to anyone.
    pub(crate) fn wait_regardless(&self, mut ready: impl FnMut(&State) -> bool) {
        let mut state = self.lock();
        while !ready(&state) {
            state = self.wait_for_change(state, None);
        }
    }

    /// The same, no longer than `limit`.
    pub(crate) fn wait_no_longer(&self, limit: Duration, mut ready: impl FnMut(&State) -> bool) {
        let start = Instant::now();
        let mut state = self.lock();
        while !ready(&state) && start.elapsed() < limit {
            state = self.wait_for_change(state, Some(limit.saturating_sub(start.elapsed())));
        }
    }

    /// Waits until `comm` is called off, no longer than `limit`, if there is one. Whether it was.
    pub(crate) fn wait_for_abort(&self, comm: &Comm, limit: Option<Duration>) -> bool {
        let start = Instant::now();
        let mut state = self.lock();
        while !comm.is_off() {
            let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
            if left == Some(Duration::ZERO) {
                return false;
            }
            state = self.wait_for_change(state, left);
        }
        true
    }

    fn wait_for_change<'a>(&self, mut state: MutexGuard<'a, State>, limit: Option<Duration>) -> MutexGuard<'a, State> {
        state.waiting += 1;
        let mut state = match limit {
            Some(limit) => wait_for(&self.changed, state, limit),
            None => wait(&self.changed, state),
        };
        state.waiting -= 1;
        state
    }

    /// Ends it for all: none of its work is done any more, and every communicator has the error.
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

impl State {
    /// What was wrong.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.failure.as_ref().map(|(code, why)| Failure(*code, why.clone()))
    }
}
