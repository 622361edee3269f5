//! The timeline of a session: the records of the controller, and those of all workers until they left.

use std::cell::Cell;
use std::fmt;
use std::sync::{Arc, Mutex};

use parking_lot::ReentrantMutex;

use super::Observer;
use super::collecting::Collection;
use super::functions::Functions;
use super::lane_set::Lanes;
use super::reply_table::Replies;
use crate::activity::{Activity, RecorderConfig, Recording, Sampler, Waiting};
use crate::channel::{Channel, FrameSize, Signal};
use crate::command::Command;
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

/// The receivers of a session's commands and waits.
#[derive(Clone, Default)]
pub(crate) struct Recorder {
    timeline: Option<Arc<OpenTimeline>>,
    observer: Option<Arc<dyn Observer>>,
}

/// The timeline of a session that has not ended.
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
    /// Passes the records of the controller, and those of `workers` workers, to `sink` when the session ends. Returns the
    /// collection of those of the workers.
    pub(crate) fn add_timeline(
        &mut self,
        config: RecorderConfig,
        workers: usize,
        sink: impl FnOnce(Timeline) + Send + 'static,
    ) -> Arc<Collection> {
        let collection = Arc::new(Collection::new(workers));
        let (activity, sampler, sink) = (Activity::new(config), Mutex::default(), Box::new(sink) as Sink);
        let (of_workers, sink) = (collection.clone(), ReentrantMutex::new(Cell::new(Some(sink))));
        self.timeline = Some(Arc::new(OpenTimeline { activity, sampler, collection: of_workers, sink }));
        collection
    }

    /// Tells `observer` of the commands and the waits.
    pub(crate) fn add_observer(&mut self, observer: Arc<dyn Observer>) {
        self.observer = Some(observer);
    }

    /// Records the submission of a command. Called by the holder of the order ticket.
    pub(super) fn note_submitted(&self, lanes: &Lanes, functions: &Functions, registers: usize, frame: &Frame) {
        let (number, command) = (frame.seq(), frame.command());
        if let Some(observer) = &self.observer {
            // Frames name workers by their places.
            match command.place().and_then(|place| lanes.members.worker(place)) {
                Some(worker) if !lanes.members.is_plain() => {
                    observer.submitted(number, frame.freed(), &command.clone().at(worker));
                }
                _ => observer.submitted(number, frame.freed(), command),
            }
        }
        if let Some(timeline) = &self.timeline {
            let function = match command {
                Command::CallPacked { function, .. } => functions.name_of(*function),
                _ => None,
            };
            timeline.activity.submit(number, command, function.unwrap_or(command.name()));
            let mut sampler = sync::lock(&timeline.sampler);
            if sampler.is_due() {
                sample(lanes, registers, &timeline.activity, &mut sampler);
            }
        }
    }

    /// The start of a wait of the controller; `None` without a timeline.
    pub(super) fn start_wait(&self) -> Option<Waiting> {
        Some(self.timeline.as_ref()?.activity.start_wait())
    }

    /// Records a wait for the replies to command `number`. Called by the holder of the order ticket.
    pub(super) fn note_wait(&self, since: Option<Waiting>, operation: &str, number: u64, replies: &Result<Replies>) {
        if let Some(observer) = &self.observer {
            observer.waited(number, &replies.clone().map(|replies| replies.of_each().collect()));
        }
        if let Some((timeline, since)) = self.timeline.as_ref().zip(since) {
            timeline.activity.add_wait(since, operation, number);
        }
    }

    /// Passes the timeline to the sink, the first time. The workers have left.
    pub(crate) fn finish(&self, lanes: &[Arc<dyn Channel>], members: &Members, status: Status) {
        let Some(timeline) = &self.timeline else { return };
        let sinks = timeline.sink.lock();
        let Some(sink) = sinks.take() else { return };
        // For the workers of this machine. Nodes have sent the records of their workers at the end of these.
        for lane in lanes {
            if let Err(error) = lane.signal(Signal::Collect { last: usize::MAX }) {
                tracing::debug!(%error, ?lane, "can't be asked for its recordings");
            }
        }
        let workers = timeline.collection.take(members, "its node has sent no records");
        // Never invalid: it was encoded here.
        let controller = Recording::decode(&timeline.activity.encode(usize::MAX)).unwrap_or_default();
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

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}
