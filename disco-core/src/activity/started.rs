//! The records of operations that go on beside the worker after it has started them.

use std::mem;
use std::sync::Arc;

use super::record::RawRecord;
use super::{Activity, OpState, Running};

/// Operations that [`Communicator::start`](crate::Communicator::start) has started. Their end may be recorded on another
/// thread than the worker's.
#[derive(Clone, Debug)]
pub(crate) struct StartedOps {
    activity: Arc<Activity>,
    /// Number of the first record, and of the records behind it.
    number: u64,
    more: u64,
}

impl Running<'_> {
    /// Lets the operations go on beside the worker. `activity` is that of the operations.
    pub(crate) fn go_on(self, activity: &Arc<Activity>) -> StartedOps {
        let Self { number, more, .. } = self;
        mem::forget(self);
        let started = StartedOps { activity: activity.clone(), number, more };
        started.set_state(OpState::Started);
        started
    }
}

impl StartedOps {
    /// Records whether the worker waits for the operations. Called on its thread, before [`StartedOps::end`].
    pub(crate) fn note_wait(&self, waits: bool) {
        self.set_state(if waits { OpState::Running } else { OpState::Started });
    }

    /// Records the end.
    pub(crate) fn end(&self, state: OpState) {
        let Self { activity, number, more } = self;
        // The worker may begin records meanwhile. A record that one of them replaces soon gets no end, lest the end goes
        // to the later record.
        let places = activity.memory.places() as u64;
        if activity.memory.begun() < number + places - places / 4 {
            drop(Running { activity, number: *number, more: *more, state });
        }
    }

    fn set_state(&self, state: OpState) {
        for number in self.number..=self.number + self.more {
            self.activity.change(number, |what| RawRecord::ended(what, state));
        }
    }
}
