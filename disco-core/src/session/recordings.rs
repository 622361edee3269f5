//! The records of a session: those of its workers at any time, and all of them at its end.

use std::sync::Arc;
use std::time::Duration;

use super::Session as _;
use super::lane_session::LaneSession;
use crate::activity::RecorderConfig;
use crate::stream::collecting::Recordings;
use crate::stream::timeline::{Recorder, Timeline};

impl LaneSession {
    /// Records the commands and the waits of the controller, and passes the timeline to `sink` when the session ends: at
    /// the end of its shutdown, or when it is dropped. Workers record theirs as their
    /// [configuration](crate::WorkerConfig::recorder) says.
    #[must_use]
    pub fn with_timeline(mut self, config: RecorderConfig, sink: impl FnOnce(Timeline) + Send + 'static) -> Self {
        let workers = self.world().size();
        let recorder = Recorder::new(config, workers, sink);
        self.stream.reply_table.collect(recorder.collection());
        self.stream.recorder = Some(recorder);
        self
    }

    /// The recording of each worker: its last operations, and with a [timeline](crate::activity::RecorderConfig) also
    /// commands and spans. Works while workers hang, and after the session has failed. Waits for workers of other
    /// machines for at most `limit`.
    ///
    /// # Errors
    /// Of one worker: nothing came from it in time, because its node is lost or hangs.
    pub async fn recordings(&self, limit: Duration) -> Recordings {
        let collection = self.stream.reply_table.gather(usize::MAX);
        collection.arrival(&self.stream.ticker, limit).await;
        collection.take(&self.stream.reply_table.members(), &late(limit))
    }

    /// A function that returns the recording of each worker, as [`LaneSession::recordings`] does, with the `last` records
    /// of each. It may be called on any thread, and blocks for at most a limit. It returns none once the session is
    /// dropped, which it does not keep alive.
    pub fn collector(&self) -> impl Fn(usize, Duration) -> Option<Recordings> + Send + Sync + 'static {
        let table = Arc::downgrade(&self.stream.reply_table);
        move |last, limit| {
            let table = table.upgrade()?;
            let collection = table.gather(last);
            collection.wait(limit);
            Some(collection.take(&table.members(), &late(limit)))
        }
    }
}

/// Why there is no recording of a worker.
fn late(limit: Duration) -> String {
    format!("its records have not come within {limit:?}")
}
