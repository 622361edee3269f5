//! Doubles of a node's lane and of its inbox, for tests.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use disco_core::channel::{FrameSize, LaneFacts, Notice, Progress, Reply, Signal};
use disco_core::{Channel, Error, Frame, Inbox, Result, WorkerId, WorkerRange, sync};

/// A lane to worker 1 that does not start, and records signals.
#[derive(Debug, Default)]
pub(super) struct Lane {
    signals: Mutex<Vec<Signal>>,
}

impl Lane {
    /// The epochs and causes of the aborts since the last call.
    pub(super) fn aborts(&self) -> Vec<(u64, String)> {
        let signals = std::mem::take(&mut *sync::lock(&self.signals)).into_iter();
        let abort =
            |signal| if let Signal::Abort { epoch, cause } = signal { Some((epoch, cause.to_string())) } else { None };
        signals.filter_map(abort).collect()
    }
}

impl Channel for Lane {
    fn facts(&self) -> LaneFacts {
        LaneFacts::new(WorkerRange::new(1..2))
    }

    fn start(&self, _: Arc<dyn Inbox>) -> Result<()> {
        Err(Error::state("there is no program"))
    }

    fn room(&self, _: FrameSize) -> usize {
        0
    }

    fn send(&self, _: &Arc<Frame>) -> Result<()> {
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        sync::lock(&self.signals).push(signal);
        Ok(())
    }

    fn progress(&self, _: WorkerId) -> Progress {
        Progress::default()
    }

    fn close(&self, _: Duration) -> Result<()> {
        Ok(())
    }
}

/// An inbox that ignores all.
pub(super) struct Ignored;

impl Inbox for Ignored {
    fn reply(&self, _: WorkerId, _: u64, _: Reply) {}
    fn notice(&self, _: WorkerId, _: Notice) {}
    fn room(&self, _: WorkerRange) {}
    fn left(&self, _: WorkerRange) {}
    fn lost(&self, _: WorkerRange, _: Error) {}
}
