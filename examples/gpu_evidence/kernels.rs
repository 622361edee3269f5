//! Sums by kernels over shared memory: launched in a row, and replayed from a graph, beside copies of the same size.

use crate::driver;
use crate::seat::{self, PATIENCE, Result, Row, Seat, launch, median, row, sizes, sum, times};

/// Bytes of the sums.
const SIZES: [usize; 8] = [16, 1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 10 << 20];
const CALLS: usize = 20;
const ROUNDS: usize = 15;

/// Launches in a row; and copies on the device of the same bytes, which meet nobody.
pub(crate) fn launches(size: usize) -> Result<Vec<Row>> {
    seat::ranks(size, |seat| {
        let (shared, kernels) = seat.start(PATIENCE)?;
        let stream = driver::stream_of(&mut *seat.queue);
        let calls = times(CALLS);
        let mut rows = Vec::new();
        for bytes in sizes(SIZES) {
            let (src, dst) = seat.operands(bytes)?;
            let op = sum(&src, &dst);
            // All ranks have their memory before any kernel spins.
            seat.finish_all(&shared)?;
            launch(&*kernels, &op)?;
            seat.finish()?;
            kernels.check()?;
            seat.check_sum(&dst)?;
            let launches = || (0..calls).try_for_each(|_| launch(&*kernels, &op));
            rows.push(row("kernel", bytes, repeated(seat, calls, &launches)?));
            let copies = || (0..calls).try_for_each(|_| driver::copy_on_device(&dst, &src, stream));
            rows.push(row("copy", bytes, repeated(seat, calls, &copies)?));
            seat.line();
        }
        seat.finish_all(&shared)?;
        Ok(rows)
    })
}

/// Sums that are part of a graph: right at each replay, and how long one takes.
pub(crate) fn graph(size: usize) -> Result<Vec<Row>> {
    seat::ranks(size, |seat| {
        let (shared, kernels) = seat.start(PATIENCE)?;
        let calls = times(CALLS);
        let mut rows = Vec::new();
        for bytes in sizes(SIZES) {
            let (src, dst) = seat.operands(bytes)?;
            let op = sum(&src, &dst);
            seat.finish_all(&shared)?;
            let sums = || (0..calls).try_for_each(|_| launch(&*kernels, &op));
            let graph = seat.runtime.capture(|| sums().map_err(|error| disco::Error::invalid(error.to_string())))?;
            let replay = || Ok(graph.launch().and_then(|()| kernels.check())?);
            rows.push(row("graph", bytes, repeated(seat, calls, &replay)?));
            kernels.check()?;
            seat.check_sum(&dst)?;
            seat.line();
        }
        seat.finish_all(&shared)?;
        Ok(rows)
    })
}

/// Seconds of one of the `calls` of a round: the median of all rounds.
fn repeated(seat: &mut Seat, calls: usize, work: &dyn Fn() -> Result<()>) -> Result<f64> {
    let rounds = (0..times(ROUNDS)).map(|_| Ok(seat.time(work)? / calls as f64));
    rounds.collect::<Result<Vec<_>>>().map(median)
}
