//! The control plane's contracts: lanes between the controller and its workers.
//!
//! ```text
//! controller: Channel ── frames, signals ──▶ Endpoint, Link  :worker
//!             Inbox   ◀── replies, notices ──
//! ```

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

pub use crate::activity::Progress;
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::link::Link;
pub use crate::signal::{Notice, Reply, Signal};
use crate::wire::{Frame, Pieces, Transfer};
use crate::worker_range::WorkerRange;

/// The controller's end of a lane.
///
/// A lane reaches a range of workers (threads of this process, processes of this machine, the workers of one node): one
/// encoding and one write serve them all. Only the holder of the session's order ticket sends, so room can only grow
/// between [`Channel::room`] and [`Channel::send`].
pub trait Channel: Debug + Send + Sync + 'static {
    /// Whom it reaches.
    fn workers(&self) -> WorkerRange;

    /// From now on everything that comes up is pushed to `inbox`, which the lane owns: it must not own the lane. Called
    /// once. Blocks the calling thread until the workers have started; a lane to other processes has a limit for that.
    ///
    /// # Errors
    /// The lane was started before, or is closed.
    fn start(&self, inbox: Arc<dyn Inbox>) -> Result<()>;

    /// Whether its workers are in other processes: frames go there as [bytes](Frame::bytes), which not every value has.
    fn crosses(&self) -> bool {
        false
    }

    /// Frames that it would take now. Whoever sees 0 hears [`Inbox::room`] when that changes.
    fn room(&self) -> usize;

    /// Frames of at most [`SMALL_FRAME`] bytes of values that it would take now: at least [`Channel::room`]. A lane that is behind
    /// with large values takes small commands still.
    fn room_for_small(&self) -> usize {
        self.room()
    }

    /// Bytes of the values of one command, or of one reply, that may cross this lane.
    fn value_limit(&self) -> usize {
        usize::MAX
    }

    /// Whether workers get large tensors by shared memory. Then the session copies them there before it takes the order ticket.
    fn shares_memory(&self) -> bool {
        false
    }

    /// Whether large tensors go to workers of this lane [ahead of their frame](Channel::send_ahead).
    fn sends_ahead(&self) -> bool {
        false
    }

    /// Begins to send the large tensors of a frame that is still to come, to the peer of worker `to` or to all peers, so that frames
    /// that are sent meanwhile overtake them. Never waits; needs no order ticket. Returns false if too much is under way, so that
    /// the caller has to try again after the next change of `transfer`. The frame is sent once [`Transfer::is_sent`] says so.
    ///
    /// # Errors
    /// The lane is closed or cut, or sends nothing ahead.
    fn send_ahead(&self, to: Option<WorkerId>, transfer: &Arc<Transfer>, content: &Arc<Pieces>) -> Result<bool> {
        let _ = (to, transfer, content);
        Err(Error::state("the lane sends nothing ahead of frames"))
    }

    /// Takes back what [`Channel::send_ahead`] has begun, as no frame comes for it.
    fn withdraw(&self, to: Option<WorkerId>, transfer: &Arc<Transfer>) {
        let _ = (to, transfer);
    }

    /// Passes a frame on, in order. Never waits.
    ///
    /// # Errors
    /// The lane is full, closed or cut.
    fn send(&self, frame: &Arc<Frame>) -> Result<()>;

    /// Passes a signal on ahead of all frames, needing no room.
    ///
    /// # Errors
    /// The lane is closed or cut.
    fn urgent(&self, signal: Signal) -> Result<()>;

    /// What a worker of this lane is doing.
    fn progress(&self, worker: WorkerId) -> Progress;

    /// Blocks the calling thread until all workers of the lane have left, after a shutdown was sent or signalled, for at most
    /// `limit`, and up to 2 s more to give up workers. Threads may call it at once; the shortest of their limits counts for
    /// workers in other processes. A lane that was not started has no workers.
    ///
    /// # Errors
    /// [`Error::Stuck`] with the workers that did not leave; they are detached or killed.
    fn close(&self, limit: Duration) -> Result<()>;
}

/// Bytes of the values of a command up to which [`Channel::room_for_small`] counts.
pub const SMALL_FRAME: usize = 64 << 10;

/// Bytes of a reply above which lanes may hold it back ([`Inbox::accepts_large_replies`]).
pub const LARGE_REPLY: usize = 64 << 10;

/// What comes up a lane, pushed from whatever thread the lane has (in a thread lane the worker itself calls).
pub trait Inbox: Send + Sync {
    /// The answer to command `seq`.
    fn reply(&self, from: WorkerId, seq: u64, reply: Reply);

    /// Whether a reply of more than [`LARGE_REPLY`] bytes may come now. Lanes hold such replies back while it may not, so that
    /// the replies of all workers do not pile up in memory where they go on over a slow connection (back-pressure).
    fn accepts_large_replies(&self) -> bool {
        true
    }

    /// Something that nobody asked for.
    fn notice(&self, from: WorkerId, notice: Notice);

    /// A lane that was full has room again. May come without need.
    fn room(&self, workers: WorkerRange);

    /// These workers have left, or have ended after a shutdown was sent or signalled. Lanes report it behind the last reply of
    /// these workers. Workers that [`Channel::close`] gives up may leave without a report.
    fn left(&self, workers: WorkerRange);

    /// Workers are gone, for good.
    fn lost(&self, workers: WorkerRange, why: Error);
}

/// The worker's end of a lane. A worker owns its thread, so [`Endpoint::recv`] may block.
pub trait Endpoint: Send + 'static {
    /// The next frame.
    ///
    /// # Errors
    /// [`Error::Closed`] when the controller is gone or has signalled shutdown.
    fn recv(&mut self) -> Result<Arc<Frame>>;

    /// Answers command `seq`.
    ///
    /// # Errors
    /// The lane is cut.
    fn reply(&mut self, seq: u64, reply: Reply) -> Result<()>;

    /// The way to peers and controller beside the commands.
    fn link(&self) -> Arc<Link>;
}
