//! Spans of the crate `tracing` in the timeline of the worker whose function enters them.

use std::cell::RefCell;

use disco_core::activity::{self, Entered};
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing::span::Id;
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

/// Largest number of nested spans of one thread. Spans further inside are not recorded.
const MAX_DEPTH: usize = 64;

thread_local! {
    /// The spans that this thread is inside, the outermost first.
    static INSIDE: RefCell<Vec<(Id, Entered)>> = const { RefCell::new(Vec::new()) };
}

/// A layer for subscribers of [`tracing`] that records the spans of worker functions, from each enter to its exit. A
/// [trace](crate::Trace) shows these spans inside of their commands. The names of spans are recorded, their fields are not.
/// Spans of other threads, and of sessions without a timeline, are ignored.
///
/// Install it before `disco::init()`, so that it also serves workers that are processes:
///
/// ```
/// use disco_trace::WorkerSpans;
/// use tracing_subscriber::layer::SubscriberExt as _;
/// use tracing_subscriber::util::SubscriberInitExt as _;
///
/// tracing_subscriber::registry().with(WorkerSpans::new()).init();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct WorkerSpans {
    most: LevelFilter,
}

impl WorkerSpans {
    /// Records spans of the levels `ERROR` to `INFO`.
    pub const fn new() -> Self {
        Self { most: LevelFilter::INFO }
    }

    /// Records spans up to a level.
    #[must_use]
    pub fn with_max_level(self, most: impl Into<LevelFilter>) -> Self {
        Self { most: most.into() }
    }
}

impl Default for WorkerSpans {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for WorkerSpans {
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.most)
    }

    fn on_enter(&self, id: &Id, ctx: Context<'_, S>) {
        if !activity::records_spans() {
            return;
        }
        let Some(metadata) = ctx.metadata(id).filter(|metadata| *metadata.level() <= self.most) else { return };
        INSIDE.with_borrow_mut(|inside| {
            if inside.len() < MAX_DEPTH {
                inside.extend(activity::enter_span(metadata.name()).map(|entered| (id.clone(), entered)));
            }
        });
    }

    fn on_exit(&self, id: &Id, _: Context<'_, S>) {
        INSIDE.with_borrow_mut(|inside| {
            // The innermost span, unless the program leaves spans in another order.
            if let Some(at) = inside.iter().rposition(|(entered, _)| entered == id) {
                activity::leave_span(inside.remove(at).1);
            }
        });
    }
}
