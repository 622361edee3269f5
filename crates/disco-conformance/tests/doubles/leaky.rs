//! `Leaky`: a lane to threads with one fault.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use disco_channel::threads::ThreadLane;
use disco_core::channel::{FrameSize, LaneFacts, Notice, Progress, Reply, Signal};
use disco_core::{Channel, Error, Frame, Inbox, Result, Value, WorkerId, WorkerRange};

/// The fault of the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Every third frame is dropped.
    LosesFrames,
    /// Each reply has the number of the previous command.
    MiscountsReplies,
    /// All replies come from the first worker.
    ForgetsWorkers,
    /// Does not report room.
    KeepsRoomToItself,
    /// Does not report notices.
    KeepsNoticesToItself,
    /// Does not report lost workers.
    KeepsLossesToItself,
    /// Does not report workers that have left.
    KeepsDeparturesToItself,
    /// Aborts do not reach the workers.
    SwallowsAborts,
    /// Shutdown waits behind the frames.
    QueuesShutdown,
    /// Reports that all workers have left, although some are stuck.
    ClosesOverTheStuck,
    /// Reports no progress.
    SeesNothing,
    /// Accepts frames although it has no room.
    TakesMoreThanItsRoom,
    /// Can be started again.
    StartsTwice,
}

/// A lane with a fault.
#[derive(Debug)]
pub(crate) struct Leaky {
    pub(crate) inner: ThreadLane,
    pub(crate) fault: Fault,
    pub(crate) sent: AtomicUsize,
}

impl Channel for Leaky {
    fn facts(&self) -> LaneFacts {
        self.inner.facts()
    }

    fn start(&self, inbox: Arc<dyn Inbox>) -> Result<()> {
        let first = self.inner.facts().workers.first();
        match self.inner.start(Arc::new(FaultyInbox { inbox, fault: self.fault, first })) {
            Err(_) if self.fault == Fault::StartsTwice => Ok(()),
            other => other,
        }
    }

    fn room(&self, size: FrameSize) -> usize {
        self.inner.room(size)
    }

    fn send(&self, frame: &Arc<Frame>) -> Result<()> {
        let sent = self.sent.fetch_add(1, Ordering::Relaxed) + 1;
        match self.fault {
            Fault::LosesFrames if sent.is_multiple_of(3) => Ok(()),
            Fault::TakesMoreThanItsRoom if self.inner.room(FrameSize::Small) == 0 => Ok(()),
            _ => self.inner.send(frame),
        }
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        match (&signal, self.fault) {
            (Signal::Abort { .. }, Fault::SwallowsAborts) => Ok(()),
            (Signal::Shutdown, Fault::QueuesShutdown) => {
                self.inner.send(&Arc::new(Frame::new(u64::MAX >> 8, [], disco_core::Command::Shutdown)))
            }
            _ => self.inner.signal(signal),
        }
    }

    fn progress(&self, worker: WorkerId) -> Progress {
        match self.fault {
            Fault::SeesNothing => Progress::default(),
            _ => self.inner.progress(worker),
        }
    }

    fn close(&self, limit: Duration) -> Result<()> {
        match self.inner.close(limit) {
            Err(Error::Stuck { .. }) if self.fault == Fault::ClosesOverTheStuck => Ok(()),
            other => other,
        }
    }
}

struct FaultyInbox {
    inbox: Arc<dyn Inbox>,
    fault: Fault,
    first: WorkerId,
}

impl Inbox for FaultyInbox {
    fn reply(&self, from: WorkerId, seq: u64, reply: Reply) {
        let (from, seq) = match self.fault {
            Fault::MiscountsReplies => (from, seq - 1),
            Fault::ForgetsWorkers => (self.first, seq),
            _ => (from, seq),
        };
        self.inbox.reply(from, seq, reply.or(Ok(Value::None)));
    }

    fn notice(&self, from: WorkerId, notice: Notice) {
        if self.fault != Fault::KeepsNoticesToItself {
            self.inbox.notice(from, notice);
        }
    }

    fn room(&self, workers: WorkerRange) {
        if self.fault != Fault::KeepsRoomToItself {
            self.inbox.room(workers);
        }
    }

    fn left(&self, workers: WorkerRange) {
        if self.fault != Fault::KeepsDeparturesToItself {
            self.inbox.left(workers);
        }
    }

    fn lost(&self, workers: WorkerRange, why: Error) {
        if self.fault != Fault::KeepsLossesToItself {
            self.inbox.lost(workers, why);
        }
    }
}
