//! Times of collectives.

use std::cmp::Reverse;

use crate::calls::{Call, Calls};

/// The collectives that took longest after their last rank had come, the slowest first.
pub(crate) fn slowest<'c, 'a>(calls: &'c Calls<'a>, count: usize) -> Vec<(&'c Call<'a>, u64)> {
    let mut all: Vec<_> = calls.all.iter().filter_map(|call| Some((call, call.duration()?))).collect();
    all.sort_by_key(|(call, time)| (Reverse(*time), call.comm, call.number));
    all.truncate(count);
    all
}
