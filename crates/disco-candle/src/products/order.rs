//! The order in which the products of a row with a column of weights are added.
//!
//! ```text
//! columns   |shard 0|shard 1|shard 2| … up to 16 shards, of 64 columns or a multiple
//!               └── + ──┘       └─ … ─┐
//!                   └──── + ──────────┘    …
//! ```
//!
//! A shard is one chain of fused additions along its columns, and the shards meet in a binary tree over 16 leaves, of which those
//! without columns are left out. So a sum depends on the number of columns only: not on rows, outputs, threads, vectors or ranks.

use std::ops::Range;

/// Leaves of the tree.
const SHARDS: usize = 16;

/// Columns that are never cut, but for those behind the last multiple.
const UNIT: usize = 64;

/// The most sums that wait for another one: the left halves of a path.
pub(super) const DEPTH: usize = SHARDS.ilog2() as usize;

/// The shards that have columns.
#[derive(Debug)]
pub(super) struct Order(Vec<Shard>);

#[derive(Debug)]
pub(super) struct Shard {
    pub(super) columns: Range<usize>,
    /// How many of the sums that wait its sum meets, the last one first. Then it waits itself.
    pub(super) meetings: usize,
}

impl Order {
    pub(super) fn new(columns: usize) -> Self {
        let mut shards = Vec::new();
        grow(0..SHARDS, columns, &mut shards);
        Self(shards)
    }

    pub(super) fn shards(&self) -> &[Shard] {
        &self.0
    }
}

/// Adds the shards of some leaves. Returns whether there are any.
fn grow(leaves: Range<usize>, columns: usize, shards: &mut Vec<Shard>) -> bool {
    if leaves.len() == 1 {
        let bound = |leaf: usize| columns.min(leaf * columns.div_ceil(UNIT) / SHARDS * UNIT);
        let columns = bound(leaves.start)..bound(leaves.end);
        let is_there = !columns.is_empty();
        shards.extend(is_there.then_some(Shard { columns, meetings: 0 }));
        return is_there;
    }
    let middle = leaves.start.midpoint(leaves.end);
    let has_left = grow(leaves.start..middle, columns, shards);
    let has_right = grow(middle..leaves.end, columns, shards);
    if let Some(last) = shards.last_mut().filter(|_| has_left && has_right) {
        last.meetings += 1;
    }
    has_left || has_right
}
