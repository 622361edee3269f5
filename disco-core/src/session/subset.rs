//! Subsets: sessions of some workers of a session.
//!
//! ```text
//! parent session          workers 0   1   2   3       a thread for each; workers 1 to 3 in processes
//! subset([3, 1])                  │   1   │   0       more threads in the processes of the parent's workers 3 and 1
//! subset([0, 1])                  0   1   │   │       another thread in the processes of the parent's workers 0 and 1
//! ```
//!
//! A subset is a session over lanes of its own, with the parts of this module in addition: it starts while the parent
//! passes invitations to its workers, and it ends before the parent's workers do.
//!
//! ```text
//! caller of subset                                  thread `disco-subset`
//! asks the parent's lanes for lanes            ──▶  starts the lanes, which invite workers
//! calls `disco.join_subset` on the parent for each  ◀──  invitation
//! registers the subset at the parent           ◀──  the session, or the error of its start
//! ```
//!
//! # Invariants
//! - A subset is a `LaneSession` over lanes of its own, which the parent's lanes make (`StartsWorkers::subset`): a
//!   lane to threads for workers in the controller's process, otherwise a lane to processes or to nodes. A lane
//!   passes an invitation to each worker that it expects; the parent carries it in a call of `disco.join_subset`,
//!   which starts a thread that serves as worker process or node. Neither engines nor the wire format know of
//!   subsets.
//! - The invitation is an argument of kind `Bytes`: records, logs and errors contain none of its bytes.
//! - The lane of a subset neither watches nor kills processes (`Controller::in_subset`): a lost process closes its
//!   connection, and a worker that hangs is detached. Such a worker neither kills nor ends its process
//!   (`Service::owns_process`).
//! - The parent refers to its subsets weakly. It marks itself as closed, ends them, and only then tells its own
//!   workers to leave, so no process ends with a worker of a running subset. A subset that starts meanwhile sees the
//!   mark and ends.
//! - A worker of a subset takes the device of the worker beside it (`Link::in_subset_of`). Code that assumes one worker in
//!   a process asks `Link::is_in_subset` (MPI refuses).
//! - Worker 0 may be in another process: in a subset, if all workers are processes, and after a resize that has dropped the
//!   first one. The session then copies by `get` and `set` (`stream/worker_0.rs`); a `CopyToWorker0` has no tensor in
//!   its bytes. Whether it goes by reference is decided with the order ticket, since a resize may change it.

use std::collections::{BTreeSet, VecDeque};
use std::future::{self, Future};
use std::iter;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use futures_channel::mpsc::{self, UnboundedReceiver, UnboundedSender};
use futures_lite::{StreamExt as _, future as either};

use super::lane_session::LaneSession;
use super::{Deadlines, IntoArgs as _};
use crate::channel::{Channel, NO_SUBSETS, SubsetPart};
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::link::Shared;
use crate::shared_memory::Arena;
use crate::stream::lane_set::Lanes;
use crate::stream::reply_table::ReplyTable;
use crate::sync;
use crate::worker_range::WorkerRange;
use crate::world::World;

/// The worker function that starts a worker of a subset. The crate of the lane registers it.
pub const JOIN_SUBSET: &str = "disco.join_subset";

/// What the thread that starts a subset passes on to the caller, in order.
enum Step {
    /// For a worker of the subset.
    Invite(WorkerId, Vec<u8>),
    End(Result<Arc<LaneSession>>),
}

impl LaneSession {
    /// Starts a session of some workers of this one, its *parent*, split into `groups` equal groups of consecutive workers:
    /// worker `i` of the subset runs beside worker `workers[i]`, on another thread of the same process, and uses the same device. Any number of subsets may exist at
    /// once, and may share workers.
    ///
    /// A subset is a session of its own, with registers, order of commands, epochs, store and
    /// communicators of its own. A function that hangs, fails or panics in it delays or fails neither the parent nor other
    /// subsets. A process that ends is lost to all sessions with a worker in it, and only to those. Lost workers of a
    /// subset are not replaced; replace those of the parent, and start another subset.
    ///
    /// A subset ends by its own [`shutdown`](super::Session::shutdown) or drop, and leaves the parent's workers alone. The
    /// shutdown of the parent first shuts down its subsets, whose commands are executed; a drop of the parent first drops
    /// them. Their methods then return [`Error::Closed`].
    ///
    /// Worker 0 of a subset may be in another process than the controller. [`copy_to_worker_0`](super::Session::copy_to_worker_0) and
    /// [`copy_from_worker_0`](super::Session::copy_from_worker_0) then transfer the tensor like [`set`](super::Session::set) and [`value`](super::Session::value), and wait until
    /// that is done; the tensors must have equal shapes.
    ///
    /// If a worker is on another node than the controller's, each worker of the subset counts as on a node of its own: it
    /// connects to this program at another port of the address at which the parent listened.
    ///
    /// The call that starts the workers takes its place in the order of the parent's commands, so a parent's worker that is
    /// inside a function joins when it has finished. The start takes at most the time that the parent had for its own.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `workers` is empty or names a worker twice, if the groups are not of equal size, or if the lane of a worker supports no subsets
    /// (workers of TVM's Disco, lanes of other crates); [`Error::NoSuchWorker`]; the failure or loss of the parent; a
    /// worker does not join in time.
    ///
    /// # Cancel safety
    /// If the future is dropped, workers that have joined leave.
    pub fn subset<W>(&self, workers: W, groups: usize) -> impl Future<Output = Result<Arc<Self>>> + Send + use<'_, W>
    where
        W: IntoIterator<Item: Into<WorkerId>>,
    {
        self.subset_within(workers, groups, None)
    }

    /// As [`subset`](Self::subset), with a limit of its own for one collective, instead of the parent's.
    ///
    /// # Errors
    /// As for [`subset`](Self::subset).
    ///
    /// # Cancel safety
    /// As for [`subset`](Self::subset).
    pub fn subset_within<W>(
        &self,
        workers: W,
        groups: usize,
        collective_deadline: Option<Duration>,
    ) -> impl Future<Output = Result<Arc<Self>>> + Send + use<'_, W>
    where
        W: IntoIterator<Item: Into<WorkerId>>,
    {
        let workers: Vec<_> = workers.into_iter().map(Into::into).collect();
        let start = async move || {
            let world = self.check_subset(&workers, groups)?;
            self.stream.check("subset", ReplyTable::check)?;
            let subset = self.start_subset(world, &workers, collective_deadline).await?;
            if self.add_subset(&subset) {
                Ok(subset)
            } else {
                subset.shutdown().await?;
                Err(Error::Closed("subset".to_owned()))
            }
        };
        self.while_running(start)
    }

    /// The world of a subset of these workers.
    fn check_subset(&self, workers: &[WorkerId], groups: usize) -> Result<World> {
        let mut seen = BTreeSet::new();
        for worker in workers {
            self.world().check(*worker)?;
            if !seen.insert(*worker) {
                return Err(Error::invalid(format!("subset: {worker} is named twice")));
            }
        }
        match workers {
            [] => Err(Error::invalid("subset: no workers; name at least 1")),
            _ => World::new(workers.len(), groups),
        }
    }

    async fn start_subset(
        &self,
        world: World,
        workers: &[WorkerId],
        collective_deadline: Option<Duration>,
    ) -> Result<Arc<Self>> {
        let (epoch, parents) = (self.stream.reply_table.epoch(), self.stream.lanes());
        let (sender, steps) = mpsc::unbounded();
        let (world, lanes) = subset_lanes(&parents, world, workers, collective_deadline, &sender)?;
        let mut starting = Starting { steps, invitations: VecDeque::new(), lanes: lanes.clone() };
        begin(world, lanes, self.stream.limits, sender)?;
        loop {
            let failed = self.stream.reply_table.has_capacity.listen();
            while let Ok(step) = starting.steps.try_recv() {
                if let Some(result) = starting.note(step) {
                    return result;
                }
            }
            // An invitation may have reached another worker, which leaves with the lanes, or none.
            if epoch != self.stream.reply_table.epoch() {
                return Err(Error::state(
                    "subset: the session was resized or has recovered meanwhile; start the subset again",
                ));
            }
            self.stream.check("subset", ReplyTable::check)?;
            if let Some((worker, invitation)) = starting.invitations.pop_front() {
                let join = self.function(JOIN_SUBSET).await?;
                let args = (workers[worker.index()].wire(), invitation);
                self.submit(&join, args.into_args()).await?;
                continue;
            }
            let failed = async {
                failed.await;
                None
            };
            if let Some(step) = either::or(starting.steps.next(), failed).await
                && let Some(result) = starting.note(step)
            {
                return result;
            }
        }
    }
}

/// Lanes, not started, to the workers of a subset: one for consecutive workers whose parent's workers have one lane. Returns
/// them with the subset's world: if a worker may be on another machine, each worker is a node.
fn subset_lanes(
    parents: &Lanes,
    world: World,
    workers: &[WorkerId],
    collective_deadline: Option<Duration>,
    steps: &UnboundedSender<Step>,
) -> Result<(World, Vec<Arc<dyn Channel>>)> {
    let mut parts: Vec<(&Arc<dyn Channel>, Vec<WorkerId>)> = Vec::new();
    // All of them are members, as the caller has checked.
    for place in workers.iter().filter_map(|worker| parents.members.place(*worker)) {
        let lane = parents.owner(place);
        match parts.last_mut() {
            Some((last, part)) if Arc::ptr_eq(last, lane) => part.push(place),
            _ => parts.push((lane, vec![place])),
        }
    }
    let world =
        if parts.iter().any(|(lane, _)| lane.facts().spans_machines) { world.on_nodes(world.size())? } else { world };
    let needs_bytes = parts.iter().any(|(lane, _)| lane.facts().needs_bytes);
    let shared = if !needs_bytes {
        Shared::default()
    } else if world.nodes() > 1 {
        Shared::default().among_nodes(Arena::new(world.per_node())?)
    } else {
        Shared::with_arena(Arena::new(world.per_node())?)
    };
    let (shared, mut next) = (Arc::new(shared), 0);
    let lane = |(lane, places): (&Arc<dyn Channel>, Vec<WorkerId>)| {
        let workers = WorkerRange::new(next..next + places.len() as u32);
        next = workers.indices().end as u32;
        let steps = steps.clone();
        let invite = Arc::new(move |worker, invitation| {
            let sent = steps.unbounded_send(Step::Invite(worker, invitation));
            sent.map_err(|_| Error::state("subset: the start was given up"))
        });
        let numbers: Vec<_> = places.iter().filter_map(|place| parents.members.worker(*place)).collect();
        let part = SubsetPart { workers, parents: places, world, collective_deadline, shared: shared.clone(), invite };
        let lane = lane.starts().map_or_else(|| Err(Error::invalid(NO_SUBSETS)), |starts| starts.subset(&part));
        lane.map_err(|error| match error {
            Error::Invalid(why) => Error::invalid(format!("subset: {}: {why}", WorkerRange::list(&numbers))),
            other => other,
        })
    };
    Ok((world, parts.into_iter().map(lane).collect::<Result<_>>()?))
}

/// Starts the lanes on a thread of its own, since that blocks.
fn begin(world: World, lanes: Vec<Arc<dyn Channel>>, limits: Deadlines, steps: UnboundedSender<Step>) -> Result<()> {
    let run = move || {
        let session = panic::catch_unwind(AssertUnwindSafe(|| LaneSession::start(world, lanes, limits)));
        let session = session.unwrap_or_else(|_| Err(Error::state("subset: the start of its lanes panicked")));
        // The caller may have dropped its future: the session ends.
        _ = steps.unbounded_send(Step::End(session.map(Arc::new)));
    };
    let thread = thread::Builder::new().name("disco-subset".to_owned()).spawn(run);
    thread.map(drop).map_err(|error| Error::system("subset: no thread", error))
}

/// A start whose future may be dropped.
struct Starting {
    steps: UnboundedReceiver<Step>,
    /// Invitations that were not passed on, with the workers of the subset.
    invitations: VecDeque<(WorkerId, Vec<u8>)>,
    /// Empty once the start has ended.
    lanes: Vec<Arc<dyn Channel>>,
}

impl Starting {
    /// Takes a step of the thread. Returns the result of the start if that was the last one.
    fn note(&mut self, step: Step) -> Option<Result<Arc<LaneSession>>> {
        match step {
            Step::Invite(worker, invitation) => {
                self.invitations.push_back((worker, invitation));
                None
            }
            Step::End(result) => {
                self.lanes.clear();
                Some(result)
            }
        }
    }
}

impl Drop for Starting {
    /// Gives an unfinished start up: the thread ends, and so do the workers that have joined.
    fn drop(&mut self) {
        self.steps.close();
        let mut left = iter::from_fn(|| self.steps.try_recv().ok());
        // Dropping a session that has started ends it.
        if !left.any(|step| matches!(step, Step::End(_))) {
            self.lanes.iter().for_each(|lane| _ = lane.close(Duration::ZERO));
        }
    }
}

impl LaneSession {
    /// Adds a subset, unless the session is closed. Returns whether it did.
    fn add_subset(&self, subset: &Arc<Self>) -> bool {
        let mut all = sync::lock(&self.subsets);
        // The session sets the flag before it takes the list.
        if self.stream.closed.load(Ordering::SeqCst) {
            return false;
        }
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(subset));
        true
    }

    fn live_subsets(&self) -> Vec<Arc<Self>> {
        sync::lock(&self.subsets).iter().filter_map(Weak::upgrade).collect()
    }

    /// Shuts all subsets down, at the same time. The session takes no commands any more.
    pub(super) async fn shut_down_subsets(&self) -> Result<()> {
        let subsets = self.live_subsets();
        let mut running: Vec<Pin<Box<dyn Future<Output = Result<()>> + Send + '_>>> =
            subsets.iter().map(|subset| subset.shutdown()).collect();
        let mut result = Ok(());
        future::poll_fn(|context| {
            running.retain_mut(|shutdown| match shutdown.as_mut().poll(context) {
                Poll::Ready(ended) => {
                    result = std::mem::replace(&mut result, Ok(())).and(ended);
                    false
                }
                Poll::Pending => true,
            });
            if running.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        drop(running);
        result
    }

    /// Ends all subsets, as a drop does.
    pub(super) fn end_subsets(&self) {
        self.live_subsets().iter().for_each(|subset| subset.end());
    }
}
