//! Traits of the control plane: lanes between the controller and its workers.
//!
//! ```text
//! controller: Channel ── frames, signals ──▶ Endpoint, Link  :worker
//!             Inbox   ◀── replies, notices ──
//! ```

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

pub use crate::activity::Progress;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::link::{Link, Shared};
pub use crate::signal::{CallOps, Notice, Reply, Signal};
use crate::status::{Known, Status};
use crate::store::SharedStore;
use crate::value::Value;
use crate::wire::{Frame, Pieces, Transfer};
use crate::worker_range::WorkerRange;
use crate::world::World;

/// The controller's end of a lane.
///
/// A lane reaches a range of workers: threads of this process, processes of this machine, or the workers of one node.
/// One encoding and one write reach all of them. Only the holder of the session's order ticket sends, so the capacity
/// can't shrink between [`Channel::room`] and [`Channel::send`].
///
/// Abilities that only some lanes have are traits of their own, which a lane returns: [`SendsAhead`], [`Polled`],
/// [`StartsWorkers`].
pub trait Channel: Debug + Send + Sync + 'static {
    /// The lane's facts. Takes no lock.
    fn facts(&self) -> LaneFacts;

    /// Starts the workers and blocks the calling thread until they run; lanes to other processes limit this wait. The
    /// lane then passes replies, notices and losses to `inbox`. The lane owns `inbox`, so `inbox` must not own the
    /// lane. Called once.
    ///
    /// # Errors
    /// The lane was started before, or is closed. [`Error::Aborted`]: the process that was to start the workers is lost, and the
    /// session asks for [lanes](StartsWorkers::replacement) in place of this one.
    fn start(&self, inbox: Arc<dyn Inbox>) -> Result<()>;

    /// The number of frames of this size that the lane accepts now. A lane whose budget for large values is spent still
    /// accepts small frames. After it has returned 0, the lane calls [`Inbox::room`] once it accepts more.
    fn room(&self, size: FrameSize) -> usize;

    /// Sends a frame in order. Never blocks. From a [`Command::Shutdown`] on, the end of a worker is no loss; from a
    /// [`Command::Resize`] on, neither is that of a worker whose place it leaves out.
    ///
    /// # Errors
    /// The lane is full, closed or cut.
    fn send(&self, frame: &Arc<Frame>) -> Result<()>;

    /// Sends a signal ahead of all queued frames. A full lane accepts it, too.
    ///
    /// # Errors
    /// The lane is closed or cut.
    fn signal(&self, signal: Signal) -> Result<()>;

    /// The progress of a worker of this lane.
    fn progress(&self, worker: WorkerId) -> Progress;

    /// Adds the lane's nodes and workers to `status`, whose [`commands`](Status::commands) is set.
    fn describe(&self, status: &mut Status) {
        status.add_workers("other", self.facts().workers, |worker| Known::new(self.progress(worker)));
    }

    /// Bytes that the lane has sent to its workers: written to their connections and to memory that they share. `None` if
    /// it sends no bytes, but the controller's own memory.
    fn sent_bytes(&self) -> Option<u64> {
        None
    }

    /// Blocks the calling thread until all workers of the lane have left, for at most `limit`, and up to 2 s more to
    /// detach or kill the remaining workers, with 0.5 s more for each level of nodes behind others. The caller has sent or
    /// signalled a shutdown before. Several threads may call `close` at once; the shortest limit then applies to workers in
    /// other processes. A lane that was not started has no workers.
    ///
    /// # Errors
    /// [`Error::Stuck`] with the workers that did not leave; they are detached or killed.
    fn close(&self, limit: Duration) -> Result<()>;

    /// The store of the lane's workers, in this process; the same for all lanes of a session. `None` if they have none.
    fn store(&self) -> Option<Arc<dyn SharedStore>> {
        None
    }

    /// How the lane sends large tensors ahead of their frame, if it does now.
    fn ahead(&self) -> Option<&dyn SendsAhead> {
        None
    }

    /// How callers poll the lane, if its workers leave replies for them.
    fn polled(&self) -> Option<&dyn Polled> {
        None
    }

    /// How the lane starts other workers than those of its start, if it can.
    fn starts(&self) -> Option<&dyn StartsWorkers> {
        None
    }
}

/// Facts about a lane. Some of them are valid only once the lane has started.
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub struct LaneFacts {
    /// The workers that the lane reaches.
    pub workers: WorkerRange,
    /// Whether the lane sends frames to other processes as [bytes](Frame::bytes). Values without an encoding can't be sent
    /// there.
    pub needs_bytes: bool,
    /// Whether the workers may be on other machines.
    pub spans_machines: bool,
    /// Whether the workers run this program, and so have its worker functions. Otherwise, a session can't refuse the lookup
    /// of an unknown function.
    pub runs_this_program: bool,
    /// Checks that the workers understand a command and its values, if they do not understand all. The session calls it
    /// before any lane gets the command, so a refusal, whose error names the operation, does not end the session.
    pub understands: Option<fn(&Command) -> Result<()>>,
    /// Largest size, in bytes, of the values of one command or one reply.
    pub value_limit: usize,
    /// Whether workers get large tensors through shared memory. The session then copies the tensors to shared memory before
    /// it takes the order ticket.
    pub shares_memory: bool,
    /// Whether the session keeps the lane although all its workers were replaced: new nodes come to it, or its nodes have
    /// started workers of other lanes.
    pub is_entrance: bool,
}

impl LaneFacts {
    /// A lane to workers of this process, without limits.
    pub const fn new(workers: WorkerRange) -> Self {
        Self {
            workers,
            needs_bytes: false,
            spans_machines: false,
            runs_this_program: true,
            understands: None,
            value_limit: usize::MAX,
            shares_memory: false,
            is_entrance: false,
        }
    }
}

/// The size of a frame, for the [room](Channel::room) of a lane.
#[expect(clippy::exhaustive_enums, reason = "a frame is small or not")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameSize {
    /// At most [`SMALL_FRAME`] bytes of values.
    Small,
    /// Any size.
    Large,
}

/// A lane that sends large tensors ahead of their frame.
pub trait SendsAhead {
    /// Begins to send the large tensors of a later frame, to the peer of worker `to` or to all peers. Frames that are
    /// sent meanwhile overtake the tensors. Never blocks, and needs no order ticket. Returns false if too many bytes
    /// are in flight; the caller then tries again after the next change of `transfer`. The caller sends the frame once
    /// [`Transfer::is_sent`] returns true.
    ///
    /// # Errors
    /// The lane is closed or cut.
    fn send_ahead(&self, to: Option<WorkerId>, transfer: &Arc<Transfer>, content: &Arc<Pieces>) -> Result<bool>;

    /// Cancels a transfer that [`SendsAhead::send_ahead`] began. The caller sends no frame for it.
    fn withdraw(&self, to: Option<WorkerId>, transfer: &Arc<Transfer>);
}

/// A lane whose workers leave replies for callers that [poll](Polling), so that no other thread has to wake up for them.
pub trait Polled {
    /// A caller begins to poll the lane, or ends that; any thread may call this. Several callers may poll at once. Delivers
    /// no replies: each caller that still waits for some calls [`Polled::poll`] once more after the end. The lane has
    /// started.
    fn note_caller(&self, polls: bool);

    /// Delivers the replies that workers have left to the inbox, on the calling thread. Never blocks.
    fn poll(&self);
}

/// A lane that starts other workers than those of its start, or lets some of them leave.
pub trait StartsWorkers {
    /// Lanes, not started, to new workers in the places of `workers`, which this lane has reported as lost. This lane goes
    /// on with its other workers. If a node is lost with workers of several lanes, a lane to the node's successor has the places
    /// of all of them.
    ///
    /// # Errors
    /// The reason why the lane can't start them. The text does not name the workers: the session does, by their numbers.
    fn replacement(&self, workers: WorkerRange) -> Result<Vec<Arc<dyn Channel>>> {
        let _ = workers;
        Err(Error::state(NO_OTHER_WORKERS))
    }

    /// A lane, not started, to the workers of a part of a [subset](crate::session::LaneSession::subset), which run in the
    /// processes of workers of this lane. While it starts, the lane calls [`SubsetPart::invite`] for each worker that is
    /// in another process.
    ///
    /// # Errors
    /// The lane can't start workers in the processes of its workers. The text of an [`Error::Invalid`] is the reason and does
    /// not name the workers: the session does, by their numbers.
    fn subset(&self, part: &SubsetPart) -> Result<Arc<dyn Channel>> {
        let _ = part;
        Err(Error::invalid(NO_SUBSETS))
    }

    /// Checks that these workers of the lane can leave while its others stay.
    ///
    /// # Errors
    /// The reason why not.
    fn check_leave(&self, workers: WorkerRange) -> Result<()> {
        let _ = workers;
        Ok(())
    }

    /// Ends workers of this lane that were told to leave by a [`Command::Resize`] and have not: processes are killed, nodes
    /// are cut off. Workers that have left are not concerned. Lanes to threads do nothing.
    fn end(&self, workers: WorkerRange) {
        let _ = workers;
    }
}

/// Why a lane has no [`StartsWorkers::replacement`].
pub(crate) const NO_OTHER_WORKERS: &str = "their lane starts no other workers";
/// Why a lane has no [`StartsWorkers::subset`].
pub(crate) const NO_SUBSETS: &str = "their lane supports no subsets; workers that are threads or processes do";

/// Consecutive workers of a [subset](crate::session::LaneSession::subset) that run beside workers of one lane of the
/// parent session: each in the process of its worker, on a thread of its own.
#[non_exhaustive]
#[derive(Clone)]
pub struct SubsetPart {
    /// The workers, as numbered in the subset.
    pub workers: WorkerRange,
    /// For each of them, the worker of the parent session.
    pub parents: Vec<WorkerId>,
    /// All workers of the subset.
    pub world: World,
    /// Limit for one collective of the subset; `None` for that of the parent session.
    pub collective_deadline: Option<Duration>,
    /// The state that the workers of the subset share.
    pub shared: Arc<Shared>,
    /// Passes the invitation of one of `workers`, at most 64 KiB and a secret, to the worker of the parent session. Never
    /// waits. Fails if the start was given up.
    pub invite: Arc<dyn Fn(WorkerId, Vec<u8>) -> Result<()> + Send + Sync>,
}

crate::format_as!(
    Debug for SubsetPart, |it|
    "SubsetPart {{ workers: {:?}, parents: {:?}, .. }}", it.workers, it.parents
);

/// A thread that [polls](Polled::poll) lanes. Dropping it ends the polling.
#[derive(Debug)]
pub struct Polling<'a>(&'a [Arc<dyn Channel>]);

impl<'a> Polling<'a> {
    /// Begins to poll `lanes`.
    pub fn start(lanes: &'a [Arc<dyn Channel>]) -> Self {
        note_caller(lanes, true);
        Self(lanes)
    }

    /// Delivers the replies that workers have left to the lanes' inboxes.
    pub fn poll(&self) {
        poll(self.0);
    }
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        note_caller(self.0, false);
        self.poll();
    }
}

/// [`Polled::poll`] of all lanes.
pub fn poll(lanes: &[Arc<dyn Channel>]) {
    lanes.iter().filter_map(|lane| lane.polled()).for_each(Polled::poll);
}

/// [`Polled::note_caller`] of all lanes.
pub(crate) fn note_caller(lanes: &[Arc<dyn Channel>], polls: bool) {
    lanes.iter().filter_map(|lane| lane.polled()).for_each(|lane| lane.note_caller(polls));
}

/// The largest command, in bytes of its values, that counts as [small](FrameSize::Small).
pub const SMALL_FRAME: usize = 64 << 10;

/// Largest reply, in bytes, that lanes never hold back ([`Inbox::accepts_large_replies`]).
pub const LARGE_REPLY: usize = 64 << 10;

/// The receiver of replies, notices and losses of a lane. The lane calls it on the lane's own thread; a thread lane
/// calls it on the worker's thread. Replies that workers leave for a caller that [polls](Polled::poll) come on the thread
/// of that caller.
pub trait Inbox: Send + Sync {
    /// A worker has replied to command `seq`.
    fn reply(&self, from: WorkerId, seq: u64, reply: Reply);

    /// Each of some workers has replied to command `seq` without a value.
    fn replies(&self, from: WorkerRange, seq: u64) {
        from.iter().for_each(|worker| self.reply(worker, seq, Ok(Value::None)));
    }

    /// Whether the inbox accepts a reply of more than [`LARGE_REPLY`] bytes now. Otherwise lanes hold such replies
    /// back. This back-pressure keeps replies from piling up in memory when they are forwarded over a slow connection.
    fn accepts_large_replies(&self) -> bool {
        true
    }

    /// A worker has sent a message that is not a reply, such as a failure.
    fn notice(&self, from: WorkerId, notice: Notice);

    /// The records of a worker, after [`Signal::Collect`]: [encoded](crate::activity::Activity::encode).
    fn recording(&self, from: WorkerId, bytes: Arc<[u8]>) {
        let _ = (from, bytes);
    }

    /// A lane that was full accepts frames again. Spurious calls are allowed.
    fn room(&self, workers: WorkerRange);

    /// These workers have left, or have ended after a shutdown was sent or signalled or a resize has dismissed them. Lanes
    /// report this after the last reply of these workers. Workers that [`Channel::close`] detaches or kills may leave
    /// without a report.
    fn left(&self, workers: WorkerRange);

    /// These workers are lost because of `why`; they never come back.
    fn lost(&self, workers: WorkerRange, why: Error);

    /// The number that the worker with this place has in its session now, for the lane's output. The place itself if it
    /// has no worker, or the inbox is not that of a session.
    fn number(&self, place: WorkerId) -> WorkerId {
        place
    }

    /// The state of the session, for a client that asks the lane. `None` if the inbox is not that of a session.
    fn status(&self) -> Option<Status> {
        None
    }
}

/// The worker's end of a lane. A worker owns its thread, so [`Endpoint::recv`] may block.
pub trait Endpoint: Send + 'static {
    /// Waits for the next frame. The lane releases the previous frame before it waits.
    ///
    /// # Errors
    /// [`Error::Closed`] if the controller is lost or has signalled a shutdown.
    fn recv(&mut self) -> Result<&Frame>;

    /// Replies to command `seq`.
    ///
    /// # Errors
    /// The lane is cut.
    fn reply(&mut self, seq: u64, reply: Reply) -> Result<()>;

    /// The worker's link to its peers and the controller, outside the command stream.
    fn link(&self) -> Arc<Link>;
}
