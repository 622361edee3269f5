//! The conformance suite of all lanes and all communicators of Disco.
//!
//! ```text
//! Runner ── checks of a Harness ─────▶ communicator::Suite   a backend in a kind of session: operations, aborts, …
//!   └────── checks of a lane::Harness ▶ lane::Suite          the contract of a Channel
//!                                         oracle             expected results, from plain loops without backend code
//! ```
//!
//! - A new backend brings a [`Harness`], and no cases. Operations that its [`Capabilities`](disco_core::Capabilities)
//!   lack must be refused; their checks are skipped with that reason.
//! - A new lane brings a [`lane::Harness`].
//! - [`Runner`] makes a test program of the suite, in this repository or another.
//! - [`waiting`] has the polling loops of tests.
//! - [`tsan`] compiles CUDA kernels for threads of the host.
//! - [`Pattern`] makes inputs for benchmarks, and checks their results.
//!
//! The checks of a suite are listed by name. Each runs separately:
//!
//! ```
//! use std::sync::Arc;
//!
//! use disco_conformance::ThreadSessions;
//! use disco_conformance::communicator::Suite;
//!
//! let suite = Suite::new(Arc::new(ThreadSessions::of("mine")));
//! let check = Suite::checks().into_iter().find(|check| check.name() == "all_reduce::f32::sum").expect("a known name");
//! println!("{}: {}", check.name(), suite.run(&check));
//! ```

mod check;
pub mod communicator;
mod fetched;
mod harness;
pub mod lane;
mod oracle;
mod pattern;
mod require;
mod runner;
mod summary;
mod threads;
mod timeout;
pub mod tsan;
pub mod waiting;

pub use check::{Check, Outcome};
pub use fetched::{Fetched, libtvm_ffi, nvrtc, nvrtc_13};
pub use harness::{Harness, SessionSpec};
pub use pattern::Pattern;
pub use require::Required;
pub use runner::Runner;
pub use threads::ThreadSessions;
