//! Spans of requests, for a collector of OpenTelemetry.
//!
//! ```text
//! request ─▶ Recorder (spans, on the heap of the request) ─▶ queue ─▶ thread `otlp` ─▶ collector
//! ```
//!
//! A server without a collector records nothing. A queue that is full, and a collector that does not answer, cost spans, which are
//! counted, and never time of a request. The thread and its HTTP client need the feature `otlp`; without it, there is no way to a
//! collector.

mod context;
mod recorder;
mod span;

#[cfg(feature = "otlp")]
pub mod otlp;

pub(crate) use context::Context;
pub(crate) use recorder::{Part, Recorder};
pub use recorder::{Queue, Trace};
pub use span::{Event, Span};
