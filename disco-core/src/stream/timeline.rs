//! The timeline of a session: the records of the controller, and those of all workers until they left.

use std::cell::Cell;
use std::sync::{Arc, Mutex};

use parking_lot::ReentrantMutex;

use super::collecting::Collection;
use super::functions::Functions;
use crate::activity::{Activity, RecorderConfig, Recording, Sampler, Waiting};
use crate::channel::{Channel, FrameSize, Signal};
use crate::error::Result;
use crate::id::WorkerId;
use crate::members::Members;
use crate::status::Status;
use crate::sync;
use crate::wire::Frame;

/// The records of a session, from its start to its end, as far as they were kept.
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

/// The timeline of a session that has not ended.
#[derive(Clone)]
pub(crate) struct Recorder(Arc<OpenTimeline>);

struct OpenTimeline {
    activity: Activity,
    /// Used by the holder of the order ticket.
    sampler: Mutex<Sampler>,
    /// The recordings that workers send when they leave.
    collection: Arc<Collection>,
    /// Gets the timeline at the end. Locked while it runs, so that a drop of the session waits for it.
    sink: ReentrantMutex<Cell<Option<Sink>>>,
}

impl Recorder {
    /// Passes the records of the controller, and those of `workers` workers, to `sink` when the session ends.
    pub(crate) fn new(config: RecorderConfig, workers: usize, sink: impl FnOnce(Timeline) + Send + 'static) -> Self {
        let (activity, collection) = (Activity::new(config), Arc::new(Collection::new(workers)));
        let sink = ReentrantMutex::new(Cell::new(Some(Box::new(sink) as Sink)));
        Self(Arc::new(OpenTimeline { activity, sampler: Mutex::default(), collection, sink }))
    }

    /// The collection of the workers' records.
    pub(crate) fn collection(&self) -> &Arc<Collection> {
        &self.0.collection
    }

    /// Records the submission of a command. Called by the holder of the order ticket.
    pub(super) fn note_submitted(
        &self,
        lanes: &[Arc<dyn Channel>],
        functions: &Functions,
        registers: usize,
        frame: &Frame,
    ) {
        let (number, command) = (frame.seq(), frame.command());
        let function = command.function().and_then(|function| functions.name_of(function));
        self.0.activity.submit(number, command, function.unwrap_or(command.name()));
        let mut sampler = sync::lock(&self.0.sampler);
        if sampler.is_due() {
            sample(lanes, registers, &self.0.activity, &mut sampler);
        }
    }

    /// The start of a wait of the controller.
    pub(super) fn start_wait(&self) -> Waiting {
        self.0.activity.start_wait()
    }

    /// Records a wait for the replies to command `number`. Called by the holder of the order ticket, since the records have
    /// one writer.
    pub(super) fn note_wait(&self, since: Waiting, operation: &str, number: u64) {
        self.0.activity.add_wait(since, operation, number);
    }

    /// Passes the timeline to the sink, the first time. The workers have left.
    pub(crate) fn finish(&self, lanes: &[Arc<dyn Channel>], members: &Members, status: Status) {
        let sinks = self.0.sink.lock();
        let Some(sink) = sinks.take() else { return };
        // For the workers of this machine. Nodes have sent the records of their workers at the end of these.
        for lane in lanes {
            if let Err(error) = lane.signal(Signal::Collect { last: usize::MAX }) {
                tracing::debug!(%error, ?lane, "can't be asked for its recordings");
            }
        }
        let workers = self.0.collection.take(members, "its node has sent no records");
        // Never invalid: it was encoded here.
        let controller = Recording::decode(&self.0.activity.encode(usize::MAX)).unwrap_or_default();
        sink(Timeline { status, controller, workers });
    }
}

/// Records the counters of the controller.
fn sample(lanes: &[Arc<dyn Channel>], registers: usize, activity: &Activity, sampler: &mut Sampler) {
    sampler.sample(activity, "registers in use", registers as u64);
    for lane in lanes {
        let workers = lane.facts().workers;
        sampler.sample(activity, &format!("room for commands to {workers}"), lane.room(FrameSize::Large) as u64);
        if let Some(bytes) = lane.sent_bytes() {
            sampler.sample(activity, &format!("bytes sent to {workers}"), bytes);
        }
    }
}

crate::format_as!(Debug for Recorder, |_| "Recorder {{ .. }}");
