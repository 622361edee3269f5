//! The timeline of a session, as a builder keeps it.

use std::fmt;
use std::sync::Arc;

use disco_core::activity::RecorderConfig;
use disco_core::session::{LaneSession, Timeline};

/// What to record, and where it goes.
#[derive(Clone)]
pub(crate) struct Recorder {
    pub(crate) config: RecorderConfig,
    sink: Arc<dyn Fn(Timeline) + Send + Sync>,
}

impl Recorder {
    pub(crate) fn new(records: usize, sink: impl Fn(Timeline) + Send + Sync + 'static) -> Self {
        Self { config: RecorderConfig::new(records, true), sink: Arc::new(sink) }
    }

    pub(crate) fn attach(self, session: LaneSession) -> LaneSession {
        session.with_timeline(self.config, move |timeline| (self.sink)(timeline))
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.config.fmt(f)
    }
}
