//! Records the spans of requests, and hands them to a queue.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::mem::take;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use metrics::{Counter, counter};
use serde_json::Value;

use super::context::Context;
use super::span::{Event, Span};
use crate::sync::lock;

/// The attribute of what has ended a request that has failed.
const ERROR: &str = "error.type";

/// The spans of one request, the whole one first.
#[derive(Debug)]
pub struct Trace {
    /// The number of the trace, of which these spans may be a part.
    pub id: u128,
    /// What the programs before have to say about the trace.
    pub state: String,
    /// At least one.
    pub spans: Vec<Span>,
}

/// The way of spans to a collector, which never blocks.
#[derive(Clone, Debug)]
pub struct Queue(Arc<Shared>);

struct Shared {
    sender: SyncSender<Trace>,
    dropped: Counter,
    random: RandomState,
    drawn: AtomicU64,
}

/// Records the spans of one request. The last clone that is dropped ends the request. Without a queue, or if the client's trace is
/// not recorded, it does nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder(Option<Arc<Recording>>);

#[derive(Debug)]
struct Recording {
    queue: Queue,
    /// When the request came, by both clocks: durations are those of the second one.
    came: (u64, Instant),
    trace: Mutex<Trace>,
    /// The part that runs: its number among the spans.
    phase: Mutex<Option<(Part, usize)>>,
}

/// A part of a request for texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// Until the first text of the request takes part in a step.
    Waiting,
    /// Until the first token.
    Prompt,
    /// Until the end of all texts.
    Generation,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Prompt => "prompt",
            Self::Generation => "generation",
        }
    }
}

impl Queue {
    /// A queue whose traces go to the receiver of this channel.
    pub fn new(sender: SyncSender<Trace>) -> Self {
        let dropped = counter!("disco_serve_spans_dropped_total", "reason" => "queue");
        Self(Arc::new(Shared { sender, dropped, random: RandomState::new(), drawn: AtomicU64::new(0) }))
    }

    /// A recorder of a request that has come now, a part of `parent`, and the value of the header `traceresponse`.
    pub(crate) fn record(&self, name: String, parent: Option<Context>) -> (Recorder, String) {
        let id = self.random();
        let (trace, is_sampled) = match &parent {
            Some(parent) => (parent.trace, parent.is_sampled),
            None => ((u128::from(self.random()) << 64) | u128::from(self.random()), true),
        };
        let response = Context::response(trace, id, is_sampled);
        if !is_sampled {
            return (Recorder::default(), response);
        }
        let (parent, state) = parent.map(|parent| (parent.span, parent.state)).unzip();
        let start = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
        let whole = Span {
            id,
            parent,
            has_remote_parent: parent.is_some(),
            name,
            start,
            end: start,
            attributes: Vec::new(),
            events: Vec::new(),
            failure: None,
        };
        let trace = Trace { id: trace, state: state.unwrap_or_default(), spans: vec![whole] };
        let (queue, came) = (self.clone(), (start, Instant::now()));
        let recording = Recording { queue, came, trace: Mutex::new(trace), phase: Mutex::new(None) };
        (Recorder(Some(Arc::new(recording))), response)
    }

    /// A number that is not 0.
    fn random(&self) -> u64 {
        let Shared { random, drawn, .. } = &*self.0;
        random.hash_one(drawn.fetch_add(1, Ordering::Relaxed)).max(1)
    }

    fn send(&self, trace: Trace) {
        let count = trace.spans.len() as u64;
        if self.0.sender.try_send(trace).is_err() {
            self.0.dropped.increment(count);
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Recorder {
    /// Adds what `facts` returns to the span of the whole request. It is called only if something is recorded.
    pub(crate) fn note<const N: usize>(&self, facts: impl FnOnce() -> [(&'static str, Option<Value>); N]) {
        let Some(recording) = &self.0 else { return };
        let facts = facts().into_iter().filter_map(|(name, value)| Some((name, value?)));
        if let Some(whole) = lock(&recording.trace).spans.first_mut() {
            whole.attributes.extend(facts);
        }
    }

    /// Ends the part that runs, and begins the next one, unless that one or a later one was begun before.
    pub(crate) fn begin(&self, next: Part) {
        let Some(recording) = &self.0 else { return };
        let (now, mut phase) = (recording.now(), lock(&recording.phase));
        if phase.is_some_and(|(running, _)| running >= next) {
            return;
        }
        let mut trace = lock(&recording.trace);
        if let Some((_, running)) = *phase
            && let Some(running) = trace.spans.get_mut(running)
        {
            running.end = now;
        }
        *phase = Some((next, trace.spans.len()));
        let span = Span {
            id: recording.queue.random(),
            parent: trace.spans.first().map(|whole| whole.id),
            has_remote_parent: false,
            name: next.name().to_owned(),
            start: now,
            end: now,
            attributes: Vec::new(),
            events: Vec::new(),
            failure: None,
        };
        trace.spans.push(span);
    }

    /// Notes that something has happened in the request.
    pub(crate) fn event(&self, name: &'static str, attributes: impl FnOnce() -> Vec<(&'static str, Value)>) {
        let Some(recording) = &self.0 else { return };
        let event = Event { name, time: recording.now(), attributes: attributes() };
        if let Some(whole) = lock(&recording.trace).spans.first_mut() {
            whole.events.push(event);
        }
    }

    /// Notes an error, by a name for programs, unless one was noted before. One of the client's own making is no failure of the span.
    pub(crate) fn fail(&self, kind: &'static str, is_failure: bool, why: impl FnOnce() -> String) {
        let Some(recording) = &self.0 else { return };
        if let Some(whole) = lock(&recording.trace).spans.first_mut()
            && !whole.attributes.iter().any(|(name, _)| *name == ERROR)
        {
            whole.attributes.push((ERROR, kind.into()));
            whole.failure = is_failure.then(why);
        }
    }
}

impl Recording {
    /// Nanoseconds since 1970.
    fn now(&self) -> u64 {
        let (start, instant) = self.came;
        start + instant.elapsed().as_nanos() as u64
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let (now, phase) = (self.now(), *lock(&self.phase));
        let mut trace = lock(&self.trace);
        let running = phase.map(|(_, running)| running);
        for index in [Some(0), running].into_iter().flatten() {
            if let Some(span) = trace.spans.get_mut(index) {
                span.end = now;
            }
        }
        let trace = Trace { id: trace.id, state: take(&mut trace.state), spans: take(&mut trace.spans) };
        self.queue.send(trace);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    fn parent(is_sampled: bool) -> Context {
        Context { trace: 7, span: 9, is_sampled, state: "a=1".to_owned() }
    }

    #[test]
    fn parts_follow_each_other_inside_of_the_request() {
        let (sender, traces) = sync_channel(1);
        let (recorder, response) = Queue::new(sender).record("chat x".to_owned(), Some(parent(true)));
        for phase in [Part::Waiting, Part::Waiting, Part::Prompt, Part::Waiting, Part::Generation] {
            recorder.begin(phase);
        }
        recorder.event("repair", Vec::new);
        recorder.note(|| [("gen_ai.usage.output_tokens", Some(3_usize.into())), ("gen_ai.request.seed", None)]);
        recorder.fail("internal_error", true, || "why".to_owned());
        drop(recorder.clone());
        assert!(traces.try_recv().is_err(), "a clone is left");
        drop(recorder);
        let Trace { id, state, spans } = traces.try_recv().unwrap();
        let [whole, waiting, prompt, generation] = &spans[..] else { panic!("{spans:?}") };
        assert_eq!((id, state.as_str(), whole.parent, whole.has_remote_parent), (7, "a=1", Some(9), true));
        assert_eq!(response, format!("00-{id:032x}-{:016x}-01", whole.id));
        assert_eq!([&waiting.name, &prompt.name, &generation.name], ["waiting", "prompt", "generation"]);
        let of_parts = [waiting, prompt, generation].map(|span| (span.parent, span.has_remote_parent));
        assert_eq!(of_parts, [(Some(whole.id), false); 3]);
        assert!(whole.start <= waiting.start && waiting.end == prompt.start && prompt.end == generation.start);
        assert!(generation.end == whole.end && whole.events.len() == 1);
        assert_eq!(
            whole.attributes,
            [("gen_ai.usage.output_tokens", 3_usize.into()), ("error.type", "internal_error".into())]
        );
        assert_eq!(whole.failure.as_deref(), Some("why"));
    }

    #[test]
    fn a_trace_that_its_client_does_not_record_is_answered_and_not_recorded() {
        let (sender, traces) = sync_channel(1);
        let (recorder, response) = Queue::new(sender).record("chat x".to_owned(), Some(parent(false)));
        recorder.begin(Part::Waiting);
        drop(recorder);
        assert!(
            response.starts_with("00-00000000000000000000000000000007-") && response.ends_with("-00"),
            "{response}"
        );
        assert!(traces.try_recv().is_err());
    }

    #[test]
    fn a_full_queue_loses_traces_and_does_not_wait() {
        let (sender, traces) = sync_channel(1);
        let queue = Queue::new(sender);
        (0..3).for_each(|_| drop(queue.record("chat x".to_owned(), None)));
        assert_eq!(traces.try_iter().count(), 1);
    }
}
