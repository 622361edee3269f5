//! The tree of a session's nodes: which node relays for which.
//!
//! ```text
//! fan-out 3, 10 nodes     controller
//!                        ╱     │     ╲
//!                       1      4      7        numbers of nodes
//!                      ╱ ╲    ╱ ╲    ╱│╲
//!                     2   3  5   6  8 9 10
//!
//! node   1 2 3   4 5 6   7 8 9 10
//! place  0 1 2   3 4 5   6 7 8 9
//! size   3 1 1   3 1 1   4 1 1 1        nodes of the subtree
//! ```
//!
//! Nodes are numbered in preorder: those behind a node follow it. So the workers of a subtree are one range. The *place*
//! of a node is its index in that order, from 0 below each end. A [`Forest`] is the row of sizes.
//!
//! One step of `Forest::grow` divides a range of places, first all ten of the controller, equally among the fan-out:
//! the blocks end at 10 · 1 / 3 = 3, at 10 · 2 / 3 = 6, and at 10. The first node of each block is a child, whose size is
//! that of the block. The rest of the block, such as places 7 to 9, is divided by the next step; here it has no more nodes
//! than the fan-out, so all are children of node 7. In larger blocks, the end moves by at most a quarter of a block to the
//! nearest place where a rack begins.
//!
//! The controller keeps its children, which are at the places 0, 3 and 6: each size leads to the next one. Node 4 gets
//! the sizes behind it, `1 1`, with its assignment (`Forest::behind`), and is the end of that forest.

use std::sync::Arc;

use disco_core::{Error, Result};

/// The trees below one end, each of which is a child of it. Holds, for each node in preorder, the number of nodes of its
/// subtree, itself included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forest(Arc<[u32]>);

impl Forest {
    /// Nodes without nodes behind them.
    pub(crate) fn flat(nodes: usize) -> Self {
        Self(vec![1; nodes].into())
    }

    /// Trees of `nodes` nodes, in which each end has at most `fan_out` children (at least 1). A subtree begins where
    /// `begins_rack` says that a node is the first of its rack, if such a node is near: subtrees differ by at most half
    /// of their size from equal ones.
    pub(crate) fn grow(nodes: usize, fan_out: usize, begins_rack: impl Fn(usize) -> bool) -> Self {
        let mut sizes = vec![1; nodes];
        let mut open = vec![(0, nodes)];
        while let Some((start, end)) = open.pop() {
            let fan_out = fan_out.max(1);
            if end - start <= fan_out {
                continue;
            }
            let block = (end - start) / fan_out;
            let slack = block / 4;
            let mut from = start;
            for child in 1..=fan_out {
                let equal = start + (end - start) * child / fan_out;
                let near = (0..=slack).flat_map(|by| [equal.saturating_sub(by), equal + by]);
                let to =
                    if child == fan_out { end } else { near.into_iter().find(|at| begins_rack(*at)).unwrap_or(equal) };
                sizes[from] = (to - from) as u32;
                open.push((from + 1, to));
                from = to;
            }
        }
        Self(sizes.into())
    }

    /// The trees that sizes describe which another end has sent.
    ///
    /// # Errors
    /// A tree has no nodes, or more than the sizes have.
    pub fn new(sizes: Arc<[u32]>) -> Result<Self> {
        // The ends of the subtrees that the position is inside of.
        let mut ends = vec![sizes.len()];
        for (at, size) in sizes.iter().enumerate() {
            ends.truncate(ends.iter().rposition(|end| at < *end).map_or(0, |last| last + 1));
            let end = at + *size as usize;
            if *size == 0 || ends.last().is_none_or(|outer| end > *outer) {
                return Err(Error::protocol(format!("the subtree of node {at} of {} has {size} nodes", sizes.len())));
            }
            ends.push(end);
        }
        Ok(Self(sizes))
    }

    /// The sizes, as [`Self::new`] takes them.
    pub(crate) fn sizes(&self) -> Arc<[u32]> {
        self.0.clone()
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.0.len()
    }

    /// The children: the place of each, and the number of nodes of its subtree.
    pub(crate) fn children(&self) -> impl Iterator<Item = (usize, usize)> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let (at, size) = (next, *self.0.get(next)? as usize);
            next += size;
            Some((at, size))
        })
    }

    /// The trees behind the node at this place.
    pub(crate) fn behind(&self, at: usize) -> Self {
        Self(self.0[at + 1..at + self.0[at] as usize].into())
    }

    /// Whether the node at this place relays for others.
    pub(crate) fn relays(&self, at: usize) -> bool {
        self.0[at] > 1
    }

    /// The place of each node's parent; `None` for children of this end.
    pub(crate) fn parents(&self) -> Vec<Option<usize>> {
        let mut open: Vec<(usize, usize)> = Vec::new();
        let parent = |(at, size): (usize, &u32)| {
            while open.pop_if(|(_, end)| *end <= at).is_some() {}
            let parent = open.last().map(|(parent, _)| *parent);
            open.push((at, at + *size as usize));
            parent
        };
        self.0.iter().enumerate().map(parent).collect()
    }

    /// Connections between this end and the farthest node.
    pub(crate) fn depth(&self) -> u32 {
        let (mut open, mut depth): (Vec<usize>, usize) = (Vec::new(), 0);
        for (at, size) in self.0.iter().enumerate() {
            while open.pop_if(|end| *end <= at).is_some() {}
            open.push(at + *size as usize);
            depth = depth.max(open.len());
        }
        depth as u32
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The largest number of children of an end.
    fn widest(forest: &Forest) -> usize {
        let inner = (0..forest.nodes()).map(|at| forest.behind(at).children().count());
        inner.chain([forest.children().count()]).max().unwrap_or(0)
    }

    #[test]
    fn nodes_are_shared_equally_among_subtrees() {
        let forest = Forest::grow(10, 3, |_| false);
        assert_eq!(forest.children().collect::<Vec<_>>(), [(0, 3), (3, 3), (6, 4)]);
        assert_eq!(forest.behind(6).children().collect::<Vec<_>>(), [(0, 1), (1, 1), (2, 1)]);
        assert_eq!(forest.parents()[4..], [Some(3), Some(3), None, Some(6), Some(6), Some(6)]);
        assert_eq!([forest.depth(), Forest::flat(3).depth(), Forest::flat(0).depth()], [2, 1, 0]);
        assert_eq!(Forest::grow(3, 3, |_| false), Forest::flat(3));
        assert_eq!(Forest::grow(3, 1, |_| false).sizes()[..], [3, 2, 1], "a chain");
        assert_eq!(Forest::grow(1000, 32, |_| false).depth(), 2);
        assert_eq!(Forest::grow(10_000, 32, |_| false).depth(), 3);
    }

    #[test]
    fn a_subtree_begins_with_a_rack_that_begins_near() {
        let forest = Forest::grow(100, 2, |at| at == 43);
        assert_eq!(forest.children().collect::<Vec<_>>(), [(0, 43), (43, 57)]);
        let far = Forest::grow(100, 2, |at| at == 30);
        assert_eq!(far.children().collect::<Vec<_>>(), [(0, 50), (50, 50)]);
    }

    #[test]
    fn sizes_that_describe_no_trees_are_refused() {
        for sizes in [&[0][..], &[2], &[1, 2], &[3, 3, 1], &[2, 1, u32::MAX], &[3, 1, 2, 1]] {
            let refused = Forest::new(sizes.into()).unwrap_err().to_string();
            assert!(refused.contains("the subtree of node"), "{sizes:?}: {refused}");
        }
        assert!(Forest::new([3, 2, 1, 1].into()).is_ok() && Forest::new([].into()).is_ok());
    }

    proptest! {
        #[test]
        fn sizes_from_outside_are_refused_or_describe_trees(sizes in prop::collection::vec(0u32..6, 0..12)) {
            let Ok(forest) = Forest::new(sizes.into()) else { return Ok(()) };
            prop_assert!(forest.depth() as usize <= forest.nodes());
            prop_assert_eq!(forest.parents().len(), forest.nodes());
            let behind: usize = forest.children().map(|(at, _)| 1 + forest.behind(at).nodes()).sum();
            prop_assert_eq!(behind, forest.nodes());
        }

        #[test]
        fn a_tree_has_each_node_once_and_no_end_has_too_many_children(
            nodes in 0usize..3000, fan_out in 1usize..70, racks in prop::collection::vec(0usize..3000, 0..40),
        ) {
            let forest = Forest::grow(nodes, fan_out, |at| racks.contains(&at));
            prop_assert_eq!(Forest::new(forest.sizes()).unwrap(), forest.clone());
            prop_assert_eq!(forest.children().map(|(_, size)| size).sum::<usize>(), nodes);
            prop_assert!(widest(&forest) <= fan_out);
            // Each node has one parent, before it, and is in the parent's subtree.
            for (at, parent) in forest.parents().into_iter().enumerate() {
                let is_child = |forest: &Forest, at: usize| forest.children().any(|(child, _)| child == at);
                match parent {
                    None => prop_assert!(is_child(&forest, at)),
                    Some(parent) => prop_assert!(is_child(&forest.behind(parent), at - parent - 1)),
                }
            }
            // Subtrees are at most 1.5 times as large as equal ones.
            let mut most = nodes as f64;
            let mut depth = 0;
            while most >= 1.0 && fan_out > 1 {
                depth += 1;
                most = if most <= fan_out as f64 { 0.0 } else { (most / fan_out as f64) * 1.5 };
            }
            prop_assert!(fan_out == 1 || forest.depth() <= depth, "{} > {depth}", forest.depth());
        }
    }
}
