//! What is particular to the built-in data plane, seen from outside. What all backends have in common is checked by the
//! conformance suite, as tests of the root package.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod abort;
mod connect;
mod failure;
mod mixed;
mod numerics;
mod point_to_point;
mod ranks;
mod series;
mod split;

use ranks::{LONG, SHORT, Shelf, Where, floats, on_ranks, on_threads, ranks, tensor, zeroed, zeros};

/// Where the ranks of this program live.
const WHERE: Where = Where::Threads;
