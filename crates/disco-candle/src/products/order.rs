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
pub(crate) struct Order(Vec<Shard>);

#[derive(Debug)]
pub(super) struct Shard {
    pub(super) columns: Range<usize>,
    /// How many of the sums that wait its sum meets, the last one first. Then it waits itself.
    pub(super) meetings: usize,
}

impl Order {
    pub(super) fn new(columns: usize) -> Self {
        Self::of_node(columns, 0..SHARDS)
    }

    /// The shards of a [node](nodes) of a sum over so many columns, counted from the node's first column.
    pub(crate) fn of_node(columns: usize, leaves: Range<usize>) -> Self {
        let (first, mut shards) = (bound(columns, leaves.start), Vec::new());
        grow(leaves, columns, &mut shards);
        for Shard { columns, .. } in &mut shards {
            *columns = columns.start - first..columns.end - first;
        }
        Self(shards)
    }

    pub(super) fn shards(&self) -> &[Shard] {
        &self.0
    }
}

/// The first column of a leaf.
fn bound(columns: usize, leaf: usize) -> usize {
    columns.min(leaf * columns.div_ceil(UNIT) / SHARDS * UNIT)
}

/// The columns between which a sum over `columns` columns can be cut, from 0 on, in ascending order.
pub fn cuts(columns: usize) -> impl Iterator<Item = usize> {
    (0..=SHARDS).map(move |leaf| bound(columns, leaf))
}

/// The largest nodes of the tree whose columns, of `columns`, are all in `own`: their leaves and their columns.
pub(crate) fn nodes(columns: usize, own: &Range<usize>) -> Vec<(Range<usize>, Range<usize>)> {
    fn find(leaves: Range<usize>, columns: usize, own: &Range<usize>, found: &mut Vec<(Range<usize>, Range<usize>)>) {
        let all = bound(columns, leaves.start)..bound(columns, leaves.end);
        if all.is_empty() || all.end <= own.start || own.end <= all.start {
            return;
        }
        if own.start <= all.start && all.end <= own.end {
            found.push((leaves, all));
        } else if leaves.len() > 1 {
            let middle = leaves.start.midpoint(leaves.end);
            find(leaves.start..middle, columns, own, found);
            find(middle..leaves.end, columns, own, found);
        }
    }
    let mut found = Vec::new();
    find(0..SHARDS, columns, own, &mut found);
    found
}

/// Adds what nodes of one tree have, by their leaves in ascending order.
pub(crate) fn sum(nodes: &[(Range<usize>, &[f32])]) -> Vec<f32> {
    fn add(leaves: Range<usize>, nodes: &[(Range<usize>, &[f32])]) -> Option<Vec<f32>> {
        if let [(own, sums)] = nodes
            && *own == leaves
        {
            return Some(sums.to_vec());
        }
        if nodes.is_empty() || leaves.len() == 1 {
            return None;
        }
        let middle = leaves.start.midpoint(leaves.end);
        let (left, right) = nodes.split_at(nodes.partition_point(|(leaves, _)| leaves.start < middle));
        match (add(leaves.start..middle, left), add(middle..leaves.end, right)) {
            (Some(mut left), Some(right)) => {
                left.iter_mut().zip(right).for_each(|(left, right)| *left += right);
                Some(left)
            }
            (left, right) => left.or(right),
        }
    }
    add(0..SHARDS, nodes).unwrap_or_default()
}

/// Adds the shards of some leaves. Returns whether there are any.
fn grow(leaves: Range<usize>, columns: usize, shards: &mut Vec<Shard>) -> bool {
    if leaves.len() == 1 {
        let columns = bound(columns, leaves.start)..bound(columns, leaves.end);
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
