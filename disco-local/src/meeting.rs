//! How the threads of one process find each other: whoever comes first under a token makes the group.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use disco_core::sync;
use disco_core::{Abort, Error, Link, Rank, Result};

use crate::board::Presence;
use crate::failure::Failure;
use crate::group::{Group, LazyTimeout};
use crate::report;

/// Groups whose ranks have not all come, and those that splits have made, until all have taken them.
static MEETINGS: Mutex<BTreeMap<Token, Arc<Group>>> = Mutex::new(BTreeMap::new());

/// The name of one meeting: 4 bytes of process id and 8 bytes of number, little endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Token {
    process: u32,
    number: u64,
}

impl Token {
    /// A token that no other meeting of this process has.
    pub(crate) fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self::here(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    fn here(number: u64) -> Self {
        Self { process: process::id(), number }
    }

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        [&self.process.to_le_bytes()[..], &self.number.to_le_bytes()].concat()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let refuse = || Error::protocol(format!("{} bytes are no rendezvous of backend local", bytes.len()));
        let (process, number) = bytes.split_first_chunk().ok_or_else(refuse)?;
        let number = number.try_into().map_err(|_| refuse())?;
        Ok(Self { process: u32::from_le_bytes(*process), number: u64::from_le_bytes(number) })
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.process, self.number)
    }
}

/// Meets the other ranks under `token`.
///
/// # Errors
/// [`Error::Deadline`] naming who did not come, [`Error::Aborted`]; the token comes from another process; the rank came
/// twice; ranks disagree on how many they are.
pub(crate) fn meet(token: Token, rank: usize, size: usize, deadline: Duration, link: &Link) -> Result<Arc<Group>> {
    if token.process != process::id() {
        let (there, here) = (token.process, process::id());
        return Err(Error::invalid(format!(
            "backend local: the rendezvous was made in process {there} and this is process {here}; ranks must be threads \
             of one process"
        )));
    }
    if rank >= size {
        return Err(Error::invalid(format!("connect: rank {rank} of {size} ranks does not exist")));
    }
    let group = meetings().entry(token).or_insert_with(|| Group::awaited(size)).clone();
    // Heard before anything is waited for. The group outlives the meeting, so this serves the communicator too.
    link.on_abort(&(group.clone() as Arc<dyn Abort>));
    let met = arrive(&group, rank, size, LazyTimeout::new(deadline), Presence::Connected);
    let mut meetings = meetings();
    // All have come, or nobody else needs to: the first to leave clears the place.
    if meetings.get(&token).is_some_and(|meeting| Arc::ptr_eq(meeting, &group)) {
        meetings.remove(&token);
    }
    met.map(|()| group)
}

/// Comes, and waits until all have come that far.
///
/// # Errors
/// As [`meet`].
pub(crate) fn arrive(group: &Group, rank: usize, size: usize, timeout: LazyTimeout, presence: Presence) -> Result<()> {
    let (board, name) = (&group.board, Rank::new(rank as u32));
    if size != board.size() {
        let detail = format!("{name} connects to {size} ranks, others to {}", board.size());
        group.fail(&Failure::for_all(Error::Mismatch { operation: "connect".into(), detail }));
    } else if !board.arrive(rank, presence) {
        group.fail(&Failure::for_all(Error::invalid(format!("connect: {name} came twice"))));
    }
    await_all(group, rank, timeout, presence)
}

/// Waits until all have come that far.
///
/// # Errors
/// As [`meet`].
pub(crate) fn await_all(group: &Group, rank: usize, timeout: LazyTimeout, presence: Presence) -> Result<()> {
    let board = &group.board;
    let ready = || Ok((0..board.size()).all(|rank| board.presence(rank) >= presence).then_some(()));
    let late = |after| {
        let state = report::connecting(board, presence);
        Error::Deadline { operation: "connect".into(), after, state }
    };
    group.wait(rank, &Cell::new(timeout), ready, late)
}

/// Leaves a group for other threads to [find](find).
pub(crate) fn offer(group: &Arc<Group>) -> u64 {
    let token = Token::fresh();
    meetings().insert(token, group.clone());
    token.number
}

/// The group of that name.
pub(crate) fn find(name: u64) -> Option<Arc<Group>> {
    meetings().get(&Token::here(name)).cloned()
}

/// Takes a group back that was offered.
pub(crate) fn take_back(name: u64) {
    // Dropped outside of the lock.
    let group = meetings().remove(&Token::here(name));
    drop(group);
}

fn meetings() -> MutexGuard<'static, BTreeMap<Token, Arc<Group>>> {
    sync::lock(&MEETINGS)
}
