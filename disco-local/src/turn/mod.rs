//! One rank inside one call, and how memory stays valid whoever leaves when.
//!
//! ```text
//!           rank                                           its peers
//! enter     claims its tensors' borrow flags
//! meet      publishes them: a slot, or letters
//!    ┌────▶ waits for peers
//! start     copying = true, unless something failed ┐      while `copying`, it may touch
//!    │      copies blocks of at most 1 MiB;         │      whatever peers have published
//!    │      looks at `failed` before each           │
//! sync ──── copying = false ◀───────────────────────┘
//! leave     withdraws slot and letters
//!           if anything failed: waits until no rank is copying
//!           gives the claims back
//! ```
//!
//! `copying` and the failure change under one lock, and `copying` only becomes true while nothing has failed. So:
//!
//! - Nothing failed: a rank leaves when all who touch its memory are done, for every schedule ends in a point that all
//!   reach, or in the last letter read. Its claims go back then.
//! - Something failed: nobody starts to copy, and whoever is copying stops at the next block. A rank that leaves waits for
//!   them, then gives its claims back.
//! - A peer does not stop in time, because it is frozen in the middle of a block: the claims are kept by the group, for as
//!   long as anybody has it, and the frozen peer does. Nobody can view or free these tensors before.
//!
//! This holds for a panic too: leaving is [`Turn`]'s drop. What each byte's one writer and its readers are between two
//! points is up to the schedules in `collective` and `point_to_point`.

mod copying;

use std::mem;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use copying::Copying;
use disco_core::op::Claims;
use disco_core::{Error, Result};

use crate::agree::{Call, Round};
use crate::failure::Failure;
use crate::group::{Group, Letter, Member, Patience, Presence, Slot, State};
use crate::report;

/// How long a rank that leaves waits for peers inside a copy. They need no more than a block; this is for a frozen one.
const FROZEN: Duration = Duration::from_secs(1);

/// One rank inside one call. Leaving, by [`Turn::leave`] or by unwinding, gives the tensors back when that is safe.
pub(crate) struct Turn<'g> {
    group: &'g Arc<Group>,
    rank: usize,
    patience: Patience,
    /// The operation that it is in, for reports.
    call: Call,
    claims: Option<Claims>,
    left: bool,
}

impl<'g> Turn<'g> {
    /// Enters with the claims of all tensors that the call touches.
    ///
    /// # Errors
    /// [`Error::Broken`].
    pub(crate) fn enter(
        group: &'g Arc<Group>,
        rank: usize,
        deadline: Duration,
        call: Call,
        claims: Option<Claims>,
    ) -> Result<Self> {
        group.update(|state| {
            state.check_unbroken(|| call.signature(group.size()))?;
            state.members[rank].inside = Some(call.name());
            Ok::<_, Error>(())
        })?;
        Ok(Self { group, rank, patience: Patience::new(deadline), call, claims, left: false })
    }

    /// This rank.
    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub(crate) fn size(&self) -> usize {
        self.group.size()
    }

    /// The shared side.
    pub(crate) fn group(&self) -> &'g Arc<Group> {
        self.group
    }

    /// Meets all ranks in a collective; its deadline counts from here.
    pub(crate) fn meet(&mut self, call: Call) -> Result<Arc<Round>> {
        self.patience = Patience::new(self.patience.deadline());
        self.call = call.clone();
        let rank = self.rank;
        self.group.update(|state| {
            let me = &mut state.members[rank];
            me.copying = false;
            me.inside = Some(call.name());
            me.slot = Slot::Posted(call);
            close_round(state, self.group);
        });
        let gone = |member: &Member| member.presence == Presence::Gone;
        let ready = |state: &mut State| match state.members[rank].take_round() {
            Some(round) => Ok(Some(round)),
            None => state.members.iter().position(gone).map_or(Ok(None), |rank| Err(Failure::lost(rank))),
        };
        self.wait(ready, report::forming)
    }

    /// Starts to copy. What peers have published may be touched until the next point.
    ///
    /// # Errors
    /// Something has failed: peers may have left with their tensors.
    pub(crate) fn start(&mut self) -> Result<Copying<'_>> {
        self.group.update(|state| {
            state.check(self.rank)?;
            state.members[self.rank].copying = true;
            Ok::<_, Error>(())
        })?;
        Ok(Copying::new(self.group, self.rank))
    }

    /// Comes to a point inside a collective and waits until all have: what ranks copied before is there, and done.
    pub(crate) fn sync(&mut self) -> Result<()> {
        let step = self.group.update(|state| {
            let me = &mut state.members[self.rank];
            me.copying = false;
            me.steps += 1;
            let step = me.steps;
            if state.all_at(step) {
                state.announce();
            }
            step
        });
        self.wait(|state| Ok(state.all_at(step).then_some(())), |state| report::inside(state, step))
    }

    /// Waits until `ready` gives something.
    pub(crate) fn wait<T>(
        &mut self,
        ready: impl FnMut(&mut State) -> Result<Option<T>, Failure>,
        report: impl Fn(&State) -> String,
    ) -> Result<T> {
        let late = |state: &State| Error::Deadline {
            operation: self.call.signature(self.size()),
            after: self.patience.deadline(),
            state: report(state),
        };
        self.group.wait(self.rank, self.patience, ready, late)
    }

    /// Leaves. An error that only this rank knows breaks the group.
    pub(crate) fn leave(mut self, operations: usize, result: Result<()>) -> Result<()> {
        self.left = true;
        self.group.update(|state| {
            let me = &mut state.members[self.rank];
            match &result {
                Ok(()) => {
                    me.finished += operations as u64;
                    me.last = me.inside;
                }
                Err(error) => state.fail(Failure::of(self.rank, error.clone())),
            }
        });
        result
    }
}

/// Lets the collective begin once all ranks have posted, or breaks the group if they do not agree.
fn close_round(state: &mut State, group: &Arc<Group>) {
    if !state.members.iter().all(|member| matches!(member.slot, Slot::Posted(_))) {
        return;
    }
    let calls = state.members.iter_mut().filter_map(|member| match mem::take(&mut member.slot) {
        Slot::Posted(call) => Some(call),
        _ => None,
    });
    match Round::of(calls.collect(), group) {
        Ok(round) => {
            let round = Arc::new(round);
            state.members.iter_mut().for_each(|member| member.slot = Slot::Met(round.clone()));
            state.announce();
        }
        Err(error) => state.fail(Failure::for_all(error)),
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let rank = self.rank;
        let withdrawn = self.group.update(|state| {
            if !self.left {
                let why = format!("{}: panicked", self.call.name());
                state.fail(Failure::of(rank, Error::invalid(why)));
            }
            let me = &mut state.members[rank];
            me.copying = false;
            me.inside = None;
            let slot = mem::take(&mut me.slot);
            if state.failure.is_none() {
                return (slot, Vec::new());
            }
            state.announce();
            (slot, take_letters(state, rank))
        });
        let mut state = self.group.lock();
        let patience = Patience::new(FROZEN);
        while state.failure.is_some() && state.members.iter().any(|member| member.copying) {
            match patience.left() {
                Some(left) => state = self.group.sleep(state, left),
                None => {
                    state.kept.extend(self.claims.take());
                    break;
                }
            }
        }
        // Tensors are dropped outside of the lock: their owners may run anything.
        drop(state);
        drop(withdrawn);
    }
}

/// Takes back what a rank has sent and nobody has received.
fn take_letters(state: &mut State, rank: usize) -> Vec<Letter> {
    state.members[rank].unread.clear();
    let inboxes = state.members.iter_mut().map(|member| &mut member.inbox);
    inboxes.flat_map(|inbox| inbox.extract_if(.., |letter| letter.from == rank)).collect()
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use disco_core::{Abort, DType, Op, Tensor, op};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Enters a barrier, with a claim on a tensor.
    fn enter<'g>(group: &'g Arc<Group>, rank: usize, tensor: &Tensor) -> Turn<'g> {
        let claims = op::claim(&[Op::Broadcast { src: None, dst: tensor.clone(), root: 0.into() }]).unwrap();
        Turn::enter(group, rank, LONG, Call::Op(Op::Barrier), Some(claims)).unwrap()
    }

    #[test]
    fn tensors_stay_claimed_while_a_peer_is_frozen_in_a_copy() {
        let group = Group::present(2);
        let tensors = [(); 2].map(|()| Tensor::zeros(DType::U8, [1]).unwrap());
        let (leaving, mut frozen) = (enter(&group, 0, &tensors[0]), enter(&group, 1, &tensors[1]));
        let copying = frozen.start().unwrap();
        group.abort(&"the test says so".into());
        drop(leaving);
        assert!(tensors[0].bytes().is_err(), "the frozen peer may still read it");
        assert!(copying.copy(&tensors[1], &tensors[0]).is_err());
        drop(frozen);
        assert!(tensors[1].bytes().is_ok(), "nobody else is copying");
        drop(group);
        assert!(tensors[0].bytes().is_ok());
    }

    #[test]
    fn nobody_starts_to_copy_after_a_failure() {
        let group = Group::present(1);
        let mut turn = enter(&group, 0, &Tensor::zeros(DType::U8, [1]).unwrap());
        group.abort(&"the test says so".into());
        assert!(turn.start().is_err());
    }

    #[test]
    fn a_panic_breaks_the_group_and_gives_the_tensors_back() {
        let group = Group::present(2);
        let tensor = Tensor::zeros(DType::U8, [1]).unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let mut turn = enter(&group, 1, &tensor);
            turn.start().unwrap();
            panic!("expected by the test");
        }));
        assert!(panicked.is_err() && tensor.bytes_mut().is_ok());
        let broken = group.lock().check(0).unwrap_err();
        assert_eq!(broken.to_string(), "aborted, because rank 1: barrier: panicked");
    }
}
