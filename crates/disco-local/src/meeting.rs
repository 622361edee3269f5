//! Rendezvous of ranks that are threads of one process: the first rank with a token makes the group.

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

/// Groups that wait for ranks, and groups that a split has made and that not all members have opened yet.
static MEETINGS: Mutex<BTreeMap<Token, Arc<Group>>> = Mutex::new(BTreeMap::new());

/// Identifies one rendezvous. As bytes: u32 process id, u64 number, little endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Token {
    process: u32,
    number: u64,
}

impl Token {
    /// A token that is unique in this process.
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
        let refuse = || Error::protocol(format!("{} bytes are not a rendezvous of the backend local", bytes.len()));
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

/// Waits for the other ranks with `token` and returns their group.
///
/// # Errors
/// [`Error::Deadline`] with the ranks that have not arrived; [`Error::Aborted`]; the token is from another process; two
/// ranks have the same number; ranks expect different numbers of ranks.
pub(crate) fn meet(token: Token, rank: usize, size: usize, deadline: Duration, link: &Link) -> Result<Arc<Group>> {
    if token.process != process::id() {
        let (there, here) = (token.process, process::id());
        return Err(Error::invalid(format!(
            "the rendezvous was made in process {there} and this is process {here}; ranks must be threads \
             of one process"
        )));
    }
    let group = meetings().entry(token).or_insert_with(|| Group::awaited(size)).clone();
    // Registered before the first wait. The group is also the communicator's aborter, so this registration lasts.
    link.on_abort(&(group.clone() as Arc<dyn Abort>));
    let met = arrive(&group, rank, size, LazyTimeout::new(deadline), Presence::Connected);
    let mut meetings = meetings();
    // All ranks have arrived, or the group has failed: the first rank that gets here removes the entry.
    if meetings.get(&token).is_some_and(|meeting| Arc::ptr_eq(meeting, &group)) {
        meetings.remove(&token);
    }
    met.map(|()| group)
}

/// Marks this rank as arrived with `presence`, and waits until all ranks have at least that presence.
///
/// # Errors
/// As [`meet`].
pub(crate) fn arrive(group: &Group, rank: usize, size: usize, timeout: LazyTimeout, presence: Presence) -> Result<()> {
    let (board, name) = (&group.board, Rank::new(rank as u32));
    if size != board.size() {
        let detail = format!("{name} expects {size} ranks, other ranks expect {}", board.size());
        group.fail(&Failure::for_all(Error::Mismatch { operation: "connect".into(), detail }));
    } else if !board.arrive(rank, presence) {
        group.fail(&Failure::for_all(Error::invalid(format!("{name} has connected twice"))));
    }
    await_all(group, rank, timeout, presence)
}

/// Waits until all ranks have at least `presence`.
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

/// Registers a group under a name, so that other threads can [find](find) it.
pub(crate) fn offer(group: &Arc<Group>) -> u64 {
    let token = Token::fresh();
    meetings().insert(token, group.clone());
    token.number
}

/// The group with this name.
pub(crate) fn find(name: u64) -> Option<Arc<Group>> {
    meetings().get(&Token::here(name)).cloned()
}

/// Withdraws a group that was registered by [`offer`].
pub(crate) fn take_back(name: u64) {
    // The group is dropped after the lock is released.
    let group = meetings().remove(&Token::here(name));
    drop(group);
}

fn meetings() -> MutexGuard<'static, BTreeMap<Token, Arc<Group>>> {
    sync::lock(&MEETINGS)
}
