//! Sums by kernels over shared memory, replayed from a graph.

use crate::ranks::{self, GpuRank, KERNEL_WAIT_LIMIT, Result, Row, launch, median, row, sizes, sum, times};

/// Bytes of the sums.
const SIZES: [usize; 8] = [16, 1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 10 << 20];
const CALLS: usize = 20;
const ROUNDS: usize = 15;

/// Time of a sum in a graph; each replay is checked.
pub(crate) fn graph(size: usize) -> Result<Vec<Row>> {
    ranks::run(size, |rank| {
        let (shared, kernels) = rank.start(KERNEL_WAIT_LIMIT)?;
        let calls = times(CALLS);
        let mut rows = Vec::new();
        for bytes in sizes(SIZES) {
            let (src, dst) = rank.operands(bytes)?;
            let op = sum(&src, &dst);
            rank.finish_all(&shared)?;
            let sums = || (0..calls).try_for_each(|_| launch(&*kernels, &op));
            let graph = rank.runtime.capture(|| sums().map_err(|error| disco::Error::invalid(error.to_string())))?;
            let replay = || Ok(graph.launch().and_then(|()| kernels.check())?);
            rows.push(row("graph", bytes, repeated(rank, calls, &replay)?));
            kernels.check()?;
            rank.check_sum(&dst)?;
            rank.wait_for_all();
        }
        rank.finish_all(&shared)?;
        Ok(rows)
    })
}

/// Seconds of one of the `calls` of a round: the median of all rounds.
fn repeated(rank: &mut GpuRank, calls: usize, work: &dyn Fn() -> Result<()>) -> Result<f64> {
    let rounds = (0..times(ROUNDS)).map(|_| Ok(rank.time(work)? / calls as f64));
    rounds.collect::<Result<Vec<_>>>().map(median)
}
