//! The part of a communicator that its operations use, one after the other.

use std::sync::Arc;
use std::time::Duration;

use disco_core::activity::Activity;
use disco_core::tensor::Access;
use disco_core::{Error, Op, Rank, Result};

use crate::active_call::{ActiveCall, Counters};
use crate::agree::Call;
use crate::board::Presence;
use crate::group::Group;
use crate::split::{self, Child};
use crate::{collective, placement, point_to_point};

/// The place of a rank in its group. Dropping it leaves the group.
pub(crate) struct Seat {
    group: Arc<Group>,
    rank: Rank,
    deadline: Duration,
    counters: Counters,
    /// The data that all ranks post in an eager collective.
    buffer: Box<[u8]>,
}

impl Seat {
    pub(crate) fn new(group: Arc<Group>, rank: Rank, deadline: Duration) -> Self {
        let buffer = vec![0; collective::buffer_bytes(group.size())].into();
        Self { group, rank, deadline, counters: Counters::default(), buffer }
    }

    /// Runs a group of operations, which are checked and whose tensors are claimed. `keep` takes over the claims, in case
    /// a stopped peer may still access the tensors. Waits for other ranks are recorded in `timeline`.
    #[inline(always)]
    pub(crate) fn run(
        &mut self,
        ops: &[Op],
        keep: &dyn Fn() -> Vec<Access>,
        timeline: Option<&Activity>,
    ) -> Result<()> {
        let Some(first) = ops.first() else { return Ok(()) };
        let member = (&self.group, self.rank.index(), &mut self.counters);
        let mut call = ActiveCall::enter(member, self.deadline, Call::Op(first), Some(keep));
        call.record_in(timeline);
        let result = if first.kind().is_point_to_point() {
            point_to_point::run(&mut call, ops)
        } else {
            ops.iter().try_for_each(|op| collective::run(&mut call, &mut self.buffer, op))
        };
        call.leave(ops.len(), result)
    }

    /// [`Seat::run`] beside the worker, on another thread.
    pub(crate) fn run_in_background(&mut self, ops: &[Op], keep: &dyn Fn() -> Vec<Access>) -> Result<()> {
        placement::begin_in_background(&self.group.board, self.rank.index());
        // The timeline has the waits of one operation at a time: that of the worker's thread.
        self.run(ops, keep, None)
    }

    pub(crate) fn split(&mut self, color: Option<u32>, key: i32) -> Result<Option<Child>> {
        self.group.check_unbroken(|| Call::Split.name().to_owned())?;
        let member = (&self.group, self.rank.index(), &mut self.counters);
        let mut call = ActiveCall::enter(member, self.deadline, Call::Split, None);
        let child = split::run(&mut call, color, key);
        call.leave(1, child.as_ref().map(drop).map_err(Error::clone))?;
        child
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.group.board.set_presence(self.rank.index(), Presence::Left);
    }
}
