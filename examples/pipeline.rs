//! A pipeline over groups: each group of workers is a stage and passes micro-batches to the next group. While one stage
//! computes a micro-batch, the previous stage computes the next one. `cargo run --example pipeline`

use disco::{Builder, DType, Error, Result, Tensor, WorkerContext, WorkerId};

const STAGES: usize = 3;
/// Number of workers in each stage; each has micro-batches of its own, as in data-parallel training.
const REPLICAS: usize = 2;
const MICRO_BATCHES: usize = 8;
const ELEMENTS: usize = 1024;

/// The computation of stage `stage`, for one element.
fn transform(stage: usize, x: f32) -> f32 {
    x * (stage + 2) as f32 + 1.0
}

/// Element `i` of micro-batch `batch` of worker `replica` of the first stage.
fn input(replica: usize, batch: usize, i: usize) -> f32 {
    (replica * 100 + batch * 10 + i % 7) as f32
}

/// Worker function: passes all micro-batches through this worker's stage. On the last stage the result is the sum of
/// each micro-batch.
fn stage(ctx: &mut WorkerContext) -> Result<Tensor> {
    let (stage, replica) = (ctx.group().index(), ctx.worker().index() % ctx.world().group_size());
    let sums = Tensor::zeros(DType::F64, [MICRO_BATCHES as i64])?;
    for batch in 0..MICRO_BATCHES {
        let x = Tensor::zeros(DType::F32, [ELEMENTS as i64])?;
        match stage {
            0 => x.view_mut::<f32>()?.iter_mut().enumerate().for_each(|(i, x)| *x = input(replica, batch, i)),
            _ => ctx.recv_from_prev_group(&x)?,
        }
        x.view_mut::<f32>()?.iter_mut().for_each(|x| *x = transform(stage, *x));
        match stage + 1 {
            STAGES => sums.view_mut::<f64>()?[batch] = x.view::<f32>()?.iter().map(|x| f64::from(*x)).sum(),
            _ => ctx.send_to_next_group(&x)?,
        }
    }
    Ok(sums)
}

disco::register_function!("example.stage", stage);

fn main() -> Result<()> {
    let session = Builder::threads(STAGES * REPLICAS).groups(STAGES).start()?;
    disco::block_on(async {
        session.init_ccl("local", &[]).await?;
        let sums = session.call(&session.function("example.stage").await?, ()).await?;
        for replica in 0..REPLICAS {
            let last = WorkerId::new(((STAGES - 1) * REPLICAS + replica) as u32);
            let sums: Tensor = session.get(&sums, last).await?;
            let expected = |batch| {
                let whole = |x| (0..STAGES).fold(x, |x, stage| transform(stage, x));
                (0..ELEMENTS).map(|i| f64::from(whole(input(replica, batch, i)))).sum::<f64>()
            };
            let is_right = sums.to_vec::<f64>()?.iter().enumerate().all(|(batch, sum)| *sum == expected(batch));
            if is_right {
                println!("{last}: {MICRO_BATCHES} micro-batches passed {STAGES} stages")
            } else {
                return Err(Error::invalid(format!("{last}: wrong sums {sums}")));
            }
        }
        session.shutdown().await
    })
}
