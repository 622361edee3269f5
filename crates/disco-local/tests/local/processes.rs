//! The tests for ranks that communicate like ranks of several processes, with tensors in arenas. Each rank
//! has its own mapping of all arenas.

#[path = "abort.rs"]
mod abort;
#[path = "failure.rs"]
mod failure;
#[path = "mixed.rs"]
mod mixed;
#[path = "numerics.rs"]
mod numerics;
#[path = "own_reductions.rs"]
mod own_reductions;
#[path = "point_to_point.rs"]
mod point_to_point;
#[path = "ranks.rs"]
mod ranks;

use ranks::{LONG, SHORT, Where, floats, on_ranks, on_threads, ranks, tensor, zeroed, zeros};

/// The address space of ranks in this module.
const WHERE: Where = Where::Arenas;
