//! A sum over the workers that runs while they compute. `cargo run --release --example started_collective`

use std::time::{Duration, Instant};

use disco::{Builder, CommunicatorExt, Reduction, Result, Tensor, Work, WorkerContext, WorkerId};

/// Layers of a model, and elements of each one's gradient.
const LAYERS: usize = 8;
const ELEMENTS: usize = 4 << 20;

/// Makes one gradient after the other and sums each over the workers. Returns the seconds, once with sums that run while
/// the next gradient is made and once without, and the largest element.
fn step(ctx: &mut WorkerContext, overlaps: bool) -> Result<(f64, f32)> {
    let gradients =
        (0..LAYERS).map(|_| Tensor::from_vec(vec![1f32; ELEMENTS], ELEMENTS)).collect::<Result<Vec<_>>>()?;
    let (mut sums, begin) = (Vec::new(), Instant::now());
    for gradient in &gradients {
        // A device that computes: the host has nothing to do.
        std::thread::sleep(Duration::from_millis(20));
        let sum = ctx.comm()?.start_all_reduce_in_place(gradient, Reduction::Sum)?;
        if overlaps {
            sums.push(sum);
        } else {
            sum.wait()?;
        }
    }
    // The tensors are claimed until the operations end.
    sums.iter().try_for_each(Work::wait)?;
    let seconds = begin.elapsed().as_secs_f64();
    let largest = gradients.iter().map(|sum| Ok(sum.view::<f32>()?.iter().copied().fold(0.0, f32::max)));
    Ok((seconds, largest.collect::<Result<Vec<_>>>()?.into_iter().fold(0.0, f32::max)))
}

disco::register_function!("started.step", step);

fn main() -> Result<()> {
    let session = Builder::threads(2).start()?;
    disco::block_on(async {
        session.init_ccl("local", &[]).await?;
        for overlaps in [false, true, true] {
            let result = session.call("started.step", (overlaps,)).await?;
            let (seconds, sum): (f64, f32) = session.get(&result, WorkerId::new(0)).await?;
            assert_eq!(sum, 2.0);
            println!(
                "{} {:.0} ms",
                if overlaps { "beside the computation:" } else { "one after the other:" },
                seconds * 1e3
            );
        }
        session.shutdown().await
    })
}
