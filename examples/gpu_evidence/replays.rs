//! Time of a sum in a graph of the operations of `nccl` and of `cuda_p2p`; the result of each launch is checked.

use std::time::Instant;

use disco::nccl::cuda::capture;
use disco::{CommunicatorExt as _, DType, Tensor, WorkerContext};

use crate::ranks::{self, Result, Row, median, sum, times};

const SIZES: [usize; 3] = [16, 64 << 10, 1 << 20];
/// Number of sums in a graph.
const CALLS: usize = 20;
const ROUNDS: usize = 15;

disco::register_function!("gpu.replays", on_a_worker);

/// Seconds for each sum, from the launch of the graph until it is done.
pub(crate) fn replays(size: usize) -> Result<Vec<Row>> {
    ranks::on_workers(size, "gpu.replays", "graph", &ranks::sizes(SIZES))
}

fn on_a_worker(ctx: &mut WorkerContext, elements: usize) -> disco::Result<f64> {
    let (src, dst) = (ctx.empty(DType::F32, [elements as i64])?, ctx.empty(DType::F32, [elements as i64])?);
    let (group, calls, ranks) = ([sum(&src, &dst)], times(CALLS), ctx.world().size());
    let graph = capture(ctx, |ctx| (0..calls).try_for_each(|_| ctx.comm()?.enqueue(&group)))?;
    let mut rounds = Vec::new();
    for round in 0..times(ROUNDS) {
        let number = (round + 1) as f32;
        ctx.queue().copy_in(&src, &Tensor::from_slice(&vec![number; elements], [elements as i64])?)?;
        ctx.comm()?.barrier()?;
        let start = Instant::now();
        graph.launch()?;
        ctx.comm()?.synchronize()?;
        rounds.push(start.elapsed().as_secs_f64() / calls as f64);
        let host = Tensor::zeros(DType::F32, [elements as i64])?;
        ctx.queue().copy_out(&host, &dst)?;
        let deadline = ctx.deadline();
        ctx.queue().synchronize(deadline)?;
        if host.to_vec::<f32>()?.iter().any(|found| *found != ranks as f32 * number) {
            return Err(disco::Error::invalid(format!("launch {round} of a graph has a wrong sum")));
        }
    }
    // The first round warms up.
    Ok(median(rounds.split_off(1)))
}
