//! How the threads of one process find each other: whoever comes first under a token makes the group.

use std::collections::BTreeMap;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use disco_core::{Abort, Error, Link, Rank, Result};

use crate::failure::Failure;
use crate::group::{Group, Patience, Presence, State};
use crate::report;

/// Groups whose ranks have not all come.
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
        Self { process: process::id(), number: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        [&self.process.to_le_bytes()[..], &self.number.to_le_bytes()].concat()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let refuse = || Error::invalid(format!("{} bytes are no rendezvous of backend local", bytes.len()));
        let (process, number) = bytes.split_first_chunk().ok_or_else(refuse)?;
        let number = number.try_into().map_err(|_| refuse())?;
        Ok(Self { process: u32::from_le_bytes(*process), number: u64::from_le_bytes(number) })
    }
}

/// Meets the other ranks under `token`.
///
/// # Errors
/// [`Error::Deadline`] naming who did not come, [`Error::Aborted`]; the token comes from another process; the rank came
/// twice; ranks disagree on how many they are.
pub(crate) fn meet(token: Token, rank: usize, size: usize, deadline: Duration, link: &dyn Link) -> Result<Arc<Group>> {
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
    let met = arrive(&group, rank, size, deadline);
    let mut meetings = meetings();
    // All have come, or nobody else needs to: the first to leave clears the place.
    if meetings.get(&token).is_some_and(|meeting| Arc::ptr_eq(meeting, &group)) {
        meetings.remove(&token);
    }
    met.map(|()| group)
}

fn arrive(group: &Group, rank: usize, size: usize, deadline: Duration) -> Result<()> {
    let patience = Patience::new(deadline);
    let name = Rank::new(rank as u32);
    group.update(|state| {
        state.announce();
        if size != group.size() {
            let detail = format!("{name} connects to {size} ranks, others to {}", group.size());
            state.fail(Failure::for_all(Error::Mismatch { operation: "connect".into(), detail }));
        } else if state.members[rank].presence != Presence::Awaited {
            state.fail(Failure::for_all(Error::invalid(format!("connect: {name} came twice"))));
        } else {
            state.members[rank].presence = Presence::Here;
        }
    });
    let here = |state: &State| state.members.iter().all(|member| member.presence != Presence::Awaited);
    let late =
        |state: &State, after| Error::Deadline { operation: "connect".into(), after, state: report::connecting(state) };
    group.wait(rank, patience, |state| Ok(here(state).then_some(())), late)
}

fn meetings() -> MutexGuard<'static, BTreeMap<Token, Arc<Group>>> {
    MEETINGS.lock().unwrap_or_else(PoisonError::into_inner)
}
