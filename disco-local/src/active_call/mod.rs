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
//! sync ──── touching = false, next step ◀────────────┘
//! leave     if anything failed: waits until no rank is touching anything
//!           gives the claims back
//! ```
//!
//! A small part is posted as a whole, and what peers in other processes can't reach is staged: no tensor is shared. Otherwise, since `touching`
//! and the failure flag are a handshake (see [`board`](crate::board)):
//!
//! - Nothing failed: a rank leaves when all who touch its memory are done, for every schedule ends in a point that all
//!   reach, or in the last letter read. Its claims go back then.
//! - Something failed: nobody starts to touch, and whoever is at it stops at the next block. A rank that leaves waits for
//!   them, then gives its claims back.
//! - A peer does not stop in time, because it is frozen in the middle of a block: the claims are kept by the group, for as
//!   long as anybody has it, and the frozen peer does. Nobody can view or free these tensors before. Between processes a
//!   group is one rank's: a thread keeps the claims until the peer goes on or its process has ended.
//! - A peer's process is killed in the middle of a block: it touches nothing any more, and a rank that leaves does not wait
//!   for it.
//!
//! This holds for a panic too: leaving is [`Turn`]'s drop. What each byte's one writer and its readers are between two
//! points is up to the schedules in `collective` and `point_to_point`.

mod memory;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use disco_core::tensor::Access;
use disco_core::{Error, Result};
pub(crate) use memory::{Memory, Region};

use crate::address_space::PRIVATE;
use crate::agree::{self, Call};
use crate::board::{Board, Piece};
use crate::failure::Failure;
use crate::group::{Group, LazyTimeout};
use crate::report;

/// How long a rank that leaves waits for peers inside a copy. They need no more than a block; this is for a frozen one.
const PEER_COPY_GRACE: Duration = Duration::from_secs(1);
/// How often it looks.
const ACCESS_POLL_INTERVAL: Duration = Duration::from_micros(100);

/// How far a rank has come, over the life of its communicator.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    /// Collectives, which are counted from 1.
    collective: u64,
    /// Points inside them.
    step: u64,
    /// Pieces that collectives have staged.
    staged: u64,
}

/// One rank inside one call. Leaving, by [`Turn::leave`] or by unwinding, gives the tensors back when that is safe.
pub(crate) struct ActiveCall<'t> {
    group: &'t Arc<Group>,
    rank: usize,
    counters: &'t mut Counters,
    deadline: Duration,
    /// What is left of it, in the operation or group of letters that it is in.
    timeout: Cell<LazyTimeout>,
    /// The operation that it is in, for reports.
    call: Call<'t>,
    /// Takes the claims of its tensors, for when a frozen peer may still touch them.
    keep: Option<&'t dyn Fn() -> Vec<Access>>,
    left: bool,
}

impl<'t> ActiveCall<'t> {
    /// Enters. The tensors that the call touches are claimed until the turn is over, or longer if it comes to `keep`.
    #[inline]
    pub(crate) fn enter(
        (group, rank, counters): (&'t Arc<Group>, usize, &'t mut Counters),
        deadline: Duration,
        call: Call<'t>,
        keep: Option<&'t dyn Fn() -> Vec<Access>>,
    ) -> Self {
        report::enter(&group.board, rank, call.kind());
        let timeout = Cell::new(LazyTimeout::new(deadline));
        Self { group, rank, counters, deadline, timeout, call, keep, left: false }
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

    /// What all ranks see.
    pub(crate) fn board(&self) -> &'t Board {
        &self.group.board
    }

    /// How long this call may wait.
    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Meets all ranks in a collective, showing them `words`; its deadline counts from here.
    pub(crate) fn meet(&mut self, call: Call<'t>, words: impl Iterator<Item = u64>) -> Result<()> {
        self.counters.collective += 1;
        self.timeout = Cell::new(LazyTimeout::new(self.deadline));
        self.call = call;
        let (board, rank, number) = (self.board(), self.rank, self.counters.collective);
        report::enter(board, rank, call.kind());
        call.write_row(board, rank, number);
        board.post(rank, number, call.head(board.size()), words);
        board.wake_sleepers();
        self.wait_for_all(|peer| board.has_posted(peer, number))?;
        match call.fits(board, rank, number) {
            true => Ok(()),
            false => self.disagree(),
        }
    }

    /// As [`Turn::meet`], showing where memory is that peers may touch.
    pub(crate) fn meet_at(&mut self, call: Call<'t>, input: Region, output: Region) -> Result<()> {
        let words = [input, output].map(|region| [region.location(&self.group.address_space), region.bytes() as u64]);
        self.meet(call, words.into_iter().flatten())
    }

    /// Every rank sees that not all call the same. Once all have said what they call, everybody is told.
    fn disagree(&mut self) -> Result<()> {
        self.board().set_call_text(self.rank, &self.call.signature(self.size()));
        let ready = || match agree::disagreement(self.board()) {
            Some(error) => Err(Failure::for_all(error)),
            None => Ok(None),
        };
        self.wait(ready, || "ranks disagree, and not all say on what".to_owned())
    }

    /// Word `index` that `peer` has shown in [`Turn::meet`].
    pub(crate) fn word(&self, peer: usize, index: usize) -> u64 {
        self.board().posted_word(peer, self.counters.collective, index)
    }

    /// Whether all can reach what all have shown in [`Turn::meet_at`].
    pub(crate) fn is_reachable(&self) -> bool {
        (0..self.size()).all(|peer| self.word(peer, 0) != PRIVATE && self.word(peer, 2) != PRIVATE)
    }

    /// Whether peers can't reach a region of this rank.
    pub(crate) fn is_private(&self, region: Region) -> bool {
        region.location(&self.group.address_space) == PRIVATE
    }

    /// Whether this holds for what all ranks put in, according to [`Turn::meet_at`].
    pub(crate) fn inputs_are_private(&self) -> bool {
        (0..self.size()).all(|peer| self.word(peer, 0) == PRIVATE || self.word(peer, 1) == 0)
    }

    /// What `peer` has shown in [`Turn::meet_at`]: where it reads, and where it writes.
    ///
    /// # Errors
    /// It is not in that rank's memory.
    pub(crate) fn regions(&self, peer: usize) -> Result<(Region, Region)> {
        let region = |index| self.region(peer, self.word(peer, index), self.word(peer, index + 1));
        Ok((region(0)?, region(2)?))
    }

    /// Memory that `peer` has published.
    ///
    /// # Errors
    /// As [`Turn::regions`].
    pub(crate) fn region(&self, peer: usize, location: u64, bytes: u64) -> Result<Region> {
        Region::find(&self.group.address_space, peer, location, bytes)
    }

    /// Number of pieces that collectives have staged so far, the same on all ranks.
    pub(crate) fn staged_before(&self) -> u64 {
        self.counters.staged
    }

    /// A collective has staged so many more.
    pub(crate) fn count_staged(&mut self, pieces: usize) {
        self.counters.staged += pieces as u64;
    }

    /// A piece of `rank`'s staging area.
    pub(crate) fn staged(&self, rank: usize, piece: Piece) -> Region {
        Region::staged(self.board(), rank, piece)
    }

    /// Where peers find a region of this rank.
    pub(crate) fn location(&self, region: Region) -> u64 {
        region.location(&self.group.address_space)
    }

    /// Fills `into` with what `peer` has shown in [`Turn::meet`], from byte `start` on.
    pub(crate) fn read(&self, peer: usize, start: usize, into: &mut [u8]) {
        self.board().read(peer, self.counters.collective, start, into);
    }

    /// Whether the counts of an all-to-all V fit together.
    ///
    /// # Errors
    /// [`Error::Mismatch`], which all ranks are told.
    pub(crate) fn check_exchange(&self) -> Result<()> {
        agree::check_exchange(self.board(), self.rank, self.counters.collective)
            .map_err(|error| self.group.fail_with(self.rank, &Failure::for_all(error)))
    }

    /// Count `index` that `peer` has shown of a V-form.
    pub(crate) fn count(&self, peer: usize, index: usize) -> usize {
        self.board().count(peer, self.counters.collective, index)
    }

    /// Starts to touch what peers have published, until the next point.
    ///
    /// # Errors
    /// Something has failed: peers may have left with their tensors.
    pub(crate) fn start(&mut self) -> Result<Memory<'_>> {
        match self.board().begin_access(self.rank) {
            true => Ok(Memory::new(self.group, self.rank)),
            false => Err(self.group.failure_for(self.rank)),
        }
    }

    /// Touches this rank's own tensors, and what is staged, alone.
    pub(crate) fn own(&mut self) -> Memory<'_> {
        Memory::new(self.group, self.rank).own()
    }

    /// Touches nothing of others any more.
    pub(crate) fn stop(&mut self) {
        self.board().end_access(self.rank);
    }

    /// Comes to a point in a collective and waits until all have: what ranks wrote before is there, and nobody touches
    /// anything that was published.
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.stop();
        self.counters.step += 1;
        let (board, step) = (self.board(), self.counters.step);
        board.step(self.rank, step);
        board.wake_sleepers();
        self.wait_for_all(|peer| board.has_reached_step(peer, step))
    }

    /// Waits until `ready` gives something.
    pub(crate) fn wait<T>(
        &self,
        ready: impl FnMut() -> Result<Option<T>, Failure>,
        report: impl Fn() -> String,
    ) -> Result<T> {
        let late = |after| self.late(report(), after);
        self.group.wait(self.rank, &self.timeout, ready, late)
    }

    fn wait_for_all(&self, has_arrived: impl Fn(usize) -> bool) -> Result<()> {
        let late = |after| self.late(report::missing(self.board(), &has_arrived), after);
        self.group.wait_for_all(self.rank, &self.timeout, &has_arrived, late)
    }

    fn late(&self, state: String, after: Duration) -> Error {
        Error::Deadline { operation: self.call.signature(self.size()), after, state }
    }

    /// Leaves. An error that only this rank knows breaks the group.
    pub(crate) fn leave(mut self, operations: usize, result: Result<()>) -> Result<()> {
        match &result {
            Ok(()) => {
                self.left = true;
                report::leave(self.board(), self.rank, operations);
            }
            Err(error) => self.withdraw(error),
        }
        result
    }

    /// Breaks the group, if it is not broken, and leaves it when nobody touches this rank's memory any more.
    fn withdraw(&mut self, error: &Error) {
        self.left = true;
        self.stop();
        report::leave(self.board(), self.rank, 0);
        self.group.fail(&Failure::of(self.rank, error));
        let mut timeout = LazyTimeout::new(PEER_COPY_GRACE);
        while self.group.is_accessed() {
            if timeout.remaining().is_none() {
                self.group.keep(self.keep.map(|keep| keep()).unwrap_or_default());
                break;
            }
            std::thread::sleep(ACCESS_POLL_INTERVAL);
        }
    }
}

impl Drop for ActiveCall<'_> {
    fn drop(&mut self) {
        if !self.left {
            self.withdraw(&Error::state(format!("{}: panicked", self.call.name())));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use std::process::{Child, Command};

    use disco_core::link::Shared;
    use disco_core::op::Claims;
    use disco_core::shared_memory::Arena;
    use disco_core::{Abort, DType, Op, Tensor};

    use super::*;
    use crate::address_space::{AddressSpace, Peer, SharedArenas};
    use crate::board::Presence;
    use crate::identity::ProcessIdentity;

    const LONG: Duration = Duration::from_secs(60);

    /// An operation on a tensor.
    fn on(tensor: &Tensor) -> [Op; 1] {
        [Op::Broadcast { src: None, dst: tensor.clone(), root: 0.into() }]
    }

    /// Enters a barrier, with a claim on the tensors of `ops`.
    fn enter<'t>(
        group: &'t Arc<Group>,
        rank: usize,
        counters: &'t mut Counters,
        keep: &'t dyn Fn() -> Vec<Access>,
    ) -> ActiveCall<'t> {
        ActiveCall::enter((group, rank, counters), LONG, Call::Op(&Op::Barrier), Some(keep))
    }

    fn claims(ops: &[Op]) -> Claims<'_> {
        let mut claims = Claims::default();
        claims.claim(ops).unwrap();
        claims
    }

    #[test]
    fn tensors_stay_claimed_while_a_peer_is_frozen_in_a_copy() {
        let group = Group::present(2);
        let tensors = [(); 2].map(|()| Tensor::zeros(DType::U8, [1]).unwrap());
        let mut counters = [Counters::default(); 2];
        let [first, second] = &mut counters;
        let ops = tensors.each_ref().map(on);
        let [left, held] = [&ops[0], &ops[1]].map(|ops| claims(ops));
        let keep = || left.keep();
        let hold = || held.keep();
        let (leaving, mut frozen) = (enter(&group, 0, first, &keep), enter(&group, 1, second, &hold));
        let memory = frozen.start().unwrap();
        group.abort(&"the test says so".into());
        drop(leaving);
        drop(left);
        assert!(tensors[0].bytes().is_err(), "the frozen peer may still read it");
        assert!(memory.copy(Region::of(&tensors[1]), Region::of(&tensors[0])).is_err());
        drop(frozen);
        drop(held);
        assert!(tensors[1].bytes().is_ok(), "nobody else is copying");
        drop(group);
        assert!(tensors[0].bytes().is_ok());
    }

    /// A group of two ranks among processes, of which the second one lives in a child of this process.
    fn group_with_child() -> (Arc<Group>, Child) {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let arena = Arena::new(1).unwrap();
        let arenas = SharedArenas::new(Arc::new(Shared::default()), arena.clone());
        let peer = |process| Peer { arena: arena.segment().clone(), process };
        arenas.set_peers([ProcessIdentity::own(), ProcessIdentity::of(child.id())].map(peer).into());
        (Group::new(Board::create(2, Presence::Connected).unwrap(), AddressSpace::Processes(arenas)), child)
    }

    /// Rank 0 of the group leaves a call on the tensor after an abort, while rank 1 is inside a copy.
    fn leave_while_peer_copies(group: &Arc<Group>, tensor: &Tensor) {
        let ops = on(tensor);
        let (claims, mut counters) = (claims(&ops), Counters::default());
        let keep = || claims.keep();
        let leaving = enter(group, 0, &mut counters, &keep);
        assert!(group.board.begin_access(1));
        group.abort(&"the test says so".into());
        drop(leaving);
    }

    #[test]
    fn tensors_are_released_at_once_when_the_peer_in_a_copy_was_killed() {
        let (group, mut child) = group_with_child();
        let process = ProcessIdentity::of(child.id());
        child.kill().unwrap();
        while !process.has_ended() {
            std::thread::yield_now();
        }
        let tensor = Tensor::zeros(DType::U8, [1]).unwrap();
        leave_while_peer_copies(&group, &tensor);
        assert!(tensor.bytes().is_ok());
        child.wait().unwrap();
    }

    #[test]
    fn tensors_are_released_when_a_frozen_peer_in_a_copy_is_killed() {
        let (group, mut child) = group_with_child();
        let tensor = Tensor::zeros(DType::U8, [1]).unwrap();
        leave_while_peer_copies(&group, &tensor);
        assert!(tensor.bytes().is_err(), "the frozen peer may still read it");
        child.kill().unwrap();
        child.wait().unwrap();
        let mut timeout = LazyTimeout::new(LONG);
        while tensor.bytes().is_err() {
            assert!(timeout.remaining().is_some(), "the tensor is still claimed after {LONG:?}");
            std::thread::sleep(ACCESS_POLL_INTERVAL);
        }
    }

    #[test]
    fn nobody_starts_to_copy_after_a_failure() {
        let group = Group::present(1);
        let (mut counters, tensor) = (Counters::default(), Tensor::zeros(DType::U8, [1]).unwrap());
        let ops = on(&tensor);
        let claims = claims(&ops);
        let keep = || claims.keep();
        let mut call = enter(&group, 0, &mut counters, &keep);
        group.abort(&"the test says so".into());
        assert!(call.start().is_err());
    }

    #[test]
    fn a_failure_does_not_keep_a_rank_from_its_own_memory() {
        let group = Group::present(1);
        let (mut counters, tensor) = (Counters::default(), Tensor::zeros(DType::U8, [2]).unwrap());
        let ops = on(&tensor);
        let claims = claims(&ops);
        let keep = || claims.keep();
        let mut call = enter(&group, 0, &mut counters, &keep);
        group.abort(&"the test says so".into());
        let [from, to] = [0, 1].map(|index| Region::of(&tensor).block(index, 2).unwrap());
        call.own().copy(to, from).unwrap();
    }

    #[test]
    fn a_panic_breaks_the_group_and_gives_the_tensors_back() {
        let group = Group::present(2);
        let tensor = Tensor::zeros(DType::U8, [1]).unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let mut counters = Counters::default();
            let ops = on(&tensor);
            let claims = claims(&ops);
            let keep = || claims.keep();
            let mut call = enter(&group, 1, &mut counters, &keep);
            call.start().unwrap();
            panic!("expected by the test");
        }));
        assert!(panicked.is_err() && tensor.bytes_mut().is_ok());
        let broken = group.check(0).unwrap_err();
        assert_eq!(broken.to_string(), "aborted, because rank 1: barrier: panicked");
    }
}
