//! What is in order although the library's groups are not.

use disco::{DType, DataPlane, Op, Reduction, Session, SessionExt, Tensor, WorkerContext, block_on};

use crate::alone::session;
use crate::on_the_double;

/// Each collective of the group needs the one before.
fn chain(ctx: &mut WorkerContext) -> disco::Result<f64> {
    let host = Tensor::from_slice(&[1.0f32, 2.0], [2])?;
    let mut tensor = || ctx.empty(DType::F32, [2]);
    let (a, b, c) = (tensor()?, tensor()?, tensor()?);
    ctx.queue().copy_in(&a, &host)?;
    let reduce = |src: Option<&Tensor>, dst: &Tensor| Op::AllReduce {
        src: src.cloned(),
        dst: dst.clone(),
        reduction: Reduction::Sum,
    };
    let comm = ctx.comm()?;
    comm.enqueue(&[
        reduce(Some(&a), &b),
        reduce(Some(&b), &c),
        Op::Barrier,
        reduce(None, &c),
        Op::ReduceScatter { src: None, dst: c.clone(), reduction: Reduction::Sum },
        Op::AllToAll { src: None, dst: a.clone() },
        Op::AllToAll { src: None, dst: a.clone() },
    ])?;
    comm.synchronize()?;
    for tensor in [&c, &a] {
        ctx.queue().copy_out(&host, tensor)?;
        let deadline = ctx.deadline();
        ctx.queue().synchronize(deadline)?;
        if tensor.data() == a.data() {
            assert_eq!(host.to_vec::<f32>()?, [1.0, 2.0], "there and back");
        }
    }
    ctx.queue().copy_out(&host, &c)?;
    let deadline = ctx.deadline();
    ctx.queue().synchronize(deadline)?;
    Ok(host.to_vec::<f32>()?[0].into())
}

disco::register_function!("tests.nccl.chain", chain);

on_the_double!(collectives_that_need_each_other_run_in_order, ["GPU_DOUBLE_DELAY_US" = "200"], {
    let session = session(2);
    block_on(async {
        session.init_ccl("nccl", &[]).await.unwrap();
        let function = session.function("tests.nccl.chain").await.unwrap();
        let answer = session.call(&function, ()).await.unwrap();
        for (worker, element) in [(0, 1.0), (1, 2.0)] {
            let found: f64 = session.get_as(&answer, worker.into()).await.unwrap();
            assert_eq!(found, 16.0 * element, "two sums, one in place, and a block of another");
        }
    });
});
