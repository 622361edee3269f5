//! Sets of workers.

use smallvec::{SmallVec, smallvec};

use crate::id::WorkerId;
use crate::worker_range::WorkerRange;

const BITS: usize = u64::BITS as usize;

/// A set of workers out of one range: a bit for each, so that ranges are added at 64 workers a step.
///
/// ```
/// use disco_core::{WorkerRange, WorkerSet};
///
/// let mut replied = WorkerSet::new(WorkerRange::new(0..100));
/// assert_eq!(replied.insert(WorkerRange::new(10..20)), 10);
/// assert_eq!(replied.insert(WorkerRange::new(15..25)), 5, "five were in the set already");
/// assert_eq!(replied.runs().collect::<Vec<_>>(), [WorkerRange::new(10..25)]);
/// ```
#[derive(Clone, Debug)]
pub struct WorkerSet {
    range: WorkerRange,
    words: SmallVec<[u64; 1]>,
    len: usize,
}

impl WorkerSet {
    /// An empty set, which takes workers of `range`.
    pub fn new(range: WorkerRange) -> Self {
        Self { range, words: smallvec![0; range.len().div_ceil(BITS)], len: 0 }
    }

    /// Adds workers; those outside of the set's range are ignored. Returns how many of them are new.
    pub fn insert(&mut self, workers: WorkerRange) -> usize {
        let (ours, theirs) = (self.range.indices(), workers.indices());
        let (start, end) = (theirs.start.max(ours.start), theirs.end.min(ours.end));
        let (mut at, end) = (start - ours.start, end.max(start) - ours.start);
        let mut added = 0;
        while at < end {
            let (word, bit) = (at / BITS, at % BITS);
            let count = (BITS - bit).min(end - at);
            let mask = (u64::MAX >> (BITS - count)) << bit;
            added += (mask & !self.words[word]).count_ones() as usize;
            self.words[word] |= mask;
            at += count;
        }
        self.len += added;
        added
    }

    /// Number of workers in the set.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the set has no workers.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether all workers of the range are in the set.
    pub const fn is_full(&self) -> bool {
        self.len == self.range.len()
    }

    /// Whether the set has `worker`.
    pub fn contains(&self, worker: WorkerId) -> bool {
        self.range.position(worker).is_some_and(|at| self.has(at))
    }

    /// The workers of the range that are not in the set.
    pub fn missing(&self) -> impl Iterator<Item = WorkerId> {
        self.range.iter().enumerate().filter(|(at, _)| !self.has(*at)).map(|(_, worker)| worker)
    }

    /// The workers in the set, as ranges that do not touch each other.
    pub fn runs(&self) -> impl Iterator<Item = WorkerRange> {
        let (first, count) = (self.range.indices().start, self.range.len());
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = self.next(at, count, true);
            let end = self.next(start, count, false);
            at = end;
            (start < end).then(|| WorkerRange::new((first + start) as u32..(first + end) as u32))
        })
    }

    fn has(&self, at: usize) -> bool {
        self.words[at / BITS] >> (at % BITS) & 1 == 1
    }

    /// The first position from `at` on whose bit is set, or not set; `count` if there is none.
    fn next(&self, mut at: usize, count: usize, is_set: bool) -> usize {
        while at < count {
            let word = self.words[at / BITS];
            let rest = (if is_set { word } else { !word }) >> (at % BITS);
            if rest != 0 {
                return (at + rest.trailing_zeros() as usize).min(count);
            }
            at += BITS - at % BITS;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_set_has_the_workers_that_were_added(
            range in (0u32..300, 0u32..300),
            added in prop::collection::vec((0u32..400, 0u32..200), 0..6),
        ) {
            let range = WorkerRange::new(range.0..range.0 + range.1);
            let mut set = WorkerSet::new(range);
            let mut model = std::collections::BTreeSet::new();
            for (first, count) in added {
                let workers = WorkerRange::new(first..first + count);
                let new = workers.iter().filter(|worker| range.contains(*worker) && model.insert(*worker)).count();
                prop_assert_eq!(set.insert(workers), new);
            }
            prop_assert_eq!(set.len(), model.len());
            prop_assert!(range.iter().all(|worker| set.contains(worker) == model.contains(&worker)));
            let runs: Vec<WorkerRange> = set.runs().collect();
            prop_assert_eq!(runs.iter().flatten().collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
            prop_assert!(runs.windows(2).all(|pair| pair[0].indices().end < pair[1].indices().start));
            prop_assert_eq!(set.missing().count(), range.len() - model.len());
        }
    }
}
