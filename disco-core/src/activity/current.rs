//! The activity of the worker that a thread runs, and spans of the program in it.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;

use super::record::RawRecord;
use super::{Activity, OpState, RecordKind, ticks};

thread_local! {
    static CURRENT: RefCell<Option<Arc<Activity>>> = const { RefCell::new(None) };
}

/// Makes an activity that of this thread's worker, until it is dropped.
#[derive(Debug)]
pub(crate) struct Current(Option<Arc<Activity>>);

impl Current {
    pub(crate) fn set(activity: &Arc<Activity>) -> Self {
        Self(CURRENT.replace(Some(activity.clone())))
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// A span that has begun; see [`span`]. Dropping it ends it.
#[must_use = "a span ends when it is dropped"]
#[derive(Debug)]
pub struct Span {
    /// `None` outside of worker functions, and without a timeline.
    running: Option<(Arc<Activity>, u64)>,
    /// Only the worker's thread writes its records.
    _here: PhantomData<*const ()>,
}

/// Begins a span of the program in the timeline of the worker whose function calls this; does nothing on other threads
/// and in sessions without a timeline. Spans of one worker nest.
///
/// ```
/// # fn read() {}
/// fn load() {
///     let _span = disco_core::activity::span("load weights");
///     read();
/// }
/// ```
pub fn span(name: &str) -> Span {
    let activity = CURRENT.with_borrow(|current| current.clone().filter(|activity| activity.has_timeline()));
    let running = activity.map(|activity| {
        let name = activity.intern(name).into();
        let number = activity.memory.begin(RawRecord::new(RecordKind::Span, name, ticks(), activity.memory.received()));
        (activity, number)
    });
    Span { running, _here: PhantomData }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some((activity, number)) = self.running.take() {
            activity.end(number, OpState::Done);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity::{RecorderConfig, Recording};

    #[test]
    fn spans_are_recorded_on_the_thread_of_a_worker_with_a_timeline() {
        let activity = Arc::new(Activity::new(RecorderConfig::new(16, true)));
        drop(span("before"));
        {
            let _current = Current::set(&activity);
            let _outer = span("outer");
            drop(span("inner"));
        }
        drop(span("after"));
        let recording = Recording::decode(&activity.encode(16)).unwrap();
        let spans: Vec<_> = recording.records.iter().map(|span| (span.name.as_deref().unwrap(), span.state)).collect();
        assert_eq!(spans, [("outer", OpState::Done), ("inner", OpState::Done)]);
        let [outer, inner] = &recording.records[..] else { panic!("{recording:?}") };
        assert!(outer.start <= inner.start && inner.end <= outer.end, "{recording:?}");
    }
}
