//! Settings of a session over lanes.

use std::fmt;
use std::sync::Arc;

use super::plan::Growth;
use super::replacement_policy::ReplacementPolicy;
use super::{Deadlines, Timeline};
use crate::activity::RecorderConfig;
use crate::channel::Channel;
use crate::error::Result;
use crate::worker_range::WorkerRange;
use crate::world::World;

type Sink = Box<dyn FnOnce(Timeline) + Send>;

/// Settings of a [`LaneSession`](super::LaneSession). [`Deadlines`] are settings with the defaults of the others.
#[derive(Default)]
#[must_use]
pub struct SessionConfig {
    pub(super) deadlines: Deadlines,
    pub(super) replacement: ReplacementPolicy,
    pub(super) growth: Option<Growth>,
    pub(super) per_node: Option<usize>,
    pub(super) timeline: Option<(RecorderConfig, Sink)>,
}

impl SessionConfig {
    /// Changes the limits of waits.
    pub fn with_deadlines(mut self, change: impl FnOnce(Deadlines) -> Deadlines) -> Self {
        self.deadlines = change(self.deadlines);
        self
    }

    /// Sets when lost workers are replaced, and how often.
    pub fn with_replacement(mut self, policy: ReplacementPolicy) -> Self {
        self.replacement = policy;
        self
    }

    /// Sets how the session makes a lane, not started, to new workers: to their places, in the world that they join.
    /// Otherwise [`Session::resize`](super::Session::resize) can't add workers.
    pub fn with_growth(
        mut self,
        growth: impl Fn(WorkerRange, World) -> Result<Arc<dyn Channel>> + Send + Sync + 'static,
    ) -> Self {
        self.growth = Some(Arc::new(growth));
        self
    }

    /// Sets that each machine has `per_node` consecutive workers, also if there is one machine only: a resize keeps whole
    /// nodes. Default: the number of the world if it has several machines.
    pub fn with_workers_per_node(mut self, per_node: usize) -> Self {
        self.per_node = Some(per_node.max(1));
        self
    }

    /// Records the commands and the waits of the controller, and passes the timeline to `sink` when the session ends: at
    /// the end of its shutdown, or when it is dropped, also by a start that fails once its lanes have started. Workers
    /// record theirs as their [configuration](crate::WorkerConfig::recorder) says.
    pub fn with_timeline(mut self, config: RecorderConfig, sink: impl FnOnce(Timeline) + Send + 'static) -> Self {
        self.timeline = Some((config, Box::new(sink)));
        self
    }
}

impl From<Deadlines> for SessionConfig {
    fn from(deadlines: Deadlines) -> Self {
        Self { deadlines, ..Self::default() }
    }
}

impl fmt::Debug for SessionConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { deadlines, replacement, growth, per_node, timeline } = self;
        f.debug_struct("SessionConfig")
            .field("deadlines", deadlines)
            .field("replacement", replacement)
            .field("grows", &growth.is_some())
            .field("per_node", per_node)
            .field("timeline", &timeline.as_ref().map(|(config, _)| config))
            .finish()
    }
}
