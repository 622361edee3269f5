//! Tests of the public interface of the built-in data plane: the behaviour that other backends don't share. The
//! conformance suite, which the root package runs, tests the common behaviour.
//!
//! Each kind of address space of ranks is a module with the same tests.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
#![allow(clippy::duplicate_mod, reason = "the same tests for each kind of address space")]

mod private;
mod processes;
mod reductions;
mod threads;
