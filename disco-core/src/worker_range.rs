//! Ranges of consecutive workers.

use std::fmt;
use std::iter::Map;
use std::ops::Range;

use crate::id::WorkerId;

/// Consecutive workers, such as those that a lane reaches.
///
/// ```
/// use disco_core::{WorkerId, WorkerRange};
///
/// let workers = WorkerRange::new(4..8);
/// assert_eq!(workers.to_string(), "workers 4 to 7");
/// assert_eq!(workers.position(WorkerId::new(5)), Some(1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WorkerRange {
    first: u32,
    len: u32,
}

impl WorkerRange {
    /// The workers with these numbers. A range that ends before it starts is empty.
    pub const fn new(numbers: Range<u32>) -> Self {
        Self { first: numbers.start, len: numbers.end.saturating_sub(numbers.start) }
    }

    /// One worker.
    pub const fn one(worker: WorkerId) -> Self {
        Self { first: worker.index() as u32, len: 1 }
    }

    /// The first worker. In an empty range, the worker at which the range starts.
    pub const fn first(&self) -> WorkerId {
        WorkerId::new(self.first)
    }

    /// Number of workers.
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are no workers.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the range contains `worker`.
    pub const fn contains(&self, worker: WorkerId) -> bool {
        self.position(worker).is_some()
    }

    /// The position of `worker` in the range, from 0.
    pub const fn position(&self, worker: WorkerId) -> Option<usize> {
        match worker.index().checked_sub(self.first as usize) {
            Some(position) if position < self.len() => Some(position),
            _ => None,
        }
    }

    /// The worker at this position, from 0.
    pub const fn get(&self, position: usize) -> Option<WorkerId> {
        if position < self.len() { Some(WorkerId::new(self.first + position as u32)) } else { None }
    }

    /// The numbers of the workers.
    pub const fn indices(&self) -> Range<usize> {
        self.first as usize..self.first as usize + self.len()
    }

    /// Each worker, in order.
    pub fn iter(&self) -> Map<Range<usize>, fn(usize) -> WorkerId> {
        self.indices().map(|index| WorkerId::new(index as u32))
    }

    /// The `len` workers from this position on, from 0; fewer if the range ends before.
    pub const fn part(self, position: usize, len: usize) -> Self {
        let skipped = if position < self.len() { position } else { self.len() };
        let rest = self.len() - skipped;
        let len = if len < rest { len } else { rest };
        Self { first: self.first + skipped as u32, len: len as u32 }
    }

    /// The fewest ranges with exactly these workers, which come in order. Neighbours are in one range if `belong` accepts
    /// them.
    pub fn cover(
        workers: impl IntoIterator<Item = WorkerId>,
        belong: impl Fn(WorkerId, WorkerId) -> bool,
    ) -> Vec<Self> {
        let mut ranges: Vec<Self> = Vec::new();
        for worker in workers {
            match ranges.last_mut() {
                Some(last) if last.indices().end == worker.index() && belong(last.first(), worker) => last.len += 1,
                _ => ranges.push(worker.into()),
            }
        }
        ranges
    }

    /// Workers as text, with ranges of their numbers: `workers 0 to 6, 8`.
    pub fn list(workers: &[WorkerId]) -> String {
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        for worker in workers.iter().map(|worker| worker.index()) {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == worker => *last = worker,
                _ => ranges.push((worker, worker)),
            }
        }
        let text: Vec<String> = ranges
            .iter()
            .map(|(first, last)| match last - first {
                0 => first.to_string(),
                1 => format!("{first}, {last}"),
                _ => format!("{first} to {last}"),
            })
            .collect();
        format!("{} {}", if workers.len() == 1 { "worker" } else { "workers" }, text.join(", "))
    }

    /// Consecutive parts of `size` workers each; the last part is shorter if `size` does not divide their number. A
    /// size of 0 counts as 1.
    pub fn chunks(self, size: usize) -> impl Iterator<Item = Self> {
        let size = u32::try_from(size).unwrap_or(u32::MAX).max(1);
        let part = move |skipped| Self { first: self.first + skipped, len: size.min(self.len - skipped) };
        (0..self.len).step_by(size as usize).map(part)
    }
}

impl IntoIterator for WorkerRange {
    type Item = WorkerId;
    type IntoIter = Map<Range<usize>, fn(usize) -> WorkerId>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl IntoIterator for &WorkerRange {
    type Item = WorkerId;
    type IntoIter = Map<Range<usize>, fn(usize) -> WorkerId>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl From<WorkerId> for WorkerRange {
    fn from(worker: WorkerId) -> Self {
        Self::one(worker)
    }
}

impl fmt::Display for WorkerRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.len {
            0 => f.write_str("no workers"),
            1 => self.first().fmt(f),
            more => write!(f, "workers {} to {}", self.first, self.first + (more - 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(workers: WorkerRange) -> Vec<usize> {
        workers.into_iter().map(WorkerId::index).collect()
    }

    #[test]
    fn a_range_is_printed_by_its_first_and_last_worker() {
        assert_eq!(WorkerRange::new(0..4).to_string(), "workers 0 to 3");
        assert_eq!(WorkerRange::one(WorkerId::new(3)).to_string(), "worker 3");
        assert_eq!(WorkerRange::new(3..3).to_string(), "no workers");
        assert_eq!(WorkerRange::one(WorkerId::new(u32::MAX)).to_string(), "worker 4294967295");
    }

    #[test]
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is tested")]
    fn a_range_that_ends_before_it_starts_is_empty() {
        let workers = WorkerRange::new(5..2);
        assert_eq!((workers.len(), workers.is_empty(), ids(workers)), (0, true, vec![]));
        assert_eq!((workers.contains(WorkerId::new(5)), workers.get(0)), (false, None));
    }

    #[test]
    fn position_and_get_are_inverse() {
        let workers = WorkerRange::new(4..7);
        for (position, worker) in workers.into_iter().enumerate() {
            assert_eq!((workers.position(worker), workers.get(position)), (Some(position), Some(worker)));
        }
        assert_eq!([3, 7].map(|worker| workers.position(WorkerId::new(worker))), [None; 2]);
    }

    #[test]
    fn a_part_ends_with_its_range() {
        let part = |position, len| ids(WorkerRange::new(4..8).part(position, len));
        assert_eq!([part(1, 2), part(2, 9), part(4, 1), part(9, 1)], [vec![5, 6], vec![6, 7], vec![], vec![]]);
    }

    #[test]
    fn chunks_contain_all_workers_in_order() {
        let parts = |range, size| WorkerRange::new(range).chunks(size).map(ids).collect::<Vec<_>>();
        assert_eq!(parts(2..6, 2), [[2, 3], [4, 5]]);
        assert_eq!(parts(2..5, 2), [vec![2, 3], vec![4]]);
        assert_eq!(parts(0..2, 0), [[0], [1]]);
        assert_eq!(parts(3..3, 2), Vec::<Vec<usize>>::new());
        let whole = parts(1..3, usize::MAX);
        assert_eq!(whole, [[1, 2]]);
    }
}
