//! A tensor-parallel layer, y = relu(x·A)·B, on four workers: `cargo run --example tensor_parallel`. With
//! `-- --processes`, the workers are processes.
//!
//! ```text
//! worker i      hᵢ = relu(x·Aᵢ)     Aᵢ: a block of columns of A
//!               yᵢ = hᵢ·Bᵢ          Bᵢ: the rows of B with the same numbers
//! all workers   y = y₀ + y₁ + …     one all_reduce
//! ```

use std::ops::Range;

use disco::prelude::*;

const INPUT: usize = 64;
const HIDDEN: usize = 256;
const WORKERS: usize = 4;

/// An element of a matrix of weights. A real program reads the weights from files.
fn weight(matrix: u8, row: usize, column: usize) -> f32 {
    ((row * usize::from(matrix) + row * column + column * 3) % 11) as f32 / 11.0 - 0.4
}

/// x·w, where `w` is a row-major matrix with `columns` columns.
fn product(x: &[f32], columns: usize, w: &[f32]) -> Vec<f32> {
    let column = |c| x.iter().enumerate().map(|(r, x)| x * w[r * columns + c]).sum();
    (0..columns).map(column).collect()
}

fn relu(x: Vec<f32>) -> Vec<f32> {
    x.into_iter().map(|x| x.max(0.0)).collect()
}

/// The hidden units of this worker: its columns of A, and its rows of B.
fn own_units(ctx: &WorkerContext) -> Range<usize> {
    let (worker, units) = (ctx.worker().index(), HIDDEN / ctx.world().size());
    worker * units..(worker + 1) * units
}

/// A block of a matrix, in row-major order.
fn block(matrix: u8, rows: Range<usize>, columns: Range<usize>) -> Vec<f32> {
    rows.flat_map(|row| columns.clone().map(move |column| weight(matrix, row, column))).collect()
}

/// Worker function: makes this worker's columns of A. The tensor stays on the worker.
fn columns_of_a(ctx: &mut WorkerContext) -> disco::Result<Tensor> {
    let units = own_units(ctx);
    Tensor::from_slice(&block(b'A', 0..INPUT, units.clone()), [INPUT, units.len()])
}

/// Worker function: makes this worker's rows of B.
fn rows_of_b(ctx: &mut WorkerContext) -> disco::Result<Tensor> {
    let units = own_units(ctx);
    Tensor::from_slice(&block(b'B', units.clone(), 0..INPUT), [units.len(), INPUT])
}

/// Worker function: the layer. Every worker gets the whole `x`, and its own parts of A and B; the result is the whole
/// y.
fn layer(ctx: &mut WorkerContext, x: Tensor, a: Tensor, b: Tensor) -> disco::Result<Tensor> {
    let hidden = relu(product(&x.view()?, own_units(ctx).len(), &a.view()?));
    let y = Tensor::from_slice(&product(&hidden, INPUT, &b.view()?), [INPUT])?;
    ctx.comm()?.all_reduce_in_place(&y, Reduction::Sum)?;
    Ok(y)
}

disco::register_function!("example.columns_of_a", columns_of_a);
disco::register_function!("example.rows_of_b", rows_of_b);
disco::register_function!("example.layer", layer);

fn main() -> disco::Result<()> {
    // Where the session starts this program again as a worker, `init` serves the worker and does not return.
    disco::init();
    let x: Vec<f32> = (0..INPUT).map(|i| i as f32 / INPUT as f32).collect();
    let is_process = std::env::args().any(|arg| arg == "--processes");
    let session = if is_process { Builder::processes(WORKERS) } else { Builder::threads(WORKERS) }.start()?;
    let y = disco::block_on(async {
        session.init_ccl("local", &[]).await?;
        // `a` and `b` are handles: each stands for one tensor on every worker.
        let a = session.call("example.columns_of_a", ()).await?;
        let b = session.call("example.rows_of_b", ()).await?;
        let x = Tensor::from_slice(&x, [INPUT])?;
        let y = session.call("example.layer", (&x, &a, &b)).await?;
        // All workers have the same y.
        let y: Tensor = session.get(&y, 0.into()).await?;
        session.shutdown().await?;
        y.to_vec::<f32>()
    })?;

    // The same layer without workers.
    let hidden = relu(product(&x, HIDDEN, &block(b'A', 0..INPUT, 0..HIDDEN)));
    let expected = product(&hidden, INPUT, &block(b'B', 0..HIDDEN, 0..INPUT));
    let error = y.iter().zip(&expected).map(|(y, expected)| (y - expected).abs()).fold(0.0, f32::max);
    assert!(error < 1e-3, "the layer on {WORKERS} workers differs by {error}");
    println!("{WORKERS} workers: y[0] = {:.4}; largest difference from one worker {error:.1e}", y[0]);
    Ok(())
}
