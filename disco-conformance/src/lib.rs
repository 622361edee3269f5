//! The one suite that judges every lane and every communicator of Disco.
//!
//! - [`communicator::Suite`] runs the data plane of a [`Harness`]: a backend in a kind of session. A new backend brings a
//!   harness, no cases; what it lacks by its [`Capabilities`](disco_core::Capabilities) must be refused, and is skipped
//!   with that reason.
//! - [`Runner`] makes a test program of it, in this repository or another.
//! - [`lane`] holds a [`Channel`](disco_core::Channel) to its contract. A new lane brings a [`lane::Harness`].
//!
//! [`Pattern`] is for tools that measure, and look at what they measured.
//!
//! Expected results come from plain loops that share no code with any backend.

mod check;
pub mod communicator;
mod fetched;
mod harness;
pub mod lane;
mod oracle;
mod pattern;
mod require;
mod runner;
mod threads;
mod timeout;

pub use check::{Check, Outcome};
pub use fetched::{nvrtc, nvrtc_13};
pub use harness::{Harness, SessionSpec};
pub use pattern::Pattern;
pub use require::Required;
pub use runner::Runner;
pub use threads::ThreadSessions;
