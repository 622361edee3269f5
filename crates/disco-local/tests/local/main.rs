//! Tests of the public interface of the built-in data plane: the behaviour that other backends don't share. The
//! conformance suite, which the root package runs, tests the common behaviour.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod abort;
mod connect;
mod failure;
mod lent;
mod mixed;
mod numerics;
mod own_reductions;
mod point_to_point;
mod ranks;
mod series;
mod split;

use ranks::{LONG, SHORT, Shelf, Where, floats, on_ranks, on_threads, ranks, tensor, zeroed, zeros};

/// The address space of ranks in this test program.
const WHERE: Where = Where::Threads;
