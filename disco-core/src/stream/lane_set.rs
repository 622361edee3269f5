//! The lanes of a session, its workers, and the lane that each worker belongs to.

use std::ops::Deref;
use std::sync::Arc;

use crate::activity::Progress;
use crate::channel::{self, Channel, FrameSize};
use crate::command::Command;
use crate::error::Result;
use crate::id::WorkerId;
use crate::members::Members;
use crate::processors::processors;
use crate::worker_range::WorkerRange;

/// Lanes that together reach all workers, in the order of places, and behind them the lanes to workers that replaced lost
/// ones or that a resize has added. The last lane that reaches a [place](Members) owns it. Clones share the list.
#[derive(Clone, Debug)]
pub(crate) struct Lanes {
    lanes: Arc<[Arc<dyn Channel>]>,
    pub(crate) members: Members,
    /// Whether a lane leads to other processes.
    pub(super) needs_bytes: bool,
    /// Whether all workers understand all commands.
    understand_all: bool,
    /// Whether this machine has a processor for each worker and one for the controller.
    pub(super) has_processors: bool,
    /// The first place that no worker has had.
    pub(crate) next_place: u32,
}

impl Lanes {
    /// The lanes of a new session.
    pub(crate) fn new(lanes: Vec<Arc<dyn Channel>>, members: Members) -> Self {
        let next_place = members.world().size() as u32;
        let needs_bytes = lanes.iter().any(|lane| lane.facts().needs_bytes);
        let understand_all = lanes.iter().all(|lane| lane.facts().understands.is_none());
        let has_processors = members.world().size() < processors();
        Self { lanes: lanes.into(), members, needs_bytes, understand_all, has_processors, next_place }
    }

    /// These lanes and then `new` ones, with other members; and the lanes that own no place any more.
    pub(crate) fn with(
        &self,
        new: impl IntoIterator<Item = Arc<dyn Channel>>,
        members: Members,
    ) -> (Self, Vec<Arc<dyn Channel>>) {
        let all = Self::new(self.iter().cloned().chain(new).collect(), members);
        let end = all.iter().map(|lane| lane.facts().workers.indices().end as u32).max().unwrap_or(0);
        let is_used = |lane: &Arc<dyn Channel>| lane.facts().is_entrance || all.owned(lane).next().is_some();
        let (used, unused): (Vec<_>, Vec<_>) = all.iter().cloned().partition(is_used);
        let next_place = self.next_place.max(end);
        (Self { next_place, ..Self::new(used, all.members) }, unused)
    }

    /// The lane that owns `place`, which has a worker.
    pub(crate) fn owner(&self, place: WorkerId) -> &Arc<dyn Channel> {
        // Never none: lanes reach every place.
        self.iter().rfind(|lane| lane.facts().workers.contains(place)).unwrap_or(&self[0])
    }

    /// The places of the workers that `lane` owns.
    pub(super) fn owned<'a>(&'a self, lane: &'a Arc<dyn Channel>) -> impl Iterator<Item = WorkerId> + 'a {
        let has_worker = |place: &WorkerId| self.members.worker(*place).is_some();
        lane.facts().workers.into_iter().filter(has_worker).filter(|place| Arc::ptr_eq(self.owner(*place), lane))
    }

    /// The workers that reply to `command`, which is for one worker or for all, and the command with the worker's place.
    ///
    /// # Errors
    /// [`Error::NoSuchWorker`](crate::Error::NoSuchWorker).
    pub(super) fn address(&self, to: Option<WorkerId>, command: Command) -> Result<(WorkerRange, Command)> {
        let world = self.members.world();
        let Some(worker) = to else { return Ok((WorkerRange::new(0..world.size() as u32), command)) };
        world.check(worker)?;
        Ok((worker.into(), command.at(self.members.place(worker).unwrap_or(worker))))
    }

    /// The progress of a worker.
    pub(super) fn progress(&self, worker: WorkerId) -> Progress {
        let place = self.members.place(worker);
        place.map(|place| self.owner(place).progress(place)).unwrap_or_default()
    }

    /// Whether all lanes accept a frame of this size.
    pub(crate) fn have_capacity(&self, size: FrameSize) -> bool {
        self.iter().all(|lane| lane.room(size) > 0)
    }

    /// Checks that all workers understand a command.
    ///
    /// # Errors
    /// Some do not; the error names the operation.
    pub(crate) fn check(&self, command: &Command) -> Result<()> {
        if self.understand_all {
            Ok(())
        } else {
            self.iter().filter_map(|lane| lane.facts().understands).try_for_each(|check| check(command))
        }
    }

    /// Whether worker 0 gets tensors by reference: it has been worker 0 from the start, as a thread of this process. Workers of
    /// TVM's Disco are in other processes, but their lane copies.
    pub(super) fn pass_references_to_worker_0(&self) -> bool {
        let first = WorkerId::new(0);
        let lane = self.owner(first).facts();
        self.members.place(first) == Some(first) && !(lane.needs_bytes && lane.runs_this_program)
    }

    /// Delivers the replies that workers have left.
    pub(super) fn poll(&self) {
        channel::poll(self);
    }

    /// Whether `other` is a clone of this list.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.lanes, &other.lanes)
    }
}

impl Deref for Lanes {
    type Target = [Arc<dyn Channel>];

    fn deref(&self) -> &Self::Target {
        &self.lanes
    }
}

impl Default for Lanes {
    fn default() -> Self {
        Self::new(Vec::new(), Members::default())
    }
}
