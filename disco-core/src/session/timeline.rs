//! The timeline of a session: the records of the controller, and those of all workers until they left.

use std::cell::Cell;
use std::fmt;
use std::sync::{Arc, Mutex};

use parking_lot::ReentrantMutex;

use super::collecting::Collection;
use super::command_stream::CommandStream;
use super::functions::Functions;
use super::lane_set::Lanes;
use super::reply_table::Replies;
use super::{LaneSession, Observer, Session as _};
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
pub(super) struct Recorder {
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

impl LaneSession {
    /// Records the commands and the waits of the controller, and passes the timeline to `sink` when the session ends: at
    /// the end of its shutdown, or when it is dropped. Workers record theirs as their
    /// [configuration](crate::WorkerConfig::recorder) says.
    #[must_use]
    pub fn with_timeline(mut self, config: RecorderConfig, sink: impl FnOnce(Timeline) + Send + 'static) -> Self {
        let collection = Arc::new(Collection::new(self.world().size()));
        self.stream.reply_table.collect(&collection);
        let sink: Sink = Box::new(sink);
        let (activity, sampler) = (Activity::new(config), Mutex::default());
        let timeline = OpenTimeline { activity, sampler, collection, sink: ReentrantMutex::new(Cell::new(Some(sink))) };
        self.stream.recorder.get_or_insert_default().timeline = Some(Arc::new(timeline));
        self
    }

    /// Tells `observer` of the commands and the waits of the session from now on.
    #[must_use]
    pub fn with_observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.stream.recorder.get_or_insert_default().observer = Some(observer);
        self
    }
}

impl CommandStream {
    /// Records the submission of a command. Called by the holder of the order ticket.
    #[inline]
    pub(super) fn note_submitted(&self, lanes: &Lanes, functions: &Functions, frame: &Frame) {
        if let Some(recorder) = &self.recorder {
            self.record_submitted(lanes, functions, recorder, frame);
        }
    }

    fn record_submitted(&self, lanes: &Lanes, functions: &Functions, recorder: &Recorder, frame: &Frame) {
        let (number, command) = (frame.seq(), frame.command());
        if let Some(observer) = &recorder.observer {
            // Frames name workers by their places.
            match command.place().and_then(|place| lanes.members.worker(place)) {
                Some(worker) if !lanes.members.is_plain() => {
                    observer.submitted(number, frame.freed(), &command.clone().at(worker));
                }
                _ => observer.submitted(number, frame.freed(), command),
            }
        }
        if let Some(timeline) = &recorder.timeline {
            let function = match command {
                Command::CallPacked { function, .. } => functions.name_of(*function),
                _ => None,
            };
            timeline.activity.submit(number, command, function.unwrap_or(command.name()));
            let mut sampler = sync::lock(&timeline.sampler);
            if sampler.is_due() {
                self.sample(lanes, &timeline.activity, &mut sampler);
            }
        }
    }

    /// Records the counters of the controller.
    fn sample(&self, lanes: &[Arc<dyn Channel>], activity: &Activity, sampler: &mut Sampler) {
        sampler.sample(activity, "registers in use", self.freed_ids.in_use() as u64);
        for lane in lanes {
            let workers = lane.facts().workers;
            sampler.sample(activity, &format!("room for commands to {workers}"), lane.room(FrameSize::Large) as u64);
            if let Some(bytes) = lane.sent_bytes() {
                sampler.sample(activity, &format!("bytes sent to {workers}"), bytes);
            }
        }
    }

    /// The start of a wait of the controller; `None` without a timeline.
    pub(super) fn start_wait(&self) -> Option<Waiting> {
        let timeline = self.recorder.as_ref()?.timeline.as_ref()?;
        Some(timeline.activity.start_wait())
    }

    /// Records a wait for the replies to command `number`. Called by the holder of the order ticket.
    pub(super) fn note_wait(&self, since: Option<Waiting>, operation: &str, number: u64, replies: &Result<Replies>) {
        let Some(recorder) = &self.recorder else { return };
        if let Some(observer) = &recorder.observer {
            observer.waited(number, &replies.clone().map(|replies| replies.of_each().collect()));
        }
        if let Some((timeline, since)) = recorder.timeline.as_ref().zip(since) {
            timeline.activity.add_wait(since, operation, number);
        }
    }
}

impl Recorder {
    /// Passes the timeline to the sink, the first time. The workers have left.
    pub(super) fn finish(&self, lanes: &[Arc<dyn Channel>], members: &Members, status: Status) {
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

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}
