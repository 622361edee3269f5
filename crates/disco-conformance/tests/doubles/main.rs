//! Proof that the suite can fail: doubles of the built-in backend and lane, each with one fault, and the check that
//! finds it. None of them is a backend.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod communicators;
mod lanes;
mod leaky;
mod lossy;
