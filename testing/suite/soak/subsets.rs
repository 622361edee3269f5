//! Subsets of a session, which are used beside it.

use std::sync::Arc;

use disco::{LaneSession, block_on};

use super::random::Random;
use super::user::{User, Wrong, poll, words};
use super::watch;

/// Starts a subset of random workers in a random order, with communicators of `backend`.
pub(crate) fn start(parent: &LaneSession, backend: &str, random: &mut Random) -> Wrong<Arc<LaneSession>> {
    let size = parent.world().size();
    let (mut workers, count) = ((0..size as u32).collect::<Vec<_>>(), 1 + random.below(size));
    (0..count).for_each(|at| workers.swap(at, at + random.below(size - at)));
    workers.truncate(count);
    let divisors: Vec<usize> = (1..=count).filter(|groups| count.is_multiple_of(*groups)).collect();
    let groups = random.pick(&divisors);
    watch::step(format_args!("subset of workers {workers:?} in {groups} groups"));
    if random.chance(20) {
        poll(random.below(4), parent.subset(workers.iter().copied(), 1));
    }
    let subset = words(block_on(parent.subset(workers, groups)))?;
    words(block_on(subset.init_ccl(backend, &[])))?;
    Ok(subset)
}

/// Uses a subset, which may fail and recover meanwhile.
pub(crate) fn run(subset: &LaneSession, backend: &str, mut random: Random) -> Wrong<()> {
    let mut user = User::new(subset, random.fork());
    user.run(2 + random.below(8))?;
    if random.chance(40) {
        let worker = random.below(subset.world().size()) as i64;
        watch::step(format_args!("failure of worker {worker} of a subset"));
        words(block_on(subset.call("soak.fail", (worker, "error"))))?;
        match block_on(subset.sync_all()) {
            Err(error) if error.to_string().contains("on purpose") => {}
            other => return Err(format!("after a failure in a subset, sync_all gave {other:?}")),
        }
        words(block_on(subset.init_ccl(backend, &[])))?;
        user.check_all()?;
    }
    user.run(random.below(4))
}
