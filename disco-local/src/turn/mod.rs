//! One rank inside one call, and how memory stays valid whoever leaves when.
//!
//! ```text
//!           rank                                           its peers
//! enter     claims its tensors' borrow flags
//! meet      posts its part: all of it, or addresses; or letters
//!    ┌────▶ waits until all have
//! start     touching = true, unless something failed ┐     while `touching`, it may touch
//!    │      works on blocks of at most 1 MiB;        │     whatever peers have published
//!    │      looks at `failed` before each            │
//! sync ──── touching = false, finished ◀─────────────┘
//! leave     if anything failed: withdraws its letters,
//!           waits until no rank is touching anything
//!           gives the claims back
//! ```
//!
//! A small part is posted as a whole: no memory is shared, so that meeting is all there is. Otherwise, since `touching`
//! and the failure flag are a handshake (see [`board`](crate::board)):
//!
//! - Nothing failed: a rank leaves when all who touch its memory are done, for every schedule ends in a point that all
//!   reach, or in the last letter read. Its claims go back then.
//! - Something failed: nobody starts to touch, and whoever is at it stops at the next block. A rank that leaves waits for
//!   them, then gives its claims back.
//! - A peer does not stop in time, because it is frozen in the middle of a block: the claims are kept by the group, for as
//!   long as anybody has it, and the frozen peer does. Nobody can view or free these tensors before.
//!
//! This holds for a panic too: leaving is [`Turn`]'s drop. What each byte's one writer and its readers are between two
//! points is up to the schedules in `collective` and `point_to_point`.

mod memory;

use std::sync::Arc;
use std::time::Duration;

use disco_core::op::Claims;
use disco_core::{Error, Result};
pub(crate) use memory::{Memory, Region};

use crate::agree::{self, Call, NewSeat};
use crate::failure::Failure;
use crate::group::{Group, Letter, Patience, State};
use crate::report;

/// How long a rank that leaves waits for peers inside a copy. They need no more than a block; this is for a frozen one.
const FROZEN: Duration = Duration::from_secs(1);
/// How often it looks.
const LOOK: Duration = Duration::from_micros(100);

/// One rank inside one call. Leaving, by [`Turn::leave`] or by unwinding, gives the tensors back when that is safe.
pub(crate) struct Turn<'t> {
    group: &'t Arc<Group>,
    rank: usize,
    /// The collective that it is in, counted from 1 over the life of the communicator.
    number: &'t mut u64,
    deadline: Duration,
    /// The operation that it is in, for reports.
    call: Call<'t>,
    claims: Option<Claims<'t>>,
    left: bool,
}

impl<'t> Turn<'t> {
    /// Enters with the claims of all tensors that the call touches.
    ///
    /// # Errors
    /// [`Error::Broken`].
    pub(crate) fn enter(
        (group, rank, number): (&'t Arc<Group>, usize, &'t mut u64),
        deadline: Duration,
        call: Call<'t>,
        claims: Option<Claims<'t>>,
    ) -> Result<Self> {
        if group.board.has_failed() {
            group.lock().check_unbroken(|| call.signature(group.size()))?;
        }
        group.traces[rank].enter(call.kind());
        Ok(Self { group, rank, number, deadline, call, claims, left: false })
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
    pub(crate) fn group(&self) -> &'t Arc<Group> {
        self.group
    }

    /// Meets all ranks in a collective, showing them `words`; its deadline counts from here.
    pub(crate) fn meet(&mut self, call: Call<'t>, words: impl Iterator<Item = u64>) -> Result<()> {
        *self.number += 1;
        self.call = call;
        let (board, rank, number) = (&self.group.board, self.rank, *self.number);
        self.group.traces[rank].enter(call.kind());
        call.write_row(board, rank, number);
        board.post(rank, number, call.head(board.size()), words);
        self.group.awake();
        self.wait_for_all(|peer| board.has_posted(peer, number))?;
        match call.fits(board, rank, number) {
            true => Ok(()),
            false => self.disagree(),
        }
    }

    /// As [`Turn::meet`], showing where memory is that peers may touch.
    pub(crate) fn meet_at(&mut self, call: Call<'t>, input: Region, output: Region) -> Result<()> {
        self.meet(call, input.words().into_iter().chain(output.words()))
    }

    /// Every rank sees that not all call the same. Once all have said what they call, everybody is told.
    fn disagree(&mut self) -> Result<()> {
        let side = self.call.signature(self.size());
        self.group.update(|state| {
            state.members[self.rank].side = Some(side);
            if let Some(error) = agree::disagreement(state) {
                state.fail(Failure::for_all(error));
            }
        });
        self.wait(|_| Ok(None), |_| "ranks disagree, and not all say on what".to_owned())
    }

    /// What `peer` has shown in [`Turn::meet_at`]: where it reads, and where it writes.
    pub(crate) fn regions(&self, peer: usize) -> (Region, Region) {
        let word = |index| self.group.board.word(peer, *self.number, index);
        (Region::from_words([word(0), word(1)]), Region::from_words([word(2), word(3)]))
    }

    /// Fills `into` with what `peer` has shown in [`Turn::meet`], from byte `start` on.
    pub(crate) fn read(&self, peer: usize, start: usize, into: &mut [u8]) {
        self.group.board.read(peer, *self.number, start, into);
    }

    /// Whether the counts of an all-to-all V fit together.
    ///
    /// # Errors
    /// [`Error::Mismatch`], which all ranks are told.
    pub(crate) fn check_exchange(&self) -> Result<()> {
        agree::check_exchange(&self.group.board, self.rank, *self.number)
            .inspect_err(|error| self.group.update(|state| state.fail(Failure::for_all(error.clone()))))
    }

    /// Count `index` that `peer` has shown of a V-form.
    pub(crate) fn count(&self, peer: usize, index: usize) -> usize {
        self.group.board.count(peer, *self.number, index)
    }

    /// Starts to touch what peers have published, until the next point.
    ///
    /// # Errors
    /// Something has failed: peers may have left with their tensors.
    pub(crate) fn start(&mut self) -> Result<Memory<'_>> {
        match self.group.board.touch(self.rank) {
            true => Ok(Memory::new(self.group, self.rank)),
            false => Err(self.group.lock().failure_for(self.rank)),
        }
    }

    /// Touches this rank's own tensors alone.
    pub(crate) fn own(&mut self) -> Memory<'_> {
        Memory::new(self.group, self.rank).own()
    }

    /// Touches nothing of others any more.
    pub(crate) fn stop(&mut self) {
        self.group.board.let_go(self.rank);
    }

    /// Comes to the end of a collective and waits until all have: what ranks wrote is there, and nobody touches anything.
    pub(crate) fn sync(&mut self) -> Result<()> {
        let (board, number) = (&self.group.board, *self.number);
        self.stop();
        board.finish(self.rank, number);
        self.group.awake();
        self.wait_for_all(|peer| board.has_finished(peer, number))
    }

    /// Takes the seat of this rank in the communicators that a split makes. All ranks have met: a failure that comes after
    /// that does not undo it.
    pub(crate) fn take_seat(&mut self) -> Option<NewSeat> {
        self.group.lock().seats.take(self.group, self.rank, *self.number)
    }

    /// Waits until `ready` gives something.
    pub(crate) fn wait<T>(
        &mut self,
        ready: impl FnMut(&mut State) -> Result<Option<T>, Failure>,
        report: impl Fn(&State) -> String,
    ) -> Result<T> {
        let late = |state: &State, after| self.late(report(state), after);
        self.group.wait(self.rank, Patience::new(self.deadline), ready, late)
    }

    fn wait_for_all(&self, has_come: impl Fn(usize) -> bool) -> Result<()> {
        let late = |_: &State, after| self.late(report::missing(self.group, &has_come), after);
        self.group.wait_for_all(self.rank, Patience::new(self.deadline), &has_come, late)
    }

    fn late(&self, state: String, after: Duration) -> Error {
        Error::Deadline { operation: self.call.signature(self.size()), after, state }
    }

    /// Leaves. An error that only this rank knows breaks the group.
    pub(crate) fn leave(mut self, operations: usize, result: Result<()>) -> Result<()> {
        match &result {
            Ok(()) => {
                self.left = true;
                self.group.traces[self.rank].leave(operations);
            }
            Err(error) => self.withdraw(error),
        }
        result
    }

    /// Breaks the group, if it is not broken, and leaves it when nobody touches this rank's memory any more.
    fn withdraw(&mut self, error: &Error) {
        self.left = true;
        self.stop();
        self.group.traces[self.rank].leave(0);
        let letters = self.group.update(|state| {
            state.fail(Failure::of(self.rank, error.clone()));
            take_letters(state, self.rank)
        });
        let anybody = || (0..self.size()).any(|peer| self.group.board.is_touching(peer));
        let mut patience = Patience::new(FROZEN);
        while anybody() {
            if patience.left().is_none() {
                let claims = self.claims.take().map(Claims::keep);
                self.group.update(|state| state.kept.extend(claims.into_iter().flatten()));
                break;
            }
            std::thread::sleep(LOOK);
        }
        // Tensors are dropped outside of the lock: their owners may run anything.
        drop(letters);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.left {
            self.withdraw(&Error::invalid(format!("{}: panicked", self.call.name())));
        }
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

    /// An operation on a tensor.
    fn on(tensor: &Tensor) -> [Op; 1] {
        [Op::Broadcast { src: None, dst: tensor.clone(), root: 0.into() }]
    }

    /// Enters a barrier, with a claim on the tensors of `ops`.
    fn enter<'t>(group: &'t Arc<Group>, rank: usize, number: &'t mut u64, ops: &'t [Op]) -> Turn<'t> {
        let claims = op::claim(ops).unwrap();
        Turn::enter((group, rank, number), LONG, Call::Op(&Op::Barrier), Some(claims)).unwrap()
    }

    #[test]
    fn tensors_stay_claimed_while_a_peer_is_frozen_in_a_copy() {
        let group = Group::present(2);
        let tensors = [(); 2].map(|()| Tensor::zeros(DType::U8, [1]).unwrap());
        let mut numbers = [0; 2];
        let [first, second] = &mut numbers;
        let ops = tensors.each_ref().map(on);
        let (leaving, mut frozen) = (enter(&group, 0, first, &ops[0]), enter(&group, 1, second, &ops[1]));
        let memory = frozen.start().unwrap();
        group.abort(&"the test says so".into());
        drop(leaving);
        assert!(tensors[0].bytes().is_err(), "the frozen peer may still read it");
        assert!(memory.copy(Region::of(&tensors[1]), Region::of(&tensors[0])).is_err());
        drop(frozen);
        assert!(tensors[1].bytes().is_ok(), "nobody else is copying");
        drop(group);
        assert!(tensors[0].bytes().is_ok());
    }

    #[test]
    fn nobody_starts_to_copy_after_a_failure() {
        let group = Group::present(1);
        let (mut number, tensor) = (0, Tensor::zeros(DType::U8, [1]).unwrap());
        let ops = on(&tensor);
        let mut turn = enter(&group, 0, &mut number, &ops);
        group.abort(&"the test says so".into());
        assert!(turn.start().is_err());
    }

    #[test]
    fn a_failure_does_not_keep_a_rank_from_its_own_memory() {
        let group = Group::present(1);
        let (mut number, tensor) = (0, Tensor::zeros(DType::U8, [2]).unwrap());
        let ops = on(&tensor);
        let mut turn = enter(&group, 0, &mut number, &ops);
        group.abort(&"the test says so".into());
        let [from, to] = [0, 1].map(|index| Region::of(&tensor).block(index, 2).unwrap());
        turn.own().copy(to, from).unwrap();
    }

    #[test]
    fn a_panic_breaks_the_group_and_gives_the_tensors_back() {
        let group = Group::present(2);
        let tensor = Tensor::zeros(DType::U8, [1]).unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let mut number = 0;
            let ops = on(&tensor);
            let mut turn = enter(&group, 1, &mut number, &ops);
            turn.start().unwrap();
            panic!("expected by the test");
        }));
        assert!(panicked.is_err() && tensor.bytes_mut().is_ok());
        let broken = group.lock().check(0).unwrap_err();
        assert_eq!(broken.to_string(), "aborted, because rank 1: barrier: panicked");
    }
}
