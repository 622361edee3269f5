//! A reduction of the program's own: the mean and the variance of samples that are divided among the workers.
//!
//! `cargo run --example own_reduction`; with workers in processes of their own: `… -- --processes`.

use disco::{Builder, CommunicatorExt, Reduction, Tensor, WorkerContext};

const MOMENTS: Reduction = Reduction::Custom("own_reduction.moments");

disco::register_reduction!(MOMENTS.name(), f64, merge);
disco::register_function!("own_reduction.describe", describe);

/// Merges rows of `[count, mean, sum of squared differences from the mean]`, by the formulas of Chan, Golub and LeVeque.
fn merge(into: &mut [f64], from: &[f64], _row: usize) {
    for (a, b) in into.as_chunks_mut::<3>().0.iter_mut().zip(from.as_chunks::<3>().0) {
        let (count, difference) = (a[0] + b[0], b[1] - a[1]);
        *a = [count, a[1] + difference * b[0] / count, a[2] + b[2] + difference * difference * a[0] * b[0] / count];
    }
}

/// Element `index` of column 0 or 1 of the samples. The numbers of column 0 are large, and differ little.
fn sample(index: usize, column: usize) -> f64 {
    [1e9 + (index % 10) as f64, index as f64][column]
}

/// Worker function: count, mean and variance of each column over all workers, as a tensor of the shape `[2, 3]`.
fn describe(ctx: &mut WorkerContext, samples: usize) -> disco::Result<Tensor> {
    let (first, step) = (ctx.worker().index(), ctx.world().size());
    let mut moments = Vec::new();
    for column in 0..2 {
        let own: Vec<f64> = (first..samples).step_by(step).map(|index| sample(index, column)).collect();
        let mean = own.iter().sum::<f64>() / own.len() as f64;
        moments.extend([own.len() as f64, mean, own.iter().map(|x| (x - mean).powi(2)).sum()]);
    }
    let moments = Tensor::from_vec(moments, [2, 3])?;
    ctx.comm()?.all_reduce_in_place(&moments, MOMENTS)?;
    moments.view_mut::<f64>()?.as_chunks_mut::<3>().0.iter_mut().for_each(|row| row[2] /= row[0]);
    Ok(moments)
}

fn main() -> disco::Result<()> {
    disco::init();
    let processes = std::env::args().any(|argument| argument == "--processes");
    let session = if processes { Builder::processes(3) } else { Builder::threads(3) }.start()?;
    disco::block_on(async {
        session.init_ccl("local", &[]).await?;
        let moments = session.call("own_reduction.describe", (1000,)).await?;
        for (worker, moments) in session.world().workers().zip(session.get_all::<Tensor>(&moments).await?) {
            let rows = moments.to_vec::<f64>()?;
            println!("{worker}: {rows:?}");
            assert!((rows[1] - 1e9 - 4.5).abs() < 1e-6 && (rows[2] - 8.25).abs() < 1e-6);
        }
        session.shutdown().await
    })
}
