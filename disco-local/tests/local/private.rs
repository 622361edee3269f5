//! The same as among threads, for ranks that live as those of several processes do, and whose peers can't reach their tensors.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod abort;
mod failure;
mod mixed;
mod numerics;
mod point_to_point;
mod ranks;
mod series;
mod split;

use ranks::{LONG, SHORT, Shelf, Where, floats, on_ranks, on_threads, ranks, tensor, zeroed, zeros};

/// Where the ranks of this program live.
const WHERE: Where = Where::Private;
