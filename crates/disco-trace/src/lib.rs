//! Traces of Disco's sessions: the work of each worker and of the controller, with times.
//!
//! A [`Trace`] holds the recordings of a session. [`Trace::write`] writes it as a file for Perfetto and other viewers, and
//! [`Trace::read`] reads that file back. [`explain`] describes hanging operations, calls that differ and slow operations as text;
//! [`flight_recorder`] writes the dumps that PyTorch's analyser reads.
//! [`WorkerSpans`] puts spans of the crate `tracing` into timelines.
//!
//! The feature `analysis`, which is on by default, has [`explain`] and [`flight_recorder`].
//! `disco-runtime` has the crate without it.
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
//! spans              spans of the crate `tracing` in timelines
//! flight_recorder    dumps with the keys of PyTorch's flight recorder
//! ```

#![doc(html_root_url = "https://docs.rs/disco-trace/latest")]

#[cfg(feature = "analysis")]
mod analysis;
#[cfg_attr(
    not(feature = "analysis"),
    expect(dead_code, reason = "the analysis reads more of a call than the file has")
)]
mod calls;
mod chrome;
mod error;
#[cfg(feature = "analysis")]
mod explain;
#[cfg(feature = "analysis")]
pub mod flight_recorder;
#[cfg(feature = "analysis")]
mod format;
mod lines;
mod spans;
mod trace;

pub use error::TraceError;
#[cfg(feature = "analysis")]
pub use explain::explain;
pub use spans::WorkerSpans;
pub use trace::{Missing, Trace, WorkerTrace};
