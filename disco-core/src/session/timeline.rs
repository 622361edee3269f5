//! The timeline of a session: what the controller has done, and what all workers had recorded when they left.

use std::fmt;
use std::sync::{Arc, Mutex};

use super::LaneSession;
use super::collecting::Collection;
use crate::activity::{Activity, RecorderConfig, Recording, Sampler, Waiting};
use crate::channel::{Channel, Signal};
use crate::command::Command;
use crate::error::Result;
use crate::id::{RegisterId, WorkerId};
use crate::status::Status;
use crate::sync;

/// What a session has done, from its start to its end, as far as records were kept.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Timeline {
    /// The session, its nodes and its workers.
    pub status: Status,
    /// The controller's commands and waits.
    pub controller: Recording,
    /// For each worker its records, or the reason why there are none.
    pub workers: Vec<(WorkerId, Result<Recording>)>,
}

type Sink = Box<dyn FnOnce(Timeline) + Send>;

/// The timeline of a session that has one.
pub(super) struct Recorder {
    activity: Activity,
    /// Used by the holder of the order ticket.
    sampler: Mutex<Sampler>,
    /// What workers send when they leave.
    collection: Arc<Collection>,
    /// Gets the timeline at the end.
    sink: Mutex<Option<Sink>>,
}

impl LaneSession {
    /// Records the commands and the waits of the controller, and passes the timeline to `sink` when the session ends: at
    /// the end of its shutdown, or when it is dropped. Workers record theirs as their
    /// [configuration](crate::WorkerConfig::recorder) says.
    #[must_use]
    pub fn with_timeline(mut self, config: RecorderConfig, sink: impl FnOnce(Timeline) + Send + 'static) -> Self {
        let collection = Arc::new(Collection::new(self.world.size()));
        self.reply_table.collect(&collection);
        let sink: Sink = Box::new(sink);
        self.recorder = Some(Arc::new(Recorder {
            activity: Activity::new(config),
            sampler: Mutex::default(),
            collection,
            sink: Mutex::new(Some(sink)),
        }));
        self
    }

    /// Records the submission of a command. Called by the holder of the order ticket.
    #[inline]
    pub(super) fn note_submitted(&self, number: u64, command: &Command) {
        if let Some(recorder) = &self.recorder {
            let function = match command {
                Command::CallPacked { function, .. } => self.function_name(*function),
                _ => None,
            };
            recorder.activity.submit(number, command, function.as_deref().unwrap_or(command.name()));
            let mut sampler = sync::lock(&recorder.sampler);
            if sampler.is_due() {
                self.sample(&recorder.activity, &mut sampler);
            }
        }
    }

    /// Records the counters of the controller.
    fn sample(&self, activity: &Activity, sampler: &mut Sampler) {
        sampler.sample(activity, "registers in use", self.freed_ids.in_use() as u64);
        for lane in &self.lanes {
            let workers = lane.workers();
            sampler.sample(activity, &format!("room for commands to {workers}"), lane.room() as u64);
            if let Some(bytes) = lane.sent_bytes() {
                sampler.sample(activity, &format!("bytes sent to {workers}"), bytes);
            }
        }
    }

    /// The start of a wait of the controller; `None` without a timeline.
    pub(super) fn start_wait(&self) -> Option<Waiting> {
        self.recorder.as_ref().map(|recorder| recorder.activity.start_wait())
    }

    /// Records a wait for the replies to command `number`. Called by the holder of the order ticket.
    pub(super) fn note_wait(&self, since: Option<Waiting>, operation: &str, number: u64) {
        if let Some((recorder, since)) = self.recorder.as_ref().zip(since) {
            recorder.activity.add_wait(since, operation, number);
        }
    }

    /// The name of a function in a register; searched for only while there is a timeline.
    fn function_name(&self, register: RegisterId) -> Option<String> {
        self.functions().iter().find(|(_, known)| known.register() == register).map(|(name, _)| name.clone())
    }
}

impl Recorder {
    /// Passes the timeline to the sink, the first time. The workers have left.
    pub(super) fn finish(&self, lanes: &[Arc<dyn Channel>], status: Status) {
        let Some(sink) = sync::lock(&self.sink).take() else { return };
        // For the workers of this machine. Nodes have sent the records of their workers at the end of these.
        for lane in lanes {
            if let Err(error) = lane.signal(Signal::Collect { last: usize::MAX }) {
                tracing::debug!(%error, ?lane, "can't be asked for its recordings");
            }
        }
        let workers = status.workers.iter().map(|it| WorkerId::new(it.worker as u32));
        let workers = self.collection.take(workers, "its node has sent no records");
        // Never invalid: it was encoded here.
        let controller = Recording::decode(&self.activity.encode(usize::MAX)).unwrap_or_default();
        sink(Timeline { status, controller, workers });
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}
