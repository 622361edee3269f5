//! The activity of the worker that a thread runs, and spans of the program in it.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::Arc;
#[cfg(not(target_os = "linux"))]
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;

use super::record::RawRecord;
use super::{Activity, DataPath, OpState, RecordKind, ticks};

/// Number of names of spans that a thread finds without a lock. A power of two, so that a mask finds the place of a name.
const KNOWN_NAMES: usize = 64;

thread_local! {
    static CURRENT: RefCell<Option<Arc<Activity>>> = const { RefCell::new(None) };
    static NAMES: Names = const { Names::new() };
}

/// The numbers of static names in the current activity.
struct Names {
    /// The address, the length and the number of the name at each place. The number 0 means that the place is empty.
    known: [Cell<(usize, usize, u32)>; KNOWN_NAMES],
    /// Counts the activities that this thread has had.
    epoch: Cell<u64>,
}

impl Names {
    const fn new() -> Self {
        Self { known: [const { Cell::new((0, 0, 0)) }; KNOWN_NAMES], epoch: Cell::new(0) }
    }

    /// Forgets all names: their numbers are numbers of the activity so far.
    fn clear(&self) {
        self.known.iter().for_each(|name| name.set((0, 0, 0)));
        self.epoch.set(self.epoch.get() + 1);
    }

    #[inline]
    fn number(&self, name: &'static str, activity: &Activity) -> u32 {
        let (address, len) = (name.as_ptr() as usize, name.len());
        let place = &self.known[(address >> 3 ^ address >> 9) % KNOWN_NAMES];
        match place.get() {
            (known, known_len, number) if (known, known_len) == (address, len) && number > 0 => number,
            _ => {
                let number = activity.intern(name);
                place.set((address, len, number));
                number
            }
        }
    }
}

/// Makes an activity that of this thread's worker, until it is dropped.
#[derive(Debug)]
pub(crate) struct Current(Option<Arc<Activity>>);

impl Current {
    pub(crate) fn set(activity: &Arc<Activity>) -> Self {
        NAMES.with(Names::clear);
        Self(CURRENT.replace(Some(activity.clone())))
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        NAMES.with(Names::clear);
        CURRENT.set(self.0.take());
    }
}

impl Activity {
    /// Records that the worker runs on the calling thread.
    pub fn run_here(&self) {
        #[cfg(target_os = "linux")]
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        #[cfg(not(target_os = "linux"))]
        let thread = {
            static LAST: AtomicU32 = AtomicU32::new(0);
            thread_local! { static NUMBER: u32 = LAST.fetch_add(1, Ordering::Relaxed) + 1 }
            NUMBER.with(|number| *number)
        };
        self.thread.store(thread, Ordering::Relaxed);
    }

    /// The id of the worker's thread, as Linux numbers threads, elsewhere a number that no other thread of this process has;
    /// `None` before [`Self::run_here`].
    pub fn thread(&self) -> Option<u32> {
        match self.thread.load(Ordering::Relaxed) {
            0 => None,
            thread => Some(thread),
        }
    }
}

/// The [thread](Activity::thread) of the worker that the calling thread runs; `None` on other threads.
pub(crate) fn thread_of_worker() -> Option<u32> {
    CURRENT.with_borrow(|current| current.as_ref()?.thread())
}

/// Records the way that the data of the running operation takes, for the worker that the calling thread runs; does nothing
/// on other threads. Backends call it inside of [`Communicator::enqueue`](crate::Communicator::enqueue).
#[inline]
pub fn take_path(path: DataPath) {
    CURRENT.with_borrow(|current| current.iter().for_each(|activity| activity.take_path(path)));
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
        let number = begin(&activity, activity.intern(name));
        (activity, number)
    });
    Span { running, _here: PhantomData }
}

fn begin(activity: &Activity, name: u32) -> u64 {
    activity.memory.begin(RawRecord::new(RecordKind::Span, name.into(), ticks(), activity.memory.received()))
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some((activity, number)) = self.running.take() {
            activity.end(number, OpState::Done);
        }
    }
}

/// A span that [`enter_span`] has begun and [`leave_span`] ends, on the same thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    epoch: u64,
    number: u64,
}

/// Whether the calling thread runs a worker that records spans.
#[inline]
pub fn records_spans() -> bool {
    CURRENT.with_borrow(|current| current.as_ref().is_some_and(|activity| activity.has_timeline()))
}

/// Begins a span like [`span`], for subscribers of other libraries' spans. `None` where [`records_spans`] is false.
#[inline]
pub fn enter_span(name: &'static str) -> Option<Entered> {
    CURRENT.with_borrow(|current| {
        let activity = current.as_ref().filter(|activity| activity.has_timeline())?;
        NAMES.with(|names| {
            let number = begin(activity, names.number(name, activity));
            Some(Entered { epoch: names.epoch.get(), number })
        })
    })
}

/// Ends a span. Does nothing if the thread's worker is no longer the one that has begun it.
#[inline]
pub fn leave_span(entered: Entered) {
    if NAMES.with(|names| names.epoch.get()) == entered.epoch {
        CURRENT.with_borrow(|current| {
            current.iter().for_each(|activity| activity.end(entered.number, OpState::Done));
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::activity::{RecorderConfig, Recording};

    fn names(activity: &Activity) -> Vec<String> {
        let recording = Recording::decode(&activity.encode(256)).unwrap();
        recording.records.iter().map(|span| span.name.as_deref().unwrap_or_default().to_owned()).collect()
    }

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

    #[test]
    fn names_of_entered_spans_are_those_of_the_current_activity() {
        let activities = [0, 1].map(|_| Arc::new(Activity::new(RecorderConfig::new(256, true))));
        activities[1].intern("another name");
        assert_eq!(enter_span("outside"), None);
        // More names than are found without a lock, some of which share a place.
        static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| (0..100).map(|name| format!("name {name}")).collect());
        let many: Vec<&'static str> = NAMES.iter().map(String::as_str).collect();
        for activity in &activities {
            let _current = Current::set(activity);
            for name in many.iter().chain(&many) {
                leave_span(enter_span(name).unwrap());
            }
        }
        let expected: Vec<&str> = many.iter().chain(&many).copied().collect();
        assert!(activities.iter().all(|activity| names(activity) == expected));
    }

    #[test]
    fn a_span_that_outlives_its_worker_ends_none_of_the_next_one() {
        let activities = [0, 1].map(|_| Arc::new(Activity::new(RecorderConfig::new(16, true))));
        let entered = {
            let _current = Current::set(&activities[0]);
            enter_span("first").unwrap()
        };
        let _current = Current::set(&activities[1]);
        let second = enter_span("second").unwrap();
        leave_span(entered);
        let state = || Recording::decode(&activities[1].encode(16)).unwrap().records[0].state;
        assert_eq!(state(), OpState::Running);
        leave_span(second);
        assert_eq!(state(), OpState::Done);
    }
}
