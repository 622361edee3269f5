//! The callers of a session that wait for replies without polling.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::lane_set::Lanes;
use crate::channel::{self, Channel, Polling};
use crate::sync;

/// The callers of a session that wait for replies without polling. While there are none, the session itself counts as
/// a caller that [polls](crate::channel::Polled): each caller polls before it sleeps, so workers can leave their replies
/// at any time, and a caller that polls changes no memory that workers read. Callers count as sleepers, too, while another
/// task of their executor runs.
#[derive(Debug, Default)]
pub(crate) struct Sleepers {
    count: AtomicUsize,
    /// The lanes of the session. Each counts the session as a caller that polls while `count`, which the holder of the
    /// lock changes, is 0.
    lanes: Mutex<Lanes>,
}

impl Sleepers {
    /// Sets the lanes of the session, which have started.
    pub(super) fn set_lanes(&self, lanes: &Lanes) {
        let mut before = sync::lock(&self.lanes);
        if !self.are_some() {
            let is_in = |lane: &Arc<dyn Channel>, set: &Lanes| set.iter().any(|other| Arc::ptr_eq(other, lane));
            let begin: Vec<_> = lanes.iter().filter(|lane| !is_in(lane, &before)).cloned().collect();
            let end: Vec<_> = before.iter().filter(|lane| !is_in(lane, lanes)).cloned().collect();
            channel::note_caller(&begin, true);
            channel::note_caller(&end, false);
        }
        *before = lanes.clone();
    }

    fn are_some(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Begins to poll `lanes`. The lanes count the caller only if other callers sleep.
    pub(super) fn start_polling<'a>(&self, lanes: &'a Lanes) -> Option<Polling<'a>> {
        self.are_some().then(|| Polling::start(lanes))
    }

    /// The caller counts as a sleeper until the result is dropped. It has to poll its lanes once after this call.
    pub(super) fn sleep(&self) -> Sleeper<'_> {
        let lanes = sync::lock(&self.lanes);
        if self.count.fetch_add(1, Ordering::Relaxed) == 0 {
            channel::note_caller(&lanes, false);
        }
        Sleeper(self)
    }
}

/// A caller that sleeps until this is dropped.
#[derive(Debug)]
pub(super) struct Sleeper<'a>(&'a Sleepers);

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        let lanes = sync::lock(&self.0.lanes);
        if self.0.count.fetch_sub(1, Ordering::Relaxed) == 1 {
            channel::note_caller(&lanes, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicIsize;
    use std::time::Duration;

    use super::*;
    use crate::channel::{FrameSize, Inbox, LaneFacts, Polled, Progress, Signal};
    use crate::error::Result;
    use crate::members::Members;
    use crate::wire::Frame;
    use crate::worker_range::WorkerRange;
    use crate::{WorkerId, World};

    /// A lane that counts the callers that poll.
    #[derive(Debug, Default)]
    struct Lane(AtomicIsize);

    impl Channel for Lane {
        fn facts(&self) -> LaneFacts {
            LaneFacts::new(WorkerRange::new(0..1))
        }

        fn start(&self, _: Arc<dyn Inbox>) -> Result<()> {
            Ok(())
        }

        fn room(&self, _: FrameSize) -> usize {
            1
        }

        fn send(&self, _: &Arc<Frame>) -> Result<()> {
            Ok(())
        }

        fn signal(&self, _: Signal) -> Result<()> {
            Ok(())
        }

        fn polled(&self) -> Option<&dyn Polled> {
            Some(self)
        }

        fn progress(&self, _: WorkerId) -> Progress {
            Progress::default()
        }

        fn close(&self, _: Duration) -> Result<()> {
            Ok(())
        }
    }

    impl Polled for Lane {
        fn note_caller(&self, polls: bool) {
            self.0.fetch_add(if polls { 1 } else { -1 }, Ordering::Relaxed);
        }

        fn poll(&self) {}
    }

    #[test]
    fn each_lane_counts_the_session_while_no_caller_sleeps_and_callers_that_poll_while_others_sleep() {
        let lanes: [Arc<Lane>; 2] = Default::default();
        let polling = || [0, 1].map(|lane: usize| lanes[lane].0.load(Ordering::Relaxed));
        let set = |count| {
            let lanes = lanes[..count].iter().map(|lane| lane.clone() as Arc<dyn Channel>);
            Lanes::new(lanes.collect(), Members::first(World::new(1, 1).unwrap()))
        };
        let sleepers = Sleepers::default();
        sleepers.set_lanes(&set(1));
        assert_eq!(polling(), [1, 0]);
        assert!(sleepers.start_polling(&set(1)).is_none());
        let (first, second) = (sleepers.sleep(), sleepers.sleep());
        assert_eq!(polling(), [0, 0]);
        sleepers.set_lanes(&set(2));
        let both = set(2);
        let caller = sleepers.start_polling(&both);
        assert_eq!(polling(), [1, 1]);
        drop((first, second));
        assert_eq!(polling(), [2, 2]);
        drop(caller);
        sleepers.set_lanes(&set(2));
        assert_eq!(polling(), [1, 1]);
        drop(sleepers.sleep());
        sleepers.set_lanes(&set(1));
        let _asleep = sleepers.sleep();
        assert_eq!(polling(), [0, 0]);
    }
}
