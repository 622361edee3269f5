//! The tests of `main.rs` for ranks that communicate like ranks of several processes, with tensors that peers can't
//! access.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod abort;
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
const WHERE: Where = Where::Private;
