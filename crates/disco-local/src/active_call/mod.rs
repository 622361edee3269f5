//! One rank inside one call, and the rules that keep its memory valid while peers access it.
//!
//! ```text
//! enter     claims the tensors (their borrow flags)
//! meet      posts small data, or the locations of its tensors; or sends messages
//!    ┌────▶ waits until all ranks have posted
//! start     accessing = true, unless the group has failed ┐   while `accessing`, this rank may
//!    │      works on blocks of at most 1 MiB,             │   access all published memory
//!    │      checks `failed` before each block             │
//! sync ──── accessing = false, next step ◀────────────────┘   all ranks wait for each other
//! leave     after a failure: waits until no rank is accessing memory
//!           releases the claims
//! ```
//!
//! No tensor is shared if the data is posted inline, or staged because other processes can't access it. Otherwise the
//! flags `accessing` and `failed` form a handshake (see [`board`](crate::board)), which gives these guarantees:
//!
//! - **Success.** Every schedule ends with a synchronisation of all ranks, or with the acknowledgement of the last
//!   message. So a rank leaves, and releases its claims, only after all accesses to its memory have ended.
//! - **Failure.** No rank starts an access, and a rank inside an access stops at the next block. A rank that leaves
//!   waits for these ranks, then releases its claims.
//! - **Failure while a peer is stopped** (by a debugger, say) in the middle of a block. The group keeps the claims, so
//!   the tensors can be neither viewed nor freed. Among threads the claims last as long as the group, which the stopped
//!   peer holds. Among processes a thread keeps them until the peer continues or its process has ended.
//! - **A peer's process is killed** in the middle of a block. It accesses no memory any more, so a rank that leaves
//!   does not wait for it.
//!
//! The same holds after a panic, because the drop of [`ActiveCall`] leaves the call. The schedules in `collective` and
//! `point_to_point` ensure that between two synchronisations each byte has either one writer or any number of readers.

mod memory;
mod waits;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use disco_core::activity::{Activity, DataPath};
use disco_core::tensor::Access;
use disco_core::{Error, Result};
pub(crate) use memory::{InlineVec, Memory, Region};

use crate::address_space::PRIVATE;
use crate::agree::{self, Call};
use crate::board::{Board, Piece};
use crate::failure::Failure;
use crate::group::{Group, LazyTimeout};
use crate::report;

/// How long a rank that leaves after a failure waits for peers inside a copy. A running peer stops after one block, in
/// much less time; a peer that exceeds this limit is stopped.
const PEER_COPY_GRACE: Duration = Duration::from_secs(1);
/// Interval of checks whether peers are still inside a copy.
const ACCESS_POLL_INTERVAL: Duration = Duration::from_micros(100);

/// Counters of a rank over the life of its communicator.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    /// Collectives so far; the first is number 1.
    collective: u64,
    /// Synchronisations inside collectives so far.
    step: u64,
    /// Pieces that collectives have staged so far.
    staged: u64,
}

/// One rank inside one call. Leaving, by [`ActiveCall::leave`] or by unwinding, releases the tensors once that is safe.
pub(crate) struct ActiveCall<'t> {
    group: &'t Arc<Group>,
    rank: usize,
    counters: &'t mut Counters,
    deadline: Duration,
    /// The limit of the current collective, or of the current group of sends and receives.
    timeout: Cell<LazyTimeout>,
    /// The current operation, for error texts.
    call: Call<'t>,
    /// Takes over the claims on the tensors, in case a stopped peer may still access them.
    keep: Option<&'t dyn Fn() -> Vec<Access>>,
    left: bool,
    /// Records this rank's waits for other ranks; `None` without a timeline.
    activity: Option<&'t Activity>,
}

impl<'t> ActiveCall<'t> {
    /// Enters the call. The caller has claimed the tensors, and releases them after the call unless `keep` took the
    /// claims.
    #[inline]
    pub(crate) fn enter(
        (group, rank, counters): (&'t Arc<Group>, usize, &'t mut Counters),
        deadline: Duration,
        call: Call<'t>,
        keep: Option<&'t dyn Fn() -> Vec<Access>>,
    ) -> Self {
        report::enter(&group.board, rank, call.kind());
        let timeout = Cell::new(LazyTimeout::new(deadline));
        Self { group, rank, counters, deadline, timeout, call, keep, left: false, activity: None }
    }

    /// This rank.
    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub(crate) fn size(&self) -> usize {
        self.group.size()
    }

    /// The state that all ranks share.
    pub(crate) fn group(&self) -> &'t Arc<Group> {
        self.group
    }

    /// The board of the group.
    pub(crate) fn board(&self) -> &'t Board {
        &self.group.board
    }

    /// The limit of one collective.
    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Posts `words` for a collective, waits until all ranks have posted, and checks that all call the same. The
    /// deadline of the collective starts here.
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
        if call.fits(board, rank, number) { Ok(()) } else { self.disagree() }
    }

    /// Like [`ActiveCall::meet`], but posts the locations of tensors that peers may access.
    pub(crate) fn meet_at(&mut self, call: Call<'t>, input: Region, output: Region) -> Result<()> {
        let location = |region: Region| region.location(&self.group.address_space);
        let words = [location(input), input.bytes() as u64, location(output), output.bytes() as u64];
        self.meet(call, words.into_iter())
    }

    /// Ranks call different operations, which all of them detect. Each writes its call to the board; once all have, the
    /// group fails with an error that names all calls.
    fn disagree(&mut self) -> Result<()> {
        self.board().set_call_text(self.rank, &self.call.signature(self.size()));
        let ready = || match agree::disagreement(self.board()) {
            Some(error) => Err(Failure::for_all(error)),
            None => Ok(None),
        };
        self.wait(ready, || "ranks call different operations, and not all of them have reported their call".to_owned())
    }

    /// Word `index` that `peer` has posted in [`ActiveCall::meet`].
    pub(crate) fn word(&self, peer: usize, index: usize) -> u64 {
        self.board().posted_word(peer, self.counters.collective, index)
    }

    /// Whether all ranks can access all tensors that were posted in [`ActiveCall::meet_at`].
    pub(crate) fn is_reachable(&self) -> bool {
        (0..self.size()).all(|peer| self.word(peer, 0) != PRIVATE && self.word(peer, 2) != PRIVATE)
    }

    /// Whether peers can't access a region of this rank.
    pub(crate) fn is_private(&self, region: Region) -> bool {
        region.location(&self.group.address_space) == PRIVATE
    }

    /// Whether the inputs of all ranks that were posted in [`ActiveCall::meet_at`] are private or empty.
    pub(crate) fn inputs_are_private(&self) -> bool {
        (0..self.size()).all(|peer| self.word(peer, 0) == PRIVATE || self.word(peer, 1) == 0)
    }

    /// The input and output that `peer` has posted in [`ActiveCall::meet_at`].
    ///
    /// # Errors
    /// They are not inside that rank's arena.
    pub(crate) fn regions(&self, peer: usize) -> Result<(Region, Region)> {
        let region = |index| self.region(peer, self.word(peer, index), self.word(peer, index + 1));
        Ok((region(0)?, region(2)?))
    }

    /// Memory that `peer` has published.
    ///
    /// # Errors
    /// As [`ActiveCall::regions`].
    pub(crate) fn region(&self, peer: usize, location: u64, bytes: u64) -> Result<Region> {
        Region::find(&self.group.address_space, peer, location, bytes)
    }

    /// Number of pieces that collectives have staged so far, the same on all ranks.
    pub(crate) fn staged_before(&self) -> u64 {
        self.counters.staged
    }

    /// Adds the pieces that a collective has staged.
    pub(crate) fn count_staged(&mut self, pieces: usize) {
        self.counters.staged += pieces as u64;
        self.take_path(DataPath::Staged);
    }

    /// A piece of `rank`'s staging area.
    pub(crate) fn staged(&self, rank: usize, piece: Piece) -> Region {
        Region::staged(self.board(), rank, piece)
    }

    /// The location that this rank publishes for a region.
    pub(crate) fn location(&self, region: Region) -> u64 {
        region.location(&self.group.address_space)
    }

    /// Fills `into` with the bytes that `peer` has posted in [`ActiveCall::meet`], from byte `start` on.
    pub(crate) fn read(&self, peer: usize, start: usize, into: &mut [u8]) {
        self.board().read(peer, self.counters.collective, start, into);
    }

    /// This rank's area for the tensor of the next collective, which [`ActiveCall::meet`] posts.
    pub(crate) fn next_tensor(&self) -> Region {
        Region::posted(self.board(), self.rank, self.counters.collective + 1)
    }

    /// The tensor that `peer` has posted in [`ActiveCall::meet`].
    pub(crate) fn tensor(&self, peer: usize) -> Region {
        Region::posted(self.board(), peer, self.counters.collective)
    }

    /// Checks that the counts of an all-to-all V match between ranks.
    ///
    /// # Errors
    /// [`Error::Mismatch`], on all ranks.
    pub(crate) fn check_exchange(&self) -> Result<()> {
        agree::check_exchange(self.board(), self.rank, self.counters.collective)
            .map_err(|error| self.group.fail_with(self.rank, &Failure::for_all(error)))
    }

    /// Count `index` of `peer` in a V-form.
    pub(crate) fn count(&self, peer: usize, index: usize) -> usize {
        self.board().count(peer, self.counters.collective, index)
    }

    /// Starts to access published memory of peers, until the next synchronisation.
    ///
    /// # Errors
    /// The group has failed: peers may have left and freed their tensors.
    pub(crate) fn start(&mut self) -> Result<Memory<'_>> {
        if self.board().begin_access(self.rank) {
            Ok(Memory::new(self.group, self.rank))
        } else {
            Err(self.group.failure_for(self.rank))
        }
    }

    /// Access to this rank's own tensors and to staging areas only.
    pub(crate) fn own(&mut self) -> Memory<'_> {
        Memory::new(self.group, self.rank).own()
    }

    /// Ends the access to memory of peers.
    pub(crate) fn stop(&mut self) {
        self.board().end_access(self.rank);
    }

    /// Leaves the call. An error of this rank breaks the group.
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

    /// Breaks the group unless it is broken, and returns once no peer accesses this rank's memory.
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
    fn tensors_stay_claimed_while_a_peer_is_stopped_in_a_copy() {
        let group = Group::present(2);
        let tensors = [(); 2].map(|()| Tensor::zeros(DType::U8, [1]).unwrap());
        let mut counters = [Counters::default(); 2];
        let [first, second] = &mut counters;
        let ops = tensors.each_ref().map(on);
        let [left, held] = [&ops[0], &ops[1]].map(|ops| claims(ops));
        let keep = || left.keep();
        let hold = || held.keep();
        let (leaving, mut stopped) = (enter(&group, 0, first, &keep), enter(&group, 1, second, &hold));
        let memory = stopped.start().unwrap();
        group.abort(&"aborted by the test".into());
        drop(leaving);
        drop(left);
        assert!(tensors[0].bytes().is_err(), "the stopped peer may still read it");
        assert!(memory.copy(Region::of(&tensors[1]), Region::of(&tensors[0])).is_err());
        drop(stopped);
        drop(held);
        assert!(tensors[1].bytes().is_ok(), "no other rank is inside a copy");
        drop(group);
        assert!(tensors[0].bytes().is_ok());
    }

    /// A group of two ranks; the process of the second is a child of this process.
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
        group.abort(&"aborted by the test".into());
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
    fn tensors_are_released_when_a_stopped_peer_in_a_copy_is_killed() {
        let (group, mut child) = group_with_child();
        let tensor = Tensor::zeros(DType::U8, [1]).unwrap();
        leave_while_peer_copies(&group, &tensor);
        assert!(tensor.bytes().is_err(), "the stopped peer may still read it");
        child.kill().unwrap();
        child.wait().unwrap();
        let mut timeout = LazyTimeout::new(LONG);
        while tensor.bytes().is_err() {
            assert!(timeout.remaining().is_some(), "the tensor is still claimed after {LONG:?}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn no_copy_starts_after_a_failure() {
        let group = Group::present(1);
        let (mut counters, tensor) = (Counters::default(), Tensor::zeros(DType::U8, [1]).unwrap());
        let ops = on(&tensor);
        let claims = claims(&ops);
        let keep = || claims.keep();
        let mut call = enter(&group, 0, &mut counters, &keep);
        group.abort(&"aborted by the test".into());
        assert!(call.start().is_err());
    }

    #[test]
    fn a_rank_can_access_its_own_memory_after_a_failure() {
        let group = Group::present(1);
        let (mut counters, tensor) = (Counters::default(), Tensor::zeros(DType::U8, [2]).unwrap());
        let ops = on(&tensor);
        let claims = claims(&ops);
        let keep = || claims.keep();
        let mut call = enter(&group, 0, &mut counters, &keep);
        group.abort(&"aborted by the test".into());
        let [from, to] = [0, 1].map(|index| Region::of(&tensor).block(index, 2).unwrap());
        call.own().copy(to, from).unwrap();
    }

    #[test]
    fn a_panic_breaks_the_group_and_releases_the_tensors() {
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
