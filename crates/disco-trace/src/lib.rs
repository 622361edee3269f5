//! Traces of Disco's sessions: the work of each worker and of the controller, with times.
//!
//! A [`Trace`] holds the recordings of a session. [`Trace::write`] writes it as a file for Perfetto and other viewers, and
//! [`Trace::read`] reads that file back. [`explain`] describes hanging operations, calls that differ and slow operations as text;
//! [`report`] makes a page of pictures and tables; [`flight_recorder`] writes the dumps that PyTorch's analyser reads.
//! [`WorkerSpans`] puts spans of the crate `tracing` into timelines.
//!
//! ```text
//! trace              the recordings of a session
//! error              failures of files
//! lines              lines of files that may be compressed or end early
//! chrome             a trace as a file of Chrome's trace events, and back
//! calls              the calls of one collective by several workers, matched
//! analysis           times, waits, mismatches and bandwidths of a trace
//! format             numbers and tables as text
//! explain            analysis and diagnosis as text
//! report             analysis as a page
//! drawing            pictures and pages in the look of the report
//! spans              spans of the crate `tracing` in timelines
//! flight_recorder    dumps with the keys of PyTorch's flight recorder
//! ```

#![doc(html_root_url = "https://docs.rs/disco-trace/latest")]

mod analysis;
mod calls;
mod chrome;
pub mod drawing;
mod error;
mod explain;
pub mod flight_recorder;
mod format;
mod lines;
pub mod report;
mod spans;
mod trace;

pub use error::TraceError;
pub use explain::explain;
pub use spans::WorkerSpans;
pub use trace::{Missing, Trace, WorkerTrace};
