//! Attention heads of each rank.

use std::ops::Range;

use candle_core::{Error, Result};

/// Which attention heads each rank computes. The heads need not divide by the number of ranks.
///
/// In grouped-query attention, `heads / kv_heads` query heads in a row share one key-value head. Each rank has a range
/// of query heads, whose sizes differ by one at most with [`HeadPlan::new`], and the key-value heads that they use. A key-value head whose
/// query heads are on several ranks is on each of them. If there are more ranks than query heads, the last ones have none.
///
/// ```
/// use disco_candle::HeadPlan;
///
/// // SmolLM2-135M: 9 query heads, 3 key-value heads.
/// let plan = HeadPlan::new(9, 3, 2)?;
/// assert_eq!((plan.query(0), plan.kv(0)), (0..5, 0..2));
/// assert_eq!((plan.query(1), plan.kv(1)), (5..9, 1..3));
/// // Three query heads of rank 0 share its first key-value head, and two the next one.
/// assert_eq!(plan.groups(0), [0..3, 3..5]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadPlan {
    /// Query heads that share a key-value head.
    queries_per_kv: usize,
    query: Vec<Range<usize>>,
}

impl HeadPlan {
    /// The plan of `ranks` ranks for `heads` query heads and `kv_heads` key-value heads. If ranks can have whole groups
    /// of query heads, they do, so that no key-value head is on two ranks.
    ///
    /// # Errors
    /// The query heads do not divide by the key-value heads, or there is no rank.
    pub fn new(heads: usize, kv_heads: usize, ranks: usize) -> Result<Self> {
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(Error::Msg(format!("{heads} query heads do not divide by {kv_heads} key-value heads")));
        }
        if ranks == 0 {
            return Err(Error::Msg(format!("{heads} query heads can't be split over 0 ranks")));
        }
        let queries_per_kv = heads / kv_heads;
        // Whole groups only where they balance as well as single heads do.
        let unit = if kv_heads.is_multiple_of(ranks) { queries_per_kv } else { 1 };
        let query = even_ranges(heads / unit, ranks).map(|range| range.start * unit..range.end * unit).collect();
        Ok(Self { queries_per_kv, query })
    }

    /// The plan in which rank `r` has the query heads `query[r]`: all heads, in rank order.
    ///
    /// # Errors
    /// The query heads do not divide by the key-value heads, or the ranges are not all heads in rank order.
    pub fn of_ranges(heads: usize, kv_heads: usize, query: Vec<Range<usize>>) -> Result<Self> {
        let ends = query.iter().try_fold(0, |end, own| (own.start == end && own.end >= end).then_some(own.end));
        if ends != Some(heads) {
            return Err(Error::Msg(format!("{query:?} are not all of {heads} query heads in rank order")));
        }
        Ok(Self { query, ..Self::new(heads, kv_heads, 1)? })
    }

    /// The query heads of rank `rank`.
    pub fn query(&self, rank: usize) -> Range<usize> {
        self.query[rank].clone()
    }

    /// The elements of the query heads of each rank, of which each has `width`.
    pub fn elements(&self, width: usize) -> impl Iterator<Item = Range<usize>> {
        self.query.iter().map(move |own| own.start * width..own.end * width)
    }

    /// The key-value heads of rank `rank`.
    pub fn kv(&self, rank: usize) -> Range<usize> {
        let query = self.query(rank);
        query.start / self.queries_per_kv..query.end.div_ceil(self.queries_per_kv)
    }

    /// For each key-value head of rank `rank`, the query heads that share it, counted from the first one of the rank.
    pub fn groups(&self, rank: usize) -> Vec<Range<usize>> {
        let query = self.query(rank);
        let group = |kv: usize| {
            let (start, end) = (kv * self.queries_per_kv, (kv + 1) * self.queries_per_kv);
            start.max(query.start) - query.start..end.min(query.end) - query.start
        };
        self.kv(rank).map(group).collect()
    }
}

/// `count` items in `ranks` ranges, whose lengths differ by one at most, the longer ones first.
pub fn even_ranges(count: usize, ranks: usize) -> impl Iterator<Item = Range<usize>> {
    let (each, longer) = (count / ranks, count % ranks);
    (0..ranks).map(move |rank| {
        let start = rank * each + rank.min(longer);
        start..start + each + usize::from(rank < longer)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_query_head_is_on_one_rank_beside_its_key_value_head() {
        for (heads, kv_heads) in [(9, 3), (32, 8), (6, 6), (7, 1), (1, 1)] {
            for ranks in 1..=heads + 3 {
                let plan = HeadPlan::new(heads, kv_heads, ranks).unwrap();
                let all: Vec<usize> = (0..ranks).flat_map(|rank| plan.query(rank)).collect();
                assert_eq!(all, (0..heads).collect::<Vec<_>>());
                for rank in 0..ranks {
                    let expected = plan.query(rank).map(|head| head / (heads / kv_heads));
                    let groups = plan.kv(rank).zip(plan.groups(rank));
                    let found = groups.flat_map(|(kv, group)| std::iter::repeat_n(kv, group.len()));
                    assert!(found.eq(expected), "{plan:?} rank {rank}");
                    assert!(plan.query(rank).len() <= heads.div_ceil(ranks));
                }
            }
        }
    }

    #[test]
    fn ranks_have_whole_groups_where_the_key_value_heads_divide() {
        let plan = HeadPlan::new(12, 4, 2).unwrap();
        assert_eq!([plan.kv(0), plan.kv(1)], [0..2, 2..4]);
    }

    #[test]
    fn impossible_plans_are_errors() {
        let error = HeadPlan::new(9, 2, 1).unwrap_err().to_string();
        assert_eq!(error, "9 query heads do not divide by 2 key-value heads");
        HeadPlan::new(3, 3, 0).unwrap_err();
    }
}
