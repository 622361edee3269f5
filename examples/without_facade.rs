//! A session without the facade: `disco-core` for the interfaces, `disco-channel` for the workers, `disco-local` for
//! the data plane.
//!
//! Run it with `cargo run --example without_facade`.

use disco_channel::session;
use disco_core::session::Deadlines;
use disco_core::{
    CommunicatorExt, DType, Reduction, Result, Tensor, WorkerConfig, WorkerContext, World, register_function,
};
// Registers the backend `local`: Rust does not link a crate that no code mentions.
use disco_local as _;

register_function!("without_facade.sum", sum);

/// Worker function: the sum of the numbers of all workers.
fn sum(ctx: &mut WorkerContext) -> Result<Tensor> {
    let x = ctx.empty(DType::I64, [1])?;
    x.view_mut::<i64>()?[0] = ctx.worker().wire();
    ctx.comm()?.all_reduce_in_place(&x, Reduction::Sum)?;
    Ok(x)
}

fn main() -> Result<()> {
    let world = World::new(4, 1)?;
    let session = session::threads(WorkerConfig::new(world), Deadlines::default())?;
    // Any executor works.
    pollster::block_on(async {
        session.init_ccl("local", &[]).await?;
        let sums = session.call("without_facade.sum", ()).await?;
        for (worker, sum) in session.get_all::<Tensor>(&sums).await?.iter().enumerate() {
            println!("worker {worker}: {:?}", sum.to_vec::<i64>()?);
            assert_eq!(sum.to_vec::<i64>()?, [6]);
        }
        session.shutdown().await
    })
}
