//! Calls of some workers, arguments by worker, results that one worker returns, streams of results and cancellations.

use std::time::Duration;

use disco::error::ErrorKind;
use disco::{LaneSession, Value, WorkerId, block_on};

use super::random::Random;
use super::user::{Wrong, words};
use super::watch;

/// Calls a function on some workers, each with its own arguments or all with the same.
pub(crate) fn select(session: &LaneSession, random: &mut Random) -> Wrong<()> {
    let (world, x) = (session.world(), random.below(1000) as i64);
    let add = words(block_on(session.function("soak.add")))?;
    if random.chance(50) {
        watch::step("arguments by worker");
        let sum = words(block_on(session.call_each(&add, |worker| (x, worker.wire()))))?;
        let sums: Vec<i64> = words(block_on(session.get_all(&sum)))?;
        let is_right = sums.iter().zip(0..).all(|(sum, worker)| *sum == x + worker);
        return if is_right { Ok(()) } else { Err(format!("arguments by worker gave {sums:?}")) };
    }
    let selected: Vec<u32> = (0..world.size() as u32).filter(|_| random.chance(50)).collect();
    watch::step(format_args!("a call of workers {selected:?}"));
    let sum = words(block_on(session.call_on(selected.iter().copied(), &add, (x, 1))))?;
    let sums: Vec<Option<i64>> = words(block_on(session.get_all(&sum)))?;
    let expected = |worker| selected.contains(&worker).then_some(x + 1);
    let is_right = sums.iter().zip(0..).all(|(sum, worker)| *sum == expected(worker));
    if is_right { Ok(()) } else { Err(format!("a call of workers {selected:?} gave {sums:?}")) }
}

/// Calls a function several times, and takes the results that one worker returns, or some of them.
pub(crate) fn returned(session: &LaneSession, random: &mut Random) -> Wrong<()> {
    let worker = random.below(session.world().size()) as u32;
    let (count, x) = (1 + random.below(5) as i64, random.below(1000) as i64);
    watch::step(format_args!("{count} calls that worker {worker} returns"));
    block_on(async {
        let mut all = Vec::new();
        for number in 0..count {
            all.push(words(session.call_returning(worker, "soak.add", (x, number)).await)?);
        }
        for (returned, number) in all.into_iter().zip(0..) {
            if random.chance(20) {
                continue;
            }
            let sum = words(returned.await)?;
            if sum != Value::Int(x + number) {
                return Err(format!("{x} + {number} of worker {worker} is {sum:?}"));
            }
        }
        Ok(())
    })
}

/// Adds to numbers that outlive their workers.
pub(crate) fn outlive(session: &LaneSession, random: &mut Random) -> Wrong<()> {
    let amount = 1 + random.below(1000) as i64;
    watch::step(format_args!("{amount} is added to memory that outlives workers"));
    let sums: Vec<i64> = words(block_on(async {
        let sums = session.call("soak.outlive", (amount,)).await?;
        session.get_all(&sums).await
    }))?;
    if sums.iter().all(|sum| *sum >= amount) { Ok(()) } else { Err(format!("{amount} was added, which gave {sums:?}")) }
}

/// Takes the results of a running call, all of them or some.
pub(crate) fn stream(session: &LaneSession, random: &mut Random) -> Wrong<()> {
    let (count, dropped_after) = (random.pick(&[0, 1, 16, 17, 100]), random.pick(&[usize::MAX, usize::MAX, 0, 1, 40]));
    watch::step(format_args!("a stream of {count} results of each worker, dropped after {dropped_after}"));
    let workers = session.world().size();
    let taken = block_on(async {
        let emit = words(session.function("soak.emit").await)?;
        let mut results = words(session.call_streaming(&emit, (count as i64,)).await)?;
        let mut next = vec![0; workers];
        while next.iter().sum::<usize>() < dropped_after
            && let Some(result) = results.next().await
        {
            let (worker, value) = words(result)?;
            let number = &mut next[worker.index()];
            if value != Value::Int((1000 * worker.index() + *number) as i64) {
                return Err(format!("result {number} of {worker} is {value:?}"));
            }
            *number += 1;
        }
        Ok(next)
    })?;
    if dropped_after > count * workers && taken.iter().any(|taken| *taken != count) {
        return Err(format!("{taken:?} results arrived in place of {count} of each worker"));
    }
    Ok(())
}

/// Cancels a call at a random moment: before it begins, while it runs, or after its end.
pub(crate) fn cancel(session: &LaneSession, random: &mut Random) -> Wrong<()> {
    let limit = random.below(20) as u64;
    watch::step(format_args!("a call of at most {limit} ms is cancelled"));
    let call = words(block_on(session.call("soak.endure", (limit,))))?;
    random.pause(Duration::from_millis(20));
    words(session.cancel(&call, "on purpose"))?;
    for worker in session.world().workers() {
        match block_on(session.get::<bool>(&call, worker)) {
            Ok(_) => {}
            Err(error) if is_cancelled(&error, worker) => {}
            Err(error) => return Err(format!("a cancelled call gave {error}")),
        }
    }
    Ok(())
}

fn is_cancelled(error: &disco::Error, worker: WorkerId) -> bool {
    error.kind() == ErrorKind::Cancelled && error.to_string().starts_with(&format!("{worker}: soak.endure"))
}
